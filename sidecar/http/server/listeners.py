"""Opens listeners, and bounds their connections and deadlines.

Extends aiohttp's server with bounds that it lacks: a deadline for each head, a limit on connections
(`connection_limits.py`), and a single path for all answers, so that even a malformed request line gets an audit record.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _PAYLOAD_ACCESS_ERROR, ERROR, _ErrInfo

from sidecar.http.server.acceptor import AT_ONCE, Acceptor
from sidecar.http.server.bound_sockets import bound_socket
from sidecar.http.server.connection_limits import Activity, ConnectionLimits, Seat
from sidecar.http.server.framing import PLAIN_END, ChunkedBody, FramingBudget, TooManyChunks
from sidecar.http.server.inherited_sockets import inherited
from sidecar.http.server.repeated_head import ArrivedBody, RepeatedHead, repeated_from
from sidecar.http.server.request import HttpRequest
from sidecar.http.server.response import WholeResponse
from sidecar.http.tls import NOTHING, ShownCertificate, shown_on
from sidecar.settings.addresses import ListenAddress, UnixAddress

log = logging.getLogger("sidecar.http.server.listeners")

_NO_ACCESS_LOG = logging.getLogger("sidecar.access")
_NO_ACCESS_LOG.setLevel(logging.CRITICAL)

Handle = Callable[[HttpRequest], Awaitable[web.StreamResponse]]
HandleBroken = Callable[[str, int], Coroutine[Any, Any, web.StreamResponse]]
"""Accepts (peer, status) and returns the answer to bytes that are not an HTTP request."""

IsStale = Callable[[ShownCertificate], bool]
"""Reports whether the certificate shown in a connection's handshake is no longer valid."""

MAX_HEADERS = 64
MAX_FIELD_BYTES = 16 * 1024  # a token of 8 KiB fits, which some identity providers issue
MAX_LINE_BYTES = 4 * 1024
LINGER_S = 2.0  # how long the rest of a refused body is read, so that its sender receives the refusal
GIVES_WAY_S = 1.0  # how long a body may be awaited before its connection can be closed when places are short
MAX_BODIES_PER_CALLER = 128  # awaited at the same time; nearly all bodies arrive with their head
_BUSY = {"Server": "sidecar", "Retry-After": "1"}
PROBE_SEATS = 64
PROBE_HEAD_S = 1.0
MAX_HEADS = 4  # learned from a connection that never repeats one
SLICE_BYTES = 8 * 1024  # parsed at once: in chunks of one byte that takes half a millisecond
END_BYTES = len(PLAIN_END)
MIN_TAKEN_BYTES = 64 * 1024  # of a waiting answer, which a caller must read within the reading time


class GaveWay(Exception):
    """A body is not awaited any more, because its connection's place is needed or its caller waits for too many."""


@dataclass(frozen=True, slots=True)
class ListenerDeadlines:
    """The deadlines of a connection, in seconds, and the bounds of a listener: its connections, in total and of each
    peer (0: none), and their unread data. A caller reads MIN_TAKEN_BYTES of a waiting answer in `reading_timeout_s`."""

    header_timeout_s: float = 10.0
    keepalive_timeout_s: float = 75.0
    max_connections: int = 1024
    max_per_peer: int = 0
    max_unread_bytes: int = 128 * 2**20
    reading_timeout_s: float = 30.0


