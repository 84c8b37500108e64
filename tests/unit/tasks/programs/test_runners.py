"""Is each kind of program that is talked with started and heard as its definition says?"""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import ProgramRunner
from sidecar.tasks.programs.one_shot import OneShot
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.tasks.programs.runners import runner_from
from sidecar.upstreams.processes.launcher import Processes
from tests.unit.tasks.programs.talkers import end, order, text, tried

pytestmark = pytest.mark.asyncio(loop_scope="module")
LINES = "import sys\nfor n, line in enumerate(sys.stdin, 1): print(n, line.strip(), flush=True)"
FILE = """
import pathlib, sys
for n, line in enumerate(sys.stdin, 1):
    if line.strip() != "nothing": pathlib.Path(sys.argv[1]).write_text(f"{n} {line.strip()}")
    print("look there", flush=True)
"""
RPC = """
import json, pathlib, sys
for n, line in enumerate(sys.stdin, 1):
    asked = json.loads(line)
    if "id" not in asked: continue
    said = f"{n} {asked['params']['text']}"
    if len(sys.argv) > 1: pathlib.Path(sys.argv[1]).write_text(said)
    result = None if len(sys.argv) > 1 else said
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def definition(source: str, args: tuple[str, ...] = (), **more: Any) -> CliAgent:
    command = {"executable": sys.executable, "args": ["-I", "-S", "-c", source, *args]}
    return CliAgent.model_validate(command | {"mode": "interactive"} | more)


@asynccontextmanager
async def running(processes: Processes, section: CliAgent) -> AsyncGenerator[ProgramRunner]:
    runner = runner_from("chat", section, processes, {})
    assert not isinstance(runner, OneShot)
    try:
        yield runner
    finally:
        await runner.close()


@pytest.mark.parametrize("more", [{"mode": "task"}, {"keep_alive": False}])
async def test_a_json_rpc_program_that_is_not_kept_is_started_anew(processes: Processes, more: dict[str, Any]) -> None:
    async with running(processes, definition(RPC, agent_type="json-rpc", **more)) as runner:
        assert [text(await tried(runner, order(said))) for said in ("one", "two")] == ["1 one", "1 two"]


async def test_whose_input_is_closed_behind_the_prompt_is_not_talked_with(processes: Processes) -> None:
    for more in ({"mode": "task"}, {"keep_alive": False}):
        assert isinstance(runner_from("chat", definition(LINES, **more), processes, {}), OneShot)


async def test_a_file_of_an_earlier_turn_is_no_answer(processes: Processes) -> None:
    async with running(processes, definition(FILE, agent_type="stdin-file")) as runner:
        assert text(await tried(runner, order("one"))) == "1 one"
        assert end(await tried(runner, order("nothing"))).failure == Failure(Category.AGENT, "it wrote no output file")
        assert text(await tried(runner, order("three"))) == "3 three"


async def test_options_come_by_argument_or_with_each_turn(processes: Processes) -> None:
    lines = "import sys\nfor line in sys.stdin: print(*sys.argv[1:], flush=True)"
    spoken = RPC.replace("said =", "said = json.dumps([sys.argv, asked['params']['parameters']]) #")
    spoken = spoken.replace("len(sys.argv) > 1", "False")
    chosen = {"cli_args": {"--language": "de"}}
    program = {"cli_args": {"-I": "", "-S": "", "-c": lines}}  # options stand before arguments
    async with running(
        processes, CliAgent.model_validate({"executable": sys.executable, "mode": "interactive", **program})
    ) as runner:
        assert text(await tried(runner, order("one", **chosen))) == "--language de"
    async with running(processes, definition(spoken, agent_type="json-rpc")) as runner:
        argv, parameters = json.loads(text(await tried(runner, order("one", **chosen))))
        assert (argv, parameters) == (["-c"], {"language": "de"})


async def test_secrets_of_its_environment_never_leave(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("TOKEN=very-secret\n")
    source = LINES.replace("line.strip()", "__import__('os').environ['TOKEN']")
    async with running(processes, definition(source, env_path=str(tmp_path / "env"))) as runner:
        assert text(await tried(runner, order("one"))) == "1 [redacted]"
