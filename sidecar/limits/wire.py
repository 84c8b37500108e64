"""How do many calls share one connection without ever reading one another's replies?

Commands go out in the order in which they were asked, and Redis answers in that order; so the oldest waiting future
owns the next reply, whether or not anybody still waits for it. A caller that is cancelled leaves its future in the
queue, its reply is read and dropped, and nothing is out of step. Two tasks and a timer serve each connection:

    writer    takes everything that was asked since its last turn, and sends it in one piece
    reader    gives each reply to the oldest future
    timer     watches the oldest future that somebody waits for. Where nothing was heard since it was asked, the
              connection is condemned, and everybody waiting hears at once. Where others were answered meanwhile, the
              way is slow and not gone: who was not answered in time hears so, alone, and his reply is dropped when it
              comes; unless all have been late for a while

redis-py opens the connection (TLS, AUTH, HELLO, SELECT) and reads the replies. Its client is not used: it would hold
a connection per call in flight, and it costs three times as much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from hiredis import pack_command
from redis.exceptions import InvalidResponse, ResponseError

STALL_S = 0.02
"""A timer this late means that our own loop stood still; the reply may already lie in the socket."""
EXCUSES = 10
"""A loop that is held again and again is excused this often for one reply."""
LATE_FOR = 3
"""Deadlines without one reply in time: nobody waits for who is always late."""


pack = cast(Callable[[tuple[bytes | str | int, ...]], bytes], pack_command)  # its stub knows 1-tuples only


class Connection(Protocol):
    """What we lean on of redis-py's connections, all of it public."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...

    async def read_response(self, disable_decoding: bool = False) -> Any: ...


class WireLost(Exception):
    """The connection is gone. Whether what was sent on it was carried out, nobody knows."""


class WireLate(WireLost):
    """This one reply did not come in time; others do."""


class Wire:
    """One open connection. `deadline_s` is how long a reply may take; `lost` is called once when it has ended."""

    def __init__(self, connection: Connection, deadline_s: float, lost: Callable[[Wire], None]) -> None:
        self._connection = connection
        self._deadline_s = deadline_s
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._outbox: list[bytes] = []
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._asked = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._excused = 0
        self._read_s = self._in_time_s = self._loop.time()
        self._why = "closed"
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(self._end)

    @property
    def ended(self) -> bool:
        return self._serving.done()

    @property
    def why(self) -> str:
        """What ended it."""
        return self._why

    def ask(self, *command: bytes | str | int) -> asyncio.Future[Any]:
        """Send a command; the future is its reply, raises redis-py's ResponseError, or WireLost."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self.ended:
            reply.set_exception(WireLost(self._why))
            return reply
        due = self._loop.time() + self._deadline_s
        self._waiting.append((due, reply))
        self._outbox.append(pack(command))
        self._asked.set()
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._check, due)
        return reply

    def condemn(self, why: str) -> None:
        """This connection cannot be trusted any more: end it, soon."""
        self._why = why
        self._serving.cancel()

    async def close(self) -> None:
        """Drop the connection. Whoever still waits hears WireLost."""
        self._serving.cancel()
        await asyncio.wait([self._serving])
        await self._connection.disconnect(nowait=True)

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                tasks.create_task(self._read())
        except* Exception as errors:  # also whatever the parser raises of a reply that nobody can read
            self._why = type(errors.exceptions[0]).__name__
        finally:
            await self._connection.disconnect(nowait=True)

    async def _write(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            commands, self._outbox = self._outbox, []
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
            raise InvalidResponse("a reply that nobody asked for")
        due, oldest = self._waiting.popleft()
        self._read_s = now = self._loop.time()
        if now <= due:
            self._in_time_s = now
        if oldest.done():
            return
        if isinstance(reply, ResponseError):
            oldest.set_exception(reply)
        else:
            oldest.set_result(reply)

    def _check(self, scheduled: float) -> None:
        self._timer = None
        now = self._loop.time()
        due = next((due for due, reply in self._waiting if not reply.done()), None)
        if due is None:
            return
        if due > now:
            self._excused = 0
            self._timer = self._loop.call_at(due, self._check, due)
        elif now - scheduled > STALL_S and self._excused < EXCUSES:
            self._excused += 1  # the loop was held: the reply may lie there unread
            self._timer = self._loop.call_at(now + STALL_S, self._check, now + STALL_S)
        elif self._read_s <= due - self._deadline_s or now - self._in_time_s > LATE_FOR * self._deadline_s:
            self.condemn(self._late_words)
        else:
            for overdue, reply in self._waiting:
                if overdue <= now and not reply.done():
                    reply.set_exception(WireLate(self._late_words))
            self._check(now)

    @property
    def _late_words(self) -> str:
        return f"no reply within {self._deadline_s * 1000:.0f} ms"

    def _end(self, serving: asyncio.Task[None]) -> None:
        if self._timer:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for _, reply in waiting:
            if not reply.done():
                reply.set_exception(WireLost(self._why))
        self._lost(self)
