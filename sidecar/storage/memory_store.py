"""Stores records in this process's memory. A restart loses them, including unfinished work."""

import asyncio
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, Generic

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

MAX_FORMER_RANKS: Final = 1000
SEEN_AT_ONCE: Final = 1000  # records that a sweep checks before other calls run

Place = tuple[float, int, str]
"""The position of a record in the order of creation: its creation time, a number that increases with each addition, and
its id."""


@dataclass(slots=True)
class _Entry(Generic[R]):
    record: R
    at: Place
    holder: str
    until_s: float
    target: str
    is_done: bool


@dataclass(slots=True)
class _History:
    """The finished records of one target, or of all. `ranks` is a heap of their owners: the one with most of them
    first, then the one with the oldest. An owner's former ranks remain in it until they come first; the current ranks
    of the owners in `changed` are not in it yet."""

    count: int = 0
    of_owner: dict[str, list[Place]] = field(default_factory=dict)
    ranks: list[tuple[int, Place, str]] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)

    @property
    def first(self) -> str:
        """The id of the next record to evict. Requires that there is one."""
        of_owner = self.of_owner
        if len(self.ranks) + len(self.changed) > 2 * len(of_owner) + MAX_FORMER_RANKS:
            self.ranks = [(-len(those), those[0], whose) for whose, those in of_owner.items()]
            heapify(self.ranks)
        else:
            for owner in self.changed:
                heappush(self.ranks, (-len(of_owner[owner]), of_owner[owner][0], owner))
        self.changed.clear()
        while True:
            count, oldest, owner = self.ranks[0]
            mine = self.of_owner.get(owner)
            if mine and len(mine) == -count and mine[0] == oldest:
                return oldest[2]
            heappop(self.ranks)


