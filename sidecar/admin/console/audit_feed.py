"""Reads new audit records, once for all browsers that show them.

The logs are read every 0.7 s, in the page process, and only while a browser shows them. Each filter gets the newest of
the new records that match, up to a maximum, and the approximate number of the others. Browsers with the same filter
share the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from sidecar.admin.console.log_news import FeedNews, Shape, close_tails, news_of, open_tails
from sidecar.admin.console.request import ConsoleFault
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.search import Logs

TICK_S: Final = 0.7
WAIT_S: Final = 0.5
MAX_WAITING: Final = 2  # news that one browser has not received yet

log = logging.getLogger("sidecar.admin.console")

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class FeedViewer:
    """One browser, and the news that it has not received yet. If there are too many, the oldest are only counted."""

    wanted: RecordFilter
    waiting: deque[FeedNews] = field(default_factory=deque)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, news: FeedNews) -> None:
        self.waiting.append(news)
        while len(self.waiting) > MAX_WAITING:
            lost = self.waiting.popleft()
            first = self.waiting[0]
            self.waiting[0] = FeedNews(first.rows, first.left_out + lost.left_out + len(lost.rows), first.number)
        self.has_news.set()

    async def next(self) -> FeedNews:
        """The next news; empty after WAIT_S without any."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.0 if self.waiting else WAIT_S):
                await self.has_news.wait()
        self.has_news.clear()
        return self.waiting.popleft() if self.waiting else FeedNews()


@dataclass(slots=True)
class AuditFeed:
    """The news of all logs. A task reads them while there are viewers. For one event loop."""

    read: Callable[[Callable[[Logs], Any]], Awaitable[Any]]
    """Calls a function of a module with all logs, as `AuditView.read` does. Raises ConsoleFault."""
    shape: Shape
    _viewers: list[FeedViewer] = field(default_factory=list)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _numbers: count[int] = field(default_factory=lambda: count(1))

    async def watch(self, wanted: RecordFilter) -> AsyncGenerator[FeedNews]:
        """Yields the records that are written after the first item, which is empty. Later items may be empty too."""
        viewer = FeedViewer(wanted)
        self._viewers.append(viewer)
        if self._task is None or self._task.done():
            self._ready.clear()
            self._task = asyncio.create_task(self._run())
        try:
            await self._ready.wait()
            yield FeedNews()
            while True:
                yield await viewer.next()
        finally:
            self._viewers.remove(viewer)

    async def _run(self) -> None:
        try:
            while self._viewers:  # again for one that came while the logs were being closed
                await self._follow()
        finally:
            self._ready.set()  # also if the logs could not be opened

    async def _follow(self) -> None:
        """Sends news until there are no viewers."""
        try:
            await self._looked(open_tails)
            self._ready.set()
            while self._viewers:
                await asyncio.sleep(TICK_S)
                viewers = tuple(self._viewers)
                wanted = {viewer.wanted for viewer in viewers}
                found = await self._looked(partial(news_of, filters=wanted, shape=self.shape)) or {}
                numbers = {one: next(self._numbers) if news.rows else 0 for one, news in found.items()}
                for viewer in viewers:
                    if (news := found.get(viewer.wanted)) is not None:
                        viewer.add(news._replace(number=numbers[viewer.wanted]))
        finally:
            self._ready.clear()
            await self._looked(close_tails)

    async def _looked(self, work: Callable[[Logs], T]) -> T | None:
        """The result of `work` on the logs; None if they cannot be read at the moment."""
        try:
            result: T = await self.read(work)
            return result
        except ConsoleFault as fault:
            log.warning("the console cannot read the logs", extra={"error": str(fault)})
            return None
