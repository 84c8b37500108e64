"""Reads what is recorded as it comes, once for all browsers that look at it.

The logs are read in a thread, twice a second, and only while a browser looks: nothing stands on a request's way. Each
filter gets the newest records that it wants, up to a number each time, and hears about how many were left out. Browsers
with the same filter share them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

from sidecar.audit.chain import json_object
from sidecar.audit.log_blocks import LogFiles, RecentLines
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.search import FoundRecord, Logs
from sidecar.audit.tail import NewestLines

TICK_S: Final = 0.5
WAIT_S: Final = 0.5
MAX_BYTES: Final = 2 * 2**20  # of one log at a time, about 1,000 records
MAX_RECORDS: Final = 60  # of one log at a time
MAX_ROWS: Final = 20  # at a time: more than anybody reads
MAX_WAITING: Final = 2  # news that a browser has not taken

log = logging.getLogger("sidecar.admin.console")

Rows = Sequence[Mapping[str, Any]]
Shape = Callable[[Sequence[FoundRecord]], Rows]
"""Makes the rows of a page of records, newest first. Called in a thread."""


class LogTail(Protocol):
    def read(self, max_bytes: int) -> tuple[bytes, int]:
        """The newest lines since the last time, and how many bytes before them were passed over."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FeedNews:
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
    """The tails of all logs, for as long as there are viewers. For one event loop."""

    logs: Callable[[], Logs]
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
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * WAIT_S):
                    await self._ready.wait()
            yield FeedNews()
            while True:
                yield await viewer.next()
        finally:
            self._viewers.remove(viewer)

    async def _run(self) -> None:
        tails = await asyncio.to_thread(_tails_of, self.logs())
        self._ready.set()
        try:
            while self._viewers:
                await asyncio.sleep(TICK_S)
                viewers = tuple(self._viewers)
                found = await asyncio.to_thread(self._read, tails, {viewer.wanted for viewer in viewers})
                for viewer in viewers:
                    if (news := found.get(viewer.wanted)) is not None:
                        viewer.add(news)
        finally:
            for tail in tails.values():
                tail.close()

    def _read(self, tails: Mapping[int, LogTail], filters: set[RecordFilter]) -> Mapping[RecordFilter, FeedNews]:
        """What is new for each filter that has news."""
        different = {wanted: _Wanted() for wanted in filters}
        for worker, tail in tails.items():
            try:
                raw, passed_bytes = tail.read(MAX_BYTES)
            except OSError as error:
                log.warning("the console cannot read a log", extra={"worker": worker, "error": str(error)})
                continue
            lines = raw.splitlines()
            passed = passed_bytes * len(lines) // max(1, len(raw))
            for one in different.values():
                one.left_out += passed
            _sort_out(worker, lines, different)
        return {wanted: self._news(one) for wanted, one in different.items() if one.found or one.left_out}

    def _news(self, one: _Wanted) -> FeedNews:
        newest = sorted(one.found, key=lambda found: str(found.record.get("timestamp")), reverse=True)
        rows = self.shape(newest)
        left_out = one.left_out + max(0, len(rows) - MAX_ROWS)
        return FeedNews(rows[:MAX_ROWS], left_out, next(self._numbers) if rows else 0)


class RecentTail:
    """Follows the lines that are kept of a log without a file."""

    def __init__(self, recent: RecentLines) -> None:
        self._recent, self._count = recent, recent.count

    def read(self, max_bytes: int) -> tuple[bytes, int]:
        new = self._recent.count - self._count
        self._count += new
        return b"".join(self._recent.newest(new)), 0

    def close(self) -> None:
        pass


def _tails_of(logs: Logs) -> Mapping[int, LogTail]:
    found: dict[int, LogTail] = {}
    for worker, one in logs.items():
        if isinstance(one, LogFiles):
            found[worker] = NewestLines(one.path)
        elif isinstance(one, RecentLines):
            found[worker] = RecentTail(one)
    return found


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
