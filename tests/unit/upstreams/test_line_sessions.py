"""Is every line one caller's own, kept while it is used, and gone afterwards?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Request
from sidecar.upstreams.mcp import line_sessions
from sidecar.upstreams.mcp.line_sessions import LineBounds, LineTransport
from sidecar.upstreams.mcp.transport import SESSION_ID, BuiltUpstream, Outbound
from sidecar.vocabulary import Caller
from tests.unit.upstreams.lines import INITIALIZED, META, STATELESS, Line, body, call, get, initialize, post, refuses
from tests.unit.upstreams.peer import Clock

DISCOVER = Request(1, "server/discover", {"_meta": META})


class ToServer(LineTransport):
    open_wire = None


class Server:
    """Answers on every line that is opened to it; `lines` are (owner, line) in order. `mute` are methods that it does
    not answer."""

    def __init__(self, **more: Any) -> None:
        self.lines: list[tuple[str, Line]] = []
        self.mute: set[str] = set()
        self.clock = Clock()
        self.failure: Refusal | None = None
        self.pause_s = 0.0
        self.upstream = ToServer("x", 5.0, 2**20, clock_mono=self.clock, **more)
        self.upstream.open_wire = self.open
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, owner: str, caller: Caller | None) -> Line:
        await asyncio.sleep(self.pause_s)
        if self.failure is not None:
            raise self.failure
        line = Line()
        self.lines.append((owner, line))
        self.tasks.append(asyncio.create_task(self.serve(line, len(self.lines) - 1)))
        return line

    async def serve(self, line: Line, number: int) -> None:
        while True:
            heard = await line.heard.get()
            if "id" not in heard or heard["method"] in self.mute:
                continue
            if heard["method"] == "server/discover":
                line.says({"id": heard["id"], "error": {"code": -32601, "message": "no"}})
                continue
            line.says({"id": heard["id"], "result": {**INITIALIZED, "line": number}})

    @property
    def closed(self) -> list[bool]:
        return [line.closed for _, line in self.lines]

    async def ask(self, outbound: Outbound) -> BuiltUpstream:
        return await self.upstream.exchange(outbound)

    async def begin(self, who: str = "a") -> str:
        return (await self.ask(post(initialize(), who=who))).headers[SESSION_ID]

    async def line_of(self, outbound: Outbound) -> int:
        number: int = (await body(await self.ask(outbound)))["result"]["line"]
        return number


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[Server]:
    server = Server(**more)
    try:
        yield server
    finally:
        await server.upstream.close()
        assert all(server.closed) and server.upstream.lines == 0
        for task in server.tasks:
            task.cancel()


async def test_each_session_and_each_stateless_caller_has_a_line_of_its_own() -> None:
    async with serving() as server:
        sessions = [(await server.begin(who), who) for who in ("a", "a", "b")]
        in_sessions = [await server.line_of(post(call(), session, who=who)) for session, who in sessions]
        alone = [await server.line_of(post(call(), who=who, version=STATELESS)) for who in ("a", "b", "a", "")]
        assert in_sessions == [0, 1, 2]
        assert alone == [3, 4, 3, 5]


async def test_another_callers_session_is_none() -> None:
    async with serving() as server:
        session = await server.begin("a")
        for outbound in (post(call(), session, who="b"), post(call(), session), get(session, "b"), post(call(), "x")):
            assert (await server.ask(outbound)).status == 404


async def test_a_session_begins_on_the_line_that_knew_no_discovery() -> None:
    async with serving() as server:
        answer = await server.ask(post(DISCOVER, version=STATELESS))
        assert answer.status == 404
        session = (await server.ask(post(initialize()))).headers[SESSION_ID]
        assert await server.line_of(post(call(), session)) == 0
        assert len(server.lines) == 1


async def test_silence_about_discovery_is_a_no_and_who_never_was_stateless_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_sessions, "DISCOVER_S", 0.02)
    async with serving() as server:
        server.mute = {"server/discover"}
        answer = await server.ask(post(DISCOVER, version=STATELESS))
        assert (answer.status, (await body(answer))["error"]["code"]) == (404, -32601)
        await server.ask(post(initialize()))
        assert len(server.lines) == 1
    async with serving(stateless=False) as server:
        assert (await server.ask(post(DISCOVER, version=STATELESS))).status == 404
        assert server.lines == []


async def test_the_end_of_a_session_is_the_end_of_its_line() -> None:
    async with serving() as server:
        first, second = await server.begin(), await server.begin()
        await server.upstream.end_session(first, "", 1.0)
        await asyncio.sleep(0)
        assert (await server.ask(post(call(), first, who="a"))).status == 404
        assert await server.line_of(post(call(), second, who="a")) == 1
        assert (await server.ask(Outbound("DELETE", None, "", 1.0, second))).status == 404  # not its owner
        await asyncio.sleep(0.01)
        assert server.closed == [True, False]


async def test_a_line_that_broke_is_404_for_its_session_and_new_for_the_stateless() -> None:
    async with serving() as server:
        session = await server.begin()
        assert await server.line_of(post(call(), who="a", version=STATELESS)) == 1
        for _, line in server.lines:
            line.breaks()
        await asyncio.sleep(0.01)
        assert (await server.ask(post(call(), session, who="a"))).status == 404
        assert await server.line_of(post(call(), who="a", version=STATELESS)) == 2
        assert server.closed[:2] == [True, True]


async def test_a_caller_has_so_many_and_its_oldest_unused_one_gives_way() -> None:
    async with serving(bounds=LineBounds(max_per_caller=2)) as server:
        sessions = []
        for _ in range(3):
            server.clock.now += 1
            sessions.append(await server.begin())
        assert (await server.ask(post(call(), sessions[0], who="a"))).status == 404
        assert (await server.ask(post(call(), sessions[1], who="a"))).status == 200
        server.mute = {"tools/call"}
        waiting = [asyncio.create_task(server.ask(post(call(), each, who="a"))) for each in sessions[1:]]
        await asyncio.sleep(0.01)
        with refuses(Reason.TOO_MANY_CONCURRENT):
            await server.begin()
        await server.begin("b")
        for task in waiting:
            task.cancel()


async def test_with_all_lines_in_use_nobody_else_loses_a_session() -> None:
    async with serving(bounds=LineBounds(max_lines=2)) as server:
        await server.begin("a")
        await server.line_of(post(call(), who="b", version=STATELESS))
        await server.begin("c")  # takes what b's calls left unused
        with refuses(Reason.TOO_MANY_CONCURRENT):
            await server.begin("d")
        await server.ask(post(initialize()))  # our own enquiry is never kept out


async def test_a_line_that_nobody_uses_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_sessions, "SWEEP_EVERY_S", 0.01)
    async with serving(bounds=LineBounds(idle_s=60)) as server:
        await server.line_of(post(call(), who="a", version=STATELESS))
        session = await server.begin()
        server.clock.now += 59
        await asyncio.sleep(0.03)
        assert server.closed == [False, False]
        server.clock.now += 2
        await asyncio.sleep(0.03)
        assert server.closed == [True, False]
        assert (await server.ask(post(call(), session, who="a"))).status == 200


async def test_a_line_that_cannot_be_opened_is_a_refusal_for_all_who_wait() -> None:
    async with serving() as server:
        server.failure, server.pause_s = Refusal(Reason.UPSTREAM_FAILED, "it does not start"), 0.01
        asked = [server.ask(post(call(), who="a", version=STATELESS)) for _ in range(3)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert {getattr(result, "detail", None) for result in results} == {"it does not start"}
        server.failure = None
        asked = [server.line_of(post(call(), who="a", version=STATELESS)) for _ in range(5)]
        assert await asyncio.gather(*asked) == [0] * 5, "who come at once wait for the same line"


async def test_shared_is_one_line_an_era() -> None:
    async with serving(shared=True) as server:
        sessions = [(await server.begin(who), who) for who in ("a", "b")]
        assert [await server.line_of(post(call(), session, who=who)) for session, who in sessions] == [0, 0]
        assert [await server.line_of(post(call(), who=who, version=STATELESS)) for who in ("a", "b")] == [1, 1]
        await server.upstream.end_session(sessions[0][0], "", 1.0)
        assert await server.line_of(post(call(), sessions[1][0], who="b")) == 0


async def test_a_line_that_opens_while_the_upstream_closes_is_closed_too() -> None:
    async with serving() as server:
        server.pause_s = 0.02
        begins = asyncio.create_task(server.begin())
        await asyncio.sleep(0)
        await server.upstream.close()
        with refuses(Reason.UPSTREAM_FAILED):
            await begins
        assert server.closed == [True]
