"""What is a response, and what only looks like one?"""

import h11
import pytest
from hypothesis import given, strategies as st

from sidecar.http.client import ConnectionBroken, InvalidRequest, UnacceptableResponse
from sidecar.http.client.http1 import MAX_HEAD_BYTES, MAX_HEADERS, MAX_INTERIM, RequestForm, ResponseReader
from tests import wire
from tests.tables import tables
from tests.unit.http.client.hostile import chunked, response

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

LIES = {name: raw.encode("latin-1") for name, raw in wire.table("responses").items()} | {
    "chunk size line without end": CHUNKED + b"0" * 20_000 + b"2\r\nok\r\n0\r\n\r\n",
    "chunk extension without end": CHUNKED + b"2;" + b"a" * 20_000 + b"\r\nok\r\n0\r\n\r\n",
    "trailers without end": CHUNKED + b"0\r\n" + b"X: y\r\n" * 3_000 + b"\r\n",
    "interim responses without end": CONTINUE * (MAX_INTERIM + 1) + OK + b"Content-Length: 2\r\n\r\nok",
    "too many headers": OK + b"X: y\r\n" * MAX_HEADERS + b"Content-Length: 2\r\n\r\nok",
    "a head that is too large": OK + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\nContent-Length: 2\r\n\r\nok",
}


def read(raw: bytes, *, step: int | None = None) -> tuple[int, bytes, ResponseReader]:
    """One response from all of `raw`, in pieces of `step`, with the end of the connection after it."""
    reader = ResponseReader()
    step = step or len(raw) or 1
    for start in range(0, len(raw), step):
        reader.feed(raw[start : start + step])
    reader.end()
    return reader.head.status, reader.take(), reader


@pytest.mark.parametrize("step", [None, 1], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("raw", LIES.values(), ids=LIES.keys())
def test_what_two_readers_could_read_differently_is_refused(raw: bytes, step: int | None) -> None:
    if step and len(raw) > 50_000:
        pytest.skip("slow, and the same as at once")
    with pytest.raises((ConnectionBroken, UnacceptableResponse)):
        read(raw, step=step)


@pytest.mark.parametrize(
    ("raw", "status", "body", "reusable"),
    [*tables("http/client/http1")["taken"], ((CONTINUE * MAX_INTERIM + response(b"ok")).decode(), 200, "ok", True)],
)
def test_one_framing_says_where_a_body_ends(raw: str, status: int, body: str, reusable: bool) -> None:
    reader = ResponseReader()
    reader.feed(raw.encode())
    if not reader.complete:
        reader.end()
    assert (reader.head.status, reader.take(), reader.reusable) == (status, body.encode(), reusable)
    assert read(raw.encode(), step=1)[:2] == (status, body.encode())


@pytest.mark.parametrize("raw", [response(b"hello"), CONTINUE + CHUNKED + chunked(b"hel", b"lo")])
def test_a_response_cut_short_anywhere_is_broken(raw: bytes) -> None:
    for length in range(len(raw)):
        with pytest.raises(ConnectionBroken):
            read(raw[:length])


def test_cookies_are_not_even_seen() -> None:
    reader = read(response(b"", "Set-Cookie: a=1", "set-cookie: b=2", "X-A: 1", "x-a: 2"))[2]
    assert reader.head.headers == {"x-a": "1, 2", "content-length": "0"}


def test_one_byte_chunks_fill_the_buffer_as_fast_as_large_ones() -> None:
    reader = ResponseReader()
    reader.feed(CHUNKED + b"1\r\nx\r\n" * 5_000)
    assert reader.buffered > 256 * 1024


VALUES = ("a\r\nY: b", "a\nY: b", "a\0", "ä", " a", "a ")
OURS = {"Host": "other", "content-LENGTH": "3", "Transfer-Encoding": "chunked", "Connection": "X-Tenant"}
OURS |= {"Cookie": "a=b", "Accept-Encoding": "gzip"}
BAD_HEADERS = [*(("X", value) for value in VALUES), ("X\r\nY", "a"), ("X:", "a"), ("", "a"), *OURS.items()]
BAD_PATHS = ("/ HTTP/1.1\r\nX: y", "/a b", "http://elsewhere/")
BAD_LINES = [*(("GET", path) for path in BAD_PATHS), ("GET /", "/"), ("HEAD", "/")]


def test_what_http_cannot_carry_is_not_sent() -> None:
    for verb, path in BAD_LINES:
        with pytest.raises(InvalidRequest):
            RequestForm(verb, path, "host", [("X", "a")])
    for header in BAD_HEADERS:
        for first, middle, last in (([header], [], []), ([], [header], []), ([], [], [header])):
            with pytest.raises(InvalidRequest):
                RequestForm("POST", "/", "host", first, last).message(middle, b"")


headers = st.lists(
    st.tuples(
        st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True).map(lambda name: f"X-{name}"),
        st.from_regex(r"[!-~]?", fullmatch=True) | st.from_regex(r"[!-~][ -~\t]{0,12}[!-~]", fullmatch=True),
    ),
    max_size=5,
)


