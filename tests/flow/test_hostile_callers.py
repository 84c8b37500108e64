"""Can a caller who does not speak HTTP get past us, or hold us up?

Bytes on a raw socket, whole and in two pieces: nothing that two readers could frame differently is executed, every
answer has exactly one record, and after a fault the connection is over.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests import wire as messages
from tests.flow.raw import CALL, Wire, answer_in, chunks, request, statuses, wire
from tests.flow.talk import ERAS, Era, Talk, error_of, reason_of
from tests.flow.world import Upstream, World, stateless, until, world

SIZE = len(CALL)
CHUNKED, CLOSE = "Transfer-Encoding: chunked", "Connection: close"
Make = Callable[[World], bytes]


def good(*lines: str | bytes, **changes: object) -> Make:
    """A whole request with these lines more."""
    return lambda running: request(running, *lines, **changes)  # type: ignore[arg-type]  # by name, as the test says


def framed(*lines: str | bytes, body: bytes = CALL) -> Make:
    """A request whose length these lines tell."""
    return lambda running: request(running, *lines, body=body, length=False)


def coded(body: bytes, *lines: str) -> Make:
    """A request in chunked coding, or nearly."""
    return framed(CHUNKED, *lines, body=body)


ONE = b"%x\r\n%s\r\n0\r\n\r\n" % (SIZE, CALL)
EXECUTED: dict[str, Make] = {
    "plain": good(CLOSE),
    "chunks": coded(chunks(CALL), CLOSE),
    "chunks of one byte": coded(b"".join(b"1\r\n%c\r\n" % byte for byte in CALL) + b"0\r\n\r\n", CLOSE),
    "chunks with an extension": coded(b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (SIZE, CALL), CLOSE),
    "chunks and a trailer": coded(b"%x\r\n%s\r\n0\r\nX-T: 1\r\n\r\n" % (SIZE, CALL), CLOSE),
    "a blank after the length": framed(f"Content-Length: {SIZE} ", CLOSE),
    "HTTP/1.0": good(first="POST /mcp/github HTTP/1.0"),
    "a query": good(CLOSE, first="POST /mcp/github?session=x&server=gitlab HTTP/1.1"),
    "a header of 9 KiB": good("X-Token: " + "a" * 9000, CLOSE),
    "60 headers": good(*[f"X-{number}: 1" for number in range(50)], CLOSE),
    "high bytes in a value": good(b"X-A: \xff\xfe", CLOSE),
    "empty lines before": lambda running: b"\r\n\r\n" + request(running, CLOSE),
    "an upgrade that we do not want": good("Upgrade: h2c", "Connection: Upgrade, close", "HTTP2-Settings: AAMAAABk"),
    "a websocket": good("Upgrade: websocket", "Connection: upgrade, close", "Sec-WebSocket-Version: 13"),
    "hop-by-hop names": good(
        "Connection: close, Mcp-Name, Content-Length", "Keep-Alive: 1", "TE: trailers", "Trailer: X"
    ),
    "an expectation": good("Expect: 100-continue", CLOSE),
}
NOT_HTTP: dict[str, Make] = {
    "a length and chunks": good(CHUNKED, body=ONE),
    "chunks and a length": coded(ONE, f"Content-Length: {SIZE}"),
    "the length twice": good(f"Content-Length: {SIZE}"),
    "two lengths": good("Content-Length: 3"),
    **{
        f"the length {value!r}": framed(f"Content-Length: {value}".encode())
        for value in ("+5", "-1", "5, 5", "0x5", "", "5 5", "9" * 20, "5.0", "1e3", "5;", "5\t5", "\u0665", "\x0b5")
    },
    **{
        f"the coding {value!r}": framed(f"Transfer-Encoding: {value}", body=ONE)
        for value in (
            "xchunked", "chunked, identity", "identity", "identity, chunked", "gzip, chunked", "chunked, chunked",
            "\x0bchunked", "chunked\x0b", "chunked;q=1", '"chunked"', "", "chunked,",
        )
    },
    "the coding twice": coded(ONE, CHUNKED),
    "chunks in HTTP/1.0": lambda running: request(
        running, CHUNKED, first="POST /mcp/github HTTP/1.0", length=False, body=ONE
    ),
    "a folded header": good("X-A: 1\r\n folded"),
    "a folded coding": framed("Transfer-Encoding:\r\n chunked", body=ONE),
    "bare line feeds": good(end=b"\n"),
    "one bare line feed": good(b"X-A: 1\nX-B: 2"),
    "bare returns": good(end=b"\r"),
    "one bare return": good(b"X-A: 1\rX-B: 2"),
    "a blank before the colon": good("X-A : 1"),
    "a blank before the length's colon": framed(f"Content-Length : {SIZE}"),
    "a header that begins with a blank": good(first="POST /mcp/github HTTP/1.1\r\n X: 1"),
    "NUL in a name": good(b"X\0A: 1"),
    "NUL in a value": good(b"X-A: \0"),
    "control characters in a value": good(b"X-A: \x01\x7f"),
    "an empty name": good(": 1"),
    "no colon": good("nonsense"),
    "high bytes in a name": good(b"X-\xff: 1"),
    **{
        f"the first line {line!r}": good(first=line)
        for line in (
            "POST /mcp/github", "POST /mcp/github HTTP/0.9", "POST /mcp/github HTTP/1.2", "POST /mcp/github HTTP/2.0",
            "POST /mcp/github http/1.1", "POST\t/mcp/github\tHTTP/1.1", "POST /mcp/github HTTP/1.1 x",
            "POST /mcp/git\0hub HTTP/1.1", "POST /mcp/gith\xfcb HTTP/1.1", "POST mcp/github HTTP/1.1",
            "POST * HTTP/1.1", "POST \\mcp\\github HTTP/1.1", "post /mcp/github HTTP/1.1", "P@ST /mcp/github HTTP/1.1",
            " POST /mcp/github HTTP/1.1", "PRI * HTTP/2.0", "X" * 5000, "HTTP/1.1 200 OK",
        )
    },
    "a path of 100 KB": good(first="POST /mcp/" + "a" * 100_000 + " HTTP/1.1"),
    "no Host": good(host=False),
    "two Hosts": good("Host: evil.example"),
    "300 headers": good(*["X-A: 1"] * 300),
    "a header of 64 KiB": good("X-A: " + "a" * 65_536),
    "a name of 64 KiB": good("X" * 65_536 + ": a"),
    "a chunk that overflows": coded(b"ffffffffffffffff0\r\n" + CALL),
    "a negative chunk": coded(b"-1\r\n" + CALL),
    "a chunk with 0x": coded(b"0x" + ONE),
    "a chunk after a blank": coded(b" " + ONE),
    "a chunk before a blank": coded(b"%x \r\n%s\r\n0\r\n\r\n" % (SIZE, CALL)),
    "a chunk without its end": coded(b"%x\r\n%s0\r\n\r\n" % (SIZE, CALL)),
    "chunks with bare line feeds": coded(ONE.replace(b"\r\n", b"\n")),
    "chunks with bare returns": coded(ONE.replace(b"\r\n", b"\r")),
    "a chunk without a size": coded(b"\r\n" + CALL),
    "a chunk that is no number": coded(b"zz\r\n" + CALL),
    "a chunk that is too short": coded(b"5\r\n%s\r\n0\r\n\r\n" % CALL),
    "an extension with a line feed": coded(b"%x;a\nb\r\n%s\r\n0\r\n\r\n" % (SIZE, CALL)),
    "a trailer that tells a length": coded(ONE[:-2] + b"Content-Length: 3\r\n\r\n"),
    "a flood of trailers": coded(ONE[:-2] + b"X-T: 1\r\n" * 5000 + b"\r\n"),
    "junk before": lambda running: b"junk\r\n" + request(running),
    "TLS": lambda _: bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "noise": lambda _: bytes(range(256)) * 4,
    "mail": lambda _: b"EHLO evil.example\r\nMAIL FROM:<a@b>\r\n\r\n",
    "zeros": lambda _: bytes(4096),
}  # fmt: skip
NOT_SERVED: dict[str, tuple[Make, int]] = {
    **{
        f"the path {path!r}": (good(first=f"POST {path} HTTP/1.1"), 400)
        for path in (
            "http://127.0.0.1/mcp/github", "http://evil.example/mcp/github", "//evil/mcp/github", "/mcp/github#x",
            "/mcp//github", "/mcp/./github", "/x/../mcp/github", "/mcp/%67ithub", "/mcp%2fgithub",
            "/mcp/github%00", "/mcp/github;x", "/mcp/..;/mcp/github", "/%6d%63%70/github", "/.well-known/../mcp/github",
        )
    },
    **{
        f"the path {path!r}": (good(first=f"POST {path} HTTP/1.1"), 404)
        for path in ("/", "/MCP/github", "/MCP", "/mcp/Github", "/mcp/github-", "/mcp/github/x", "/metrics", "/status")
    },
    **{
        f"the verb {verb}": (good(first=f"{verb} /mcp/github HTTP/1.1"), 405)
        for verb in ("PUT", "OPTIONS", "TRACE", "HEAD", "PATCH", "CONNECT", "QUERY", "SEARCH")
    },
    "a proxy's verb": (good(first="CONNECT evil.example:443 HTTP/1.1"), 400),
    "a foreign Host": (good("Host: evil.example", host=False), 403),
    "an empty Host": (good("Host:", host=False), 403),
    "a Host with a user": (good("Host: 127.0.0.1@evil.example", host=False), 403),
    "an Origin": (good("Origin: https://evil.example"), 403),
    "a proxy's header": (good("X-Forwarded-Host: evil.example"), 403),
    "gzip": (good("Content-Encoding: gzip"), 415),
    "a media type twice": (good("Content-Type: application/json"), 400),
    "another media type": (lambda running: request(running, "Content-Type: text/plain", routing=False), 415),
    "a length beyond the bound": (lambda running: request(running, "Content-Length: 1048577", length=False), 413),
    "chunks beyond the bound": (coded(chunks(*[b" " * 65_536] * 17)), 413),
    "no body": (good(body=b""), 400),
}  # fmt: skip


async def send_in(connection: Wire, data: bytes, pieces: int) -> None:
    """These bytes at once, or with a pause after the head."""
    cut = data.find(b"\r\n\r\n") + 4 if pieces == 2 else len(data)
    await connection.send(data[:cut])
    if cut < len(data):
        await asyncio.sleep(0.02)
        await connection.send(data[cut:])


async def said(running: World, data: bytes, pieces: int) -> bytes:
    """All that one connection hears for these bytes."""
    async with wire(running) as connection:
        await send_in(connection, data, pieces)
        return await connection.everything()


@pytest.mark.parametrize("pieces", [1, 2])
async def test_what_every_reader_frames_alike_is_executed_once(planner: World, pieces: int) -> None:
    for number, (case, make) in enumerate(EXECUTED.items(), start=1):
        received = await said(planner, make(planner), pieces)
        assert [status for status in statuses(received) if status != 100] == [200], case
        assert answer_in(received)["result"]["content"][0]["text"] == "done"
        assert len(planner.upstream.calls()) == number and len(planner.ends()) == number, case
    arguments = [call["params"]["arguments"] for call in planner.upstream.calls()]
    assert arguments == [{"repo": "acme/raw"}] * len(EXECUTED)


@pytest.mark.parametrize("pieces", [1, 2])
async def test_what_is_no_http_is_refused_recorded_and_the_end_of_the_connection(planner: World, pieces: int) -> None:
    for number, (case, make) in enumerate(NOT_HTTP.items(), start=1):
        received = await said(planner, make(planner), pieces)
        assert statuses(received) == [400], (case, received)
        assert "malformed-call" in str(answer_in(received)), case
        assert len(planner.ends()) == number, case
    assert planner.upstream.calls() == []
    assert {record["reason"] for record in planner.ends()} == {"malformed-call"}


async def test_what_is_not_served_here_is_refused_once(planner: World) -> None:
    for number, (case, (make, expected)) in enumerate(NOT_SERVED.items(), start=1):
        async with wire(planner) as connection:
            await connection.send(make(planner))
            received = await connection.quiet()
        assert statuses(received) == [expected], case
        assert len(planner.ends()) == number and planner.upstream.calls() == [], case
        assert b"evil.example" not in received and b"Traceback" not in received, case


async def test_what_follows_a_refused_request_is_never_another(planner: World) -> None:
    """The body of one is not the head of the next, wherever a front proxy would have cut."""
    inner = request(planner, body=CALL.replace(b"acme/raw", b"acme/smuggled"))
    outer = [
        request(planner, CHUNKED, body=b"0\r\n\r\n" + inner),
        request(planner, "Content-Length: 0", body=inner),
        request(planner, "Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + inner, length=False),
        request(planner, "Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + inner, length=False),
        request(planner, first="PUT /mcp/github HTTP/1.1", body=inner),
        request(planner, first="POST /nowhere HTTP/1.1", body=inner),
        request(planner, "Content-Encoding: gzip", body=inner),
        request(planner, first="POST /mcp/github HTTP/1.0\r\n" + CHUNKED, body=b"0\r\n\r\n" + inner),
        request(planner, first="GET /mcp/github HTTP/1.1", body=inner),
    ]
    for data in outer:
        for pieces in (1, 2):
            async with wire(planner) as connection:
                await send_in(connection, data, pieces)
                assert 400 <= statuses(await connection.quiet())[-1] < 500
    assert planner.upstream.calls() == []


async def test_requests_in_a_row_are_answered_in_their_order(planner: World) -> None:
    repos = [f"acme/{number}" for number in range(40)]
    calls = [stateless("tools/call", {"name": "search_code", "arguments": {"repo": repo}}, id=repo) for repo in repos]
    async with wire(planner) as connection:
        await connection.send(b"".join(request(planner, body=json.dumps(call).encode()) for call in calls))
        answers = [await connection.response() for _ in calls]
    assert [json.loads(body)["id"] for _, body in answers] == repos
    assert [call["params"]["arguments"]["repo"] for call in planner.upstream.calls()] == repos
    assert len(planner.ends()) == 40


async def test_who_asks_before_sending_is_told_to_go_on(planner: World) -> None:
    async with wire(planner) as connection:
        asks = request(planner, "Expect: 100-continue", CLOSE, f"Content-Length: {SIZE}", body=b"", length=False)
        await connection.send(asks)
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(CALL)
        assert (await connection.response())[0] == 200
    async with wire(planner) as connection:
        too_large = request(planner, "Expect: 100-continue", "Content-Length: 99999999", body=b"", length=False)
        await connection.send(too_large)
        assert (await connection.response())[0] == 413, "and who would send too much is not"


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_a_malformed_body_is_an_error_one_record_and_nothing_else(planner: World, era: Era) -> None:
    """BL-001, BL-025, BL-027, BL-062, BL-076: the whole corpus in one session, which goes on as if nothing had been. A
    request whose id can be read is answered in its session, all else with HTTP 400."""
    talk = Talk(planner, era)
    assert (await talk.call("search_code", {"repo": "acme/first"}))[0] == 200
    before = len(planner.records())
    refused = {name: code for name, code in messages.bodies().items() if code != "taken"}
    for number, (name, code) in enumerate(refused.items(), start=1):
        answer = await talk.send(messages.body(name))
        status = 200 if era == "session" and answer[1]["id"] is not None else 400
        assert (answer[0], error_of(answer)["code"], reason_of(answer)) == (status, int(code), "malformed-call"), name
        records = planner.records()[before:]
        assert len(records) == number, name
        last = records[-1]
        assert (last["event"], last["reason"], last["http_status"]) == ("refusal", "malformed-call", status), name
    assert (await talk.call("search_code", {"repo": "acme/last"}))[0] == 200
    assert [call["params"]["arguments"]["repo"] for call in planner.upstream.calls()] == ["acme/first", "acme/last"]


@pytest.mark.parametrize("lines", [[], [CHUNKED]], ids=["a length", "chunks"])
async def test_a_body_one_byte_too_long_is_not_decided_on_in_part(planner: World, lines: list[str]) -> None:
    """BL-076: what fits is a call that is allowed; the byte that does not fit belongs to another method."""
    limit = planner.app.live.current.bounds.max_body_bytes
    fits = CALL[:-1] + b" " * (limit - len(CALL)) + b"}"
    tail = b',"method":"tools/delete"}'
    too_long = CALL[:-1] + b" " * (limit + 1 - len(CALL) + 1 - len(tail)) + tail
    assert (len(fits), len(too_long)) == (limit, limit + 1)
    for body, expected in ((fits, 200), (too_long, 413)):
        async with wire(planner) as connection:
            sent = chunks(body) if lines else body
            await connection.send(request(planner, *lines, body=sent, length=not lines))
            assert (await connection.response())[0] == expected
    assert len(planner.upstream.calls()) == 1
    assert [record["event"] for record in planner.records()[-3:]] == ["decision", "outcome", "refusal"]


# --- time -------------------------------------------------------------------------------------------------------------

HASTY = 'server: {listen: "127.0.0.1:0", header_timeout_s: 0.4, keepalive_timeout_s: 0.4, body_timeout_s: 0.4}\n'


async def drip(connection: Wire, data: bytes, every_s: float = 0.03) -> None:
    """A byte now and then, until nobody takes them any more."""
    for byte in data:
        if connection.writer.transport.is_closing():
            return
        await connection.send(bytes([byte]))
        await asyncio.sleep(every_s)


async def test_heads_that_do_not_come_are_not_waited_for(tmp_path: Path) -> None:
    """Neither the first nor the second of a connection."""

    async def left_alone(beginning: bytes, *, dripping: bool = False, first: bool = True) -> None:
        async with wire(running) as connection:
            if not first:
                await connection.send(request(running))
                assert (await connection.response())[0] == 200
            await (drip(connection, beginning) if dripping else connection.send(beginning))
            assert await connection.everything() == b""

    async with world(tmp_path, settings=HASTY) as running:
        silent = [b"", b"P", b"POST /mcp/github HTTP/1.1\r\n", request(running)[:-SIZE][:-2]]
        async with asyncio.TaskGroup() as group:
            for beginning in silent * 25:
                group.create_task(left_alone(beginning))
            group.create_task(left_alone(request(running)[:200], dripping=True))
            for beginning in (b"", b"POST /mcp/github HTTP/1.1\r\nX-A:"):
                group.create_task(left_alone(beginning, dripping=True, first=False))
            for _ in range(5):
                assert (await running.call("search_code", {"repo": "acme/x"}))[0] == 200
        assert len(running.ends()) == 7, "and what was never a request has no record"


BODIES = {
    "never": (f"Content-Length: {SIZE}", b""),
    "half": (f"Content-Length: {SIZE}", CALL[:100]),
    "in chunks": (CHUNKED, b"5\r\n{    \r\n" * 3),
}


async def test_a_body_that_does_not_come_is_refused_and_the_connection_closed(tmp_path: Path) -> None:
    async def send(running: World, promise: str, body: bytes, every_s: float) -> None:
        async with wire(running) as connection:
            await connection.send(request(running, promise, body=b"", length=False))
            dripping = asyncio.create_task(drip(connection, body, every_s))
            received = await connection.everything()
            dripping.cancel()
        assert statuses(received) == [400] and "did not arrive in time" in answer_in(received)["error"]["message"]

    async with world(tmp_path, settings=HASTY) as running:
        cases = [send(running, *body, every_s) for body in BODIES.values() for every_s in (0.0, 0.03)]
        await asyncio.gather(*cases, running.call("search_code", {"repo": "acme/x"}))
        assert sorted(str(record["reason"]) for record in running.ends()) == ["None", *["malformed-call"] * len(cases)]


async def test_connections_are_capped_and_the_idle_make_room(tmp_path: Path) -> None:
    go, upstream = asyncio.Event(), Upstream()

    async def wait(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await go.wait()
        return upstream.answer(message)

    upstream.script["tools/call"] = wait
    settings = 'server: {listen: "127.0.0.1:0", max_connections: 3}\n'
    async with world(tmp_path, settings=settings, upstream=upstream) as running, AsyncExitStack() as stack:
        three = [await stack.enter_async_context(wire(running)) for _ in range(3)]
        for connection in three:
            await connection.send(request(running))
        await until(lambda: len(upstream.calls()) == 3)
        for _ in range(20):  # whoever is answered keeps the place
            async with wire(running) as one_too_many:
                await one_too_many.send(request(running))
                assert await one_too_many.everything() == b""
        go.set()
        assert [(await connection.response())[0] for connection in three] == [200] * 3
        for _ in range(20):  # whoever is idle gives it up
            async with wire(running) as the_next:
                await the_next.send(request(running))
                assert (await the_next.response())[0] == 200
        assert await three[0].everything() == b""
        assert len(running.ends()) == 23
