"""Whose task is it, as long as this process lives?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sidecar.tasks.record import TaskRecord
from sidecar.tasks.store import Bounds

Key = tuple[str, str, str]


@dataclass(slots=True)
class _Own:
    """What one owner has, the oldest first: what ended gives way before what has not."""

    ended: dict[Key, None] = field(default_factory=dict)
    live: dict[Key, None] = field(default_factory=dict)

    def of(self, record: TaskRecord) -> dict[Key, None]:
        """Where such a record stands."""
        return self.ended if record.state else self.live


@dataclass(slots=True)
class MemoryTaskStore:
    """Records in a dictionary. A restart forgets them, and then nobody owns what is still running."""

    up: bool = True
    _records: dict[Key, TaskRecord] = field(default_factory=dict)
    _of_owner: dict[str, _Own] = field(default_factory=dict)

    async def claim(self, record: TaskRecord, bounds: Bounds) -> TaskRecord | None:
        """As `TaskStore.claim`."""
        key = _key(record)
        standing = self._records.get(key)
        if standing is not None and standing.expires_at > record.created_at:
            return standing
        if standing is not None:
            self._forget(key)
        if not await self.has_room(bounds):
            return None
        mine = self._of_owner.setdefault(record.owner, _Own())
        if len(mine.ended) + len(mine.live) >= bounds.per_owner:
            self._forget(next(iter(mine.ended or mine.live)))
            mine = self._of_owner.setdefault(record.owner, mine)
        self._records[key] = record
        mine.of(record)[key] = None
        return record

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[TaskRecord]:
        """As `TaskStore.find`."""
        found = (self._records.get((namespace, server, task_id)) for task_id in task_ids)
        return [record for record in found if record is not None and record.expires_at > now_s]

    async def amend(self, record: TaskRecord) -> None:
        """As `TaskStore.amend`."""
        standing = self._records.get(_key(record))
        if standing is not None and standing.owner == record.owner:
            amended = standing._replace(state=standing.state or record.state, expires_at=record.expires_at)
            self._records[_key(record)] = amended
            if amended.state != standing.state:
                mine = self._of_owner[record.owner]
                del mine.live[_key(record)]
                mine.ended[_key(record)] = None

    async def has_room(self, bounds: Bounds) -> bool:
        """As `TaskStore.has_room`."""
        return len(self._records) < bounds.total

    async def sweep(self, now_s: float) -> int:
        """As `TaskStore.sweep`."""
        over = [key for key, record in self._records.items() if record.expires_at <= now_s]
        for key in over:
            self._forget(key)
        return len(over)

    async def close(self) -> None:
        """As `TaskStore.close`."""

    def _forget(self, key: Key) -> None:
        record = self._records.pop(key)
        mine = self._of_owner[record.owner]
        del mine.of(record)[key]
        if not mine.ended and not mine.live:
            del self._of_owner[record.owner]


def _key(record: TaskRecord) -> Key:
    return record.namespace, record.server, record.task_id
