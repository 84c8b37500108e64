"""Runs one exchange over one connection, within its deadlines and memory bounds.

A `ClientConnection` carries one exchange at a time and belongs to a `ClientResponse` until the last byte has arrived;
then it returns to the pool, or is closed. If the exchange is abandoned (cancelled, timed out, `close()`), the socket is
closed at once, which passes a caller's disconnect on to the upstream. A request is written once and never again.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncGenerator, Callable, Mapping
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Final, cast

from sidecar.http.client.failures import ClientTimeout, ConnectionBroken, EgressError, NoRoom, ResponseTooLarge
from sidecar.http.client.http1 import ResponseHead, ResponseReader
from sidecar.http.client.room import Share

# Reading pauses above this; asyncio reads at most 256 KiB at once, so a response buffers at most twice that.
MAX_BUFFERED_BYTES: Final = 256 * 1024

Release = Callable[["ClientConnection", ResponseHead], None]


class ClientConnection(asyncio.Protocol):
    """One TCP or TLS connection. `on_free(connection, head)` is called when it can carry the next exchange."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_free: Release, on_lost: Callable[[ClientConnection], None]
    ) -> None:
        self.idle_until = 0.0
        self._loop = loop
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failure: EgressError | None = None
        self._paused = False
        self._poll = select.poll()

    async def exchange(self, message: bytes, until: float) -> ClientResponse:
        """Sends one request and waits for the head of its response, up to the loop time `until`."""
        transport = self._transport
        if transport is None or self._reader is not None:
            raise self._failed() or ConnectionBroken("the connection cannot carry an exchange")
        reader = self._reader = ResponseReader()
        transport.write(message)
        while reader.head is None:
            await self.more(reader, until)
        return ClientResponse(reader.head, reader, self, until)

    @property
    def quiet(self) -> bool:
        """Whether an idle connection is open and silent. Asks the kernel, because the loop may not have polled yet: a
        closed connection would fail the next request, and early bytes would be taken for its answer."""
        return self._transport is not None and not self._transport.is_closing() and not self._poll.poll(0)

    async def more(self, reader: ResponseReader, until: float | None) -> None:
        """Waits until `reader` makes progress, up to the loop time `until`. Raises EgressError."""
        if failure := self._failed():
            raise failure
        if self._reader is not reader:
            return
        waiter = self._waiter = self._loop.create_future()
        self._until = until
        if until is not None and (self._timer is None or until < self._timer_at):
            self._set_timer(until)
        try:
            await waiter
        except asyncio.CancelledError:
            if self._reader is reader:
                self.abort()
            raise
        finally:
            # By now the connection may already carry another exchange, with another waiter.
            if self._waiter is waiter:
                self._waiter = None
            del waiter  # its exception refers to this frame, and reference cycles are freed late

    def drained(self, reader: ResponseReader) -> None:
        """Resumes reading after the consumer took the buffered data, if the connection still belongs to this reader."""
        if self._paused and self._reader is reader:
            self._resume()

    def abort(self) -> None:
        self._fail(ConnectionBroken("the exchange was given up"))

    def close(self) -> None:
        """Closes the socket of a connection that carries no exchange."""
        transport, self._transport = self._transport, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if transport is not None:
            transport.abort()
            self._on_lost(self)

    # Called by asyncio:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have no base class
        if self._failure is not None:  # aborted while connecting
            self.close()
            return
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            self._fail(ConnectionBroken("the peer spoke unasked"))
            return
        try:
            reader.feed(data)
        except EgressError as failure:
            self._fail(failure)
            return
        if reader.complete:
            self._finish(reader)
        elif reader.buffered > MAX_BUFFERED_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        reader = self._reader
        if exc is not None or reader is None:
            self._fail(ConnectionBroken("the connection was lost"))
            return
        try:
            reader.end()
        except ConnectionBroken as failure:
            self._fail(failure)
            return
        self._finish(reader)
        self._wake()

    def _finish(self, reader: ResponseReader) -> None:
        """Releases the connection after a complete response, to the pool or closed."""
        self._reader = None
        transport = self._transport
        if not reader.reusable or reader.head is None or transport is None or transport.get_write_buffer_size():
            self.close()
            return
        if self._paused:
            self._resume()
        self._on_free(self, reader.head)

    def _fail(self, failure: EgressError) -> None:
        if self._failure is None:
            self._failure = failure.with_traceback(None)
        if self._reader is not None:
            self._reader.let_go()
            self._reader = None
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(copy(self._failure))

    def _failed(self) -> EgressError | None:
        """Returns the error to raise. Each waiter gets its own: a traceback refers to its frames."""
        return copy(self._failure)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._look_at_clock), at

    def _look_at_clock(self) -> None:
        """Checks the deadline. One timer serves all exchanges, because most finish long before it fires."""
        self._timer = None
        if self._until is None or self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._until:
            self._set_timer(self._until)
        else:
            self._fail(ClientTimeout("the peer did not answer in time"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()


@dataclass(slots=True)
class Deadline:
    """A moment in loop time; None is never. It may be moved while in use: readers check it before each wait."""

    at: float | None

    @classmethod
    def within(cls, seconds: float | None) -> Deadline:
        return cls(None if seconds is None else asyncio.get_running_loop().time() + seconds)


ENDLESS: Final = Deadline(None)


class ClientResponse:
    """A response whose head has arrived. Read it to the end or close it; `with` closes it either way."""

    __slots__ = ("_connection", "_reader", "_share", "_until", "headers", "status")

    def __init__(self, head: ResponseHead, reader: ResponseReader, connection: ClientConnection, until: float) -> None:
        self.status: int = head.status
        self.headers: Mapping[str, str] = head.headers
        self._reader = reader
        self._connection = connection
        self._until = until
        self._share: Share | None = None

    async def read(self, max_bytes: int) -> bytes:
        """Returns the whole body, within the request's deadline. Raises EgressError; ResponseTooLarge if larger."""
        # Most responses are complete by the time their head is parsed.
        body = self._reader.take() if self._reader.complete else await self._rest(max_bytes)
        if len(body) > max_bytes:
            raise ResponseTooLarge("the response is larger than allowed")
        return body

    async def _rest(self, max_bytes: int) -> bytes:
        reader, pieces, size = self._reader, [], 0
        self._share = share = Share()
        if int(self.headers.get("content-length", "0")) > max_bytes:
            self.close()
            raise ResponseTooLarge("the response is larger than allowed")
        while True:
            complete, piece = reader.complete, reader.take()
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                self.close()
                raise ResponseTooLarge("the response is larger than allowed")
            if complete:
                return b"".join(pieces)
            try:
                await share.hold(size, self._until)
            except TimeoutError:
                self.close()
                raise NoRoom("other answers take all the memory") from None
            await self._more(self._until)

    async def chunks(self, *, idle_s: float | None, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives. `idle_s` is the longest silence, None is unlimited; `deadline` bounds the
        whole, and may be moved meanwhile. Chunk boundaries are those of TCP and have no meaning. Raises EgressError."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                complete, piece = self._reader.complete, self._reader.take()
                if piece:
                    yield piece
                if complete:
                    return
                end = deadline.at
                # a peer that never pauses would never reach the time-out of a wait
                if end is not None and loop.time() >= end:
                    raise ClientTimeout("the peer did not come to an end in time")
                if self._reader.buffered or self._reader.complete != complete:
                    continue
                ends = (end, None if idle_s is None else loop.time() + idle_s)
                await self._more(min((at for at in ends if at is not None), default=None))
        finally:
            self.close()

    def close(self) -> None:
        """Abandons the rest of the response. A complete response has already released its connection."""
        if self._share is not None:
            self._share.close()
        if not self._reader.complete:
            self._connection.abort()

    def __enter__(self) -> ClientResponse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _more(self, until: float | None) -> None:
        self._connection.drained(self._reader)
        if not self._reader.complete and not self._reader.buffered:
            await self._connection.more(self._reader, until)
