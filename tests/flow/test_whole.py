"""Are the answers that we write ourselves what aiohttp would have written?"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from sidecar.http.server.response import WholeResponse
from tests.flow.raw import listening
from tests.flow.world import PATIENCE_S

JSON = "application/json"
Make = Callable[[], web.StreamResponse]


@asynccontextmanager
async def answering(*makes: Make) -> AsyncIterator[int]:
    """A listener whose `/0`, `/1`, … answer with what these make; the port."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        return makes[int(request.path[1:])]()

    async with listening(handle) as listener:
        yield listener.port


async def heard(port: int, sent: bytes) -> bytes:
    """All that comes back on a connection of its own, up to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.transport.abort()


Kind = tuple[int, bytes, dict[str, str], bool]  # status, body, headers, whether the connection is over then


def made(whole: bool, status: int, body: bytes, headers: dict[str, str], close: bool) -> Make:
    """An answer of ours, or of aiohttp's."""

    def make() -> web.StreamResponse:
        sent = {"Server": "sidecar", **({"Content-Type": JSON} if body else {}), **headers}
        ours: Any = WholeResponse(status, body, JSON if body else "", headers) if whole else None
        response: Any = ours or web.Response(status=status, body=body, headers=sent)
        if close:
            response.force_close()
        return response

    return make


def meaning(received: bytes) -> list[tuple[bytes, list[bytes], bytes]]:
    """Each response of a connection: its status line, its header lines in any order, its body; dates are alike."""
    responses = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        lines = sorted(b"Date" if line.startswith(b"Date: ") and line.endswith(b" GMT") else line for line in lines)
        length = next((int(line[16:]) for line in lines if line.startswith(b"Content-Length: ")), 0)
        responses.append((first, lines, received[:length]))
        received = received[length:]
    return responses


HEADERS = {"WWW-Authenticate": 'Bearer resource_metadata="https://a/b"', "Retry-After": "3"}
ANSWERS: dict[str, Kind] = {
    "a body": (200, b'{"a":1}', {}, False),
    "a body of some size": (200, b"x" * 65_000, {}, False),
    "a body that is written by itself": (200, b"x" * 300_000, {}, False),
    "no body": (202, b"", {}, False),
    "no content": (204, b"", {}, False),
    "a refusal": (401, b"{}", HEADERS, False),
    "a refusal that ends the connection": (400, b"{}", HEADERS, True),
    "a status that has no name": (499, b"{}", {}, False),
    "an unknown route": (404, b"{}", {}, True),
}
REQUESTS = {
    "plain": b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    "the last": b"POST /%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    "old": b"POST /%d HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    "old, to be continued": b"POST /%d HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
    "get": b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n",
    "three at once": b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" * 3,
}
LAST = b"GET /%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_an_answer_is_the_one_that_aiohttp_would_write(answer: Kind) -> None:
    """And to HEAD the same is said without a body."""
    async with answering(made(True, *answer), made(False, *answer)) as port:
        for case, sent in REQUESTS.items():
            asked = [sent.replace(b"%d", b"%d" % number) + LAST % number for number in range(2)]
            mine, judged = await asyncio.gather(*(heard(port, each) for each in asked))
            assert mine
            # also in how many: whether the connection stayed open for the last
            assert meaning(mine) == meaning(judged), case
        head, _, rest = (await heard(port, LAST.replace(b"GET", b"HEAD") % 0)).partition(b"\r\n\r\n")
        assert rest == b""
        assert (b"Content-Length: %d" % len(answer[1]) in head.split(b"\r\n")) == (answer[0] != 204)


async def test_a_small_answer_goes_out_in_one_segment() -> None:
    async with answering(made(True, 200, b'{"a":1}', {}, False)) as port:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            for _ in range(20):
                await loop.sock_sendall(sock, REQUESTS["plain"] % 0)
                assert (await loop.sock_recv(sock, 65_536)).endswith(b'\r\n\r\n{"a":1}')


async def test_pipelined_requests_are_answered_in_their_order_also_to_a_slow_reader() -> None:
    bodies = [b"%d" % number * 400_000 for number in range(4)]
    async with answering(*(made(True, 200, body, {}, False) for body in bodies)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
        writer.write(b"".join(REQUESTS["plain"] % number for number in range(4)))
        for body in bodies:
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"\r\nContent-Length: 400000\r\n" in head
            got = b""
            while len(got) < len(body):
                got += await reader.read(min(50_000, len(body) - len(got)))
                await asyncio.sleep(0)
            assert got == body
        writer.transport.abort()


async def test_a_caller_who_is_gone_costs_nothing() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with listening(handle) as listener:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(REQUESTS["plain"] % 0)
        await begun.wait()
        writer.transport.abort()
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)


@pytest.mark.parametrize("closed", [True, False])
async def test_an_answer_is_sent_once_and_to_a_closed_connection_a_connection_error(closed: bool) -> None:
    raised = list[Exception]()

    async def handle(request: Any) -> web.StreamResponse:
        if closed:
            request.transport.close()
        response = WholeResponse(200, b"{}", JSON)
        try:
            for _ in range(2):
                await response.prepare(request)
                await response.write_eof()
        except ConnectionError as error:
            raised.append(error)
            raise
        return response

    async with listening(handle) as listener:
        assert (await heard(listener.port, LAST % 0)).count(b"HTTP/1.1 200 OK") == (not closed)
        assert len(raised) == closed


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nb", "a\rb", "a\0b", "a\x7fb", "\x1b[0m"])
def test_what_would_break_a_header_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="no header holds"):
        WholeResponse(200, b"{}", JSON, {"X-A": value})
    with pytest.raises(ValueError, match="no header holds"):
        WholeResponse(200, b"{}", value)
