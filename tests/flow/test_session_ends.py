"""How does a session begin and end, and what is left of it?"""

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from sidecar.audit.chain import Append, Unsealed
from tests.flow.guests import (
    ALICE,
    BOB,
    GOOD,
    NOTIFICATION,
    RULES,
    deletes,
    emitter,
    error_in,
    gateway,
    gone,
    opened,
    post,
    result_of,
    stream,
)
from tests.flow.scripts import answer, body, status, stream as pieces
from tests.flow.streams import Emitter, event
from tests.flow.talk import Talk, reason_of
from tests.flow.world import SESSION, STATELESS, Respond, Upstream, World, listening, until

CYCLES = 8  # of each kind
SPARE = 12  # connections that are kept for the next request, and what serves them


def hello(**changes: Any) -> dict[str, Any]:
    return {"protocolVersion": SESSION, "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}, **changes}


BORN = {"Mcp-Session-Id": "stillborn"}
Make = Callable[[dict[str, Any]], Any]


def saying(make: Make, code: int = 200, headers: Mapping[str, str] = BORN) -> Respond:
    async def respond(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(make(message), status=code, headers=headers)

    return respond


def agreeing(**changes: Any) -> Make:
    return lambda m: result_of(m, hello(**changes))


INNER = {"www_authenticate": 'Bearer realm="inner"'}
REFUSALS: dict[str, tuple[Respond, int, bool]] = {
    "error": (saying(error_in), 200, True),
    "error 400": (saying(error_in, 400, {}), 400, False),
    "http 500": (status(500, mcp_session_id="stillborn"), 200, False),
    "http 401": (status(401, **INNER), 200, False),
    "unknown revision": (saying(agreeing(protocolVersion="2031-01-01")), 200, True),
    "stateless revision": (saying(agreeing(protocolVersion=STATELESS)), 200, True),
    "no revision": (saying(lambda m: result_of(m, {})), 200, True),
    "garbage": (body(b"{", mcp_session_id="stillborn"), 200, True),
    "wrong id": (saying(lambda m: {**result_of(m, hello()), "id": "1"}), 200, True),
    "unsendable id": (saying(agreeing(), headers={"Mcp-Session-Id": "a b"}), 200, False),
    "stream with an error": (pieces(error_in), 200, False),
    "stream with garbage": (pieces(b"data: {\n\n", agreeing()), 200, False),
    "stream without an answer": (pieces(b": hello\n\n"), 200, False),
    "stream with an unknown revision": (pieces(agreeing(protocolVersion=1)), 200, False),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_session_that_the_upstream_refuses_leaves_nothing(tmp_path: Path, case: str) -> None:
    script, expected, tells = REFUSALS[case]
    upstream = Upstream(script={"DELETE": gone})
    async with gateway(tmp_path, upstream=upstream, sessions="max_per_principal: 1") as running:
        kept = await opened(running)
        upstream.script["initialize"] = script
        talk = Talk(running, "session", dict(ALICE))
        code, said, headers = await talk.open()
        assert (code, "error" in said) == (expected, True)
        assert not {"Mcp-Session-Id", "WWW-Authenticate"} & set(headers)
        assert len(running.app.sessions) == 1
        assert (await kept.ask("ping"))[0] == 200, "and nobody had to go for it"
        if tells:
            await until(lambda: ("DELETE", "stillborn") in deletes(upstream))
        assert [record["event"] for record in running.records()[-4:]] == ["decision", "outcome"] * 2


class FullDisk:
    """An audit file that takes decisions and no outcomes."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def append(self, records: Sequence[Unsealed]) -> int:
        if any('"event":"outcome"' in record.start for record in records):
            raise OSError
        return int(self.file.append(records))

    def quick_append(self, count: int) -> Append | None:
        return self.append if self.file.quick_append(count) else None

    def settle(self) -> None:
        self.file.settle()

    def close(self) -> None:
        self.file.close()


async def test_a_session_whose_beginning_cannot_be_recorded_does_not_begin(house: World) -> None:
    writer: Any = house.app.audit.writer
    writer.sink = FullDisk(writer.sink)
    talk = Talk(house, "session", dict(ALICE))
    answer = await talk.open()
    assert (reason_of(answer), talk.session, len(house.app.sessions)) == ("audit-unavailable", "", 0)
    await until(lambda: deletes(house.upstream) == [("DELETE", "upstream-1")])
    writer.sink = writer.sink.file


async def test_a_session_may_begin_in_a_stream_and_is_answered_whole(house: World) -> None:
    async def begin(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Mcp-Session-Id": "streamed"})
        await stream.prepare(asked)
        await stream.write(b": hi\n\nid: 1\ndata:\n\n" + event({"jsonrpc": "2.0", "id": 5, "method": "ping"}))
        await stream.write(event(result_of(message, hello(capabilities={"tools": {}}))))
        await asyncio.sleep(30)  # a server that never closes its stream
        return stream

    house.upstream.script["initialize"] = begin
    talk = Talk(house, "session", dict(ALICE))
    code, said, headers = await talk.open()
    assert (code, headers["Content-Type"], said["result"]["capabilities"]) == (200, "application/json", {"tools": {}})
    assert (await talk.ask("ping"))[0] == 200
    assert house.upstream.seen[-1][0]["Mcp-Session-Id"] == "streamed"


async def test_one_session_too_many_ends_the_oldest_and_tells_the_upstream(tmp_path: Path) -> None:
    upstream = Upstream(script={"DELETE": gone, "GET": Emitter().listen})
    async with gateway(tmp_path, upstream=upstream, sessions="max_per_principal: 2") as running:
        first, bobs = await opened(running), await opened(running, BOB)
        async with stream(first) as ear:
            second = await opened(running)
            await opened(running)
            assert await ear.message() is None, "its stream ends with it"
        assert [(await talk.ask("ping"))[0] for talk in (first, second, bobs)] == [404, 200, 200]
        await until(lambda: deletes(upstream) == [("DELETE", "upstream-1")])
        assert emitter(running).count == 0


async def test_a_table_that_is_full_refuses_and_leaves_nothing_at_the_upstream(tmp_path: Path) -> None:
    upstream = Upstream(script={"DELETE": gone})
    async with gateway(tmp_path, upstream=upstream, sessions="max: 1") as running:
        await opened(running)
        talk = Talk(running, "session", dict(BOB))
        answer = await talk.open()
        assert (answer[0], reason_of(answer), talk.session) == (200, "too-many-concurrent", "")
        await until(lambda: deletes(upstream) == [("DELETE", "upstream-2")])


async def test_the_sidecar_goes_on_without_the_clients_initialized_and_the_upstream_may_insist(house: World) -> None:
    """BL-101."""
    alice = await opened(house)
    assert (await alice.call("search_code", GOOD))[0] == 200
    no = {"code": -32600, "message": "Received request before initialization was complete"}
    house.upstream.script["tools/call"] = answer(400, error=no)
    code, said, _ = await alice.call("search_code", GOOD)
    assert (code, said["error"]) == (400, no)
    assert (await post(alice, NOTIFICATION))[0] == 202


VERSIONS = [([], 200), ([SESSION], 200), (["2025-06-18"], 200), (["2031-01-01"], 400), ([STATELESS], 400)]
VERSIONS += [([SESSION, SESSION], 400), ([""], 400)]


async def test_a_session_goes_on_in_the_revision_that_it_agreed_on(house: World) -> None:
    alice = await opened(house)
    plain = list({**ALICE, "Content-Type": "application/json", "Mcp-Session-Id": alice.session}.items())
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    for versions, expected in VERSIONS:
        lines = [("MCP-Protocol-Version", version) for version in versions]
        async with house.http.post(f"{house.url}/mcp/github", data=ping, headers=plain + lines) as response:
            assert response.status == expected, versions
        assert (await alice.ask("ping"))[0] == 200
    pings = [sent for sent, message in house.upstream.seen if message.get("method") == "ping"]
    assert {sent["MCP-Protocol-Version"] for sent in pings} == {SESSION}


async def test_many_cycles_of_every_kind_leave_nothing(tmp_path: Path) -> None:
    """BL-043 over the wire: opened and deleted, refused, opened and abandoned in the middle."""
    upstream = Upstream(script={"DELETE": gone, "GET": Emitter().listen})
    async with gateway(tmp_path, upstream=upstream, sessions="max_per_principal: 8") as running:
        await (await opened(running)).verb("DELETE")
        fds, tasks = open_files(), len(asyncio.all_tasks())

        async def deleted() -> None:
            talk = await opened(running, BOB)
            async with stream(talk):
                assert (await talk.verb("DELETE"))[0] == 204

        async def refused() -> None:
            upstream.script["initialize"] = saying(error_in)
            assert (await Talk(running, "session", dict(ALICE)).open())[0] == 200
            del upstream.script["initialize"]

        for number in range(CYCLES):
            await deleted()
            await refused()
            await abandoned(running, number)
        await until(lambda: len(running.app.sessions) <= 8 and emitter(running).count == 0)
        running.app.sessions.clock_mono = lambda: time.monotonic() + 86_401
        await until(lambda: len(running.app.sessions) == 0)
        # A session that the upstream began while its client was already gone has no name that we could have heard.
        unheard = sum(number % 3 == 0 for number in range(CYCLES))
        await until(lambda: len({name for _, name in deletes(upstream)} - {"stillborn"}) >= upstream.sessions - unheard)
        assert Counter(name for _, name in deletes(upstream))["stillborn"] == CYCLES
        pipeline = running.app.pipeline
        await until(lambda: pipeline.stages.inside == 0 and pipeline.forwarder.farewells.empty())
        await until(lambda: len(asyncio.all_tasks()) <= tasks + SPARE and open_files() <= fds + SPARE)
        assert len(running.ends()) == len({record["decision_id"] for record in running.ends()})


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def abandoned(running: World, number: int) -> None:
    """Open a session and hang up with an RST: before its answer, after it, or out of its stream."""
    where = urlsplit(running.url)
    body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}'
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"POST /mcp/github HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: {ALICE['Authorization']}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    if number % 3:
        answer = await reader.readuntil(b"\r\n\r\n")
        session = next(line[16:] for line in answer.decode().split("\r\n") if line.startswith("Mcp-Session-Id: "))
        if number % 3 == 2:
            writer.write(f"GET {head[5:]}Mcp-Session-Id: {session}\r\nAccept: text/event-stream\r\n\r\n".encode())
            await reader.readuntil(b"text/event-stream")
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_a_session_goes_on_when_a_second_server_is_added(tmp_path: Path) -> None:
    """BL-101, BL-014: the new one offers the same tools, and neither gets a call that is the other's."""
    other = Upstream()
    rules = RULES + "p, user:alice, tool:gitlab/*, use, -, -, -, allow\n"
    async with listening(other.handle) as base, gateway(tmp_path, rules=rules) as running:
        alice = await opened(running)
        settings = tmp_path / "sidecar.yaml"
        added = f'upstreams:\n  gitlab: {{mcp: {{url: "{base}/mcp"}}}}\n'
        settings.write_text(settings.read_text().replace("upstreams:\n", added))
        await running.app.reload("test")
        second = await opened(running, server="gitlab")
        for talk in (alice, second):
            assert (await talk.call("search_code", GOOD))[1]["result"]["content"]
            assert (await talk.ask("tools/list"))[1]["result"]["tools"]
        for upstream in (running.upstream, other):
            [headers] = [heads for heads, message in upstream.seen if message["method"] == "tools/call"]
            assert headers["Mcp-Session-Id"] == "upstream-1"
