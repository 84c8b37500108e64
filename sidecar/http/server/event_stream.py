"""Writes server-sent events to callers.

Events go to the answer of their request or, in the HTTP+SSE transport of MCP 2024-11-05, to the one stream of the
session, which all of its answers share (`gateway/sse_session.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_writer import StreamWriter

from sidecar.errors import Reason, Refusal
from sidecar.protocols.sse import KEEP_ALIVE

STREAM_HEADERS = {
    "Server": "sidecar",
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


@dataclass(slots=True, kw_only=True)
class EventSink(ABC):
    """Accepts the events of one answer, counted by `bytes_out`. A `shared` stream also has other answers: its reader
    cannot resume it, so its events carry no id. `resumable` is set once an event carried an id."""

    bytes_out: int = 0
    resumable: bool = False
    shared: bool = False

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Sends whole events, waiting while the caller does not read (`listeners.py` bounds it). Raises CALLER_GONE."""


@dataclass(slots=True)
class EventStream(EventSink):
    """The stream of one answer. `response` is the HTTP response that carries it."""

    response: web.StreamResponse

    async def keep_alive(self) -> None:
        """Sends a comment unless earlier data is unread. Does not wait or raise, because disconnects are detected
        elsewhere."""

    async def end(self) -> None:
        """Ends this answer. Raises Refusal(CALLER_GONE)."""


@dataclass(slots=True)
class OwnEventStream(EventStream):
    """The response of one request, used by its answer alone."""

    protocol: web.RequestHandler
    writer: StreamWriter

    async def keep_alive(self) -> None:
        if not self.protocol.writing_paused:
            self.bytes_out += len(KEEP_ALIVE)
            with suppress(ConnectionError):
                await self.writer.write(KEEP_ALIVE, drain=False)

    async def write(self, data: bytes) -> None:
        self.bytes_out += len(data)
        try:
            await self.response.write(data)
        except ConnectionError:
            raise Refusal(Reason.CALLER_GONE) from None

    async def end(self) -> None:
        try:
            await self.response.write_eof()
        except ConnectionError:
            raise Refusal(Reason.CALLER_GONE) from None


@dataclass(slots=True)
class SharedEventStream(EventStream):
    """One answer's part of a shared stream, which it does not end."""

    stream: EventStream

    async def keep_alive(self) -> None:
        await self.stream.keep_alive()

    async def write(self, data: bytes) -> None:
        self.bytes_out += len(data)
        await self.stream.write(data)


async def open_stream(request: web.BaseRequest, more: Iterable[tuple[str, str]] = ()) -> OwnEventStream:
    """Begins an event stream as the response to a request; `more` are further headers. Raises Refusal(CALLER_GONE)."""
    stream = web.StreamResponse(headers={**STREAM_HEADERS, **dict(more)})
    try:
        await stream.prepare(request)
    except ConnectionError:
        raise Refusal(Reason.CALLER_GONE) from None
    assert isinstance(request.writer, StreamWriter)  # aiohttp has no other type
    return OwnEventStream(stream, request.protocol, request.writer)
