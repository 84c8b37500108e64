"""Can one caller have so much of an upstream that nothing is left for others?

Not by calls that are slow, not by many at once, not by time-outs.
"""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.settings.upstreams import McpUpstream
from sidecar.upstreams.breaker import BreakerState
from sidecar.upstreams.mcp.duplex_transport import MAX_IN_FLIGHT
from sidecar.upstreams.mcp.guarded_transport import WORDS_PART
from tests.flow.guests import ALICE, BOB, NOTIFICATION, gateway, opened, post
from tests.flow.streams import EVENT_STREAM, event
from tests.flow.talk import Talk, reason_of
from tests.flow.test_breaker import account
from tests.flow.world import PATIENCE_S, Upstream, World, until

RULES = "".join(f"p, {who}, tool:github/*, use, -, -, -, allow\n" for who in ("user:alice", "user:bob"))
FLOOD = 60
NO_PROBE = "probe: {enabled: false}"


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


async def quick(running: World, who: dict[str, str] = BOB) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return reason_of(await Talk(running, "stateless", dict(who)).ask("tools/call", QUICK))


def slow(folder: Path, server: Upstream, mcp: str = "", **more: Any) -> AbstractAsyncContextManager[World]:
    return gateway(folder, upstream=server, rules=RULES, mcp_settings=mcp, **more)


SEARCH: dict[str, Any] = {"name": "search_code", "arguments": {"repo": "acme/site"}}
QUICK: dict[str, Any] = {"name": "get_file", "arguments": {}}


async def test_who_floods_a_slow_server_leaves_room_for_others(tmp_path: Path) -> None:
    server = Slow()
    async with slow(tmp_path, server, "max_connections: 8") as running:
        alice = [asyncio.create_task(slow_call(running)) for _ in range(FLOOD)]
        await until(lambda: server.now == 6)  # three quarters of eight
        assert await quick(running) == ""
        assert server.now == 6, "and nobody of hers had to go first"
        server.go_on.set()
        assert await asyncio.gather(*alice) == [""] * FLOOD, "and who floods loses none of its own calls"
        assert server.most == 6
        watched: Any = running.app.live.current.services["github"].upstream
        assert len(watched.inner.shares) == 0


async def test_the_share_can_be_set_and_who_waits_in_vain_is_told_so(tmp_path: Path) -> None:
    server = Slow()
    async with slow(tmp_path, server, "max_calls_per_caller: 1, timeout_s: 0.3") as running:
        await quick(running, ALICE)
        first = asyncio.create_task(slow_call(running))
        await until(lambda: server.now == 1)
        assert await slow_call(running) in ("too-many-concurrent", "upstream-timeout")
        assert await first == "upstream-timeout"
        assert server.most == 1


async def test_a_caller_who_leaves_gives_its_place_back(tmp_path: Path) -> None:
    server = Slow()
    async with slow(tmp_path, server, "max_calls_per_caller: 1") as running:
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
    async with slow(tmp_path, server, "timeout_s: 1.0") as running:
        await quick(running)
        alice = [asyncio.create_task(slow_call(running)) for _ in range(10)]
        await until(lambda: server.most == 10)
        assert await quick(running) == ""
        assert await asyncio.gather(*alice) == ["upstream-timeout"] * 10
        assert await quick(running) == ""
        assert account(running).breaker.in_a_row == 0


async def test_a_server_that_answers_nobody_is_closed_as_ever(tmp_path: Path) -> None:
    async with slow(tmp_path, Slow(), "timeout_s: 0.3", upstream_settings=NO_PROBE) as running:
        await quick(running)
        heard = [await slow_call(running) for _ in range(6)]
        assert set(heard[:4]) == {"upstream-timeout"} and heard[-1] == "upstream-open"


