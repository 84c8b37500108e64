"""Pipelines commands to Redis over one connection.

Redis answers in the order in which commands are sent, so the oldest pending reply is the next one that arrives, even if
its caller no longer waits. All commands of one turn of the loop are sent in one write; bytes are parsed as they arrive.

A timer watches the oldest reply with a waiting caller. If nothing was received since its command was sent, the
connection is condemned and all waiting callers fail at once. If other replies arrived in the meantime, only the late
caller fails and its reply is dropped when it arrives, unless every reply has been late for a while.

redis-py opens the connection, and this module then takes over its transport. redis-py's own reader and client would
cost several times as much, and would hold one connection per running call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Protocol, cast

from hiredis import PushNotification, Reader, pack_command
from redis._parsers.base import BaseParser
from redis.asyncio.connection import AbstractConnection as RedisConnection
from redis.exceptions import ConnectionError as ServerError, InvalidResponse, ResponseError

TURNS = 8
"""Loop turns granted to an overdue reply. Each turn reads the socket, so a reply that arrived while the loop was
blocked is still received. They take microseconds."""
LATE_FOR = 3
"""Deadlines without a timely reply after which the connection is abandoned."""


_PART = object()  # of a reply: the rest has not arrived
pack = cast(Callable[[tuple[bytes | str | int, ...]], bytes], pack_command)  # its stub allows 1-tuples only


class PipelineLost(Exception):
    """The connection has ended. Whether commands sent on it were executed is unknown."""


class PipelineLate(PipelineLost):
    """This reply was late; other replies still arrive."""


class Reply(Protocol):
    """The receiver of a reply: a future, or an object with these methods of one; setting it again raises
    InvalidStateError. An error is redis-py's ResponseError or PipelineLost."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class Batch:
    """Commands sent in one write, and the loop time by which the store must answer, counted from the write."""

    __slots__ = ("due_s",)

    def __init__(self) -> None:
        self.due_s = inf


