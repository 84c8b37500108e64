"""Parses and writes HTTP/1.1 messages.

No sockets and no clock. A complete head is parsed by one regular expression that follows RFC 9112 strictly. `httptools`
(llhttp) parses chunks, and heads that arrive in pieces, so that invalid HTTP is detected at its first bytes. Input that
it accepts beyond the RFC is refused here:

    llhttp accepts                                     this module accepts
    any Transfer-Encoding, read until close or not     exactly `chunked`, once, in HTTP/1.1
    HTTP/2.0, status 099 or 999, NUL in the reason     a status line by RFC 9112, also without the space at its end
    endless chunk extensions, leading zeros, trailers  a bounded size of everything but payload
    empty lines before a response                      none
    empty lines after a response                       them, but does not reuse the connection
    1xx without end, 101                               at most 8, never 101

A response has one framing: none (204, 304), a length, chunks, or until the connection closes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import httptools

from sidecar.http.client.failures import ConnectionBroken, InvalidRequest, UnacceptableResponse

MAX_HEAD_BYTES: Final = 32 * 1024  # without the empty line at its end
MAX_HEADERS: Final = 100
MAX_INTERIM: Final = 8
# Bounds on the chunked coding in addition to the payload: for each chunk its size line and line ends, and the trailers
# once.
MAX_CHUNK_LINE_BYTES: Final = 64
MAX_TRAILER_BYTES: Final = 8 * 1024
# The cost of a piece in addition to its payload, so that one-byte chunks fill the buffer as fast as large ones.
_PIECE_BYTES: Final = 64
_HEAD_END: Final = b"\r\n\r\n"
_MAX_KNOWN_BYTES: Final = 1024  # of a cached head

_PLAIN_END: Final = b"\r\n0\r\n\r\n"  # of a chunked body: no trailer field ends like this, because it has a colon

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_TARGET = re.compile(r"/[!-~]*")
_HEAD = re.compile(
    r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?"
    r"((?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*)*)"
)
_LENGTH = re.compile(r"[0-9]{1,15}")
_NO_BODY = frozenset({204, 304})
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "te", "trailer", "upgrade",
     "keep-alive", "expect", "cookie", "proxy-connection", "proxy-authorization"}
)  # fmt: skip
# If one of these is repeated, it is ambiguous which line applies.
_ONCE = frozenset(
    {"content-type", "content-length", "transfer-encoding", "content-encoding", "content-range", "location",
     "mcp-session-id", "mcp-protocol-version", "retry-after", "keep-alive"}
)  # fmt: skip


class RequestForm:
    """The common parts of similar requests, checked and encoded once: verb, target, and the headers `first` and `last`
    around the varying ones. Framing, `Host` and `Accept-Encoding` are set here. Raises InvalidRequest for such a
    header, a value that no header can carry, and HEAD."""

    __slots__ = ("_first", "_last", "_whole")

    def __init__(
        self, verb: str, path: str, host: str, first: Sequence[tuple[str, str]], last: Sequence[tuple[str, str]] = ()
    ) -> None:
        if not _TOKEN.fullmatch(verb) or verb == "HEAD" or not _TARGET.fullmatch(path):
            raise InvalidRequest("bad verb or target")
        fixed = f"{verb} {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n{_lines(first)}"
        self._first, self._last = fixed.encode("ascii"), _lines(last).encode("ascii")
        self._whole = self._first + self._last

    def message(self, headers: Sequence[tuple[str, str]], body: bytes | None) -> bytes:
        """Returns one whole request, built only from these values. Raises InvalidRequest."""
        head = self._first + _lines(headers).encode("ascii") + self._last if headers else self._whole
        return b"%s\r\n" % head if body is None else b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)


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
    """The head of a response. Names in `headers` are lower-case; repeated ones are joined; cookies are removed.
    `media_type` is lower-case, without parameters, "" if there is none. A body that is not `chunked` and has no
    `length` (bytes) ends with the connection. Otherwise, the connection is `reusable` unless the peer closes it or uses
    HTTP/1.0."""

    status: int
    headers: Mapping[str, str]
    media_type: str
    length: int | None
    chunked: bool
    reusable: bool


NO_HEAD: Final = ResponseHead(0, MappingProxyType({}), "", None, chunked=False, reusable=False)


class ResponseReader:
    """Reads one response. Feed it bytes; read `head`, NO_HEAD at first; take pieces of the body, until `complete`.

    `reusable` is determined on completion: whether the connection is certainly between two responses. `buffered` is,
    until then, the size in bytes of the data that is not read yet, including the overhead of storing it."""

    # Most responses change few of these, so they are defaults of the class.
    head = NO_HEAD
    complete = False
    reusable = True
    buffered = 0
    _head_bytes = b""
    _interim = 0
    _remaining: int | None = None
    _until_close = False
    _overhead = MAX_TRAILER_BYTES
    _chunk_count = 0
    _tail = b"\r\n"  # of the head
    _parser: httptools.HttpResponseParser | None = None

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def take(self) -> bytes:
        """Returns the part of the body that has arrived since the last call."""
        taken = b"".join(self._pieces)  # not a copy if there is one piece
        self._pieces.clear()
        self.buffered = 0
        return taken

    def feed(self, data: bytes) -> None:
        """Parses the peer's bytes. Raises ConnectionBroken, UnacceptableResponse."""
        while self.head is NO_HEAD and data:
            earlier = self._head_bytes
            if earlier:
                data = earlier + data
            raw, end, rest = data.partition(_HEAD_END)
            size = len(raw)
            if size > MAX_HEAD_BYTES:
                raise ConnectionBroken("the response head is too large")
            if not end:
                self._parse(data[len(earlier) :])
                self._head_bytes = data
                return
            if self._parser is not None:
                self._parse(data[len(earlier) : size + len(end)])
                self._head_bytes = b""
            data = rest
            head = _known_head(raw) if size <= _MAX_KNOWN_BYTES else _head_from(raw)
            status, _, _, length, chunked, reusable = head
            if status < 200:
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise ConnectionBroken("interim responses without end")
                continue
            self.head, self._remaining, self.reusable = head, length, reusable
            if length is None:
                self._until_close = not chunked
                if chunked and self._parser is None:
                    self._parse(raw + end)
            break
        size, remaining = len(data), self._remaining
        if remaining is None:
            if size and not self.complete:
                self._feed_unmeasured(data)
            elif size:
                self.reusable = False
        elif size < remaining:
            if size:
                self._pieces.append(data)
                self.buffered += size + _PIECE_BYTES
                self._remaining = remaining - size
        else:
            self._pieces.append(data[:remaining])
            self.complete, self._remaining, self._parser = True, 0, None
            if size > remaining:  # unexpected bytes would be indistinguishable from a later response
                self.reusable = False

    def end(self) -> None:
        """Handles the end of the connection. Raises ConnectionBroken if the response is incomplete."""
        self.reusable = False
        if self.complete:
            return
        if not self._until_close:
            raise ConnectionBroken("the connection closed before the response was whole")
        self.complete, self._parser = True, None

    def _feed_unmeasured(self, data: bytes) -> None:
        if self._until_close:
            self.on_body(data)
            return
        self._overhead -= len(data)
        self._tail = (self._tail + data if len(data) < len(_PLAIN_END) else data)[-len(_PLAIN_END) :]
        self._parse(data)
        if self._overhead + self._chunk_count * MAX_CHUNK_LINE_BYTES < 0:
            raise ConnectionBroken("more chunk framing than payload justifies")
        # llhttp accepts line ends after the last chunk. Only the plain ending proves that nothing follows.
        if self.complete and self._tail != _PLAIN_END:
            self.reusable = False

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
        if self.head is not NO_HEAD and self._remaining is None and not self._until_close:
            self.complete = True


