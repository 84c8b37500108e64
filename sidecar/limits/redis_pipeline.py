"""Pipelines commands to Redis over one connection.

Redis answers in the order in which commands are sent, so the oldest pending future owns the next reply, even if its
caller no longer waits. Two tasks and a timer serve each connection:

    writer    sends everything that was queued since its last turn in one write
    reader    gives each reply to the oldest future
    timer     watches the oldest future with a waiting caller. If nothing was received since it was sent, the connection
              is condemned and all waiting callers fail at once. If other replies arrived meanwhile, only the late
              caller fails and its reply is dropped when it arrives, unless every reply has been late for a while

redis-py opens the connection and parses replies. Its client would hold one connection per running call and costs three
times as much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, cast

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection as RedisConnection
from redis.exceptions import InvalidResponse, ResponseError

TURNS = 8
"""Loop turns granted to an overdue reply. Each turn reads the socket, so a reply that arrived while the loop was
blocked is still received. They take microseconds."""
LATE_FOR = 3
"""Deadlines without one timely reply, after which the connection is given up."""


pack = cast(Callable[[tuple[bytes | str | int, ...]], bytes], pack_command)  # its stub allows 1-tuples only


class PipelineLost(Exception):
    """The connection is gone. Whether commands sent on it were executed is unknown."""


class PipelineLate(PipelineLost):
    """This reply was late; other replies arrive."""


class Batch:
    """Commands sent in one write, and the loop time by which the store must answer, counted from the write."""

    __slots__ = ("due_s",)

    def __init__(self) -> None:
        self.due_s = inf


class RedisPipeline:
    """One open connection. `deadline_s` is the time limit of a reply; `lost` is called once when it ends."""

    def __init__(self, connection: RedisConnection, deadline_s: float, lost: Callable[[RedisPipeline], None]) -> None:
        self._connection = connection
        self._deadline_s = deadline_s
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._outbox: list[bytes] = []
        self._batch = self._sending = Batch()
        self._waiting: deque[tuple[Batch, asyncio.Future[Any]]] = deque()
        self._asked = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._read_s = self._in_time_s = self._loop.time()
        self.why = "closed"
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(self._end)

    @property
    def ended(self) -> bool:
        return self._serving.done()

    def ask(self, *command: bytes | str | int) -> asyncio.Future[Any]:
        """Send a command. The returned future holds its reply, or raises redis-py's ResponseError or PipelineLost."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self.ended:
            reply.set_exception(PipelineLost(self.why))
            return reply
        self._waiting.append((self._batch, reply))
        self._outbox.append(pack(command))
        self._asked.set()
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + self._deadline_s, self._check)
        return reply

    def condemn(self, why: str) -> None:
        """Mark the connection as unusable, so that it ends soon."""
        self.why = why
        self._serving.cancel()

    async def close(self) -> None:
        """Drop the connection. Waiting callers get PipelineLost."""
        self._serving.cancel()
        await asyncio.wait([self._serving])
        await self._connection.disconnect(nowait=True)

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                tasks.create_task(self._read())
        except* Exception as errors:  # includes anything the parser raises on a malformed reply
            self.why = type(errors.exceptions[0]).__name__
        finally:
            await self._connection.disconnect(nowait=True)

    async def _write(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            commands, self._outbox = self._outbox, []
            self._sending, self._batch = self._batch, Batch()
            self._sending.due_s = self._loop.time() + self._deadline_s
            await self._connection.send_packed_command(commands, check_health=False)

    async def _read(self) -> None:
        while True:
            try:
                reply = await self._connection.read_response(disable_decoding=True)
            except ResponseError as error:
                reply = error
            self._answer(reply)

    def _answer(self, reply: Any) -> None:
        if not self._waiting:
            raise InvalidResponse("a reply without a request")
        _, oldest = self._waiting.popleft()
        self._read_s = self._loop.time()
        if oldest.done():
            return
        self._in_time_s = self._read_s
        if isinstance(reply, ResponseError):
            oldest.set_exception(reply)
        else:
            oldest.set_result(reply)

    def _check(self, before: Batch | None = None, turns: int = TURNS) -> None:
        """Watch the oldest future with a waiting caller. `turns` are left for the batch that was oldest `before`."""
        self._timer = None
        batch = next((batch for batch, reply in self._waiting if not reply.done()), None)
        if batch is None:
            return
        if batch is not before:
            turns = TURNS
        # Unsent commands wait for the write before them: the store must accept that in time too.
        now, due_s = self._loop.time(), min(batch.due_s, self._sending.due_s)
        if due_s > now:
            self._timer = self._loop.call_at(due_s, self._check)
        elif turns:
            self._timer = self._loop.call_soon(self._check, batch, turns - 1)
        elif batch.due_s > now or self._is_silent(due_s, now):
            self.condemn(self._late_words)
        else:
            self._refuse_late(now)
            self._check()

    def _refuse_late(self, now: float) -> None:
        for batch, reply in self._waiting:
            if batch.due_s <= now and not reply.done():
                reply.set_exception(PipelineLate(self._late_words))

    def _is_silent(self, due_s: float, now: float) -> bool:
        """Whether nothing was received since the oldest was sent, or nothing in time for a while."""
        return self._read_s <= due_s - self._deadline_s or now - self._in_time_s > LATE_FOR * self._deadline_s

    @property
    def _late_words(self) -> str:
        return f"no reply within {self._deadline_s * 1000:.0f} ms"

    def _end(self, serving: asyncio.Task[None]) -> None:
        if self._timer:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for _, reply in waiting:
            if not reply.done():
                reply.set_exception(PipelineLost(self.why))
        self._lost(self)
