"""Reads what is recorded as it comes, once for all browsers that look at it.

The logs are read in the page process, each 0.7 s, and only while a browser looks. Each
filter gets the newest records that it wants, up to a number each time, and hears about how many were left out. Browsers
with the same filter share them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from sidecar.admin.console.request import ConsoleFault
from sidecar.audit.chain import json_object
from sidecar.audit.log_blocks import Log, LogTail
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.search import FoundRecord, Logs

TICK_S: Final = 0.7
WAIT_S: Final = 0.5
MAX_BYTES: Final = 2 * 2**20  # of one log at a time, about 1,000 records
MAX_RECORDS: Final = 60  # of one log at a time
MAX_ROWS: Final = 20  # at a time: more than anybody reads
MAX_WAITING: Final = 2  # news that a browser has not taken

log = logging.getLogger("sidecar.admin.console")

Rows = Sequence[Mapping[str, Any]]
Shape = Callable[[Sequence[FoundRecord]], Rows]
"""Makes the rows of a page of records, newest first. A function of a module, called in the page process."""
T = TypeVar("T")


class FeedNews(NamedTuple):
    """Rows of one moment, newest first; `left_out` is about how many more records there were. `number` is the same for
    all who get these rows; 0 of no rows."""

    rows: Rows = ()
    left_out: int = 0
    number: int = 0


@dataclass(slots=True)
class _Wanted:
    """What one filter found at one time."""

    found: list[FoundRecord] = field(default_factory=list)
    left_out: int = 0


@dataclass(slots=True, eq=False)
class FeedViewer:
    """One browser, and what it has not taken yet."""

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
        """What is to be shown next; nothing after a while without news."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.0 if self.waiting else WAIT_S):
                await self.has_news.wait()
        self.has_news.clear()
        return self.waiting.popleft() if self.waiting else FeedNews()


@dataclass(slots=True)
class AuditFeed:
    """The news of all logs, for as long as there are viewers. For one event loop."""

    read: Callable[[Callable[[Logs], Any]], Awaitable[Any]]
    """Calls a function of a module with all logs, as `AuditView.read` does. Raises ConsoleFault."""
    shape: Shape
    _viewers: list[FeedViewer] = field(default_factory=list)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _numbers: count[int] = field(default_factory=lambda: count(1))

    async def watch(self, wanted: RecordFilter) -> AsyncGenerator[FeedNews]:
        """What is recorded from the first item on, which is empty; later ones may be empty, too."""
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
            self._ready.set()  # also where it could not begin
            await self._looked(close_tails)

    async def _looked(self, work: Callable[[Logs], T]) -> T | None:
        """What the logs have, or None at a moment at which they cannot be read."""
        try:
            result: T = await self.read(work)
            return result
        except ConsoleFault as fault:
            log.warning("the console cannot read the logs", extra={"error": str(fault)})
            return None


# --- in the page process, or of logs in memory in a thread of this one ------------------------------------------------

_TAILS: Final[dict[Log, LogTail]] = {}


def open_tails(logs: Logs) -> None:
    """Follow these logs from their ends on."""
    close_tails(logs)
    for one in logs.values():
        _tail_of(one)


def close_tails(logs: Logs) -> None:
    for one in logs.values():
        if (tail := _TAILS.pop(one, None)) is not None:
            tail.close()


def news_of(logs: Logs, filters: Collection[RecordFilter], shape: Shape) -> Mapping[RecordFilter, FeedNews]:
    """What is new for each filter that has news; of a log that cannot be read, nothing."""
    different = {wanted: _Wanted() for wanted in filters}
    for worker, one in logs.items():
        try:
            raw, passed_bytes = _tail_of(one).read(MAX_BYTES)
        except OSError:  # which the pages about the log say
            continue
        lines = raw.splitlines()
        passed = passed_bytes * len(lines) // max(1, len(raw))
        for found in different.values():
            found.left_out += passed
        _sort_out(worker, lines, different)
    return {wanted: _news(one, shape) for wanted, one in different.items() if one.found or one.left_out}


def _news(one: _Wanted, shape: Shape) -> FeedNews:
    newest = sorted(one.found, key=lambda found: str(found.record.get("timestamp")), reverse=True)
    rows = shape(newest)
    return FeedNews(rows[:MAX_ROWS], one.left_out + max(0, len(rows) - MAX_ROWS))


def _tail_of(one: Log) -> LogTail:
    tail = _TAILS.get(one)
    if tail is None:
        tail = _TAILS[one] = one.tail()
    return tail


def _sort_out(worker: int, lines: Sequence[bytes], different: Mapping[RecordFilter, _Wanted]) -> None:
    """Give each filter the newest of these lines, until it has enough of this log."""
    room = dict.fromkeys(different, MAX_RECORDS)
    for line in reversed(lines):
        candidates = [wanted for wanted in different if wanted.may_want(line)]
        full = [wanted for wanted in candidates if not room[wanted]]
        for wanted in full:
            different[wanted].left_out += 1
        if len(full) == len(candidates):
            continue
        found = FoundRecord(worker, json_object(line))
        for wanted in candidates:
            if room[wanted] and wanted.wants(found.record):
                different[wanted].found.append(found)
                room[wanted] -= 1
