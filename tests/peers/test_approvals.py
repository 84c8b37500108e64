"""Clients of the official SDK whose calls wait for a person, in both eras."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import ElicitResult

from tests.flow.test_approvals import PATH, TOOL, answer, asking, waiting
from tests.flow.world import World, until
from tests.peers.ears import Ears, client, text_of

SESSION, STATELESS = "legacy", "auto"
both_eras = pytest.mark.parametrize("mode", [SESSION, STATELESS])


async def called(running: World, peer: Client, arguments: dict[str, Any] = PATH, **more: Any) -> str:
    """A tool's text, or the reason for which it was refused."""
    try:
        return text_of(await peer.call_tool(TOOL, arguments, **more))
    except MCPError as error:
        return str(error.error.data["reason"])


async def held(running: World) -> str:
    """The id of the one request for approval that a call is held for."""
    await until(lambda: bool(running.app.approvals._held))
    (one,) = await waiting(running)
    return str(one["id"])


@both_eras
async def test_a_call_goes_on_when_a_person_approves_it_and_only_that_call_once(mode: str, tmp_path: Path) -> None:
    async with asking(tmp_path) as running, client(f"{running.url}/mcp/github", mode, Ears()) as peer:
        call = asyncio.create_task(called(running, peer))
        name = await held(running)
        assert (await answer(running, "alice", "approve"))[0] == 403
        assert (await answer(running, "dmitri", "approve"))[0] == 200
        assert await call == "done"
        again = asyncio.create_task(called(running, peer))
        assert await held(running) != name
        await answer(running, "dmitri", "refuse")
        assert await again == "approval-refused"
        other = asyncio.create_task(called(running, peer, {"path": "b"}))
        await held(running)
        await answer(running, "dmitri", "refuse")
        assert await other == "approval-refused"
        assert len(running.upstream.calls()) == 1
        used = [record["approval"] for record in running.records() if record["approval"]]
        assert {one["id"] for one in used} == {name}


@both_eras
async def test_a_call_that_no_one_answers_expires(mode: str, tmp_path: Path) -> None:
    async with asking(tmp_path) as running, client(f"{running.url}/mcp/github", mode, Ears()) as peer:
        clock = running.app.approvals.clock
        call = asyncio.create_task(called(running, peer))
        await held(running)
        running.app.approvals.clock = lambda: clock() + 901
        assert await call == "approval-expired"
        assert running.upstream.calls() == []


async def test_progress_reaches_a_client_of_a_session_before_the_servers_own(tmp_path: Path) -> None:
    seen: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with asking(tmp_path) as running, client(f"{running.url}/mcp/github", SESSION, Ears()) as peer:
        call = asyncio.create_task(called(running, peer, progress_callback=on_progress))
        await held(running)
        await until(lambda: bool(seen))
        assert seen[0][1] == "A person must approve this call" and 0 < seen[0][0] < 0.001
        await answer(running, "dmitri", "approve")
        assert await call == "done"


async def test_a_client_that_can_open_addresses_is_given_the_page(tmp_path: Path) -> None:
    ears, opened = Ears(), list[str]()

    async def on_elicit(context: Any, params: Any) -> Any:
        opened.append(params.url)
        await answer(running, "dmitri", "approve")
        return ElicitResult(action="accept")

    ears.on_elicit = on_elicit  # type: ignore[method-assign]
    page = "page: 'https://console.acme.example/console/approvals/'"
    async with (
        asking(tmp_path, approvals=page) as running,
        client(f"{running.url}/mcp/github", STATELESS, ears) as peer,
    ):
        assert await called(running, peer) == "done"
    (address,) = opened
    assert address.startswith("https://console.acme.example/console/approvals/")
