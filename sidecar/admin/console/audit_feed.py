"""Reads what is recorded as it comes, once for all browsers that look at it.

The logs' files are read in a thread, twice a second, and only while a browser looks: nothing stands on a request's way.
A browser gets the newest records that its filter wants, up to a number each time; of more, it hears how many were left
out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from sidecar.audit.chain import json_object
from sidecar.audit.log_blocks import LogFiles, RecentLines
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.search import FoundRecord, Logs
from sidecar.audit.tail import NewestLines

TICK_S: Final = 0.4
WAIT_S: Final = 0.5
MAX_BYTES: Final = 2 * 2**20  # of one log at a time, about 1,000 records
MAX_NEWS: Final = 60  # records at a time

log = logging.getLogger("sidecar.admin.console")


class Tail(Protocol):
    def read(self, max_bytes: int) -> tuple[bytes, int]:
        """The newest lines since the last time, and how many bytes before them were passed over."""

    def close(self) -> None: ...


@dataclass(slots=True)
class FeedNews:
    """Records of one moment, newest first; `left_out` is about how many more there were."""

    found: list[FoundRecord] = field(default_factory=list)
    left_out: int = 0


@dataclass(slots=True, eq=False)
class FeedViewer:
    """One browser, and what it has not taken yet."""

    wanted: RecordFilter
    news: FeedNews = field(default_factory=FeedNews)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, more: FeedNews) -> None:
        kept = (more.found + self.news.found)[:MAX_NEWS]
        dropped = len(more.found) + len(self.news.found) - len(kept)
        self.news = FeedNews(kept, self.news.left_out + more.left_out + dropped)
        self.has_news.set()

    def take(self) -> FeedNews:
        self.has_news.clear()
        taken, self.news = self.news, FeedNews()
        return taken


@dataclass(slots=True)
class AuditFeed:
    """The tails of all logs, for as long as there are viewers. For one event loop."""

    logs: Logs
    _viewers: list[FeedViewer] = field(default_factory=list)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def watch(self, wanted: RecordFilter) -> AsyncGenerator[FeedNews]:
        """What is recorded from the first item on, which is empty; later ones may be empty, too."""
        viewer = FeedViewer(wanted)
        self._viewers.append(viewer)
        if self._task is None or self._task.done():
            self._ready.clear()
            self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(2 * WAIT_S):
                await self._ready.wait()
            yield FeedNews()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_S):
                        await viewer.has_news.wait()
                yield viewer.take()
        finally:
            self._viewers.remove(viewer)

    async def _run(self) -> None:
        tails = await asyncio.to_thread(_tails_of, self.logs)
        self._ready.set()
        try:
            while self._viewers:
                await asyncio.sleep(TICK_S)
                viewers = tuple(self._viewers)
                found = await asyncio.to_thread(_read, tails, [viewer.wanted for viewer in viewers])
                for viewer, news in zip(viewers, found, strict=True):
                    if news.found or news.left_out:
                        viewer.add(news)
        finally:
            for tail in tails.values():
                tail.close()


class RecentTail:
    """Follows the lines that are kept of a log without a file."""

    def __init__(self, recent: RecentLines) -> None:
        self._recent, self._count = recent, recent.count

    def read(self, max_bytes: int) -> tuple[bytes, int]:
        count = self._recent.count
        lines = self._recent.newest(count - self._count)
        self._count = count
        return b"".join(lines), 0

    def close(self) -> None:
        pass


def _tails_of(logs: Logs) -> Mapping[int, Tail]:
    found: dict[int, Tail] = {}
    for worker, one in logs.items():
        if isinstance(one, LogFiles):
            found[worker] = NewestLines(one.path)
        elif isinstance(one, RecentLines):
            found[worker] = RecentTail(one)
    return found


def _read(tails: Mapping[int, Tail], filters: Sequence[RecordFilter]) -> list[FeedNews]:
    """What is new for each filter. The news of filters that are the same is read once."""
    different = {wanted: FeedNews() for wanted in filters}
    for worker, tail in tails.items():
        try:
            raw, passed_bytes = tail.read(MAX_BYTES)
        except OSError as error:
            log.warning("the console cannot read a log", extra={"worker": worker, "error": str(error)})
            continue
        lines = raw.splitlines()
        passed = passed_bytes * len(lines) // max(1, len(raw))
        for news in different.values():
            news.left_out += passed
        _sort_out(worker, lines, different)
    for news in different.values():
        news.found.sort(key=lambda one: str(one.record.get("timestamp")), reverse=True)
    return [different[wanted] for wanted in filters]


def _sort_out(worker: int, lines: Sequence[bytes], different: Mapping[RecordFilter, FeedNews]) -> None:
    """Give each filter the newest of these lines, until it has enough of this log."""
    room = dict.fromkeys(different, MAX_NEWS)
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
