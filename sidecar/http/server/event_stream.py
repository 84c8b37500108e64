"""Writes server-sent events to callers.

On the answer of the request that asked; or, in the HTTP+SSE transport of MCP 2024-11-05, on the one stream that its
session has, which all of the session's answers share (`gateway/sse_session.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

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


class EventSink(Protocol):
    """What takes the events of one answer. `shared` says that others go there too: its reader can come back for
    nothing, so no event bears an id there. `bytes_out` is this answer's alone. `resumable` once an event bore an id:
    its reader may come back for the rest."""

    bytes_out: int
    resumable: bool

    @property
    def shared(self) -> bool: ...

    async def write(self, data: bytes) -> None:
        """Send whole events. Waits while the caller does not read; `listeners.py` hangs up on one who does not for
        too long. Raises Refusal(CALLER_GONE)."""


class EventStream(EventSink, Protocol):
    """One answer's way out. `response` is what it goes out on."""

    @property
    def response(self) -> web.StreamResponse: ...

    async def keep_alive(self) -> None:
        """Send a comment, unless the caller does not take even what waits already. Waits for nothing, and raises
        nothing: who is gone is noticed otherwise."""

    async def end(self) -> None:
        """Nothing more comes of this answer. Raises Refusal(CALLER_GONE)."""


@dataclass(slots=True)
class OwnEventStream:
    """The answer of one request, which has it to itself."""

    response: web.StreamResponse
    protocol: web.RequestHandler
    writer: StreamWriter
    bytes_out: int = 0
    resumable: bool = False
    shared: bool = False

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
class SharedEventStream:
    """One answer's part of a stream that others share: its end is not the stream's."""

    stream: EventStream
    bytes_out: int = 0
    resumable: bool = False
    shared: bool = True

    @property
    def response(self) -> web.StreamResponse:
        return self.stream.response

    async def keep_alive(self) -> None:
        await self.stream.keep_alive()

    async def write(self, data: bytes) -> None:
        self.bytes_out += len(data)
        await self.stream.write(data)

    async def end(self) -> None:
        pass


async def open_stream(request: web.BaseRequest, more: Iterable[tuple[str, str]] = ()) -> OwnEventStream:
    """Begin to answer a request with a stream of events; `more` are further headers. Raises Refusal(CALLER_GONE)."""
    stream = web.StreamResponse(headers={**STREAM_HEADERS, **dict(more)})
    try:
        await stream.prepare(request)
    except ConnectionError:
        raise Refusal(Reason.CALLER_GONE) from None
    assert isinstance(request.writer, StreamWriter)  # aiohttp's only one
    return OwnEventStream(stream, request.protocol, request.writer)
