"""Responses with a complete body.

Status line, headers and body are sent in one write. aiohttp's own `Response` determines at several times the cost facts
that are already known here (no cookies, codings, chunks or charsets). This module handles the rest of HTTP/1;
connections, pipelining and slow readers are handled by aiohttp and `listeners.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from aiohttp import HttpVersion10, web
from aiohttp.abc import AbstractStreamWriter

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
# Above this size, copying a body after its head costs more than writing twice.
MAX_JOINED_BYTES: Final = 64 * 1024
_NO_BODY = frozenset({204, 304})  # RFC 9112, 6.3
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110, 5.5


class WholeResponse(web.StreamResponse):
    """A complete answer. `media_type` "" is for an answer without a body. It has none of aiohttp's header objects."""

    def __init__(
        self, status: int, body: bytes = b"", media_type: str = "", headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Raises ValueError for an invalid header value, such as one with a line break."""
        self._status, self.body = status, body
        self._lines = _first(status, media_type)
        if headers:
            self.add(headers.items())

    def add(self, headers: Iterable[tuple[str, str]]) -> None:
        """Adds headers before the answer is sent. Raises ValueError for invalid ones."""
        for name, value in headers:
            self._lines += _line(name, value)

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The headers, without those of framing and the date."""
        return [(name, value) for name, _, value in (line.partition(": ") for line in self._lines.split("\r\n")[1:-1])]

    def send(self, request: web.BaseRequest, transport: asyncio.Transport | None) -> None:
        """Sends the answer to this request, once. Raises ConnectionError if the caller has disconnected."""
        if self._eof_sent:
            return
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the caller is gone")
        self._eof_sent = True
        may_go_on = self._keep_alive
        if may_go_on is None:
            self._keep_alive = may_go_on = request.keep_alive
        body, self.body = self.body, b""  # from here on, only the transport holds it
        size, lines = len(body), self._lines
        if request.version == HttpVersion10:  # HTTP/1.0 closes by default
            lines = "HTTP/1.0" + lines[8:] + ("Connection: keep-alive\r\n" if may_go_on else "")
        elif not may_go_on:
            lines += "Connection: close\r\n"
        head = _dated(lines, int(time.time()))
        if self._status in _NO_BODY:
            transport.write(head + b"\r\n")
        elif request.method == "HEAD":
            transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, size))
        elif size <= MAX_JOINED_BYTES:
            transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, size, body))
        else:
            transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, size))
            transport.write(body)

    async def prepare(self, request: web.BaseRequest) -> None:
        """Sends the answer, like `send` (aiohttp's interface)."""
        self.send(request, request.transport)

    async def write_eof(self, data: bytes = b"") -> None:
        """Does nothing, because the answer is sent as a whole."""


class SilentResponse(web.StreamResponse):
    """Closes the connection without an answer."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Closes the connection. Raises ConnectionResetError, which aiohttp handles."""
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("closed unanswered")


@lru_cache(maxsize=256)  # media types are fixed and few
def _first(status: int, media_type: str) -> str:
    first = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\nServer: sidecar\r\n"
    return first + _line("Content-Type", media_type) if media_type else first


@lru_cache(maxsize=16)  # within one second, most answers begin in the same way
def _dated(lines: str, second: int) -> bytes:
    return f"{lines}{_date(second)}".encode()


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}\r\n"


def _line(name: str, value: str) -> str:
    if _FORBIDDEN.search(value):
        raise ValueError(f"{name} has characters that no header holds")
    return f"{name}: {value}\r\n"