@dataclass(slots=True)
class MemoryRecordStore(Generic[R]):
    """Stores the records of one kind; `is_work` is the kind's."""

    is_work: bool
    is_durable: bool = False
    up: bool = True
    _entries: dict[str, _Entry[R]] = field(default_factory=dict)
    _open: dict[str, _Entry[R]] = field(default_factory=dict)  # unfinished work
    _of_owner: defaultdict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    _shown: list[Place] = field(default_factory=list)  # the records that have a target
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # of them, by target and standing
    _done: defaultdict[str, _History] = field(default_factory=lambda: defaultdict(_History))  # "" is every target
    _added: int = 0

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        return self._add(record, holder, until_s, bounds)

    def _add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        record_id, owner, target, every = record.id, record.owner, record.target, self._done[""]
        if (known := self._entries.get(record_id)) is not None:
            if ends_at(known.record, self.is_work) > record.created_at:
                return AddedRecord.KNOWN
            self._forget(record_id)
        if bounds.done_per_target is not None:
            done = self._done[target]
            for _ in range(min(done.count - bounds.done_per_target, FORGOTTEN_AT_ONCE)):
                self._forget(done.first)
        mine = self._of_owner.get(owner, [])
        if len(mine) >= bounds.per_owner:
            oldest = every.of_owner.get(owner) or (mine if bounds.evicts_open else None)
            if not oldest:
                return AddedRecord.FULL
            self._forget(oldest[0][2])
        else:
            for _ in range(min(len(self._entries) - bounds.total + 1, every.count, FORGOTTEN_AT_ONCE)):
                self._forget(every.first)
        if len(self._entries) >= bounds.total:
            return AddedRecord.FULL
        self._added += 1
        at = (record.created_at, self._added, record_id)
        entry = self._entries[record_id] = _Entry(record, at, holder, until_s, target, record.is_done)
        mine = self._of_owner[owner]
        if mine and at < mine[-1]:
            insort(mine, at)
        else:
            mine.append(at)
        if target:
            insort(self._shown, at)
        self._tally(entry, 1)
        return AddedRecord.KEPT

    async def add_all(self, records: Sequence[R], bounds: RecordBounds) -> list[AddedRecord]:
        return [self._add(record, "", 0.0, bounds) for record in records]

    async def get(self, record_id: str) -> R | None:
        entry = self._entries.get(record_id)
        return None if entry is None else entry.record

    async def find(self, record_ids: Sequence[str]) -> list[R]:
        return [entry.record for one in record_ids if (entry := self._entries.get(one)) is not None]

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        def wanted(target: str, standing: str) -> bool:
            return target in page.targets and page.standing in (None, standing)

        places = reversed(self._shown if owner is None else self._of_owner.get(owner, []))
        newest = (self._entries[at[2]].record for at in places)
        found: Iterator[R] | list[R] = (one for one in newest if wanted(one.target, one.standing))
        if owner is None:
            total = sum(count for of, count in self._counts.items() if wanted(*of))
        else:
            found = list(found)
            total = len(found)
        return list(islice(found, page.offset, page.offset + page.limit)), total

    async def replace(self, record: R) -> bool:
        return self._change(record, reopens=False)

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        if not self._change(record, reopens=True):
            return False
        entry = self._entries[record.id]
        entry.holder, entry.until_s = holder, until_s
        return True

    async def remove(self, record_ids: Sequence[str]) -> None:
        for record_id in self._entries.keys() & {*record_ids}:
            self._forget(record_id)

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        beyond_s, of, taken = until_s + (until_s - now_s), Counter[str](), list[R]()
        free = [one for one in self._open.values() if one.holder == holder or not now_s < one.until_s <= beyond_s]
        for entry in sorted(free, key=lambda one: (one.holder != holder, one.at)):
            record = entry.record
            of[record.owner] += 1
            if len(taken) < share.total and of[record.owner] <= share.per_owner:
                entry.holder, entry.until_s = holder, until_s
                taken.append(record)
        return [record for record in taken if known.get(record.id) != record.revision]

    async def let_go(self, holder: str) -> None:
        for entry in self._open.values():
            if entry.holder == holder:
                entry.holder, entry.until_s = "", 0.0

    async def counts(self) -> Mapping[str, int]:
        counts = Counter[str]()
        for (_, standing), count in self._counts.items():
            counts[standing] += count
        return +counts

    async def has_room(self, bounds: RecordBounds) -> bool:
        return len(self._entries) < bounds.total or self._done[""].count > 0

    async def sweep(self, now_s: float) -> int:
        """Deletes expired records, and lets other calls run in between."""
        swept, entries = 0, iter(list(self._entries.values()))
        while some := list(islice(entries, SEEN_AT_ONCE)):
            for entry in some:
                record = entry.record  # it may be a different one now
                if ends_at(record, self.is_work) <= now_s and self._entries.get(record.id) is entry:
                    self._forget(record.id)
                    swept += 1
            await asyncio.sleep(0)
        return swept

    def _change(self, record: R, *, reopens: bool) -> bool:
        """Replaces the previous revision. Returns False if it is not stored, or if an unfinished record would replace
        a finished one although `reopens` is false, or would not although it is true."""
        entry = self._entries.get(record.id)
        if entry is None or entry.record.revision != record.revision - 1:
            return False
        if (entry.record.is_done and not record.is_done) != reopens:
            return False
        self._tally(entry, -1)
        if reopens:
            self._move(entry, (record.created_at, *entry.at[1:]))
        entry.record, entry.is_done = record, record.is_done
        self._tally(entry, 1)
        return True

    def _move(self, entry: _Entry[R], at: Place) -> None:
        """Gives a record another position in the order of creation."""
        for places in (self._of_owner[entry.record.owner], *([self._shown] if entry.target else ())):
            del places[bisect_left(places, entry.at)]
            insort(places, at)
        entry.at = at

    def _tally(self, entry: _Entry[R], by: int) -> None:
        """Adds a record to the counts (`by` is 1), or removes it from them (-1)."""
        owner, at, target = entry.record.owner, entry.at, entry.target
        if target:
            self._counts[target, entry.record.standing] += by
        if not entry.is_done:
            if self.is_work and by > 0:
                self._open[at[2]] = entry
            elif self.is_work:
                del self._open[at[2]]
            return
        for of in ("", target) if target else ("",):
            done = self._done[of]
            done.count += by
            done.changed.add(owner)
            mine = done.of_owner.get(owner)
            if mine is None:
                done.of_owner[owner] = [at]
            elif by > 0 and mine[-1] < at:
                mine.append(at)
            elif by > 0:
                insort(mine, at)
            elif len(mine) > 1:
                del mine[0 if mine[0] is at else bisect_left(mine, at)]  # the first one is evicted first
            else:
                del done.of_owner[owner]
                done.changed.discard(owner)

    def _forget(self, record_id: str) -> None:
        entry = self._entries.pop(record_id)
        self._tally(entry, -1)
        at, owner = entry.at, entry.record.owner
        if entry.target:
            del self._shown[bisect_left(self._shown, at)]
        mine = self._of_owner[owner]
        if len(mine) > 1:
            del mine[0 if mine[0] is at else bisect_left(mine, at)]
        else:
            del self._of_owner[owner]
