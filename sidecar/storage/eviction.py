"""Chooses which finished records are evicted when there are too many.

The owner with the most finished records loses its oldest, so that one owner's many records don't evict another's few.
On a tie, the owner with the older record loses. Owners, and each owner's records, are kept sorted, so no operation
scans them all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any

HistoryPlace = tuple[float, int, str]
"""A sort key: a record's time of creation, its number among all that came, and its id."""


@dataclass(slots=True)
class RecordHistory:
    """The finished records of one target, or of all targets. `_ranks` holds for each owner how many it has (negative),
    its oldest, and its name."""

    count: int = 0
    _of_owner: dict[str, list[HistoryPlace]] = field(default_factory=dict)
    _ranks: list[tuple[int, HistoryPlace, str]] = field(default_factory=list)

    def add(self, owner: str, at: HistoryPlace) -> None:
        """Adds a finished record."""
        mine = self._of_owner.setdefault(owner, [])
        if mine:
            remove(self._ranks, (-len(mine), mine[0], owner))
        insort(mine, at)
        insort(self._ranks, (-len(mine), mine[0], owner))
        self.count += 1

    def remove(self, owner: str, at: HistoryPlace) -> None:
        """Removes a record that was reopened or deleted."""
        mine = self._of_owner[owner]
        remove(self._ranks, (-len(mine), mine[0], owner))
        remove(mine, at)
        if mine:
            insort(self._ranks, (-len(mine), mine[0], owner))
        else:
            del self._of_owner[owner]
        self.count -= 1

    def oldest(self, owner: str) -> HistoryPlace | None:
        """Returns the place of the owner's oldest finished record, or None."""
        mine = self._of_owner.get(owner)
        return mine[0] if mine else None

    def first(self) -> str:
        """Returns the id of the next record to evict. The history must not be empty."""
        return self._ranks[0][1][2]


def remove(places: list[Any], at: tuple[Any, ...]) -> None:
    """Removes an item from a sorted list."""
    del places[bisect_left(places, at)]
