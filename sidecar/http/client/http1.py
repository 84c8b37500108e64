"""Parses and writes HTTP/1.1 messages.

No sockets and no clock. A complete head is parsed by one regular expression that follows RFC 9112 strictly. `httptools`
(llhttp) parses chunks, and heads that arrive in pieces, so that invalid HTTP is detected at its first bytes. What it
accepts beyond the RFC is refused here:

    llhttp accepts                                     this module accepts
    any Transfer-Encoding, read until close or not     exactly `chunked`, once, in HTTP/1.1
    HTTP/2.0, status 099 or 999, NUL in the reason     a status line by RFC 9112
    endless chunk extensions, leading zeros, trailers  a bounded size of everything but payload
    empty lines before and after a response            them, but does not reuse the connection
    1xx without end, 101                               at most 8, never 101

A response has one framing: none (204, 304), a length, chunks, or until the connection closes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import httptools

from sidecar.http.client.failures import ConnectionBroken, InvalidRequest, UnacceptableResponse

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 100
MAX_INTERIM: Final = 8
# Bounds on the chunked coding beside the payload: for each chunk its size line and line ends, and the trailers once.
MAX_CHUNK_LINE_BYTES: Final = 64
MAX_TRAILER_BYTES: Final = 8 * 1024
# The cost of a piece beside its payload, so that one-byte chunks fill the buffer as fast as large ones.
_PIECE_BYTES: Final = 64

_PLAIN_END: Final = b"\r\n0\r\n\r\n"  # of a chunked body: no trailer field ends like this, because it has a colon

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_TARGET = re.compile(r"/[!-~]*")
_HEAD = re.compile(
    r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?"
    r"((?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*)*)\r\n\r\n"
)
_LENGTH = re.compile(r"[0-9]{1,15}")
_NO_BODY = frozenset({204, 304})
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "te", "trailer", "upgrade",
     "keep-alive", "expect", "cookie", "proxy-connection", "proxy-authorization"}
)  # fmt: skip
# If one of these is repeated, it is ambiguous which line counts (threats H4, H10).
_ONCE = frozenset(
    {"content-type", "content-length", "transfer-encoding", "content-encoding", "content-range", "location",
     "mcp-session-id", "mcp-protocol-version", "retry-after", "keep-alive"}
)  # fmt: skip


class RequestForm:
    """The common parts of similar requests, checked and encoded once: verb, target, and the headers `first` and `last`
    around the varying ones. Framing, `Host` and `Accept-Encoding` are set here; who names them is refused."""

    __slots__ = ("_first", "_last")

    def __init__(
        self, verb: str, path: str, host: str, first: Sequence[tuple[str, str]], last: Sequence[tuple[str, str]] = ()
    ) -> None:
        if not _TOKEN.fullmatch(verb) or verb == "HEAD" or not _TARGET.fullmatch(path):
            raise InvalidRequest("bad verb or target")
        self._first = f"{verb} {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n{_lines(first)}"
        self._last = _lines(last)

    def message(self, headers: Sequence[tuple[str, str]], body: bytes | None) -> bytes:
        """Returns one whole request, built only from these values. Raises InvalidRequest."""
        if body is None:
            return f"{self._first}{_lines(headers)}{self._last}\r\n".encode("ascii")
        head = f"{self._first}{_lines(headers)}{self._last}Content-Length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body


def _lines(headers: Sequence[tuple[str, str]]) -> str:
    lines = ""
    for name, value in headers:
        if not _VALUE.fullmatch(value):
            raise InvalidRequest("a header that must not be sent")
        lines += f"{_checked(name)}: {value}\r\n"
    return lines


@lru_cache(maxsize=256)  # requests repeat the same few names
def _checked(name: str) -> str:
    if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
        raise InvalidRequest("a header that must not be sent")
    return name


class ResponseHead(NamedTuple):
    """Status and headers of a response. Names are lower-case; repeated ones are joined; cookies are removed."""

    status: int
    headers: Mapping[str, str]


class ResponseReader:
    """Reads one response. Feed it bytes; read `head`, take pieces of the body, until `complete`.

    `reusable` is decided on completion: whether the connection is certainly between two responses. `buffered` is the
    size of the data not yet taken, in bytes, with the overhead of holding it."""

    __slots__ = (
        "_chunk_count", "_head_bytes", "_interim", "_overhead", "_parser", "_pieces", "_remaining", "_tail",
        "_until_close", "buffered", "complete", "head", "reusable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.complete = False
        self.reusable = True
        self.buffered = 0
        self._pieces: list[bytes] = []
        self._head_bytes = b""
        self._interim = 0
        self._remaining: int | None = None
        self._until_close = False
        self._overhead = MAX_TRAILER_BYTES
        self._chunk_count = 0
        self._tail = b"\r\n"  # of the head
        self._parser: httptools.HttpResponseParser | None = None

    def take(self) -> bytes:
        """Returns the part of the body that has arrived since the last call."""
        taken = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.buffered = 0
        return taken

    def feed(self, data: bytes) -> None:
        """Parses the peer's bytes. Raises ConnectionBroken, UnacceptableResponse."""
        while data and not self.complete:
            data = self._feed_head(data) if self.head is None else self._feed_body(data)
        if data:  # unexpected bytes could not be told apart from a later response
            self.reusable = False

    def end(self) -> None:
        """Handles the end of the connection. Raises ConnectionBroken if the response is incomplete."""
        self.reusable = False
        if self.complete:
            return
        if not self._until_close:
            raise ConnectionBroken("the connection closed before the response was whole")
        self._finish()

    def _feed_head(self, data: bytes) -> bytes:
        start = len(self._head_bytes)
        if start:
            data = self._head_bytes + data
        end = data.find(b"\r\n\r\n", max(0, start - 3))
        size = end + 4 if end >= 0 else len(data)
        if size > MAX_HEAD_BYTES:
            raise ConnectionBroken("the response head is too large")
        if end < 0:
            self._parse(data[start:])
            self._head_bytes = data
            return b""
        if self._parser is not None:
            self._parse(data[start:size])
        self._head_bytes = b""
        self._begin(data[:size])
        return data[size:]

    def _begin(self, head: bytes) -> None:
        match = _HEAD.fullmatch(head.decode("latin-1"))
        if match is None:
            raise ConnectionBroken("the response head is not HTTP/1.1")
        minor, status, lines = match.groups()
        if status[0] != "1":
            self.head = ResponseHead(int(status), _joined(lines.split("\r\n")[1:]))
            self._frame(self.head, head, http_11=minor == "1")
            return
        self._interim += 1
        if status == "101":
            raise UnacceptableResponse("an upgrade that nobody asked for")
        if self._interim > MAX_INTERIM:
            raise ConnectionBroken("interim responses without end")

    def _frame(self, head: ResponseHead, raw: bytes, *, http_11: bool) -> None:
        """Decides how the body ends (RFC 9112, 6.3), and refuses contradictory framing."""
        headers = head.headers
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and (coding.lower() != "chunked" or length is not None or not http_11):
            raise ConnectionBroken("bad response framing")
        if length is not None and not _LENGTH.fullmatch(length):
            raise ConnectionBroken("bad Content-Length")
        # Identity was requested. Inflating allows decompression bombs, and a body that is not decoded cannot be
        # checked.
        if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
            raise UnacceptableResponse("a content coding that nobody asked for")
        if not http_11 or ("connection" in headers and "close" in headers["connection"].lower()):
            self.reusable = False
        if head.status in _NO_BODY:
            self._finish()
        elif length is not None:
            self._remaining = int(length)
            if self._remaining == 0:
                self._finish()
        elif coding is None:
            self._until_close = True
        elif self._parser is None:
            self._parse(raw)

    def _feed_body(self, data: bytes) -> bytes:
        if self._until_close:
            self.on_body(data)
            return b""
        remaining, size = self._remaining, len(data)
        if remaining is None:
            return self._feed_chunks(data)
        if size < remaining:
            self._remaining = remaining - size
            self.on_body(data)
            return b""
        self.on_body(data if size == remaining else data[:remaining])
        self._remaining = 0
        self._finish()
        return data[remaining:]

    def _feed_chunks(self, data: bytes) -> bytes:
        self._overhead -= len(data)
        self._tail = (self._tail + data if len(data) < len(_PLAIN_END) else data)[-len(_PLAIN_END) :]
        self._parse(data)
        if self._overhead + self._chunk_count * MAX_CHUNK_LINE_BYTES < 0:
            raise ConnectionBroken("more chunk framing than payload justifies")
        # llhttp accepts line ends after the last chunk; only the plain ending proves that nothing follows.
        if self.complete and self._tail != _PLAIN_END:
            self.reusable = False
        return b""

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                upgrade = isinstance(error, httptools.HttpParserUpgrade)
                raise (UnacceptableResponse if upgrade else ConnectionBroken)(
                    "the response is not plain HTTP/1.1"
                ) from error
            self.reusable = False
        if self.complete:
            self.let_go()

    def _finish(self) -> None:
        self.complete = True
        self.let_go()

    def let_go(self) -> None:
        """Releases the parser, which refers back here: reference cycles are freed late, and thousands of streams that
        end at once would hold their memory until the next collection."""
        self._parser = None

    # Called by httptools:

    def on_body(self, piece: bytes) -> None:
        if self.complete:  # llhttp continues; a second response is not part of the first
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


def _joined(lines: Sequence[str]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise ConnectionBroken("too many response headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name == "set-cookie":  # cookies are dropped in both directions (threat H11)
            continue
        if name in headers:
            if name in _ONCE:
                raise ConnectionBroken("a response header came twice that may come once")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers
