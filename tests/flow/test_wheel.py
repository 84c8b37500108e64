"""Is the wheel alone enough, far from this repository?

Built here, installed without its dependencies into an environment of its own that borrows only third-party packages
from this one: so nothing is downloaded, and no file of the repository can help.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from sidecar.cli.free_ports import free_ports

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 20.0
# Settings and paths of this session must not reach in.
ENVIRON = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}


@dataclass(frozen=True)
class Elsewhere:
    """A folder with an environment in which only the wheel was installed."""

    folder: Path
    wheel: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python.parent / "sidecar", *words],
            cwd=self.folder,
            env=ENVIRON,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"


def command(*words: str | Path, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, env=ENVIRON, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    folder = tmp_path_factory.mktemp("elsewhere")
    command(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist", cwd=ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    made = Elsewhere(folder, wheel)
    command(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    install: tuple[str | Path, ...] = (
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--disable-pip-version-check",
        wheel,
    )
    command(sys.executable, "-m", "pip", "--python", made.python, *install, cwd=folder)
    # A path from a .pth file is searched, but .pth files in it are not read: the editable sidecar stays out.
    (site_packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return made


def test_it_holds_the_program_and_what_is_shipped_and_nothing_else(elsewhere: Elsewhere) -> None:
    names = zipfile.ZipFile(elsewhere.wheel).namelist()
    version = elsewhere.wheel.name.split("-")[1]
    assert {name.split("/")[0] for name in names} == {"sidecar", f"nhi_sidecar-{version}.dist-info"}
    shipped = {name for name in names if "/_shipped/" in name}
    repository = [*(ROOT / "models").rglob("*.*"), *(ROOT / "policies").rglob("*.*")]
    assert shipped == {f"sidecar/_shipped/{path.relative_to(ROOT)}" for path in repository}


def test_its_code_is_the_one_that_runs(elsewhere: Elsewhere) -> None:
    where = subprocess.run(
        [elsewhere.python, "-c", "import sidecar; print(sidecar.__file__)"],
        cwd=elsewhere.folder,
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(elsewhere.folder)


def test_it_writes_a_folder_that_is_valid_and_serves_it(elsewhere: Elsewhere) -> None:
    assert (made := elsewhere.run("init", "work")).returncode == 0, made.stderr
    assert (checked := elsewhere.run("check", "-c", "work/sidecar.yaml")).returncode == 0, checked.stderr
    admin = _with_free_ports(elsewhere.folder / "work" / "sidecar.yaml")
    serving = subprocess.Popen(
        [elsewhere.python.parent / "sidecar", "serve", "-c", "work/sidecar.yaml"],
        cwd=elsewhere.folder,
        env=ENVIRON,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _until_ready(f"http://127.0.0.1:{admin}/readyz", serving)
        healthy = elsewhere.run("healthcheck", "-c", "work/sidecar.yaml")
        serving.send_signal(signal.SIGTERM)
        _, said = serving.communicate(timeout=20)
    finally:
        serving.kill()
        serving.communicate()
    assert (healthy.returncode, healthy.stdout.strip()) == (0, "ready"), healthy.stderr
    assert serving.returncode == 0, said


def test_it_shows_the_demo(elsewhere: Elsewhere) -> None:
    shown = elsewhere.run("demo")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for outcome in ("Allowed", "Denied", "Bad arguments", "Rate-limited"):
        assert outcome in shown.stdout


def _with_free_ports(config: Path) -> int:
    """Give every listener of the file a free port; returns the admin listener's."""

    def free(match: re.Match[str]) -> str:
        return f"{match[1]}{free_ports(1)[0]}"

    text = re.sub(r"(?m)^([^#\n]*listen: 127\.0\.0\.1:)\d+", free, config.read_text("utf-8"))
    config.write_text(text, "utf-8")
    admin = re.search(r"admin:\n  listen: 127\.0\.0\.1:(\d+)", text)
    assert admin
    return int(admin[1])


def _until_ready(url: str, serving: subprocess.Popen[str]) -> None:
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and serving.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    serving.kill()
    pytest.fail(f"not ready: {serving.communicate()[1]}")
