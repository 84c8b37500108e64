"""Does `sidecar agent check` say whether a program can be an agent, without a sidecar that runs?"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from tests.flow.world import write_folder
from tests.tables import tables

AGENTS = tables("flow/agent_check")["agents"]
ANSWER = """\
import json
asked = json.loads(input())
print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": asked["params"]["text"] + "!"}))
"""
FILES = {"secrets.env": "TOKEN=s3cret-value\n", "answer.py": ANSWER}


async def look(folder: Path, *words: str) -> Result:
    command = ["agent", "check", *words, "-c", str(folder / "sidecar.yaml")]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def report(folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """Of one agent."""
    result = await look(folder, *words, "--json")
    assert result.exit_code == code, result.output
    (one,) = json.loads(result.stdout)["agents"]
    return dict(one)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path, "http://127.0.0.1:9/mcp", settings=AGENTS, files=FILES)
    return tmp_path


async def test_one_that_does_what_it_is_told_is_well_and_told_as_it_is_run(folder: Path) -> None:
    one = await report(folder, "echo", "--prompt", "hello s3cret-value")
    assert (one["status"], one["argv"], one["folder"]) == ("well", ["cat", "-"], None)
    assert {"TOKEN", "LANG", "PATH"} <= set(one["environment"]) and one["path"].startswith("/")
    tried = one["tried"]
    assert (tried["exit_code"], tried["error"], tried["timed_out"]) == (0, None, False)
    assert tried["output"].startswith("hello ") and "s3cret" not in json.dumps(one)
    assert tried["took_s"] > 0 and tried["usage"]["cpu_s"] >= 0
    talked = await report(folder, "talks", "--prompt", "hello")
    assert (talked["status"], talked["tried"]["output"]) == ("well", "you said: hello")
    asked = await report(folder, "asks", "--prompt", "well")
    assert asked["tried"]["output"] == "well!"


async def test_one_that_fails_or_takes_too_long_is_not_well(folder: Path) -> None:
    failed = await report(folder, "fails", code=1)
    assert failed["status"] == "not well" and failed["tried"]["exit_code"] == 3
    assert failed["tried"]["error"] == {"category": "agent", "message": "exit code 3: no luck"}
    slow = await report(folder, "sleeps", "--timeout", "0.2", code=1)
    assert slow["tried"]["timed_out"] is True


async def test_why_one_cannot_be_started_is_told_whoever_checks_it(folder: Path) -> None:
    """A caller hears what the system said, and nothing of where the program lies."""
    program = folder / "unread"
    program.write_bytes(b"\0no program")
    program.chmod(0o755)
    settings = folder / "sidecar.yaml"
    settings.write_text(settings.read_text().replace("executable: sleep", f"executable: {program}"))
    lines = (await look(folder, "sleeps")).stdout.splitlines()
    why = f"  why           {program} cannot be executed: its first line must name its interpreter"
    assert lines[0] == "sleeps  not well" and why in lines
    assert not any(line.startswith("  ended") for line in lines), "it never began"


async def test_what_writes_is_started_only_by_somebody_who_says_what_it_is_told(folder: Path) -> None:
    one = await report(folder, "writes")
    assert (one["status"], one["tried"]) == ("there", None) and "--prompt" in one["untried"]
    assert not (folder / "written").exists()
    assert (await report(folder, "writes", "--prompt", "", "--no-run"))["tried"] is None
    assert not (folder / "written").exists()
    assert (await report(folder, "writes", "--prompt", ""))["status"] == "well"
    assert (folder / "written").exists()


async def test_for_people_it_is_a_few_lines_and_the_exit_code_says_the_rest(folder: Path) -> None:
    lines = (await look(folder, "echo", "--prompt", "hello")).stdout.splitlines()
    assert lines[0] == "echo  well" and "    hello" in lines
    assert any(line.split()[:4] == ["run", "as", "cat", "-"] for line in lines)
    only = await look(folder, "--no-run")
    assert only.exit_code == 0 and [line for line in only.stdout.splitlines() if line[0] != " "] == [
        f"{name}  there" for name in ("echo", "writes", "fails", "sleeps", "talks", "asks")
    ]
    unknown = await look(folder, "nobody")
    assert unknown.exit_code == 2 and "there is echo, writes" in unknown.stderr
    settings = folder / "sidecar.yaml"
    settings.write_text(settings.read_text().replace("executable: sleep", "executable: no-such-program"))
    invalid = await look(folder)
    assert invalid.exit_code == 3 and "no-such-program" in invalid.stderr and "sidecar.yaml" in invalid.stderr
