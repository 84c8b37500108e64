"""How is a program asked once over JSON-RPC?"""

import asyncio
import shutil

import pytest

from sidecar.tasks.programs.attempt import OutputChunk, ProgressNote, Started
from sidecar.tasks.programs.conversations import Conversations
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.upstreams.processes.launcher import Exit, Processes
from tests.flow.world import until
from tests.pages import ROOT, blocks_of
from tests.unit.tasks.programs.talkers import RPC, Launcher, definition, end, order, text, tried
from tests.unit.upstreams.processes.test_launcher import dies

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASK = definition(mode="task", agent_type="json-rpc")


def once(launcher: Launcher) -> Conversations:
    return Conversations("chat", TASK, launcher)


async def test_it_is_asked_answers_hears_the_end_of_its_input_and_ends(processes: Processes) -> None:
    launcher = Launcher(processes, RPC + "print('and goes', file=sys.stderr)\nsys.exit(7)", TASK)
    events = await tried(once(launcher), order("one"))
    assert events[:2] == [Started(launcher.started[0].pid), OutputChunk("1 one")]
    assert (end(events).failure, end(events).exit) == (None, Exit(code=7))  # what it answered is what counts
    assert end(events).usage.cpu_s > 0
    await dies(launcher.started[0].pid, 5)
    source = """input(); print('{"jsonrpc": "2.0", "id": 1, "result": "done"}', end="")"""
    unended = await tried(once(Launcher(processes, source, TASK)), order("one"))
    assert text(unended) == "done", "without a line end"


async def test_what_cannot_begin_says_whose_fault_it_was(processes: Processes) -> None:
    launcher = Launcher(processes, RPC, TASK)
    (unsaid,) = await tried(once(launcher), order("\ud800"))
    launcher.names("/nowhere/at-all")
    (gone,) = await tried(once(launcher), order("one"))
    assert (unsaid.failure.category, launcher.started) == (Category.PERMANENT, [])
    assert gone.failure == Failure(Category.PERMANENT, "it cannot be started: No such file or directory")


@pytest.mark.parametrize("said", ["exit", "hang", "agree"])
async def test_what_fails_takes_too_long_or_is_given_up_leaves_nothing(
    processes: Processes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace_s = 30.0 if said == "agree" else 0.05  # who agrees is not waited for until the grace is over
    monkeypatch.setattr("sidecar.tasks.programs.conversation.CANCEL_GRACE_S", grace_s)
    launcher = Launcher(processes, RPC.replace('{"state": "canceled"}', "None"), TASK)
    runner = once(launcher)
    if said == "agree":
        events = runner.run(order(said))
        assert isinstance(await anext(events), Started)
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.05)
        waiting.cancel()
        async with asyncio.timeout(15.0):
            await asyncio.wait({waiting})
            await events.aclose()
    else:
        ended = end(await tried(runner, order(said, deadline_s=5.0 if said == "exit" else 0.5)))
        assert ended.timed_out is (said == "hang") and ended.failure.category is Category.AGENT
    await dies(launcher.started[0].pid, 5)
    await until(lambda: (runner.count, len(runner._conversations)) == (0, 0))


async def test_the_programs_that_the_documentation_shows_work(processes: Processes) -> None:
    blocks = blocks_of((ROOT / "docs" / "reference" / "cli-agents.md").read_text("utf-8"))
    page = {block.language: block.text for block in blocks if block.language == "python" or "jq" in block.text}
    runner = once(Launcher(processes, page["python"], TASK))
    counted = await tried(runner, order("to be or not"))
    assert ProgressNote("counting", 1, 2) in counted and text(counted) == "4 words"
    assert end(await tried(runner, order(" "))).state == "TASK_STATE_INPUT_REQUIRED"
    if shutil.which("jq"):
        launcher = Launcher(processes, "", TASK)
        launcher.names("/bin/sh", "-c", page["text"])
        assert text(await tried(once(launcher), order("to be or not"))) == "4 words"
