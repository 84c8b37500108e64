"""Broadcasts the events of a run to its subscribers. A slow subscriber misses events and then gets the whole Task."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import orjson

from sidecar.tasks.programs.run_events import StreamResponse, Task

MAX_EVENTS: Final = 256
MAX_BYTES: Final = 256 * 1024
SIGN_EVERY_S: Final = 10.0  # heartbeat interval while there are no events


@dataclass(slots=True, eq=False)
class _Subscriber:
    events: deque[StreamResponse | None] = field(default_factory=deque)  # None stands for the whole Task
    size: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: StreamResponse, size: int) -> None:
        self.news.set()
        if self.events and self.events[0] is None:
            return  # the Task will include it
        if self.events and (len(self.events) >= MAX_EVENTS or self.size + size > MAX_BYTES):
            self.events, self.size = deque([None]), 0
        else:
            self.events.append(event)
            self.size += size


@dataclass(slots=True, eq=False)
class Broadcast:
    """The subscribers of one run. `task` returns its present task."""

    task: Callable[[], Task]
    _subscribers: set[_Subscriber] = field(default_factory=set)
    _is_over: bool = False

    def tell(self, events: Iterable[StreamResponse]) -> None:
        for event in events if self._subscribers else ():
            size = len(orjson.dumps(event))
            for subscriber in self._subscribers:
                subscriber.put(event, size)

    def end(self) -> None:
        self._is_over = True
        for subscriber in self._subscribers:
            subscriber.news.set()

    async def hear(self) -> AsyncGenerator[StreamResponse | None]:
        """Yields the present Task, and then events to the end; None is a heartbeat."""
        mine = _Subscriber()
        self._subscribers.add(mine)
        try:
            yield {"task": self.task()}
            while True:
                while mine.events:
                    event = mine.events.popleft()
                    if not mine.events:
                        mine.size = 0
                    yield {"task": self.task()} if event is None else event
                if self._is_over:
                    return
                mine.news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SIGN_EVERY_S):
                        await mine.news.wait()
                if not mine.news.is_set():
                    yield None
        finally:
            self._subscribers.discard(mine)
