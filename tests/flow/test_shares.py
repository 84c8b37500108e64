"""Can one caller have so much of an upstream that nothing is left for others?

Threats D3, D5: not by calls that are slow, not by many at once, not by time-outs.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.flow.guests import ALICE, BOB, gateway
from tests.flow.talk import Talk, reason_of
from tests.flow.test_breaker import account
from tests.flow.world import Upstream, World, until

RULES = "".join(f"p, {who}, tool:github/*, use, -, -, -, allow\n" for who in ("user:alice", "user:bob"))
FLOOD = 60


class Slow(Upstream):
    """It takes its time for `search_code`, and answers `get_file` at once."""

    def __init__(self) -> None:
        super().__init__(script={"tools/call": self.work})
        self.go_on = asyncio.Event()
        self.most = self.now = 0

    async def work(self, asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["params"]["name"] == "search_code":
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.go_on.wait()
            finally:
                self.now -= 1
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}})


async def slow_call(running: World) -> str:
    return reason_of(await Talk(running, "stateless", dict(ALICE)).ask("tools/call", SEARCH))


SEARCH: dict[str, Any] = {"name": "search_code", "arguments": {"repo": "acme/site"}}
QUICK: dict[str, Any] = {"name": "get_file", "arguments": {}}


async def test_who_floods_a_slow_server_leaves_room_for_others(tmp_path: Path) -> None:
    server = Slow()
    async with gateway(tmp_path, upstream=server, rules=RULES, mcp_settings="max_connections: 8") as running:
        alice = [asyncio.create_task(slow_call(running)) for _ in range(FLOOD)]
        await until(lambda: server.now == 6)  # three quarters of eight
        began = time.monotonic()
        assert reason_of(await Talk(running, "stateless", dict(BOB)).ask("tools/call", QUICK)) == ""
        assert time.monotonic() - began < 1.0
        server.go_on.set()
        assert await asyncio.gather(*alice) == [""] * FLOOD, "and who floods loses none of its own calls"
        assert server.most == 6
        watched: Any = running.app.live.current.services["github"].upstream
        assert len(watched.inner.shares) == 0


async def test_the_share_can_be_set_and_who_waits_in_vain_is_told_so(tmp_path: Path) -> None:
    server = Slow()
    mcp = "max_calls_per_caller: 1, timeout_s: 0.3"
    async with gateway(tmp_path, upstream=server, rules=RULES, mcp_settings=mcp) as running:
        await Talk(running, "stateless", dict(ALICE)).ask("tools/call", QUICK)
        first = asyncio.create_task(slow_call(running))
        await until(lambda: server.now == 1)
        assert await slow_call(running) in ("too-many-concurrent", "upstream-timeout")
        assert await first == "upstream-timeout"
        assert server.most == 1


async def test_a_caller_who_leaves_gives_its_place_back(tmp_path: Path) -> None:
    server = Slow()
    async with gateway(tmp_path, upstream=server, rules=RULES, mcp_settings="max_calls_per_caller: 1") as running:
        for _ in range(3):
            calls = [asyncio.create_task(slow_call(running)) for _ in range(2)]
            await until(lambda: server.now == 1)
            for call in calls:
                call.cancel()
            await until(lambda: server.now == 0)
        server.go_on.set()
        assert await slow_call(running) == ""


async def test_one_callers_time_outs_close_no_server_that_answers_others(tmp_path: Path) -> None:
    server = Slow()
    async with gateway(tmp_path, upstream=server, rules=RULES, mcp_settings="timeout_s: 0.4") as running:
        bob = Talk(running, "stateless", dict(BOB))
        await bob.ask("tools/call", QUICK)
        alice = [asyncio.create_task(slow_call(running)) for _ in range(10)]
        await until(lambda: server.now == 10)
        assert reason_of(await bob.ask("tools/call", QUICK)) == ""
        assert await asyncio.gather(*alice) == ["upstream-timeout"] * 10
        assert account(running).breaker.in_a_row == 0
        assert reason_of(await bob.ask("tools/call", QUICK)) == ""


async def test_a_server_that_answers_nobody_is_closed_as_ever(tmp_path: Path) -> None:
    server = Slow()
    settings = "probe: {enabled: false}"
    async with gateway(
        tmp_path, upstream=server, rules=RULES, mcp_settings="timeout_s: 0.3", upstream_settings=settings
    ) as running:
        await Talk(running, "stateless", dict(BOB)).ask("tools/call", QUICK)
        assert [await slow_call(running) for _ in range(6)] == ["upstream-timeout"] * 5 + ["upstream-open"]
