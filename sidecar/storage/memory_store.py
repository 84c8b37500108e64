"""Stores records in this process's memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Final, Generic

from sidecar.storage.eviction import HistoryPlace, RecordHistory, remove
from sidecar.storage.record_store import (
    FORGOTTEN_AT_ONCE,
    NOTHING,
    AddedRecord,
    R,
    RecordBounds,
    RecordPage,
    RecordShare,
)

SWEPT_AT_ONCE: Final = 200
_NOBODY: Final = ("", 0.0)
_EVERY: Final = ""  # never the name of a target


@dataclass(slots=True)
class MemoryRecordStore(Generic[R]):
    """Keeps records in a dictionary. A restart loses them, including those of unfinished work."""

    up: bool = True
    _records: dict[str, R] = field(default_factory=dict)
    _of_owner: defaultdict[str, list[HistoryPlace]] = field(default_factory=lambda: defaultdict(list))
    _held: dict[str, tuple[str, float]] = field(default_factory=dict)
    _places: dict[str, HistoryPlace] = field(default_factory=dict)
    _standing: defaultdict[tuple[str, str], list[HistoryPlace]] = field(default_factory=lambda: defaultdict(list))
    _done: defaultdict[str, RecordHistory] = field(default_factory=lambda: defaultdict(RecordHistory))
    _ends: list[tuple[float, str]] = field(default_factory=list)
    _added: int = 0

    @property
    def is_durable(self) -> bool:
        return False

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        if record.id in self._records:
            return AddedRecord.KNOWN
        if bounds.done_per_target is not None:
            done = self._done[record.target]
            for _ in range(min(done.count - bounds.done_per_target, FORGOTTEN_AT_ONCE)):
                self._forget(done.first())
        mine = self._of_owner.get(record.owner, ())
        if len(mine) >= bounds.per_owner:
            oldest = next((one.id for one in mine if self._records[one.id].is_done), None)
            if oldest is None:
                return AddedRecord.FULL
            self._forget(oldest)
        else:
            every, beyond = self._done[_EVERY], len(self._records) - bounds.total + 1
            for _ in range(min(beyond, every.count, FORGOTTEN_AT_ONCE)):
                self._forget(every.first())
        if len(self._records) >= bounds.total:
            return AddedRecord.FULL
        self._added += 1
        self._held[record.id] = holder, until_s
        self._places[record.id] = at = HistoryPlace(record.created_at, self._added, record.id)
        insort(self._of_owner[record.owner], at)
        self._put(record)
        return AddedRecord.KEPT

    async def get(self, record_id: str) -> R | None:
        return self._records.get(record_id)

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        if owner is None:
            return self._page_of_all(page)
        mine = [self._records[one.id] for one in reversed(self._of_owner.get(owner, ()))]
        wanted = [one for one in mine if one.target in page.targets and page.standing in (None, one.standing)]
        return wanted[page.offset : page.offset + page.limit], len(wanted)

    async def replace(self, record: R) -> bool:
        standing = self._before(record)
        if standing is None or (standing.is_done and not record.is_done):
            return False
        self._lift(standing)
        self._put(record)
        return True

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        standing = self._before(record)
        if standing is None or record.is_done or not standing.is_done:
            return False
        self._lift(standing)
        self._put(record)
        self._held[record.id] = holder, until_s
        return True

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        beyond_s = until_s + (until_s - now_s)
        free = (one for one, (by, until) in self._held.items() if by == holder or not now_s < until <= beyond_s)
        found = [self._records[one] for one in free]
        found.sort(key=lambda one: (self._held[one.id][0] != holder, self._places[one.id]))
        taken: list[R] = []
        of = Counter[str]()
        for one in found:
            of[one.owner] += 1
            if len(taken) < share.total and of[one.owner] <= share.per_owner:
                taken.append(one)
        self._held |= {one.id: (holder, until_s) for one in taken}
        return [one for one in taken if known.get(one.id) != one.revision]

    async def let_go(self, holder: str) -> None:
        self._held |= {one: _NOBODY for one, (by, _) in self._held.items() if by == holder}

    async def counts(self) -> Mapping[str, int]:
        counts = Counter[str]()
        for (_, standing), places in self._standing.items():
            counts[standing] += len(places)
        return +counts

    async def sweep(self, now_s: float) -> int:
        """Deletes expired records in batches, and yields to the event loop between batches."""
        swept = 0
        while some := self._ends[: min(SWEPT_AT_ONCE, bisect_right(self._ends, now_s, key=itemgetter(0)))]:
            for _, record_id in some:
                self._forget(record_id)
            swept += len(some)
            await asyncio.sleep(0)
        return swept

    async def close(self) -> None:
        pass

    def _page_of_all(self, page: RecordPage) -> tuple[list[R], int]:
        lists = [
            places
            for (target, standing), places in self._standing.items()
            if target in page.targets and page.standing in (None, standing)
        ]
        newest = merge(*map(reversed, lists), reverse=True)
        found = [self._records[one.id] for one in islice(newest, page.offset, page.offset + page.limit)]
        return found, sum(map(len, lists))

    def _before(self, record: R) -> R | None:
        """Returns the stored record if it is the revision just before this one, else None."""
        standing = self._records.get(record.id)
        return standing if standing is not None and standing.revision == record.revision - 1 else None

    def _put(self, record: R) -> None:
        at = self._places[record.id]
        self._records[record.id] = record
        insort(self._standing[record.target, record.standing], at)
        if record.is_done:
            self._held.pop(record.id, None)
            insort(self._ends, (record.expires_at, record.id))
            for target in (record.target, _EVERY):
                self._done[target].add(record.owner, at)

    def _lift(self, record: R) -> None:
        at = self._places[record.id]
        remove(self._standing[record.target, record.standing], at)
        if record.is_done:
            for target in (record.target, _EVERY):
                self._done[target].remove(record.owner, at)
            remove(self._ends, (record.expires_at, record.id))

    def _forget(self, record_id: str) -> None:
        record = self._records.pop(record_id)
        self._lift(record)
        remove(self._of_owner[record.owner], self._places.pop(record_id))
        if not self._of_owner[record.owner]:
            del self._of_owner[record.owner]
