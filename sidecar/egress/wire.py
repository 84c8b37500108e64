"""What do the bytes of one HTTP/1.1 request and its response say?

Pure: no sockets, no clock. `httptools` (llhttp) reads heads and chunks; what it would let pass is refused here:

    llhttp lets pass                                   we say
    any Transfer-Encoding, read until close or not     exactly `chunked`, once, in HTTP/1.1
    HTTP/2.0, status 099 or 999, NUL in the reason     a status line by RFC 9112
    endless chunk extensions, leading zeros, trailers  a bound on what is not payload
    empty lines before and after a response            a connection that is not used again
    1xx without end, 101                               at most 8, never 101

A response has one framing: none (204, 304), a length, chunks, or until the connection closes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httptools

from sidecar.egress.failures import Broken, InvalidRequest, Unacceptable

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 100
MAX_INTERIM: Final = 8
# What chunked coding may spend on other than payload: per chunk its size line and line ends, and once the trailers.
MAX_CHUNK_LINE_BYTES: Final = 64
MAX_TRAILER_BYTES: Final = 8 * 1024
# What a piece costs beside its payload, so that one-byte chunks fill the buffer as soon as large ones.
_PIECE_BYTES: Final = 64

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_TARGET = re.compile(r"/[!-~]*")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-5][0-9][0-9](?: [\t -~\x80-\xff]*)?\r\n")
_LENGTH = re.compile(r"[0-9]{1,15}")
_NO_BODY = frozenset({204, 304})
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "te", "trailer", "upgrade",
     "keep-alive", "expect", "cookie", "proxy-connection", "proxy-authorization"}
)  # fmt: skip
# Two of these would leave it to chance which one counts (threats H4, H10).
_ONCE = frozenset(
    {"content-type", "content-length", "transfer-encoding", "content-encoding", "content-range", "location",
     "mcp-session-id", "mcp-protocol-version", "retry-after", "keep-alive"}
)  # fmt: skip


def request_bytes(verb: str, path: str, host: str, headers: Sequence[tuple[str, str]], body: bytes | None) -> bytes:
    """One whole request, built from nothing but these values. Raises InvalidRequest.

    Framing, `Host` and `Accept-Encoding` are ours; a caller that names them is a bug, and refused.
    """
    if not _TOKEN.fullmatch(verb) or verb == "HEAD" or not _TARGET.fullmatch(path):
        raise InvalidRequest("bad verb or target")
    lines = [f"{verb} {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n"]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value) or name.lower() in _OURS:
            raise InvalidRequest("a header that must not be sent")
        lines.append(f"{name}: {value}\r\n")
    if body is None:
        return ("".join(lines) + "\r\n").encode("ascii")
    return f"{''.join(lines)}Content-Length: {len(body)}\r\n\r\n".encode("ascii") + body


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response. Names are lower-case; repeated ones are joined; cookies are gone."""

    status: int
    headers: Mapping[str, str]


