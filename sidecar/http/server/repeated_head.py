"""Recognizes a head that a client repeats.

A client sends nearly the same head with each call, and its body in the same segment. If the parser is between two
requests, and has read such a request in this state, the same head with the size of the body that follows has the same
meaning: the parser is not used, and the known facts about the head apply. The parser reads all other bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp.hdrs import CONTENT_LENGTH
from aiohttp.streams import EmptyStreamReader
from multidict import CIMultiDict, CIMultiDictProxy

MAX_HEAD_BYTES: Final = 4 * 1024  # an idle connection holds it twice, and about 2 KiB
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([1-9][0-9]{0,6})\r\n", re.IGNORECASE)


class RepeatedHead:
    """A head as the parser read it (`message`). Once the gateway has checked a request, it stores here the parts that
    depend on the head alone: its `lines` as text, and the digest of the `token` that is its only credential (b"" for
    none)."""

    __slots__ = ("_after", "_after_bytes", "_at", "_before", "_begin", "_size", "lines", "message", "token")

    def __init__(self, message: Any, before: bytes, size: int, after: bytes) -> None:
        self.message, self._before, self._size, self._after = message, before, size, after
        self._begin, self._after_bytes = len(before), len(after)
        self._at = [name.lower() for name, _ in message.raw_headers].index(b"content-length")
        self.lines: Mapping[str, tuple[str, ...]] | None = None
        self.token = b""

    def body_in(self, data: bytes) -> ArrivedBody | None:
        """Returns the body of a request that has this head and is all of `data`; None for any other data."""
        if not data.startswith(self._before):
            return None
        begin = self._begin
        end = data.find(b"\r", begin)
        start = end + self._after_bytes
        size = len(data) - start
        if data[begin:end] != b"%d" % size or not data.startswith(self._after, end):
            return None
        if size != self._size:
            self._renew(size)
        return ArrivedBody(self, data[start:])

    def _renew(self, size: int) -> None:
        """Makes this the head of a body of another size."""
        self._size, headers, raw = size, CIMultiDict(self.message.headers), [*self.message.raw_headers]
        headers[CONTENT_LENGTH] = text = str(size)
        raw[self._at] = raw[self._at][0], text.encode()
        self.message = self.message._replace(headers=CIMultiDictProxy(headers), raw_headers=tuple(raw))
        if self.lines is not None:
            self.lines = lines = dict(self.lines)
            lines["content-length"] = (text,)


class ArrivedBody(EmptyStreamReader):
    """The body of a request of a repeated `head`, which is complete. These two methods are the only way to read it."""

    __slots__ = ("data", "head")
    _eof = True

    def __init__(self, head: RepeatedHead | None, data: bytes) -> None:
        self.head, self.data = head, data

    def read_nowait(self, n: int = -1) -> bytes:
        data, self.data = self.data, b""
        return data

    async def readany(self) -> bytes:
        return self.read_nowait()


def repeated_from(data: bytes, found: Sequence[tuple[Any, Any]]) -> RepeatedHead | None:
    """Returns the head of the only request that a parser between two requests found in `data`. None if a repetition
    could not be recognized: the body after the head must have exactly the Content-Length, and the connection must
    continue."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
    length = _LENGTH.search(data, 0, end)
    if len(found) != 1 or length is None or len(data) != end + (size := int(length[1])):
        return None
    message, content = found[0]
    if content.total_bytes != size or message.should_close or message.upgrade or message.chunked:
        return None
    return RepeatedHead(message, data[: length.start(1)], size, data[length.end(1) : end])