class ServerConnection(web.RequestHandler):
    __slots__ = (
        "_body", "_chunked", "_head_timer", "_heads_left", "_is_deaf", "_lingering", "_patience", "_reading_timer",
        "_repeated", "_server", "_tail", "_unread", "_waiting_since_s", "_waits_since_s", "remote", "seat", "shown",
    )  # fmt: skip
    _body: StreamReader | None
    _chunked: ChunkedBody | None
    _lingering: StreamReader | None  # the body of a request that was answered before it had arrived completely
    _head_timer: asyncio.TimerHandle | None
    _reading_timer: asyncio.TimerHandle | None
    _waits_since_s: float | None
    _repeated: RepeatedHead | None  # of the last request, if the parser was between two before and after it
    _heads_left: int  # heads to learn before one is repeated; 0 is final

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, seat: Seat) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=server.patience.keepalive_timeout_s,
            access_log=_NO_ACCESS_LOG,  # aiohttp's access log prints the whole request line with its query
            lingering_time=LINGER_S,
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
        )
        self._server, self.seat, self._patience = server, seat, server.patience
        self._unread, self._tail, self._is_deaf = 0, b"", False
        self.remote: str | None = None
        self.shown = NOTHING
        self._body = self._chunked = self._lingering = self._repeated = None
        self._heads_left = MAX_HEADS
        self._head_timer = self._reading_timer = self._waits_since_s = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.remote = str(peer[0]) if isinstance(peer, tuple | list) else peer
        self.shown = shown_on(transport)
        self.seat.guest = self
        if self.is_stale:  # the handshake may have begun before a reload and ended after it
            self.force_close()
            return
        self._wait_for_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        for timer in (self._head_timer, self._reading_timer):
            if timer is not None:
                timer.cancel()
        # These refer back here, and reference cycles are freed late.
        self._body = self._chunked = self._lingering = self._repeated = None
        self.seat.guest = None
        self.seat.limits.leave(self.seat)
        self._server.slow_readers.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses the received bytes, at most SLICE_BYTES at once, and wakes `start` for the requests that begin in
        them."""
        messages, repeated = self._messages, self._repeated
        may_repeat = not (messages or self._close or self._force_close)
        if may_repeat and repeated is not None and (body := repeated.body_in(data)) is not None:
            # Nothing else is queued or awaited, and no earlier body is chunked.
            self._body, self._heads_left = body, MAX_HEADS
            messages.append((repeated.message, body))
            self._request_count += 1
            if (waiter := self._waiter) is not None and not waiter.done():
                waiter.set_result(None)
            return
        if len(data) > SLICE_BYTES:
            for start in range(0, len(data), SLICE_BYTES):
                self.data_received(data[start : start + SLICE_BYTES])
            return
        if self._is_deaf:
            return
        queued, is_chunked, is_broken = len(messages), self._chunked is not None, False
        self._tail = data[-END_BYTES:] if len(data) >= END_BYTES else (self._tail + data)[-END_BYTES:]
        if not (self._close or self._force_close):
            found: Sequence[tuple[Any, Any]]
            assert self._parser is not None
            try:
                found, self._upgraded, _ = self._parser.feed_data(data)
                for message, _ in found:
                    is_chunked = is_chunked or message.chunked
            except HttpProcessingError as fault:
                found, self._upgraded = [(_ErrInfo(400, fault, fault.message), EMPTY_PAYLOAD)], False
                is_broken = True
            if left := self._heads_left:
                self._repeated = repeated_from(data, found) if left > 1 else None
                self._heads_left = left - 1 if self._repeated is not None else 0
            if found:
                messages.extend(found)
                self._request_count += len(found)
                if (waiter := self._waiter) is not None and not waiter.done():
                    waiter.set_result(None)
                if len(messages) >= self._max_msg_queue_size and not self._buffer_paused:
                    self._pause_reading_for_buffer()
        if is_chunked:
            self._watch_chunks(queued, len(data))
        if self._upgraded:  # to an unsupported protocol; later bytes may belong to it, or be a request
            self._hear_no_more(len(messages) - 1)
        if messages:
            if is_broken:
                self._break_body()
            self._body = messages[-1][1] if messages else self._body
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
            return
        if data and self._head_timer is None and self._lingering is None and not self.is_busy:
            self._wait_for_head()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:  # each body that ends or is read calls this, nearly always with nothing to resume
            super().resume_reading(resume_parser)

    def _watch_chunks(self, queued: int, size: int) -> None:
        """Checks, after `size` more bytes, the chunked body that was arriving and those that began with the messages
        after the first `queued`: the cost of their framing, and how they ended."""
        bodies = [(queued - 1, self._chunked)]
        for position in range(queued, len(self._messages)):
            message, payload = self._messages[position]
            is_chunked = not isinstance(message, _ErrInfo) and message.chunked
            bodies.append((position, ChunkedBody(payload, -_head_bytes(message)) if is_chunked else None))
        position, self._chunked = bodies[-1]
        for position, body in bodies:
            if body is not None and not self._may_go_on(body, position, size):
                self._chunked = None
                return
        if self._chunked is not None and self._chunked.is_whole:
            self._chunked = None

    def _may_go_on(self, body: ChunkedBody, position: int, size: int) -> bool:
        body.received += size
        follows = position + 1 < len(self._messages)
        is_read = not (self._reading_paused or self._buffer_paused)  # otherwise some of it is still in the parser
        if is_read and (not self._server.framing.count(self.seat.peer, body) or body.is_excessive):
            self._break(body.payload, TooManyChunks("too much chunk framing"))
            self._hear_no_more(position)
            return False
        # The parser would report the last trailer field as the first header of the next request. If another request has
        # begun, or may be in the parser, the absence of a trailer cannot be proven.
        is_plain = self._tail == PLAIN_END and not self._buffer_paused
        is_next = follows and not isinstance(self._messages[position + 1][0], _ErrInfo)
        if body.is_whole and (is_next if follows else not is_plain):
            self._hear_no_more(position)
            return False
        return True

    def _hear_no_more(self, position: int) -> None:
        """Makes the request at this position of the queue (-1: the last one removed) the last one of its connection:
        later bytes are dropped, and its answer closes the connection."""
        self._is_deaf, self._repeated = True, None
        while len(self._messages) > position + 1:
            self._messages.pop()
        if position >= 0:
            message, payload = self._messages[position]
            if not isinstance(message, _ErrInfo):
                self._messages[position] = message._replace(should_close=True), payload
            return
        if (request := self._current_request) is not None:
            request.keep_alive = False
        self.close()

    def _wait_for_head(self) -> None:
        """Starts the deadline of a head, which counts from the connection for the first head, and otherwise from the
        beginning of the head."""
        timeout_s = PROBE_HEAD_S if self.seat.for_probes else self._patience.header_timeout_s
        self._head_timer = self._loop.call_later(timeout_s, self.force_close)

    @property
    def activity(self) -> Activity:
        if not self._request_count:
            return Activity.SILENT
        if not self.is_busy:
            return Activity.IDLE
        since_s = self._waits_since_s
        return Activity.WAITS if since_s is not None and self._loop.time() - since_s >= GIVES_WAY_S else Activity.BUSY

    @property
    def is_busy(self) -> bool:
        if self._current_request is not None or self._messages:
            return True
        return self._body is not None and self._body is not self._lingering and not self._body.is_eof()

    def dismiss(self) -> None:
        if self._waits_since_s is not None:
            self.give_way()
        else:
            self.force_close()

    def give_way(self) -> None:
        """Refuses the request that waits for its body, and closes the connection."""
        if self._body is not None and not self._body.is_eof():
            self._break(self._body, GaveWay("others need the place"))
            self._hear_no_more(-1)

    @contextmanager
    def waiting_for_body(self, who: str) -> Iterator[None]:
        """Marks the request of `who` as waiting for its body. Beyond the bound, the request that has waited longest is
        refused."""
        self._waits_since_s = self._loop.time()
        bodies, most = self._server.bodies, max(1, min(MAX_BODIES_PER_CALLER, self._patience.max_connections // 4))
        waiting = bodies.setdefault(who, {})
        waiting[self] = None
        if len(waiting) > most:
            next(iter(waiting)).give_way()
        try:
            yield
        finally:
            self._waits_since_s = None
            waiting.pop(self, None)
            if not waiting:
                bodies.pop(who, None)

    def _break_body(self) -> None:
        """Makes invalid HTTP a fault of the awaited body. aiohttp would keep waiting, and answer twice."""
        body = self._body
        if body is None or body.is_eof() or body is self._lingering or not isinstance(self._messages[-1][0], _ErrInfo):
            return
        self._messages.pop()
        self._break(body, web.RequestPayloadError("the body is not well framed"))
        self._hear_no_more(len(self._messages) - 1)

    def _break(self, body: StreamReader, fault: Exception) -> None:
        """Ends a body with a fault for its reader. The body of an answered request has no reader."""
        if body is not self._lingering:
            body.set_exception(fault)
        if not body.is_eof():
            body.feed_eof()

    def pause_writing(self) -> None:
        """Bounds the unread data of a caller that reads slower than it is answered."""
        super().pause_writing()
        self._wait_for_reader()
        self._server.slow_readers[self] = None
        self._server.bound_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._server.slow_readers.pop(self, None)
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _wait_for_reader(self) -> None:
        self._unread, self._waiting_since_s = self.unread_bytes, self._loop.time()
        self._reading_timer = self._loop.call_later(self._patience.reading_timeout_s, self._check_reader)

    def _check_reader(self) -> None:
        if self._unread - self.unread_bytes >= MIN_TAKEN_BYTES:
            self._wait_for_reader()
        else:
            self.abort()

    def abort(self) -> None:
        """Closes at once; a normal close would wait for the reader."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    @property
    def taken_bytes_s(self) -> float:
        """The reading speed of the caller since it last fell behind, in bytes per second."""
        return (self._unread - self.unread_bytes) / max(1.0, self._loop.time() - self._waiting_since_s)

    @property
    def is_stale(self) -> bool:
        """Whether the credential shown in its handshake is no longer valid."""
        return self._server.is_stale(self.shown)

    def part(self) -> None:
        """Closes the connection, now if it is idle, otherwise after the current answer."""
        if self._current_request is None and not self._messages:
            self.force_close()
        else:
            self.close()

    async def start(self) -> None:
        """Answers requests in turn, in one task. aiohttp uses a task and five coroutines for each request."""
        loop, messages, handle = self._loop, self._messages, self._request_handler
        assert handle is not None
        try:
            while not (self._close or self._force_close):
                if not messages:
                    self._waiter = loop.create_future()
                    await self._waiter
                message, body = messages.popleft()
                head, is_late = None, False
                if type(body) is ArrivedBody:
                    head = body.head
                else:
                    is_late = body is not EMPTY_PAYLOAD and not body._eof
                    if self._parser is not None and not is_late:
                        self._parser.message_consumed()  # it pauses at a number of messages
                if self._buffer_paused and len(messages) <= self._msg_queue_resume_size:
                    self._resume_reading_if_drained()
                self._request_in_progress = True
                if head is None and isinstance(message, _ErrInfo):
                    request = HttpRequest(ERROR, body, self)
                    response = await self._refuse(message.status)
                else:
                    self._current_request = request = HttpRequest(message, body, self, head)
                    if self._server.closes_after_answers:
                        request.keep_alive = False
                    try:
                        response = await handle(request)
                    except Exception as fault:
                        response = await self._failed(fault)
                try:
                    if isinstance(response, WholeResponse):
                        response.send(request, self.transport)
                        if self._paused:
                            await self._drain_helper()
                    else:
                        await response.prepare(request)
                        await response.write_eof()
                finally:
                    if is_late and not body.is_eof():
                        self._lingering = body
                        self.seat.limits.linger(self.seat)
                # Not before the answer is sent, because the end of a late body does not begin a head.
                self._request_in_progress, self._current_request = False, None
                self._keepalive = bool(response._keep_alive)
                if is_late:
                    await self._end_late(body)
                if not self._keepalive:
                    break
                del message, body, head, request, response  # the next request may arrive much later
                self._next_keepalive_close_time = loop.time() + self._keepalive_timeout
                if self._keepalive_handle is None:
                    self._keepalive_handle = loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
        except asyncio.CancelledError:
            self.force_close()
            raise
        except ConnectionError:
            pass  # the caller disconnected
        except Exception:
            log.exception("a connection failed")
            self.force_close()
        finally:
            self._request_in_progress, self._current_request = False, None
            if self._handler_waiter is not None and not self._handler_waiter.done():
                self._handler_waiter.set_result(None)  # shutdown waits for it
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _end_late(self, body: StreamReader) -> None:
        """Drops the rest of a body that arrived after its head, and continues with the next requests."""
        if not body.is_eof():
            await self._discard(body)
        if self._lingering is body and body.is_eof():
            self._lingering = None
            self.seat.limits.stay(self.seat)
        body.set_exception(_PAYLOAD_ACCESS_ERROR)
        if self._parser is not None:  # which counts a message only now that it is complete
            self._parser.message_consumed()
            self.data_received(b"")

    async def _failed(self, fault: Exception) -> web.StreamResponse:
        """Returns the response to an exception that a handler let through."""
        if isinstance(fault, web.HTTPException):
            return fault
        if isinstance(fault, TimeoutError):
            return await self._refuse(504)
        log.error("a handler failed", exc_info=fault)
        return await self._refuse(500)

    async def _refuse(self, status: int) -> web.StreamResponse:
        """Returns the recorded response to an invalid or failed request. The connection closes."""
        response = await self._server.handle_broken(self.remote or "local", status)
        response.force_close()
        return response

    async def _discard(self, body: StreamReader) -> None:
        """Drops the rest of an answered request's body; one that takes longer than LINGER_S closes the connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not (body.is_eof() or self._force_close):
                    await body.readany()
        if not body.is_eof() and not self._force_close:
            self.close()


def _head_bytes(message: Any) -> int:
    """Returns the size of a request's head, or a little less."""
    return sum(len(name) + len(value) + 4 for name, value in message.raw_headers) + len(message.path)


