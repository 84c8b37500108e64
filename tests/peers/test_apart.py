"""Does anything of one client ever reach another? (BL-060, BL-066)"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest_asyncio
from mcp.client.streamable_http import streamable_http_client

from tests.flow.world import until
from tests.peers.ears import Ears, client, text_of
from tests.peers.stage import ALL, SETTINGS, Stage, stage

TWO_LOCALS = (
    SETTINGS
    + """\
local:
  - {listen: "127.0.0.1:0", principal: "nhi:planner"}
  - {listen: "127.0.0.1:0", principal: "nhi:researcher"}
"""
)
SECRET = "upstream-credential-of-everybody"
CLIENTS_PER_ERA = 30


@pytest_asyncio.fixture
async def shared(tmp_path: Path, everything: str) -> AsyncIterator[Stage]:
    """Two callers, one upstream, one upstream credential."""
    rules = ALL + ALL.replace("nhi:planner", "nhi:researcher")
    credential = "credential: {bearer_path: up.key}"
    files = {"up.key": SECRET}
    async with stage(
        tmp_path, everything, rules, settings=TWO_LOCALS, files=files, upstream_settings=credential, principal=""
    ) as on:
        yield on


def _addresses(on: Stage) -> list[str]:
    return [f"http://127.0.0.1:{listener.port}/mcp/github" for listener in on.world.app.listeners[1:3]]


async def test_two_users_of_one_upstream_credential_have_sessions_apart(shared: Stage) -> None:
    """BL-066, through the official client and server."""
    first, second = _addresses(shared)
    async with client(first, "legacy") as planner, client(second, "legacy") as researcher:
        counts = [text_of(await peer.call_tool("count", {})) for peer in (planner, planner, researcher, planner)]
    assert counts == ["1", "2", "1", "3"]
    calls = [
        entry["headers"] for entry in await shared.seen() if entry.get("message", {}).get("method") == "tools/call"
    ]
    assert {headers["authorization"] for headers in calls} == {f"Bearer {SECRET}"}
    assert len({headers["mcp-session-id"] for headers in calls}) == 2


async def test_each_of_many_clients_hears_what_is_its_own_and_nothing_else(shared: Stage) -> None:
    """BL-060: progress, logs on both streams, questions and results carry the client's own word; ids and progress
    tokens are the same for all."""
    names = [f"{mode}-{number}" for number in range(CLIENTS_PER_ERA) for mode in ("legacy", "auto")]
    addresses = _addresses(shared)
    go = asyncio.Event()
    async with _http() as http, asyncio.TaskGroup() as crowd:
        plays = [crowd.create_task(_play(name, addresses[number % 2], http, go)) for number, name in enumerate(names)]
        await shared.until_verb("GET", CLIENTS_PER_ERA)  # every session's own stream is open
        go.set()
    heard = {name: play.result() for name, play in zip(names, plays, strict=True)}
    assert {name: words for name, words in heard.items() if words != {name}} == {}
    assert len(shared.world.app.sessions) == 0  # whoever left is gone
    await shared.until_verb("DELETE", CLIENTS_PER_ERA)


async def _play(name: str, url: str, http: httpx2.AsyncClient, go: asyncio.Event) -> set[str]:
    """One client's part; every word it heard."""
    mode, ears = name.partition("-")[0], Ears(word=name)
    more: dict[str, Any] = {"log_level": "debug"} if mode == "auto" else {}
    async with client(streamable_http_client(url, http_client=http), mode, ears, **more) as peer:
        await go.wait()
        result = text_of(await peer.call_tool("canary", {"text": name}, progress_callback=ears.on_progress))
        await until(lambda: len(ears.logs) >= 2)
    assert (len(ears.progress), len(ears.logs), len(ears.asked)) == (2, 2, 1)
    words = [*result.split(), *(message for _, message in ears.progress), *(data for _, data in ears.logs)]
    return {str(word) for word in words} | {asked.removeprefix("a word for ") for asked in ears.asked}


@asynccontextmanager
async def _http() -> AsyncIterator[httpx2.AsyncClient]:
    """One HTTP client for all: a hundred TLS contexts would be most of the test."""
    async with httpx2.AsyncClient(timeout=20, limits=httpx2.Limits(max_connections=1000)) as http:
        yield http
