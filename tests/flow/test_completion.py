"""Shell completion, in real shells: keys are typed on a terminal of their own."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.flow.forks import sidecar

WITHIN_S = 30.0
# The files that each shell reads at its start. The last line shows that they were read.
START = {
    "bash": {"start": """bind 'set bell-style none'; bind 'set enable-bracketed-paste off'"""},
    "zsh": {".zshenv": "{found}", ".zshrc": "unset zle_bracketed_paste; autoload -Uz compinit; compinit -u -D"},
}
WORDS = {"bash": ["--noprofile", "--rcfile", "start", "-i"], "zsh": ["-d", "-i"]}
CASES = [
    ("sidecar policy rep\t", "sidecar policy replay "),
    ("sidecar policy test --cov\t", "sidecar policy test --coverage "),
    ("sidecar completion f\t", "sidecar completion fish "),
    ("sidecar check -c side\t", "sidecar check -c sidecar.yaml"),
]


def shell(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}")
    return Path(found).resolve()


def environ(program: Path, home: Path) -> dict[str, str]:
    path = f"{Path(sidecar()).parent}:{os.environ['PATH']}"
    here = {"PATH": path, "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8"}
    unpacked = program.parents[1] if program.parents[1].name != "usr" else program.parents[2]
    if unpacked != Path("/"):  # a package that is unpacked and not installed
        here["LD_LIBRARY_PATH"] = ":".join(map(str, unpacked.glob("usr/lib/*-linux-gnu")))
    return here


def zsh_paths(program: Path) -> str:
    """Names the functions and modules of a zsh that is unpacked and not installed."""
    top = program.parents[1]
    if top in (Path("/"), Path("/usr")):
        return ""
    functions = sorted({path.parent for path in top.glob("usr/share/zsh/functions/**/*") if path.is_file()})
    (modules,) = top.glob("usr/lib/*/zsh/*")
    return f"module_path=({modules}); fpath=({' '.join(map(str, functions))})"


class Terminal:
    """A shell on a pseudo-terminal."""

    def __init__(self, program: Path, words: list[str], home: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [program, *words], cwd=home, env=environ(program, home), stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read_until(self, pattern: str) -> str:
        """What the terminal shows, until it ends with the pattern."""
        shown, deadline = "", time.monotonic() + WITHIN_S
        while not re.search(pattern + r"$", shown):
            ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"it shows {shown!r}"
            shown += os.read(self._ours, 65536).decode("utf-8", "replace").replace("\x07", "")
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_a_tab_completes_commands_options_and_files(name: str, tmp_path: Path) -> None:
    program = shell(name)
    (tmp_path / "sidecar.yaml").touch()
    for file, text in START[name].items():
        (tmp_path / file).write_text(text.replace("{found}", zsh_paths(program)) + "\n", "utf-8")
    last = tmp_path / [*START[name]][-1]
    last.write_text(f"{last.read_text('utf-8')}eval \"$(sidecar completion {name})\"\nPS1='ready> '\n", "utf-8")
    terminal = Terminal(program, WORDS[name], tmp_path)
    try:
        terminal.read_until(r"ready> [^\n]*")
        for typed, line in CASES:
            terminal.type(typed)
            terminal.read_until(re.escape(line) + r"[^\n>]*")
            terminal.type("\x15")  # erases the line
    finally:
        terminal.close()


def test_fish_completes_them_with_their_help(tmp_path: Path) -> None:
    program = shell("fish")
    (tmp_path / "sidecar.yaml").touch()
    asked = "; ".join(f"complete -C '{typed[:-1]}'" for typed, _ in CASES)
    functions = program.parents[1] / "share/fish/functions"  # of one that is unpacked and not installed
    script = f"set -p fish_function_path {functions}; sidecar completion fish | source; {asked}"
    done = subprocess.run(
        [program, "--no-config", "-c", script], cwd=tmp_path, env=environ(program, tmp_path), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=WITHIN_S,
    )  # fmt: skip
    lines = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert lines == [line.split()[-1] for _, line in CASES], done.stdout + done.stderr
    assert "Decide recorded calls" in done.stdout


def test_a_group_is_completed_without_importing_its_commands() -> None:
    code = "import sys; from sidecar.cli import main; main(standalone_mode=False)"
    asked = {"COMP_WORDS": "-c ", "COMP_CWORD": "1", "__C_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], env={**os.environ, **asked}, capture_output=True, text=True,
        timeout=WITHIN_S,
    )  # fmt: skip
    assert "plain,policy" in done.stdout
    assert "sidecar.cli.lazy_group" in done.stderr and "sidecar.cli.check" not in done.stderr
