"""Which tasks are there, as long as this process lives?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.task_api.records import Record, Step
from sidecar.task_api.store import Bounds, Page, Share


@dataclass(slots=True)
class MemoryStore:
    """Tasks in a dictionary. A restart forgets them, also those that an agent is still busy with."""

    up: bool = True
    _records: dict[str, Record] = field(default_factory=dict)
    _of_owner: dict[str, dict[str, None]] = field(default_factory=dict)
    _held: dict[str, tuple[str, float]] = field(default_factory=dict)

    async def add(self, record: Record, holder: str, until_s: float, bounds: Bounds) -> bool:
        """As `Store.add`."""
        mine = self._of_owner.setdefault(record.owner, {})
        if len(mine) >= bounds.per_owner:
            over = next((one for one in mine if self._records[one].step is Step.OVER), None)
            if over is None:
                return False
            self._forget(over)
            mine = self._of_owner.setdefault(record.owner, {})
        if len(self._records) >= bounds.total:
            return False
        self._records[record.id] = record
        self._held[record.id] = holder, until_s
        mine[record.id] = None
        return True

    async def get(self, task_id: str) -> Record | None:
        """As `Store.get`."""
        return self._records.get(task_id)

    async def page(self, owner: str, page: Page) -> tuple[list[Record], int]:
        """As `Store.page`."""
        mine = [self._records[one] for one in reversed(self._of_owner.get(owner, {}))]
        wanted = [one for one in mine if one.target in page.targets and page.state in (None, one.state)]
        return wanted[page.offset : page.offset + page.limit], len(wanted)

    async def replace(self, record: Record) -> bool:
        """As `Store.replace`."""
        standing = self._records.get(record.id)
        if standing is None or standing.revision != record.revision - 1:
            return False
        self._records[record.id] = record
        return True

    async def take(self, holder: str, now_s: float, until_s: float, share: Share) -> list[Record]:
        """As `Store.take`."""
        beyond_s = until_s + (until_s - now_s)
        free = [one for one, (by, until) in self._held.items() if by == holder or not now_s < until <= beyond_s]
        found = [self._records[one] for one in free if self._records[one].step is not Step.OVER]
        found.sort(key=lambda one: (self._held[one.id][0] != holder, one.created_at))
        taken: list[Record] = []
        of = Counter[str]()
        for one in found:
            of[one.owner] += 1
            if len(taken) < share.total and of[one.owner] <= share.per_owner:
                taken.append(one)
        self._held |= {one.id: (holder, until_s) for one in taken}
        return taken

    async def let_go(self, holder: str) -> None:
        """As `Store.let_go`."""
        self._held |= {one: ("", 0.0) for one, (by, _) in self._held.items() if by == holder}

    async def counts(self) -> Mapping[str, int]:
        """As `Store.counts`."""
        return Counter(record.state.value for record in self._records.values())

    async def sweep(self, now_s: float) -> int:
        """As `Store.sweep`."""
        over = [one.id for one in self._records.values() if one.step is Step.OVER and one.expires_at <= now_s]
        for task_id in over:
            self._forget(task_id)
        return len(over)

    async def close(self) -> None:
        """As `Store.close`."""

    def _forget(self, task_id: str) -> None:
        owner = self._records.pop(task_id).owner
        del self._held[task_id]
        mine = self._of_owner[owner]
        del mine[task_id]
        if not mine:
            del self._of_owner[owner]
