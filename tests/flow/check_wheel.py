"""Is the wheel alone enough, far from this repository?

Built here, installed without its dependencies into an environment of its own that borrows only third-party packages
from this one: so nothing is downloaded, and no file of the repository can help.
"""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import urllib.request
import zipfile
from pathlib import Path

import pytest

from sidecar.cli.free_ports import free_ports

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 60.0
# Settings and paths of this session must not reach in.
ENVIRON = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `dist`, which holds the wheel, and `venv`, in which only that was installed."""
    folder = tmp_path_factory.mktemp("elsewhere")

    def module(*words: str | Path, cwd: Path = folder) -> None:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=cwd, env=ENVIRON, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    module("hatchling", "build", "-t", "wheel", "-d", folder / "dist", cwd=ROOT)
    module("venv", "--without-pip", folder / "venv")
    install = ("install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check")
    module("pip", "--python", folder / "venv" / "bin" / "python", *install, *(folder / "dist").glob("*.whl"))
    # A path from a .pth file is searched, but .pth files in it are not read: the editable sidecar stays out.
    (site_packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return folder


def run(folder: Path, program: str, *words: str) -> str:
    """What it prints; it must end well."""
    command = [folder / "venv" / "bin" / program, *words]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRON, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_it_holds_the_program_and_what_is_shipped_and_nothing_else_and_its_code_is_the_one_that_runs(
    elsewhere: Path,
) -> None:
    (wheel,) = (elsewhere / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"sidecar", f"nhi_sidecar-{wheel.name.split('-')[1]}.dist-info"}
    repository = [*(ROOT / "models").rglob("*.*"), *(ROOT / "policies").rglob("*.*")]
    shipped = {name for name in names if "/_shipped/" in name}
    assert shipped == {f"sidecar/_shipped/{path.relative_to(ROOT)}" for path in repository}
    console = ROOT / "sidecar" / "admin" / "console"
    files = [path for folder in ("templates", "static") for path in (console / folder).rglob("*.*")]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= set(names)
    where = run(elsewhere, "python", "-c", "import sidecar; print(sidecar.__file__)")
    assert Path(where).is_relative_to(elsewhere)


def test_it_writes_a_folder_that_is_valid_and_serves_it(elsewhere: Path) -> None:
    config = elsewhere / "work" / "sidecar.yaml"
    run(elsewhere, "sidecar", "init", "work")
    listen = re.compile(r"^([^#\n]*listen: 127\.0\.0\.1:)\d+", re.MULTILINE)
    config.write_text(listen.sub(lambda found: f"{found[1]}{free_ports(1)[0]}", config.read_text("utf-8")), "utf-8")
    serve = [elsewhere / "venv" / "bin" / "sidecar", "serve", "-c", str(config)]
    with subprocess.Popen(serve, cwd=elsewhere, env=ENVIRON, stderr=subprocess.PIPE, text=True) as serving:
        deadline = threading.Timer(READY_WITHIN_S, serving.kill)
        deadline.start()
        try:
            said = [serving.stderr.readline()]
            while "sidecar serves" not in said[-1]:
                assert said[-1], "".join(said)
                said.append(serving.stderr.readline())
            assert run(elsewhere, "sidecar", "healthcheck", "-c", str(config)) == "ready"
        finally:
            serving.terminate()
            rest = serving.stderr.read()
            deadline.cancel()
    assert serving.returncode == 0, rest


def test_it_shows_the_demo(elsewhere: Path) -> None:
    shown = run(elsewhere, "sidecar", "demo")
    for outcome in ("Allowed", "Denied", "Bad arguments", "Rate-limited"):
        assert outcome in shown


def test_the_demo_stays_with_its_console_until_it_is_interrupted(elsewhere: Path) -> None:
    command = [elsewhere / "venv" / "bin" / "sidecar", "demo", "--stay"]
    with subprocess.Popen(command, cwd=elsewhere, env=ENVIRON, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        deadline = threading.Timer(READY_WITHIN_S, demo.kill)
        deadline.start()
        try:
            said = ""
            while "Calls go on" not in said:
                line = demo.stdout.readline()
                assert line, said
                said += line
            found = re.search(r"The console: (http://\S+/console/)\nIts key: +(\S+)", said)
            assert found
            headers = {"Accept": "application/json", "Authorization": f"Bearer {found[2]}"}
            request = urllib.request.Request(f"{found[1]}now", headers=headers)
            with urllib.request.urlopen(request, timeout=30) as response:
                assert json.loads(response.read())["minute"]["calls"] >= 7
            demo.send_signal(signal.SIGINT)
            assert "was changed, removed" in demo.stdout.read()
            assert demo.wait(READY_WITHIN_S) == 0
        finally:
            deadline.cancel()
            if demo.poll() is None:
                demo.kill()