class ResponseReader:
    """Reads one response. Feed it bytes; look at `head`, take pieces of the body, until `complete`.

    `reusable` is decided when it is complete: whether the connection is surely at the start of nothing.
    `buffered` is what waits to be taken, in bytes, with the cost of holding it.
    """

    __slots__ = (
        "_chunk_count", "_head_bytes", "_headers", "_interim", "_overhead", "_parser", "_pieces", "_remaining",
        "_tail", "_until_close", "buffered", "complete", "head", "reusable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete = False
        self.reusable = True
        self.buffered = 0
        self._pieces: list[bytes] = []
        self._head_bytes = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._interim = 0
        self._remaining: int | None = None
        self._until_close = False
        self._overhead = MAX_TRAILER_BYTES
        self._chunk_count = 0
        self._tail = b""
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def take(self) -> bytes:
        """All of the body that has arrived since the last time."""
        taken = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.buffered = 0
        return taken

    def feed(self, data: bytes) -> None:
        """What the peer sent. Raises Broken, Unacceptable."""
        while data and not self.complete:
            data = self._feed_head(data) if self.head is None else self._feed_body(data)
        if data:  # nobody asked for these bytes: whatever comes next cannot be told apart from them
            self.reusable = False

    def end(self) -> None:
        """The peer will send nothing more. Raises Broken where the response is not whole."""
        self.reusable = False
        if self.complete:
            return
        if not self._until_close:
            raise Broken("the connection closed before the response was whole")
        self._finish()

    def _feed_head(self, data: bytes) -> bytes:
        start = len(self._head_bytes)
        self._head_bytes += data
        end = self._head_bytes.find(b"\r\n\r\n", max(0, start - 3))
        size = end + 4 if end >= 0 else len(self._head_bytes)
        if size > MAX_HEAD_BYTES:
            raise Broken("the response head is too large")
        self._parse(self._head_bytes[start:size])
        if end < 0:
            return b""
        rest, head = self._head_bytes[size:], self._head_bytes[:size]
        self._head_bytes = b""
        self._begin(head)
        return rest

    def _begin(self, head: bytes) -> None:
        if not _STATUS_LINE.match(head):
            raise Broken("bad status line")
        status, headers = int(head[9:12]), self._headers
        self._headers = []
        if status >= 200:
            self.head = Head(status, _joined(headers))
            self._frame(self.head, http_11=head[7:8] == b"1")
            return
        self._interim += 1
        if status == 101:
            raise Unacceptable("an upgrade that nobody asked for")
        if self._interim > MAX_INTERIM:
            raise Broken("interim responses without end")

    def _frame(self, head: Head, *, http_11: bool) -> None:
        """Decide how the body ends (RFC 9112, 6.3), and refuse every second opinion."""
        coding, length = head.headers.get("transfer-encoding"), head.headers.get("content-length")
        if coding is not None and (coding.lower() != "chunked" or length is not None or not http_11):
            raise Broken("bad response framing")
        if length is not None and not _LENGTH.fullmatch(length):
            raise Broken("bad Content-Length")
        # We asked for identity; inflating is what bombs are made for, and what we cannot read we cannot check.
        if head.headers.get("content-encoding", "identity").lower() != "identity":
            raise Unacceptable("a content coding that nobody asked for")
        if not http_11 or "close" in head.headers.get("connection", "").lower():
            self.reusable = False
        if head.status in _NO_BODY:
            self._finish()
        elif coding is None and length is None:
            self._until_close = True
        elif length is not None:
            self._remaining = int(length)
            if self._remaining == 0:
                self._finish()

    def _feed_body(self, data: bytes) -> bytes:
        if self._until_close:
            self.on_body(data)
            return b""
        if self._remaining is None:
            return self._feed_chunks(data)
        rest = data[self._remaining :]
        piece = data[: self._remaining] if rest else data
        self._remaining -= len(piece)
        self.on_body(piece)
        if self._remaining == 0:
            self._finish()
        return rest

    def _feed_chunks(self, data: bytes) -> bytes:
        self._overhead -= len(data)
        self._tail = (self._tail + data)[-5:] if len(data) < 5 else data[-5:]
        self._parse(data)
        if self._overhead + self._chunk_count * MAX_CHUNK_LINE_BYTES < 0:
            raise Broken("more chunk framing than payload justifies")
        # llhttp swallows line ends after the last chunk: only the plainest ending proves that nothing follows.
        if self.complete and self._tail != b"0\r\n\r\n":
            self.reusable = False
        return b""

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                upgrade = isinstance(error, httptools.HttpParserUpgrade)
                raise (Unacceptable if upgrade else Broken)("the response is not plain HTTP/1.1") from error
            self.reusable = False

    def _finish(self) -> None:
        self.complete = True
        self._parser = None

    # What follows is called by httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # trailers are of no use to us, and bounded as overhead
            self._headers.append((name, value))

    def on_body(self, piece: bytes) -> None:
        if self.complete:  # llhttp reads on; a second response is not part of the first
            return
        self._pieces.append(piece)
        self.buffered += len(piece) + _PIECE_BYTES
        self._overhead += len(piece)

    def on_chunk_header(self) -> None:
        self._chunk_count += 1

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False

    def on_message_complete(self) -> None:
        if self.head is not None and self._remaining is None and not self._until_close:
            self.complete = True


def _joined(lines: list[tuple[bytes, bytes]]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise Broken("too many response headers")
    headers: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
        if name == "set-cookie":  # cookies travel in neither direction (threat H11)
            continue
        if name in headers:
            if name in _ONCE:
                raise Broken("a response header came twice that may come once")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers
