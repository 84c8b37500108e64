"""The Dockerfile passes its linter, its steps work in an empty environment; its locks fit both architectures."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from sidecar import __version__
from tests.deploy import ROOT, TOOLS
from tests.flow.world import PATIENCE_S

DOCKERFILE = ROOT / "Dockerfile"
INSTALL_S = 600.0
PYTHON = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)[0]
GLIBC = range(17, 42)  # minor versions that Debian's slim image runs


def instructions(stage: str) -> Iterator[tuple[str, str]]:
    """The instructions of a stage, each with its continued lines, without comments."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    current = ""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            current = rest.rpartition(" AS ")[2]
        elif word and current == stage:
            yield word, " ".join(rest.split())


def test_the_linter_finds_nothing() -> None:
    command = [str(TOOLS / "hadolint"), "--failure-threshold", "info", str(DOCKERFILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_build_without_a_target_makes_the_plain_image_and_git_is_in_its_own() -> None:
    assert DOCKERFILE.read_text().rstrip().endswith("\nFROM runtime")
    assert not [rest for word, rest in instructions("runtime") if word == "RUN"]
    (installs,) = (rest for word, rest in instructions("git") if word == "RUN")
    assert {"git", "openssh-client", "ca-certificates"} <= set(installs.split())
    assert [rest for word, rest in instructions("git") if word == "USER"][-1] == "65532:65532"
    labels = " ".join(rest for word, rest in instructions("runtime") if word == "LABEL")
    named = {one.partition("=")[0].removeprefix("org.opencontainers.image.") for one in shlex.split(labels)}
    assert named == {"title", "description", "licenses", "version", "revision"}
    assert f"ARG VERSION={__version__}\n" in DOCKERFILE.read_text()


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the context: the last line that matches decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and matches(path, pattern):
            ignored = not line.startswith("!")
    return ignored


def matches(path: str, pattern: str) -> bool:
    parents = [path, *map(str, Path(path).parents)]
    name = pattern.removeprefix("**/")
    return any(fnmatch(one, pattern) or (pattern != name and fnmatch(Path(one).name, name)) for one in parents)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the steps of the build ran: /src, /opt, /dist, /data and /accounts of the image are in it."""
    root = tmp_path_factory.mktemp("image")
    (root / "src").mkdir()
    (root / "opt").mkdir()
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    context = [path for path in tracked.stdout.splitlines() if (ROOT / path).is_file() and not is_ignored(path)]
    for word, rest in (*instructions("build"), *instructions("demo-build")):
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                taken = [path for path in context if path == source or path.startswith(f"{source}/")]
                assert taken, f"{source} is not in the context"
                for path in taken:
                    inside = path.removeprefix(f"{source}/") if path != source else Path(path).name
                    folder = target if target.endswith(("/", ".")) or path == source else f"{target}/"
                    copy = root / "src" / (folder if folder != "." else "") / inside
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / path, copy)
        elif word == "RUN":
            step(root, rest)
    return root


def step(root: Path, command: str) -> None:
    """Runs a RUN instruction with the image's folders inside `root`. Left out: the owner of a folder, which only root
    can set, and the bytecode of the standard library, which is this machine's."""
    command = re.sub(r"(?<![\w.}])/(opt|dist|data|accounts)(?=/|\s|$)", rf"{root}/\1", command)
    command = command.replace(" -o 65532 -g 65532", "")
    command = re.sub(r'"\$\(python -c .*?\)\)\'\)"', "", command)
    python = Path(os.path.realpath(sys.executable)).parent
    (root / "bin").mkdir(exist_ok=True)
    if not (root / "bin" / "python").exists():
        (root / "bin" / "python").symlink_to(python / Path(os.path.realpath(sys.executable)).name)
    settings = {name: os.environ[name] for name in ("HOME", "PIP_CONFIG_FILE", "PIP_INDEX_URL") if name in os.environ}
    done = subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=root / "src",
        env={**settings, "PATH": f"{root}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_steps_make_a_sidecar_that_serves_and_writes_nothing_beside_its_data(root: Path, tmp_path: Path) -> None:
    environ = dict(
        one.split("=", 1) for word, rest in instructions("runtime") if word == "ENV" for one in shlex.split(rest)
    )
    environ = {name: value.replace("/opt/sidecar", f"{root}/opt/sidecar") for name, value in environ.items()}
    environ["PATH"] = environ["PATH"].replace("$PATH", "/usr/bin:/bin")
    (command,) = (json.loads(rest) for word, rest in instructions("runtime") if word == "ENTRYPOINT")
    folder, data = tmp_path / "etc", tmp_path / "data"
    folder.mkdir()
    sidecar = str(root / "opt" / "sidecar" / "bin" / command[0])
    subprocess.run([sidecar, "init"], cwd=folder, env=environ, check=True, capture_output=True, timeout=60)
    settings = {f"SIDECAR_{name}__LISTEN": "127.0.0.1:0" for name in ("SERVER", "ADMIN")}
    config = folder / "sidecar.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:8070", "127.0.0.1:0"))
    environ |= {**settings, "SIDECAR_DATA": str(data)}
    before = {path: path.stat().st_mtime_ns for path in (root / "opt").rglob("*")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sidecar, "serve", "-c", str(config)], env=environ, stderr=log)
    try:
        until = time.monotonic() + PATIENCE_S
        while subprocess.run([sidecar, "healthcheck", "-c", str(config)], env=environ, capture_output=True).returncode:
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    assert {path: path.stat().st_mtime_ns for path in (root / "opt").rglob("*")} == before


def test_the_demo_has_what_its_server_and_its_agent_import(root: Path) -> None:
    agent = ROOT / "deploy" / "compose" / "agent.py"
    imports = "".join(line for line in agent.read_text().splitlines(keepends=True) if re.match("import|from", line))
    python = str(root / "opt" / "demo" / "bin" / "python")
    done = subprocess.run([python, "-c", f"import sidecar.cli.demo_server\n{imports}"], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_the_image_has_a_user_for_ssh_and_no_pip(root: Path) -> None:
    accounts = (root / "accounts" / "passwd").read_text().splitlines()
    assert accounts[-1].split(":")[:4] == ["sidecar", "x", "65532", "65532"] and accounts[0].startswith("root:")
    assert (root / "accounts" / "group").read_text().splitlines()[-1] == "sidecar:x:65532:"
    assert not list((root / "opt" / "sidecar").glob("lib/*/site-packages/pip"))
    compiled = list((root / "opt" / "sidecar" / "bytecode").rglob("application.*.pyc"))
    assert compiled, "the image's file system is read-only: bytecode is made in the build"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_locks_have_wheels_for_both_architectures(machine: str, tmp_path: Path) -> None:
    """With `--only-binary` and the hashes of the locks, pip takes nothing else."""
    platforms = [f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in GLIBC)]
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"),
        *("--ignore-installed", "--no-deps", "--only-binary=:all:", "--require-hashes", f"--python-version={PYTHON}"),
        *(f"--platform={platform}" for platform in platforms),
        *(f"--requirement={ROOT / 'deploy' / name}.lock" for name in ("runtime", "demo")),
        *("--target", str(tmp_path / "target"), "--report", str(tmp_path / "report.json")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    assert done.returncode == 0, done.stderr[-2000:]
    wheels = [one["download_info"]["url"] for one in json.loads((tmp_path / "report.json").read_text())["install"]]
    assert any(machine in wheel for wheel in wheels)
    assert all(wheel.endswith(("none-any.whl", f"{machine}.whl")) for wheel in wheels), wheels
