"""Broadcasts the events of a run to any number of subscribers, slow ones included.

Each subscriber has a short queue of unread events. If it is full, the subscriber misses events and then gets the whole
Task, which includes what was missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import orjson

from sidecar.tasks.programs.run_events import StreamResponse, Task

MAX_EVENTS: Final = 256
MAX_BYTES: Final = 256 * 1024
SIGN_EVERY_S: Final = 10.0  # heartbeat interval while there are no events


@dataclass(slots=True, eq=False)
class _Subscriber:
    events: deque[StreamResponse] = field(default_factory=deque)
    size: int = 0
    is_behind: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Broadcast:
    """The subscribers of one run. `task` returns its present task."""

    def __init__(self, task: Callable[[], Task]) -> None:
        self._task = task
        self._ears: set[_Subscriber] = set()
        self._over = False

    def tell(self, events: Iterable[StreamResponse]) -> None:
        if not self._ears:
            return
        for event in events:
            size = len(orjson.dumps(event))
            for ear in self._ears:
                _put(ear, event, size)

    def end(self) -> None:
        self._over = True
        for ear in self._ears:
            ear.news.set()

    async def hear(self) -> AsyncGenerator[StreamResponse | None]:
        """Yields the present Task, and then events to the end; None is a heartbeat."""
        with self._ear() as ear:
            yield {"task": self._task()}
            while True:
                while ear.events or ear.is_behind:
                    yield self._next(ear)
                if self._over:
                    return
                ear.news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SIGN_EVERY_S):
                        await ear.news.wait()
                if not ear.news.is_set():
                    yield None

    @contextmanager
    def _ear(self) -> Iterator[_Subscriber]:
        ear = _Subscriber()
        self._ears.add(ear)
        try:
            yield ear
        finally:
            self._ears.discard(ear)

    def _next(self, ear: _Subscriber) -> StreamResponse:
        if ear.is_behind:
            ear.is_behind = False
            return {"task": self._task()}
        event = ear.events.popleft()
        if not ear.events:
            ear.size = 0
        return event


def _put(ear: _Subscriber, event: StreamResponse, size: int) -> None:
    ear.news.set()
    if ear.is_behind:
        return  # the Task will include it
    if ear.events and (len(ear.events) >= MAX_EVENTS or ear.size + size > MAX_BYTES):
        ear.events.clear()
        ear.size, ear.is_behind = 0, True
        return
    ear.events.append(event)
    ear.size += size
