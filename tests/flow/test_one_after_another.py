"""What does one request leave behind for the next one on its connection?

A bare listener tells which headers it saw. It runs on each of the parsers that the HTTP library has, whole requests and
requests in pieces; and what is read of upstreams is held to the same.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import StreamReader, http_parser, web, web_protocol
from aiohttp.base_protocol import BaseProtocol

from sidecar.errors import Refusal
from sidecar.gateway.routing import BodyBounds, headers_of, read_body
from sidecar.http.server import listeners
from sidecar.http.server.connection_limits import ConnectionLimits, Seat
from sidecar.http.server.framing import BURST_BYTES, BYTES_S, FREE_BYTES, MAX_PEERS, ChunkedBody, FramingBudget
from sidecar.http.server.listeners import SLICE_BYTES, Listener
from sidecar.http.server.request import HttpRequest
from sidecar.http.server.response import WholeResponse
from tests.flow.raw import Wire, chunks, listening, statuses
from tests.flow.world import until
from tests.tables import tables

TABLES = tables("flow/one_after_another")

PARSERS: dict[str, Any] = {"C": http_parser.HttpRequestParser, "Python": http_parser.HttpRequestParserPy}
NEXT = b"GET /next HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n"
CHUNKED = b"POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
# What a first request ends with that a parser could keep for the next.
TRAILERS = {name: raw.encode("latin-1") for name, raw in TABLES["trailers"].items()}


class Ears:
    """A listener, and what it heard: (path, header lines, body) of each request."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[tuple[bytes, bytes]], Any]] = []
        self.listener: Listener

    async def handle(self, request: HttpRequest) -> web.StreamResponse:
        body: Any = None
        if (head := request.head) is not None:
            head.lines = head.lines or headers_of(request)
            assert [*head.lines.items()] == [*headers_of(request).items()]
            assert head.lines["content-length"] == (str(request.content_length),)
        if request.method == "POST":
            bounds = BodyBounds(max_body_bytes=2**20, body_timeout_s=5.0)
            try:
                body = await read_body(request, {"content-type": ["application/json"]}, bounds, lambda _: None)
            except Refusal as refusal:
                self.heard.append((request.raw_path, list(request.raw_headers), refusal))
                return WholeResponse(400, refusal.detail.encode())
        self.heard.append((request.raw_path, list(request.raw_headers), body))
        return WholeResponse(200, b"heard")

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.heard]

    @asynccontextmanager
    async def wire(self, source: str = "127.0.0.1") -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port, local_addr=(source, 0))
        try:
            yield Wire(reader, writer)
        finally:
            writer.transport.abort()


@pytest.fixture(params=PARSERS)
async def ears(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ears]:
    monkeypatch.setattr(web_protocol, "HttpRequestParser", PARSERS[request.param])
    heard = Ears()
    async with listening(heard.handle) as heard.listener:
        yield heard


@pytest.mark.parametrize("end", TRAILERS.values(), ids=TRAILERS)
@pytest.mark.parametrize("cut", [0, 1, 4, 9, -1], ids=lambda cut: f"cut at {cut}")
async def test_no_trailer_becomes_a_header_of_the_next_request(ears: Ears, end: bytes, cut: int) -> None:
    """At once, in pieces, and with the next request in the same packet or after the answer."""
    for together in (True, False):
        ears.heard.clear()
        async with ears.wire() as connection:
            data = CHUNKED + end + (NEXT if together else b"")
            at = len(CHUNKED) + cut if cut >= 0 else len(CHUNKED) + len(end) - 1
            await connection.send(data[:at])
            await asyncio.sleep(0.005 if cut else 0)
            await connection.send(data[at:])
            if not together:
                assert (await connection.response())[0] == 200
                await connection.send(NEXT)
            received = await connection.everything()
        assert statuses(received) in ([200], [])  # of the first alone, and then the connection is over
        assert ears.paths == ["/first"]
        assert ears.heard[0][1] == [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked")], "and it is dropped"


@pytest.mark.parametrize("size", [0, 2, 70_000])
async def test_chunks_without_a_trailer_keep_their_connection(ears: Ears, size: int) -> None:
    async with ears.wire() as connection:
        for _ in range(3):
            await connection.send(CHUNKED + chunks(b"x" * size))
            assert (await connection.response())[0] == 200
            await connection.send(NEXT)
            assert (await connection.response())[0] == 200
    assert ears.paths == ["/first", "/next"] * 3
    assert {len(lines) for path, lines, _ in ears.heard if path == "/next"} == {2}
    assert {len(body) for path, _, body in ears.heard if path == "/first"} == {size}


FIRSTS = {name: raw.encode("latin-1") for name, raw in TABLES["firsts"].items()}


@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS)
@pytest.mark.parametrize("together", [True, False])
async def test_the_next_request_is_read_as_if_it_were_the_first(ears: Ears, first: bytes, together: bool) -> None:
    async with ears.wire() as connection:
        await connection.send(first + (NEXT if together else b""))
        if not together:
            await until(lambda: ears.heard)
            await connection.send(NEXT)
        await connection.quiet(0.05)
    assert len(ears.heard) in (1, 2)
    for path, lines, body in ears.heard[1:]:
        assert (path, lines, body) == ("/next", [(b"Host", b"a"), (b"Accept", b"*/*")], None)


