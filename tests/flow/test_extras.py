"""An install without extras: what needs one is refused by name, and the rest works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.cli.free_ports import free_ports
from sidecar.settings.load import EXTRAS

# Read by Python at its start: the packages of the extras are not there.
ABSENT = f"""\
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {tuple(module.split(".")[0] for module in EXTRAS.values())}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
SETTINGS = """\
version: 1
data: data
server: {{listen: "127.0.0.1:{0}", grpc: "127.0.0.1:{1}"}}
admin: {{listen: "127.0.0.1:{2}"}}
audit: {{sink: otlp, otlp: {{url: "http://127.0.0.1:{1}/v1/logs"}}}}
upstreams: {{remote: {{a2a: {{url: "grpc://127.0.0.1:{1}"}}}}}}
agents: {{echo: {{executable: cat}}, idle: {{executable: cat, enabled: false}}}}
"""
NEEDED = [("agents", "agents.executable"), ("grpc", "server.grpc"), ("grpc", "upstreams.url"), ("otel", "audit.otlp")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(ABSENT, "utf-8")
    run(tmp_path, "init", "work")
    return tmp_path


def run(folder: Path, *words: str, without: bool = True) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **({"PYTHONPATH": str(folder)} if without else {})}
    command = [sys.executable, "-m", "sidecar", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


def test_a_setting_names_the_extra_that_it_needs(folder: Path) -> None:
    (folder / "work" / "sidecar.yaml").write_text(SETTINGS.format(*free_ports(3)), "utf-8")
    assert run(folder, "check", "-c", "work/sidecar.yaml", without=False).returncode == 0
    for command in ("check", "serve"):
        done = run(folder, command, "-c", "work/sidecar.yaml")
        found = re.findall(r"sidecar\.yaml:\d+:\d+: .*S190.* extra (\w+) is not installed, which (\S+) n", done.stderr)
        assert (done.returncode, sorted(found)) == (3, NEEDED), done.stderr
        assert "pip install 'nhi-sidecar[grpc]'" in done.stderr


def test_a_folder_that_needs_none_is_valid(folder: Path) -> None:
    done = run(folder, "check", "-c", "work/sidecar.yaml")
    assert done.returncode == 0 and "is valid" in done.stdout, done.stderr