class Server(web.Server):
    def __init__(
        self,
        handle: Handle,
        handle_broken: HandleBroken,
        patience: ListenerDeadlines,
        is_stale: IsStale = lambda _: False,
        probes: Collection[str] = (),
    ) -> None:
        super().__init__(self._handle_at if probes else handle, handler_cancellation=True)  # type: ignore[arg-type]
        self._handle, self.probes = handle, probes
        self.is_stale = is_stale
        self.closes_after_answers = False
        self.handle_broken = handle_broken
        self.patience = patience
        self.framing = FramingBudget(time.monotonic)
        self.slow_readers: dict[ServerConnection, None] = {}
        self.bodies: dict[str, dict[ServerConnection, None]] = {}  # awaited bodies, by caller

    async def _handle_at(self, request: HttpRequest) -> web.StreamResponse:
        """Handles requests on the places reserved for probes, which serve one probe and nothing else."""
        connection = request.protocol
        if not isinstance(connection, ServerConnection) or not connection.seat.for_probes:
            return await self._handle(request)
        is_probe = request.raw_path.partition("?")[0] in self.probes
        response = await self._handle(request) if is_probe else web.Response(status=503, headers=_BUSY)
        response.force_close()
        return response

    def bound_unread(self) -> None:
        """Bounds the unread data of all slow readers: the connection that reads slowest is closed."""
        excess = sum(one.unread_bytes for one in self.slow_readers) - self.patience.max_unread_bytes
        while excess > 0 and self.slow_readers:
            # among those that read nothing, the first
            slowest = min(self.slow_readers, key=lambda one: one.taken_bytes_s)
            excess -= slowest.unread_bytes
            del self.slow_readers[slowest]
            slowest.abort()