async def test_after_any_number_of_slow_bodies_all_requests_of_one_packet_are_answered(ears: Ears) -> None:
    """The parser counts requests that wait, and stops at 32 of them."""
    server: Any = ears.listener._server

    def begun(count: int) -> bool:
        return any(one._request_count == count for one in server.connections)

    async with ears.wire() as connection:
        for number in range(40):
            await connection.send(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\no")
            await until(partial(begun, number + 1))
            await connection.send(b"k")
            assert (await connection.response())[0] == 200
        await connection.send(NEXT * 40)
        assert [(await connection.response())[0] for _ in range(40)] == [200] * 40
    assert ears.paths == ["/slow"] * 40 + ["/next"] * 40


AGAIN = b"POST /again HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nAccept: */*\r\n\r\n%b"
SHORT = AGAIN % (2, b"{}")
LIKE_IT = [raw.encode("latin-1") for raw in TABLES["again"]] + [AGAIN % (9000, b"x" * 9000), *FIRSTS.values()]


def mutants(count: int) -> Iterator[bytes]:
    chance, plain = Random(17), AGAIN % (12, b'{"a": "\r\n"}')
    for _ in range(count):
        at, size = chance.randrange(len(plain)), chance.choice((0, 0, 1, 1, 2, 9))
        yield plain[:at] + chance.choice((b"", b"\r\n", b"1", b":", b" ", b"\0", b"x", plain)) + plain[at + size :]


async def test_a_head_that_is_sent_again_is_read_as_the_parser_reads_it(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alike are what is heard and answered, how often, and whether the connection goes on."""
    server: Any = ears.listener._server
    again = [AGAIN % (size, b"z" * size) for size in (7, 7, 12)]
    lines = [[SHORT[:at], SHORT[at:], SHORT[at:], SHORT] for at in range(0, len(SHORT), 3)]
    for each in (*LIKE_IT, *mutants(150)):
        lines += [[*again, each, again[0], NEXT], [each, SHORT, SHORT], [each, each, each.replace(b" 12", b" 9"), NEXT]]
    for pieces, ticks in product(lines, (4, 1)):
        found = []
        for heads in (4, 0):
            monkeypatch.setattr(listeners, "MAX_HEADS", heads)
            connection = listeners.ServerConnection(server, server._loop, Seat(ConnectionLimits(1), "a"))
            said: list[bytes] = []
            line: Any = SimpleNamespace(
                write=said.append, close=partial(said.append, b"over"), is_closing=partial(said.__contains__, b"over"),
                get_extra_info=lambda _: None, get_write_buffer_size=lambda: 0,
            )  # fmt: skip
            connection.connection_made(line)
            ears.heard.clear()
            for number, piece in enumerate(pieces):
                connection.data_received(piece)
                for _ in range(ticks if number < len(pieces) - 1 else 9):
                    await asyncio.sleep(0)
                assert number != 2 or piece is not again[2] or ticks == 1 or connection._heads_left == heads
            found.append((statuses(b"".join(said)), b"over" in said, connection._request_count, str(ears.heard)))
            connection.connection_lost(None)
        assert found[0] == found[1], pieces


# --- what chunks cost -------------------------------------------------------------------------------------------------


def ones(count: int, of: int = 1) -> bytes:
    return chunks(*[b"x" * of] * count)


@pytest.mark.parametrize(
    ("body", "status"),
    [(ones(1_000), 200), (ones(40_000, 25), 200), (ones(40_000), 400), (ones(50_000, 5), 400)],
    ids=["few of one byte", "many of 25", "many of one byte", "many of 5"],
)
async def test_a_body_in_too_small_chunks_is_refused_where_that_is_known(ears: Ears, body: bytes, status: int) -> None:
    async with ears.wire() as connection:
        await connection.send(CHUNKED + body)
        received = await (connection.quiet() if status == 200 else connection.everything())
    assert statuses(received) == [status]
    [(_, _, told)] = ears.heard
    assert (isinstance(told, Refusal) and "too small chunks" in told.detail) is (status == 400)


async def test_of_chunks_that_nobody_waits_for_no_more_is_read(ears: Ears) -> None:
    async with ears.wire() as connection:
        await connection.send(b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await connection.response())[0] == 200
        await connection.send(ones(40_000))
        assert await connection.everything(1.5) == b"", "sooner than the rest of other bodies"


async def test_framing_is_counted_against_its_peer_over_all_its_connections(ears: Ears) -> None:
    server: Any = ears.listener._server
    server.framing = FramingBudget(lambda: 0.0)  # in no time, nothing of it is forgotten
    earlier = StreamReader(BaseProtocol(asyncio.get_running_loop()), 2**16)
    body = ones((FREE_BYTES - SLICE_BYTES) // 5)
    server.framing.count("127.0.0.7", ChunkedBody(earlier, BURST_BYTES - 2 * len(body)))
    answers = []
    for source in ("127.0.0.7", "127.0.0.7", "127.0.0.7", "127.0.0.8"):
        async with ears.wire(source) as connection:
            await connection.send(CHUNKED + body)
            answers.append((await connection.response())[0])
    assert answers == [200, 200, 400, 200], "another peer has a budget of its own"


async def test_what_a_peer_sent_of_framing_is_forgotten_at_a_rate_and_the_table_is_bounded() -> None:
    now_s = [0.0]
    budget = FramingBudget(lambda: now_s[0])

    def spend(peer: str, size: int) -> bool:
        return budget.count(peer, ChunkedBody(StreamReader(BaseProtocol(asyncio.get_running_loop()), 2**16), size))

    assert spend("a", BURST_BYTES) and not spend("a", 2_000)
    now_s[0] += 2_000 / BYTES_S
    assert not spend("a", 2_000)
    now_s[0] += 4_000 / BYTES_S
    assert spend("a", 2_000)
    assert all(spend(f"b{number}", 5_000) for number in range(MAX_PEERS // 2))
    assert not all(spend(f"c{number}", 5_000) for number in range(MAX_PEERS)), "those for whom is no room are one"
    assert len(budget) == MAX_PEERS + 1
    now_s[0] += 60.0
    assert spend("d", 5_000) and len(budget) <= 2