async def test_who_floods_a_slow_server_with_notifications_leaves_room_for_others(tmp_path: Path) -> None:
    server, held = Slow(), [0]

    async def hold(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        held[0] += 1
        await server.go_on.wait()
        return web.Response(status=202)

    async with slow(tmp_path, server, "max_connections: 8") as running:
        talk = await opened(running)
        await quick(running)
        server.script["notifications/initialized"] = hold
        words = [asyncio.create_task(post(talk, NOTIFICATION)) for _ in range(FLOOD // 2)]
        calls = [asyncio.create_task(slow_call(running)) for _ in range(FLOOD // 2)]
        await until(lambda: server.now == 6 and held[0] == 1)
        assert await quick(running) == ""
        server.go_on.set()
        assert {status for status, _, _ in await asyncio.gather(*words)} == {202}
        assert await asyncio.gather(*calls) == [""] * (FLOOD // 2)


class AtWork(Upstream):
    """It says `line` again and again where it is asked for `get_file`, and nothing to anybody else."""

    def __init__(self, line: bytes) -> None:
        super().__init__(script={"tools/call": self.work})
        self.line = line
        self.at_work, self.go_on = asyncio.Event(), asyncio.Event()

    async def work(self, asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENT_STREAM)
        if message["params"]["name"] != "get_file":
            await self.go_on.wait()
            return response
        await response.prepare(asked)
        while not self.go_on.is_set():
            await response.write(self.line)
            self.at_work.set()
            await asyncio.sleep(0.02)
        return response


PROGRESS = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}})


@pytest.mark.parametrize("line", [PROGRESS, b": ping\n\n"], ids=["progress", "comments"])
async def test_a_server_whose_open_streams_answer_nothing_is_given_a_rest(tmp_path: Path, line: bytes) -> None:
    server = AtWork(line)
    async with slow(tmp_path, server, "timeout_s: 0.6", upstream_settings=NO_PROBE) as running:
        bob = Talk(running, "stateless", dict(BOB))
        await bob.ask("tools/list")
        long = asyncio.create_task(bob.ask("tools/call", QUICK))
        await server.at_work.wait()
        async with asyncio.timeout(PATIENCE_S):
            while account(running).breaker.state is BreakerState.CLOSED:
                await asyncio.gather(*(slow_call(running) for _ in range(6)))
        long.cancel()
        server.go_on.set()


LISTENER = """
import json, sys
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("search_code", "get_file")]
for line in sys.stdin:
    heard = json.loads(line)
    method, answer = heard.get("method"), {}
    if method == "initialize":
        version, info = heard["params"]["protocolVersion"], {"name": "listener", "version": "1"}
        answer = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        answer = {"tools": TOOLS}
    elif method == "tools/call":
        answer = {"content": []}
    if "id" in heard and not (method == "tools/call" and heard["params"]["name"] == "search_code"):
        print(json.dumps({"jsonrpc": "2.0", "id": heard["id"], "result": answer}), flush=True)
"""


async def test_who_floods_a_shared_program_leaves_room_for_others(tmp_path: Path) -> None:
    program = tmp_path / "listener.py"
    program.write_text(LISTENER)
    command = f"command: {sys.executable}, args: [-I, -S, {program}], shared: true, max_calls_per_caller: 8"
    async with gateway(tmp_path, program=command, rules=RULES) as running:
        assert await quick(running) == ""
        alice = [asyncio.create_task(slow_call(running)) for _ in range(FLOOD)]
        watched: Any = running.app.live.current.services["github"].upstream
        await until(lambda: watched.inner.shares.waiting == FLOOD - 8)
        assert await quick(running) == ""
        for call in alice:
            call.cancel()
        await asyncio.gather(*alice, return_exceptions=True)
        await until(lambda: len(watched.inner.shares) == 0)


def test_the_share_of_a_program_leaves_room_on_its_line() -> None:
    share = McpUpstream(command="server", shared=True).share
    assert share + max(1, share // WORDS_PART) < MAX_IN_FLIGHT
