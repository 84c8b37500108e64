"""Stores records in this process's memory."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
    ends_at,
)

SWEPT_AT_ONCE: Final = 200
_FREE: Final = ("", 0.0)
_ALL: Final = ""  # in place of a target: the finished records of all targets


@dataclass(slots=True)
class MemoryRecordStore(Generic[R]):
    """Keeps records of a kind in a dictionary; `is_work` is the kind's. A restart loses them, including those of
    unfinished work."""

    up: bool = True
    is_work: bool = True
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
        record_id, owner = record.id, record.owner
        known = self._records.get(record_id)
        if known is not None:
            if ends_at(known, self.is_work) > record.created_at:
                return AddedRecord.KNOWN
            self._forget(record_id)
        every = self._done[_ALL]
        if bounds.done_per_target is not None:
            done = self._done[record.target]
            for _ in range(min(done.count - bounds.done_per_target, FORGOTTEN_AT_ONCE)):
                self._forget(done.first())
        mine = self._of_owner.get(owner, [])
        if len(mine) >= bounds.per_owner:
            oldest = every.oldest(owner) or (mine[0] if bounds.evicts_open else None)
            if oldest is None:
                return AddedRecord.FULL
            self._forget(oldest[2])
        else:
            beyond = len(self._records) - bounds.total + 1
            for _ in range(min(beyond, every.count, FORGOTTEN_AT_ONCE)):
                self._forget(every.first())
        if len(self._records) >= bounds.total:
            return AddedRecord.FULL
        self._added += 1
        if self.is_work:
            self._held[record_id] = holder, until_s
        self._places[record_id] = at = (record.created_at, self._added, record_id)
        insort(self._of_owner[owner], at)
        self._put(record, at)
        return AddedRecord.KEPT

    async def get(self, record_id: str) -> R | None:
        return self._records.get(record_id)

    async def find(self, record_ids: Sequence[str]) -> list[R]:
        return [record for one in record_ids if (record := self._records.get(one)) is not None]

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        if owner is None:
            return self._page_of_all(page)
        mine = [self._records[one[2]] for one in reversed(self._of_owner.get(owner, ()))]
        wanted = [one for one in mine if one.target in page.targets and page.standing in (None, one.standing)]
        return wanted[page.offset : page.offset + page.limit], len(wanted)

    async def replace(self, record: R) -> bool:
        return self._change(record, reopens=False)

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        if not self._change(record, reopens=True):
            return False
        self._held[record.id] = holder, until_s
        return True

    async def remove(self, record_ids: Sequence[str]) -> None:
        for record_id in self._records.keys() & {*record_ids}:
            self._forget(record_id)

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
        self._held |= {one: _FREE for one, (by, _) in self._held.items() if by == holder}

    async def counts(self) -> Mapping[str, int]:
        counts = Counter[str]()
        for (_, standing), places in self._standing.items():
            counts[standing] += len(places)
        return +counts

    async def has_room(self, bounds: RecordBounds) -> bool:
        return len(self._records) < bounds.total or self._done[_ALL].count > 0

    async def sweep(self, now_s: float) -> int:
        """Deletes expired records in batches, and yields to the event loop between batches."""
        swept = 0
        while some := self._ends[: min(SWEPT_AT_ONCE, bisect_right(self._ends, now_s, key=itemgetter(0)))]:
            for _, record_id in some:
                self._forget(record_id)
            swept += len(some)
            await asyncio.sleep(0)
        return swept

    def _page_of_all(self, page: RecordPage) -> tuple[list[R], int]:
        lists = [
            places
            for (target, standing), places in self._standing.items()
            if target in page.targets and page.standing in (None, standing)
        ]
        newest = merge(*map(reversed, lists), reverse=True)
        found = [self._records[one[2]] for one in islice(newest, page.offset, page.offset + page.limit)]
        return found, sum(map(len, lists))

    def _change(self, record: R, *, reopens: bool) -> bool:
        """Replaces the previous revision, if this is the next one and reopens it or not, as stated."""
        stands = self._records.get(record.id)
        if stands is None or stands.revision != record.revision - 1:
            return False
        if (stands.is_done and not record.is_done) != reopens:
            return False
        at = self._places[record.id]
        self._lift(stands, at)
        self._put(record, at)
        return True

    def _put(self, record: R, at: HistoryPlace) -> None:
        self._records[at[2]] = record
        if record.target:
            insort(self._standing[record.target, record.standing], at)
        if (ends := ends_at(record, self.is_work)) < math.inf:
            insort(self._ends, (ends, at[2]))
        if record.is_done:
            self._held.pop(at[2], None)
            self._done[_ALL].add(record.owner, at)
            if record.target:
                self._done[record.target].add(record.owner, at)

    def _lift(self, record: R, at: HistoryPlace) -> None:
        if record.target:
            remove(self._standing[record.target, record.standing], at)
        if (ends := ends_at(record, self.is_work)) < math.inf:
            remove(self._ends, (ends, at[2]))
        if record.is_done:
            self._done[_ALL].remove(record.owner, at)
            if record.target:
                self._done[record.target].remove(record.owner, at)

    def _forget(self, record_id: str) -> None:
        record, at = self._records.pop(record_id), self._places.pop(record_id)
        self._held.pop(record_id, None)
        self._lift(record, at)
        mine = self._of_owner[record.owner]
        remove(mine, at)
        if not mine:
            del self._of_owner[record.owner]