def _head_from(raw: bytes) -> ResponseHead:
    """Reads a head without its end, of an interim response too, and determines how the body ends (RFC 9112, 6.3).
    Raises ConnectionBroken, UnacceptableResponse."""
    match = _HEAD.fullmatch(raw.decode("latin-1"))
    if match is None:
        raise ConnectionBroken("the response head is not HTTP/1.1")
    minor, code, lines = match.groups()
    http_11, status = minor == "1", int(code)
    if status == 101:
        raise UnacceptableResponse("an upgrade that was not requested")
    headers = _joined(lines.split("\r\n")[1:]) if status >= 200 else {}
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (coding.lower() != "chunked" or length is not None or not http_11):
        raise ConnectionBroken("bad response framing")
    if length is not None and not _LENGTH.fullmatch(length):
        raise ConnectionBroken("bad Content-Length")
    # Identity was requested. Inflating allows decompression bombs, and a body that is not decoded cannot be checked.
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnacceptableResponse("a content coding that was not requested")
    reusable = http_11 and "close" not in headers.get("connection", "").lower()
    size = 0 if status in _NO_BODY else None if length is None else int(length)
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return ResponseHead(status, MappingProxyType(headers), media_type, size, coding is not None, reusable)


_known_head = lru_cache(maxsize=128)(_head_from)  # a server's heads differ in their date, once a second


def _joined(lines: Sequence[str]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise ConnectionBroken("too many response headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name == "set-cookie":  # cookies are dropped in both directions
            continue
        if name in headers:
            if name in _ONCE:
                raise ConnectionBroken("a response header came twice that may come once")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers
