"""Queues senders fairly when connections are limited.

A place that becomes free passes to the first waiting request at once, so that a later one cannot take it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from sidecar.http.client.failures import ConnectFailed, EgressError, NoCapacity, QueueFull


class SendQueue:
    """At most `places` in use at once; at most `max_waiting` requests waiting for one."""

    __slots__ = ("_closed", "_left", "_max_waiting", "_waiting")

    def __init__(self, places: int, max_waiting: int) -> None:
        self._left = places
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def step_in(self) -> bool:
        """Takes a place if one is free and no request waits."""
        if self._left <= 0 or self._closed:
            return False
        self._left -= 1
        return True

    async def wait(self, until: float) -> None:
        """Waits for a place. Raises NoCapacity at the loop time `until`, QueueFull at `max_waiting`, ConnectFailed
        after `close`."""
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
                self.step_out()  # the place became free at the same moment
            raise
        finally:
            timer.cancel()
            self._waiting.pop(waiter, None)

    def step_out(self) -> None:
        """Returns a place, to the first waiting request if there is one."""
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                return
        self._left += 1

    def close(self) -> None:
        """Gives no further place; waiting requests fail."""
        self._closed = True
        for waiter in self._waiting:
            _fail(waiter, ConnectFailed("no further connection is allowed"))


def _fail(waiter: asyncio.Future[None], failure: EgressError) -> None:
    if not waiter.done():
        waiter.set_exception(failure)