class RedisPipeline(asyncio.Protocol):
    """One open connection. `deadline_s` is the time limit of a reply; `lost` is called once, when the connection
    ends."""

    def __init__(self, connection: RedisConnection, deadline_s: float, lost: Callable[[RedisPipeline], None]) -> None:
        self._connection = connection
        self._deadline_s = deadline_s
        self._lost = lost
        self.loop = asyncio.get_running_loop()
        self._outbox: list[bytes] = []
        self._batch = self._sending = Batch()
        self._waiting: deque[tuple[Batch, Reply]] = deque()
        self._flushing: asyncio.Handle | None = None
        self._paused = False
        self._timer: asyncio.Handle | None = None
        self._read_s = self._in_time_s = self.loop.time()
        self._ending: asyncio.Handle | None = None
        self.ended = False
        self.why = "closed"
        self._parser = Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error, notEnoughData=_PART)
        self._transport = self._taken_over()
        self._close: Callable[[], None] = connection._close

    def _taken_over(self) -> asyncio.Transport:
        """Takes over the connection's transport, and the bytes that have already arrived. Returns the transport. Raises
        PipelineLost if the connection is closed."""
        reader, writer = self._connection._reader, self._connection._writer
        if reader is None or writer is None:
            raise PipelineLost(self.why)
        transport = cast(asyncio.Transport, writer.transport)
        transport.set_protocol(self)
        transport.resume_reading()
        if early := bytes(getattr(reader, "_buffer", b"")):
            self.loop.call_soon(self.data_received, early)
        elif reader.at_eof():
            self.connection_lost(None)
        return transport

    def ask(self, *command: bytes | str | int) -> asyncio.Future[Any]:
        """Sends a command. The returned future holds its reply, or raises redis-py's ResponseError or PipelineLost."""
        reply: asyncio.Future[Any] = self.loop.create_future()
        self.send(pack(command), reply)
        return reply

    def send(self, packed: bytes, reply: Reply) -> None:
        """Sends a packed command, whose reply is set on `reply`."""
        if self.ended:
            reply.set_exception(PipelineLost(self.why))
            return
        self._waiting.append((self._batch, reply))
        self._outbox.append(packed)
        if self._flushing is None and not self._paused:
            self._flushing = self.loop.call_soon(self._flush)
        if self._timer is None:
            self._timer = self.loop.call_at(self.loop.time() + self._deadline_s, self._check)

    def condemn(self, why: str) -> None:
        """Marks the connection as unusable, so that it ends soon."""
        if self._ending is None and not self.ended:
            self.why = why
            self._ending = self.loop.call_soon(self._end)

    async def close(self) -> None:
        """Drops the connection. Waiting callers get PipelineLost."""
        self._end()

    # The transport's side

    def data_received(self, data: bytes) -> None:
        self._read_s = self.loop.time()
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets(False)) is not _PART:
                if type(reply) is not list:  # the type of reply for every charge
                    if isinstance(reply, PushNotification):
                        continue
                    if isinstance(reply, ServerError):
                        raise reply
                if not self._waiting:
                    raise InvalidResponse("a reply without a request")
                _, oldest = self._waiting.popleft()
                try:
                    if isinstance(reply, ResponseError):
                        oldest.set_exception(reply)
                    else:
                        oldest.set_result(reply)
                except asyncio.InvalidStateError:
                    continue  # its caller no longer waits
                self._in_time_s = self._read_s
        except Exception as error:  # includes anything the parser raises on a malformed reply
            self.condemn(type(error).__name__)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._outbox and self._flushing is None:
            self._flushing = self.loop.call_soon(self._flush)

    def connection_lost(self, exc: Exception | None) -> None:
        self.condemn("ConnectionError")

    def _flush(self) -> None:
        self._flushing = None
        if self._paused or self.ended:
            return  # `resume_writing` sends them after the earlier bytes
        commands, self._outbox = self._outbox, []
        self._sending, self._batch = self._batch, Batch()
        self._sending.due_s = self.loop.time() + self._deadline_s
        self._transport.write(commands[0] if len(commands) == 1 else b"".join(commands))

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        for handle in (self._timer, self._ending, self._flushing):
            if handle:
                handle.cancel()
        self._close()
        waiting, self._waiting = self._waiting, deque()
        self._lost(self)
        for _, reply in waiting:
            if not reply.done():
                reply.set_exception(PipelineLost(self.why))

    # Watching

    def _check(self, before: Batch | None = None, turns: int = TURNS) -> None:
        """Watches the oldest reply with a waiting caller. `turns` remain for the batch that was oldest `before`."""
        self._timer = None
        batch = next((batch for batch, reply in self._waiting if not reply.done()), None)
        if batch is None:
            return
        if batch is not before:
            turns = TURNS
        # Unsent commands wait for the previous write, which the store must also accept in time.
        now, due_s = self.loop.time(), min(batch.due_s, self._sending.due_s)
        if due_s > now:
            self._timer = self.loop.call_at(due_s, self._check)
        elif turns:
            self._timer = self.loop.call_soon(self._check, batch, turns - 1)
        elif batch.due_s > now or self._is_silent(due_s, now):
            self.condemn(self._late_words)
        else:
            self._refuse_late(now)
            self._check()

    def _refuse_late(self, now: float) -> None:
        for batch, reply in tuple(self._waiting):
            if batch.due_s <= now and not reply.done():
                reply.set_exception(PipelineLate(self._late_words))

    def _is_silent(self, due_s: float, now: float) -> bool:
        """Whether nothing was received since the oldest command was sent, or nothing in time for a while."""
        return self._read_s <= due_s - self._deadline_s or now - self._in_time_s > LATE_FOR * self._deadline_s

    @property
    def _late_words(self) -> str:
        return f"no reply within {self._deadline_s * 1000:.0f} ms"
