"""Holds one connection to the store of limits.

    connected   calls are sent at once; a late reply refuses its call, and silence ends the connection
    mending     the first reconnection attempt runs; calls wait for it, within the deadline
    down        that attempt failed and is repeated, soon once a second; calls are refused at once without waiting

Twice a second the server is queried for its identity, so an idle instance notices an outage, a change of primary and an
emptied store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain, repeat

from redis.exceptions import MovedError, ResponseError

from sidecar.limits.redis_pipeline import PipelineLate, PipelineLost, RedisPipeline
from sidecar.limits.store import StoreUnavailable
from sidecar.limits.topology import Finder, Trouble

FIND_S, FIND_DEADLINES = 2.0, 8
"""The time limit of one attempt to find the server: this, or a number of deadlines if that is longer."""
SLICES = 4
"""Parts of the deadline for a first attempt. A part in which the loop was blocked counts like any other."""
BEAT_S = 0.5
PAUSES_S = (0.0, 0.1, 0.25, 0.5)
LONGEST_PAUSE_S = 1.0

log = logging.getLogger("sidecar.store")

Step = Callable[[RedisPipeline], Awaitable[None]]


class LeaveError(Exception):
    """This server must not be used, although it answers."""


class StoreConnection:
    """One connection. `greet` completes before a new connection is used, and `beat` runs periodically while it is in
    use; an exception from either ends it. `ready` is called when it may be used."""

    def __init__(
        self, finder: Finder, deadline_s: float, *, greet: Step, beat: Step, ready: Callable[[], None]
    ) -> None:
        self._finder = finder
        self._deadline_s = deadline_s
        self._greet = greet
        self._beat = beat
        self._on_ready = ready
        self._mending: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self.trouble = ""
        self._closed = False
        self.wire: RedisPipeline | None = None

    async def ready(self) -> RedisPipeline:
        """Returns the connection; waits within the deadline while its state is unknown. Raises StoreUnavailable."""
        if self.wire is None:
            self._mend_soon()
            await self._first_attempt()
        if self.wire is None:
            raise StoreUnavailable(self.trouble)
        return self.wire

    def heard(self, error: ResponseError, wire: RedisPipeline) -> None:
        """Handles a server's reply that another server owns the counters."""
        if isinstance(error, MovedError) and error.host:
            self._finder.moved((error.host, error.port))
        wire.condemn(type(error).__name__)

    async def close(self) -> None:
        """Stops reconnecting and querying the server. `wire` remains open for final operations."""
        self._closed = True
        for task in (self._mending, self._beating):
            if task:
                task.cancel()
                await asyncio.wait([task])

    async def last(self) -> RedisPipeline | None:
        """After closing, returns the connection for final operations, or one from a single new attempt; None if that
        fails."""
        if self.wire is None:
            with suppress(*Trouble, PipelineLost, LeaveError, StoreUnavailable):
                wire = await self._connected()
                self.wire = None if wire.ended else wire
        return self.wire

    async def _first_attempt(self) -> None:
        for _ in range(SLICES):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._deadline_s / SLICES):
                    await self._tried.wait()
                return
        self._failed("no connection in time")

    def _failed(self, why: str) -> None:
        self.trouble = why
        self._tried.set()

    def _lost(self, wire: RedisPipeline) -> None:
        if wire is self.wire:
            self.wire, self.trouble = None, wire.why
            self._tried.clear()
            self._mend_soon()

    def _mend_soon(self) -> None:
        if not self._closed and (self._mending is None or self._mending.done()):
            self._mending = asyncio.create_task(self._mend())

    async def _mend(self) -> None:
        for pause_s in chain(PAUSES_S, repeat(LONGEST_PAUSE_S)):
            await asyncio.sleep(pause_s)
            try:
                wire = await self._connected()
            except (*Trouble, PipelineLost, LeaveError, StoreUnavailable) as error:
                self._failed(f"{type(error).__name__}: {error}")
                continue
            except Exception as error:  # an internal error must not stop reconnecting
                log.exception("the store cannot be reached")
                self._failed(type(error).__name__)
                continue
            if wire.ended:
                continue
            self.wire = wire
            self._tried.set()
            if self._beating is None or self._beating.done():
                self._beating = asyncio.create_task(self._keep_beating())
            self._on_ready()
            return

    async def _connected(self) -> RedisPipeline:
        async with asyncio.timeout(max(FIND_S, FIND_DEADLINES * self._deadline_s)):
            connection = await self._finder.find()
        wire = RedisPipeline(connection, self._deadline_s, self._lost)
        try:
            await self._greet(wire)
        except BaseException as error:
            if isinstance(error, MovedError) and error.host:
                self._finder.moved((error.host, error.port))
            await wire.close()
            raise
        return wire

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if (wire := self.wire) is None:
                continue
            try:
                await self._beat(wire)
                if not await self._finder.still():
                    wire.condemn("another is primary now")
            except ResponseError as error:
                self.heard(error, wire)
            except LeaveError as error:
                wire.condemn(str(error))
            except PipelineLate:
                continue  # slow, but it answers other calls
            except (*Trouble, PipelineLost) as error:
                wire.condemn(type(error).__name__)  # in case it has not ended yet
            except Exception as error:  # an internal error must not stop the heartbeat
                log.exception("the store cannot be asked who it is")
                wire.condemn(type(error).__name__)
