"""Installations that are less, or more, than the sidecar: without extras, and with another package of its name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.cli.free_ports import free_ports
from sidecar.cli.init import starting_files, write_files
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
ROOT = Path(__file__).parents[2]
# JupyterLab's package, as its wheel has it.
OTHER = {
    "sidecar/_version.py": '__version__ = "0.8.1"\n',
    "sidecar/sidecar.py": "class Sidecar: ...\n",
    "sidecar-0.8.1.dist-info/METADATA": "Metadata-Version: 2.4\nName: sidecar\nVersion: 0.8.1\n",
}
OTHER_INIT = "from ._version import __version__\nfrom .sidecar import Sidecar\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(ABSENT, "utf-8")
    write_files(tmp_path / "work", starting_files())
    return tmp_path


def run(folder: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(path or folder)}
    command = [sys.executable, "-m", "sidecar", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


def test_a_setting_names_the_extra_that_it_needs(folder: Path) -> None:
    (folder / "work" / "sidecar.yaml").write_text(SETTINGS.format(*free_ports(3)), "utf-8")
    assert run(folder, "check", "-c", "work/sidecar.yaml", path=ROOT).returncode == 0
    for command in ("check", "serve"):
        done = run(folder, command, "-c", "work/sidecar.yaml")
        found = re.findall(r"\bextra (\w+) is not installed, which (\S+) needs", done.stderr)
        assert done.stderr.count("S190") == len(NEEDED)
        assert (done.returncode, sorted(found)) == (3, NEEDED), done.stderr
        assert "pip install 'nhi-sidecar[grpc]'" in done.stderr


def test_a_folder_that_needs_none_is_valid(folder: Path) -> None:
    done = run(folder, "check", "-c", "work/sidecar.yaml")
    assert done.returncode == 0 and "is valid" in done.stdout, done.stderr


@pytest.mark.parametrize("last", ["nhi-sidecar", "sidecar"])
@pytest.mark.parametrize("command", ["check", "serve"])
def test_the_other_package_of_this_name_is_named(last: str, command: str, tmp_path: Path) -> None:
    """Both in one folder, and the one that was installed last has its `__init__.py` there."""
    site = tmp_path / "site"
    (site / "sidecar").mkdir(parents=True)
    for path in (ROOT / "sidecar").iterdir():
        (site / "sidecar" / path.name).symlink_to(path)
    for name, text in OTHER.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text, "utf-8")
    if last == "sidecar":
        (site / "sidecar/__init__.py").unlink()
        (site / "sidecar/__init__.py").write_text(OTHER_INIT, "utf-8")
    done = run(tmp_path, command, path=site)
    assert done.returncode == 3, done.stderr
    assert f"{site} also holds JupyterLab's package sidecar 0.8.1, which overwrites files" in done.stderr
    assert "fresh virtual environment" in done.stderr
