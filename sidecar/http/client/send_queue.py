"""Queues senders fairly where connections are limited.

So many places, first come, first served. A place that comes free goes to the first in line at once, so that nobody who
comes later can take it; and one that was given to somebody who has just left goes on to the next.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from sidecar.http.client.failures import ConnectFailed, EgressError, NoCapacity, QueueFull


class SendQueue:
    """At most `places` at once; at most `max_waiting` in line for one."""

    __slots__ = ("_closed", "_left", "_max_waiting", "_waiting")

    def __init__(self, places: int, max_waiting: int) -> None:
        self._left = places
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def step_in(self) -> bool:
        """Take a place, if one is free and nobody waits for it."""
        if self._left <= 0 or self._closed:
            return False
        self._left -= 1
        return True

    async def wait(self, until: float) -> None:
        """Take a place as soon as it is one's turn, up to the loop time `until`. Raises EgressError."""
        if self._closed:
            raise ConnectFailed("no further connection is allowed")
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull("too many wait for a connection")
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting[waiter] = None
        timer = loop.call_at(until, _fail, waiter, NoCapacity("no connection came free in time"))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.step_out()  # the place came in the same instant
            raise
        finally:
            timer.cancel()
            self._waiting.pop(waiter, None)

    def step_out(self) -> None:
        """Give a place back: to the first in line, or to whoever comes."""
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                return
        self._left += 1

    def close(self) -> None:
        """Send everybody home."""
        self._closed = True
        for waiter in self._waiting:
            _fail(waiter, ConnectFailed("no further connection is allowed"))


def _fail(waiter: asyncio.Future[None], failure: EgressError) -> None:
    if not waiter.done():
        waiter.set_exception(failure)
