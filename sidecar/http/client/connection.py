"""Runs one exchange over one connection, within its deadlines and memory bounds.

A `ClientConnection` carries one exchange at a time and belongs to a `ClientResponse` until the last byte has arrived;
then it returns to the pool, or is closed. If the exchange is abandoned (cancelled, timed out, `close()`), the socket is
closed at once, so that a caller's disconnect reaches the upstream. A request is written once and never again.
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
    """One TCP or TLS connection. `on_free(connection, head)` is called when it can carry the next exchange,
    `on_lost(connection)` when it is closed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_free: Release, on_lost: Callable[[ClientConnection], None]
    ) -> None:
        self.idle_until = 0.0
        self.loop = loop
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._response: ClientResponse | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failure: EgressError | None = None
        self._paused = False
        self._poll = select.poll()

    async def exchange(self, message: bytes, until: float) -> ClientResponse:
        """Sends one request and waits for the head of its response, up to the loop time `until`. Raises EgressError."""
        transport = self._transport
        if transport is None or self._response is not None:
            raise self._failed() or ConnectionBroken("the connection cannot carry an exchange")
        transport.write(message)
        response = self._response = ClientResponse(self, until)
        # Nothing else holds the waiter: its exception may refer to a frame, and reference cycles are freed late.
        self._waiter, self._until = self.loop.create_future(), until
        if self._timer is None or until < self._timer_at:
            self._set_timer(until)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._given_up(response)
            raise
        return response

    def is_usable(self, now: float) -> bool:
        """Whether an idle connection is open, silent, and not idle for too long. Asks the kernel, because the loop may
        not have polled yet: a closed connection would fail the next request, and early bytes would be mistaken for its
        answer."""
        transport = self._transport
        return self.idle_until > now and transport is not None and not transport.is_closing() and not self._poll.poll(0)

    async def more(self, response: ClientResponse, until: float | None) -> None:
        """Waits until more of the body has arrived, up to the loop time `until` (None: unlimited). Raises
        EgressError."""
        if failure := self._failed():
            raise failure
        if self._response is not response:
            return
        self._waiter, self._until = self.loop.create_future(), until
        if until is not None and (self._timer is None or until < self._timer_at):
            self._set_timer(until)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._given_up(response)
            raise

    def drained(self, response: ClientResponse) -> None:
        """Resumes reading after the consumer took the buffered data, if the connection still belongs to it."""
        if self._paused and self._response is response:
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
        response = self._response
        if response is None:
            self._fail(ConnectionBroken("the peer spoke unasked"))
            return
        try:
            response.feed(data)
        except EgressError as failure:
            self._fail(failure)
            return
        if not response.complete and not response.head.status:
            return
        if (waiter := self._waiter) is not None and not waiter.done():
            waiter.set_result(None)
        if response.complete:
            self._response = None
            self.loop.call_soon(self._finish, response)  # after the waiter has continued
        elif response.buffered > MAX_BUFFERED_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _finish(self, response: ClientResponse) -> None:
        """Frees the connection for the next exchange, or closes it."""
        transport = self._transport
        if not response.reusable or transport is None or transport.get_write_buffer_size():
            self.close()
            return
        if self._paused:
            self._resume()
        self._on_free(self, response.head)

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        response = self._response
        if exc is not None or response is None:
            self._fail(ConnectionBroken("the connection was lost"))
            return
        try:
            response.end()
        except ConnectionBroken as failure:
            self._fail(failure)
            return
        self._response = None
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: EgressError) -> None:
        if self._failure is None:
            self._failure = failure.with_traceback(None)
        if self._response is not None:
            self._response.let_go()
            self._response = None
        self.close()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(copy(self._failure))

    def _failed(self) -> EgressError | None:
        """Returns the error to raise, if any. Each waiter gets its own: a traceback refers to its frames."""
        return copy(self._failure)

    def _given_up(self, response: ClientResponse) -> None:
        if self._response is response:  # the connection may already carry another exchange, with another waiter
            self.abort()

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self.loop.call_at(at, self._look_at_clock), at

    def _look_at_clock(self) -> None:
        """Checks the deadline. One timer serves all exchanges, because most finish long before it expires."""
        self._timer = None
        if self._until is None or self._waiter is None or self._waiter.done():
            return
        if self.loop.time() < self._until:
            self._set_timer(self._until)
        else:
            self._fail(ClientTimeout("the peer did not answer in time"))

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


class ClientResponse(ResponseReader):
    """A response whose head has arrived. Read it to the end or close it; `with` closes it either way."""

    _share: Share | None = None

    def __init__(self, connection: ClientConnection, until: float) -> None:
        self._pieces = []
        self._connection, self.until = connection, until

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.headers

    @property
    def media_type(self) -> str:
        return self.head.media_type

    async def read(self, max_bytes: int) -> bytes:
        """Returns the whole body, within the request's deadline. Raises EgressError: ResponseTooLarge beyond
        `max_bytes`, NoRoom."""
        # Most responses are complete by the time their head is parsed.
        body = self.take() if self.complete else await self._rest(max_bytes)
        if len(body) > max_bytes:
            raise ResponseTooLarge("the response is larger than allowed")
        return body

    async def _rest(self, max_bytes: int) -> bytes:
        pieces, size = [], 0
        self._share = share = Share()
        if (self.head.length or 0) > max_bytes:
            self.close()
            raise ResponseTooLarge("the response is larger than allowed")
        while True:
            complete, piece = self.complete, self.take()
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                self.close()
                raise ResponseTooLarge("the response is larger than allowed")
            if complete:
                return b"".join(pieces)
            try:
                await share.hold(size, self.until)
            except TimeoutError:
                self.close()
                raise NoRoom("other answers take all the memory") from None
            await self._more(self.until)

    async def chunks(self, *, idle_s: float | None, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives. `idle_s` is the longest silence in seconds, None is unlimited; `deadline`
        bounds the whole, and may be moved in the meantime. Chunk boundaries have no meaning. Raises EgressError."""
        loop = self._connection.loop
        try:
            while True:
                complete, piece = self.complete, self.take()
                if piece:
                    yield piece
                if complete:
                    return
                end = deadline.at
                # a peer that never pauses would never reach the time-out of a wait
                if end is not None and loop.time() >= end:
                    raise ClientTimeout("the peer did not come to an end in time")
                if self.buffered or self.complete != complete:
                    continue
                ends = (end, None if idle_s is None else loop.time() + idle_s)
                await self._more(min((at for at in ends if at is not None), default=None))
        finally:
            self.close()

    def close(self) -> None:
        """Abandons the rest of the response. A complete response has already released its connection."""
        if self._share is not None:
            self._share.close()
        if not self.complete:
            self._connection.abort()

    def __enter__(self) -> ClientResponse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _more(self, until: float | None) -> None:
        self._connection.drained(self)
        if not self.complete and not self.buffered:
            await self._connection.more(self, until)
