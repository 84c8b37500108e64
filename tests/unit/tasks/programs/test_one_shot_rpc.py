"""How is a program asked once over JSON-RPC?"""

from __future__ import annotations

import asyncio
import shutil

import pytest

from sidecar.tasks.programs.attempt import OutputChunk, ProgressNote, Started
from sidecar.tasks.programs.conversations import Conversations
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.upstreams.processes import Exit, Processes
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
    assert text(await tried(once(Launcher(processes, source, TASK)), order("one"))) == "done", "without a line end"


@pytest.mark.parametrize(
    ("said", "category", "message", "begins"),
    [
        ("exit", Category.AGENT, "exit code 3", 1),
        ("fail", Category.TRANSIENT, "busy", 1),
        ("break", Category.AGENT, "it wrote a line that is no JSON-RPC message", 1),
        ("\ud800", Category.PERMANENT, "", 0),
        ("gone", Category.PERMANENT, "it cannot be started: No such file or directory", 0),
    ],
)
async def test_what_comes_to_nothing_says_whose_fault_it_was(
    processes: Processes, said: str, category: Category, message: str, begins: int
) -> None:
    launcher = Launcher(processes, RPC, TASK)
    if said == "gone":
        launcher.names("/nowhere/at-all")
    events = await tried(once(launcher), order(said))
    failure = end(events).failure
    assert failure.category is category and failure.message.startswith(message)
    assert sum(isinstance(event, Started) for event in events) == len(launcher.started) == begins
    for one in launcher.started:
        await dies(one.pid, 5)


async def test_progress_never_makes_its_time_longer(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.conversation.CANCEL_GRACE_S", 0.05)
    launcher = Launcher(processes, RPC, TASK)
    events = await tried(once(launcher), order("hang", deadline_s=1.0))
    assert ProgressNote("still here") in events and end(events).timed_out
    assert end(events).failure == Failure(Category.AGENT, "it did not answer within 1 s")
    await dies(launcher.started[0].pid, 5)


async def test_who_stops_listening_has_it_asked_to_give_up_and_nothing_is_left(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.conversation.CANCEL_GRACE_S", 30.0)
    launcher = Launcher(processes, RPC.replace('{"state": "canceled"}', "None"), TASK)
    events = once(launcher).run(order("agree"))
    assert isinstance(await anext(events), Started)
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0.05)
    waiting.cancel()
    async with asyncio.timeout(15.0):  # it agreed: nobody waited for the grace to be over
        await asyncio.wait({waiting})
        await events.aclose()
    await dies(launcher.started[0].pid, 5)


async def test_the_programs_that_the_documentation_shows_work(processes: Processes) -> None:
    blocks = blocks_of((ROOT / "docs" / "agents-programs.md").read_text("utf-8"))
    page = {block.language: block.text for block in blocks if block.language == "python" or "jq" in block.text}
    runner = once(Launcher(processes, page["python"], TASK))
    counted = await tried(runner, order("to be or not"))
    assert ProgressNote("counting", 1, 2) in counted and text(counted) == "4 words"
    assert end(await tried(runner, order(" "))).state == "TASK_STATE_INPUT_REQUIRED"
    if shutil.which("jq"):
        launcher = Launcher(processes, "", TASK)
        launcher.names("/bin/sh", "-c", page["text"])
        assert text(await tried(once(launcher), order("to be or not"))) == "4 words"
