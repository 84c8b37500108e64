"""Stores task owners in this process's memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from sidecar.storage.task_owners.record import OwnerRecord
from sidecar.storage.task_owners.store import OwnerBounds

Key = tuple[str, str, str]


@dataclass(slots=True)
class _OwnTasks:
    """One owner's tasks, the oldest first; tasks that ended are evicted before those that have not."""

    ended: dict[Key, None] = field(default_factory=dict)
    live: dict[Key, None] = field(default_factory=dict)

    def of(self, record: OwnerRecord) -> dict[Key, None]:
        """Returns the group of tasks that this record belongs to."""
        return self.ended if record.state else self.live


@dataclass(slots=True)
class MemoryOwnerStore:
    """Keeps records in a dictionary. A restart loses them, and tasks that still run then have no owner."""

    up: bool = True
    _records: dict[Key, OwnerRecord] = field(default_factory=dict)
    _of_owner: dict[str, _OwnTasks] = field(default_factory=dict)
    _most: list[tuple[int, str]] = field(default_factory=list)  # owners with tasks that ended; most first

    async def claim(self, record: OwnerRecord, bounds: OwnerBounds) -> OwnerRecord | None:
        key = _key(record)
        standing = self._records.get(key)
        if standing is not None and standing.expires_at > record.created_at:
            return standing
        if standing is not None:
            self._forget(key)
        own = self._of_owner.get(record.owner, _OwnTasks())
        if len(own.ended) + len(own.live) >= bounds.per_owner:
            self._forget(next(iter(own.ended or own.live)))
        elif not await self.has_room(bounds):
            return None
        elif len(self._records) >= bounds.total:
            self._forget(next(iter(self._of_owner[self._most[0][1]].ended)))
        self._records[key] = record
        self._put(record)
        return record

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[OwnerRecord]:
        found = (self._records.get((namespace, server, task_id)) for task_id in task_ids)
        return [record for record in found if record is not None and record.expires_at > now_s]

    async def amend(self, record: OwnerRecord) -> None:
        standing = self._records.get(_key(record))
        if standing is not None and standing.owner == record.owner:
            amended = standing._replace(state=standing.state or record.state, expires_at=record.expires_at)
            self._records[_key(record)] = amended
            if amended.state != standing.state:
                self._lift(standing)
                self._put(amended)

    async def has_room(self, bounds: OwnerBounds) -> bool:
        return len(self._records) < bounds.total or bool(self._most)

    async def sweep(self, now_s: float) -> int:
        over = [key for key, record in self._records.items() if record.expires_at <= now_s]
        for key in over:
            self._forget(key)
        return len(over)

    async def close(self) -> None:
        pass

    def _forget(self, key: Key) -> None:
        self._lift(self._records.pop(key))

    def _put(self, record: OwnerRecord) -> None:
        mine = self._of_owner.setdefault(record.owner, _OwnTasks())
        had = len(mine.ended)
        mine.of(record)[_key(record)] = None
        self._rank(record.owner, had, len(mine.ended))

    def _lift(self, record: OwnerRecord) -> None:
        mine = self._of_owner[record.owner]
        had = len(mine.ended)
        del mine.of(record)[_key(record)]
        self._rank(record.owner, had, len(mine.ended))
        if not mine.ended and not mine.live:
            del self._of_owner[record.owner]

    def _rank(self, owner: str, had: int, has: int) -> None:
        if had and had != has:
            del self._most[bisect_left(self._most, (-had, owner))]
        if has and had != has:
            insort(self._most, (-has, owner))


def _key(record: OwnerRecord) -> Key:
    return record.namespace, record.server, record.task_id
