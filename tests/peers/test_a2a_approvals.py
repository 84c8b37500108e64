"""Clients of the official A2A SDK, both lines, whose messages a person must approve."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.application import Application
from tests.a2a.agents import OLD_PYTHON, Agent, agent
from tests.a2a.approving import DMITRI, ROLES, rules_of
from tests.a2a.world import PLANNER, write
from tests.flow.world import started
from tests.peers.a2a_client import play, play_approvals
from tests.peers.test_a2a_clients import A_FEW, BINDINGS, FRONTS, free_port, old_client

SEEN = {
    "approved": ["auth_required", "completed: yes"],
    "refused": ["auth_required", "rejected: A person refused this call"],
    "cancelled": ["auth_required", "canceled"],
    "stream": ["auth_required", "submitted", "working", "completed", "1"],
    "refused stream": ["auth_required", "rejected", "1"],
    "subscribed": ["auth_required", "submitted", "working", "completed"],
}


@pytest.fixture(scope="module")
def new() -> Iterator[Agent]:
    with agent("sdk1", "--compat") as one:
        yield one


@asynccontextmanager
async def answering(app: Application) -> AsyncIterator[None]:
    """A person who approves what says `yes`, and refuses what says `no`."""

    async def answer() -> None:
        while True:
            for record in (await app.approvals.page(None, 100, 0))[0]:
                text = record.questions[0].arguments["message"]["parts"][0]["text"]
                outcome: Any = "approve" if "yes" in text else "refuse" if "no" in text else None
                if record.state == "waiting" and outcome is not None:
                    await app.approvals.answer(record.name, DMITRI, outcome)
            await asyncio.sleep(0.1)

    person = asyncio.create_task(answer())
    try:
        yield
    finally:
        person.cancel()


@asynccontextmanager
async def approving(folder: Path, new: Agent, spoken: str = "1.0") -> AsyncIterator[str]:
    """A sidecar before the agent; the URL of the agent there."""
    rules = rules_of(who="nhi:planner", kind="nhi_to_nhi")
    write(folder, new.rpc, rules=rules, files=ROLES, settings="tasks: {ask_every_s: 0.05}\n", spoken=spoken)
    file = folder / "sidecar.yaml"
    text = file.read_text().replace('grpc: "127.0.0.1:0"', f'grpc: "127.0.0.1:{free_port()}"')
    file.write_text(text.replace(f'url: "{new.rpc}"', f'url: "{new.rpc}", card_url: "{new.card}"'))
    app = await started(folder)
    try:
        async with answering(app):
            yield f"http://127.0.0.1:{app.listeners[0].port}/agents/researcher"
    finally:
        await app.stop()


def as_expected(seen: dict[str, Any]) -> dict[str, Any]:
    """What was seen, without states that pass by too fast to be seen each time."""
    fleeting = {"submitted", "working"}
    return {
        step: [one for one in states if one not in fleeting] if isinstance(states, list) else states
        for step, states in seen.items()
    }


async def test_clients_of_both_lines_see_tasks_that_wait_and_go_on(new: Agent, tmp_path: Path) -> None:
    async with approving(tmp_path, new) as url:
        seen: dict[Any, Any] = {front: play(url, *front, PLANNER, play_approvals) for front in FRONTS}
        if OLD_PYTHON.exists():
            seen |= {binding: old_client(url, binding, PLANNER, "approvals") for binding in BINDINGS}
        for front, states in zip(seen, await asyncio.gather(*seen.values()), strict=True):
            assert as_expected(*(states if isinstance(states, list) else [states])) == as_expected(SEEN), front


async def test_they_see_the_same_of_an_agent_of_0_3(new: Agent, tmp_path: Path) -> None:
    async with approving(tmp_path, new, "0.3") as url:
        plays = [play(url, *front, PLANNER, play_approvals) for front in A_FEW]
        for front, states in zip(A_FEW, await asyncio.gather(*plays), strict=True):
            assert as_expected(states) == as_expected(SEEN), front
