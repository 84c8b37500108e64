"""Does what README and docs tell people to type do what they say?

Every page is run as it stands (tests/pages.py has the convention) against the real command, with the demo's server as
upstream. Only the ports are others: the fixed ones of the pages may be taken here.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import yaml

from sidecar.cli.free_ports import free_ports
from tests.flow.world import PATIENT
from tests.pages import NAMES, ROOT, Block, blocks_of
from tests.tables import tables

PORTS = ("8070", "8080", "8090", "9090", "9091", "9100")
WITHIN_S = 90.0  # of a page; it takes two to four seconds on an idle machine
TUTORIAL_WITHIN_S = 300.0  # of its seven pages together; they take 30 seconds
MARK = "@@ after line "
_PORT = re.compile(rf"(?<![\w.])(?:{'|'.join(PORTS)})(?!\w)")
TUTORIAL = "docs/tutorial/"


def blocks_in(name: str) -> list[Block]:
    """The blocks of a page; of the tutorial, those of all its pages in the order of its navigation."""
    if name != TUTORIAL:
        return list(blocks_of((ROOT / name).read_text("utf-8")))
    order = yaml.safe_load((ROOT / TUTORIAL / ".nav.yml").read_text("utf-8"))["nav"]
    texts = [(ROOT / TUTORIAL / page).read_text("utf-8") for page in order]
    starts = accumulate((text.count("\n") for text in texts), initial=0)
    return [
        replace(block, line=start + block.line)
        for start, text in zip(starts, texts, strict=False)
        for block in blocks_of(text)
    ]


UNITS = list(dict.fromkeys(TUTORIAL if name.startswith(TUTORIAL) else name for name in NAMES))
RUNNABLE = [name for name in UNITS if any(block.runs for block in blocks_in(name))]
FIRST = ["README.md", TUTORIAL]
"""What a newcomer types. The other pages are run by tests/flow/check_docs.py."""


def script_of(blocks: list[Block]) -> str:
    """One bash script: files are written where they stand, and after each block a line says that it ended."""
    parts = ["set -eu -o pipefail", "trap 'jobs -p | xargs -r kill; wait' EXIT"]
    for block in blocks:
        if block.file:
            parts.append(f"mkdir -p \"$(dirname {block.file})\"\ncat > {block.file} <<'@@ END'\n{block.text}@@ END")
        if block.runs and block.exit_code:
            parts.append(f"set +e\n{block.text}code=$?\nset -e\n[ $code = {block.exit_code} ]")
        elif block.runs:
            parts.append(block.text)
        if block.runs:
            parts.append(f"printf '\\n{MARK}{block.line}\\n'")
    if any(block.file.startswith(("sidecar.yaml", "policies/")) for block in blocks):
        parts.append("sidecar check")
    return "\n".join(parts) + "\n"


def run(script: str, folder: Path, commands: Path, within_s: float = WITHIN_S) -> tuple[int, str]:
    """The exit code and all that was printed, with the pages' own ports in it."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    home = folder / "home"
    home.mkdir()
    output = folder / "output"
    here = {name: os.environ[name] for name in ("TMPDIR", "LANG") if name in os.environ}
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with output.open("wb") as printed:
        process = subprocess.Popen(
            ["bash", "-c", _PORT.sub(lambda found: ports[found[0]], script)],
            cwd=home,
            env={**here, "PATH": path, "HOME": str(home), "NO_COLOR": "1", **PATIENT},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if code != 0:  # what the script left is its own session's
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
    text = output.read_text("utf-8", "replace")
    for ours, theirs in ports.items():
        text = re.sub(rf"(?<!\d){theirs}(?!\d)", ours, text)
    return code, text


def printed_by(blocks: list[Block], text: str) -> dict[int, str]:
    """Line of a block → what it printed."""
    found: dict[int, str] = {}
    for block in (block for block in blocks if block.runs):
        found[block.line], _, text = text.partition(f"\n{MARK}{block.line}\n")
    return found


def missing_from(printed: str, claimed: str) -> str:
    """The first claimed line that was not printed, in its order; "" if all were."""
    lines = iter(printed.splitlines())
    for claim in claimed.splitlines():
        if claim.strip() in ("", "…"):
            continue
        pattern = re.compile(r".*".join(re.escape(part) for part in claim.rstrip().split("…")))
        if not any(pattern.fullmatch(line.rstrip()) for line in lines):
            return claim
    return ""


def check_claims(blocks: list[Block], text: str, name: str) -> None:
    """What a page says is printed, was."""
    printed = printed_by(blocks, text)
    last = 0
    for block in blocks:
        last = block.line if block.runs else last
        if block.is_output:
            claim = missing_from(printed[last], block.text)
            assert not claim, f"{name}:{block.line}: nothing printed {claim!r}; printed was:\n{printed[last]}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
@pytest.mark.parametrize("name", FIRST)
def test_what_a_page_says_to_type_does_what_it_says(name: str, tmp_path: Path, commands: Path) -> None:
    check_page(name, tmp_path, commands)


def check_page(name: str, tmp_path: Path, commands: Path) -> None:
    blocks = blocks_in(name)
    if any(block.runs and "sidecar serve" in block.text for block in blocks):
        # It says where: the default addresses may be taken here.
        files = [block.text for block in blocks if block.file == "sidecar.yaml"]
        assert all({"8080", "9090"} <= set(_PORT.findall(text)) for text in files)
    within_s = TUTORIAL_WITHIN_S if name == TUTORIAL else WITHIN_S
    code, text = run(script_of(blocks), tmp_path, commands, within_s)
    assert code == 0, f"{name} ended with {code}:\n{text}"
    check_claims(blocks, text, name)


@pytest.mark.parametrize(("printed", "claimed", "missing"), tables("flow/docs")["claims"])
def test_a_claimed_line_is_found_only_where_it_was_printed(printed: str, claimed: str, missing: str) -> None:
    assert missing_from(printed, claimed) == missing


@pytest.mark.parametrize(("head", "command", "good"), [("", "false", 0), (" exit=3", "true", 0), ("", "true", 1)])
def test_a_block_that_does_not_end_as_it_says_fails_the_page(
    head: str, command: str, good: bool, tmp_path: Path, commands: Path
) -> None:
    code, _ = run(script_of(list(blocks_of(f"```sh{head}\n{command}\n```\n"))), tmp_path, commands)
    assert (code == 0) == good