@given(headers=headers, body=st.none() | st.binary(max_size=64), cut=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_a_second_parser_reads_the_request_that_was_meant(
    headers: list[tuple[str, str]], body: bytes | None, cut: tuple[int, int]
) -> None:
    first, last = min(cut), max(cut)
    form = RequestForm("POST", "/mcp?x=1", "host:1", headers[:first], headers[last:])
    server = h11.Connection(h11.SERVER)
    server.receive_data(form.message(headers[first:last], body))
    request = server.next_event()
    assert isinstance(request, h11.Request)
    seen = [(bytes(name).decode(), bytes(value).decode()) for name, value in request.headers]
    own = {"host": "host:1", "accept-encoding": "identity"}
    own |= {} if body is None else {"content-length": str(len(body))}
    assert [pair for pair in seen if pair[0] not in own] == [(name.lower(), value) for name, value in headers]
    assert {name: value for name, value in seen if name in own} == own
    data = server.next_event()
    assert (bytes(data.data) if isinstance(data, h11.Data) else b"") == (body or b"")


@st.composite
def well_formed(draw: st.DrawFn) -> bytes:
    """A response as servers send them, in any framing, with interim responses before it."""
    body, extra = draw(st.binary(max_size=200)), [f"{name}: {value}" for name, value in draw(headers)]
    interim = draw(st.sampled_from([b"", CONTINUE, CONTINUE * 2]))
    status = draw(st.sampled_from(["200 OK", "202 Accepted", "404 Not Found", "503", "400 Bad \xff"]))
    framing = draw(st.sampled_from([f"Content-Length: {len(body)}", "Transfer-Encoding: chunked", ""]))
    if "chunked" in framing:
        cut = draw(st.integers(0, len(body)))
        body = chunked(*(piece for piece in (body[:cut], body[cut:]) if piece))
    lines = [line for line in (f"HTTP/1.1 {status}", *extra, framing) if line]
    return interim + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def h11_reads(raw: bytes) -> tuple[int, bytes] | None:
    """Status and body as h11 sees them, the connection ending after `raw`; None where it refuses."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        client.receive_data(raw)
        client.receive_data(b"")
        while True:
            event = client.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None


@given(raw=well_formed(), step=st.integers(1, 60))
def test_a_well_formed_response_means_what_a_second_parser_says_however_it_is_cut(raw: bytes, step: int) -> None:
    status, body, _ = read(raw, step=step)
    assert (status, body) == h11_reads(raw)


def outcome(raw: bytes, step: int | None = None) -> tuple[int, bytes, object] | None:
    """What a response says; None where it is refused."""
    try:
        status, body, reader = read(raw, step=step)
    except (ConnectionBroken, UnacceptableResponse):
        return None
    return status, body, reader.head.headers


@given(well_formed(), st.integers(0, 400), st.binary(max_size=3), st.integers(0, 3), st.integers(1, 60))
def test_a_damaged_response_is_refused_or_means_what_a_second_parser_says_however_it_is_cut(
    raw: bytes, place: int, inserted: bytes, removed: int, step: int
) -> None:
    """A head that comes whole is read by us alone, one in pieces by llhttp too: neither lets pass what the other does
    not."""
    place = min(place, len(raw))
    damaged = raw[:place] + inserted + raw[place + removed :]
    said = outcome(damaged)
    assert said == outcome(damaged, step)
    assert said is None or h11_reads(damaged) in (None, said[:2])


@pytest.mark.parametrize("head", ["1.1 200 OK|X: a?b", "1.1 200 OK|X:?a", "1.1 200 OK|X?Y: a", "1.1 200 OK|?: a",
                                  "1.1 200 O?K|X: a", "1.1 200?OK|X: a", "1.1?200 OK|X: a"])  # fmt: skip
def test_every_byte_in_a_head_is_read_alike_whole_and_in_pieces(head: str) -> None:
    raw = f"HTTP/{head}|Content-Length: 2||ok".replace("|", "\r\n").encode()
    for byte in range(256):
        sent = raw.replace(b"?", bytes([byte]), 1)
        assert outcome(sent) == outcome(sent, 1), byte