@dataclass(slots=True)
class Listener:
    """One open address. `port` is the actual one, even if the system chose it. `is_passed`: the socket came from a
    service manager or supervisor, and outlives this process. `is_shared`: other workers accept at it too."""

    address: ListenAddress | UnixAddress
    sock: socket.socket
    is_passed: bool = False
    is_shared: bool = False
    _server: Server | None = field(default=None, init=False)
    _door: Acceptor | None = field(default=None, init=False)

    @property
    def port(self) -> int:
        return self.sock.getsockname()[1] if isinstance(self.address, ListenAddress) else 0

    @property
    def seats(self) -> ConnectionLimits:
        assert self._door is not None
        return self._door.seats

    def serve(self, server: Server, tls: ssl.SSLContext | None = None) -> None:
        """Begins to accept. If the server has `probes`, PROBE_SEATS places are reserved for them."""
        self._server, patience = server, server.patience
        local = isinstance(self.address, UnixAddress)
        seats = ConnectionLimits(patience.max_connections, 0 if local else patience.max_per_peer)
        speaker = partial(ServerConnection, server, asyncio.get_running_loop())
        # The handshake precedes the first head, and has the same deadline.
        kept = ConnectionLimits(PROBE_SEATS) if server.probes else None
        at_once = 1 if self.is_shared else AT_ONCE  # the other workers may be idle
        self._door = Acceptor(self.sock, seats, speaker, tls, patience.header_timeout_s, kept, at_once)
        self._door.open()

    def part_with_stale(self) -> None:
        """Closes connections whose handshake credential is stale: idle ones now, others after their answer."""
        server = self._server
        for connection in server.connections if server is not None else ():
            if isinstance(connection, ServerConnection) and connection.is_stale:
                connection.part()

    def close_connections_after_answers(self) -> None:
        """Ends each connection with its next answer, which announces it; idle ones remain until `close`."""
        if self._server is None:
            return
        self._server.closes_after_answers = True
        for connection in self._server.connections:
            if isinstance(connection._current_request, HttpRequest):
                connection._current_request.keep_alive = False

    async def close(self, grace_s: float) -> None:
        """Stops accepting, lets calls in flight finish within `grace_s`, then closes the rest."""
        if self._door is None or self._server is None:
            self.sock.close()
            return
        self._door.close()
        self._server.pre_shutdown()
        await self._server.shutdown(grace_s)
        if isinstance(self.address, UnixAddress) and not self.is_passed:
            self.address.path.unlink(missing_ok=True)


def open_listener(address: ListenAddress | UnixAddress) -> Listener:
    """Binds the address, unless a service manager passed a socket that is bound to it. Raises OSError."""
    if (passed := inherited().take(address)) is not None:
        return Listener(address, passed, is_passed=True)
    return Listener(address, bound_socket(address))


def check_fast_parser() -> None:
    """Raises RuntimeError if aiohttp uses its pure-Python parser, which is laxer than the C one."""
    if "_http_parser" not in HttpRequestParser.__module__:
        raise RuntimeError(
            "aiohttp's C parser is missing: install aiohttp from a wheel, or build it with its extensions"
        )
