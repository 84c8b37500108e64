"""Chooses which finished records are evicted when there are too many.

The owner with the most finished records loses its oldest, so that one owner's many records don't evict another's few.
On a tie, the owner with the older record loses. Owners, and each owner's records, are kept sorted, so no operation
scans them all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class HistoryPlace(NamedTuple):
    """A sort key: creation time, then order of arrival among records created at the same time."""

    created_at: float
    number: int
    id: str


class _Rank(NamedTuple):
    """An owner's sort key: the owner with the most records first, then the one whose oldest record is older."""

    fewer: int
    oldest: HistoryPlace
    owner: str


@dataclass(slots=True)
class RecordHistory:
    """The finished records of one target, or of all targets."""

    count: int = 0
    _of_owner: dict[str, list[HistoryPlace]] = field(default_factory=dict)
    _ranks: list[_Rank] = field(default_factory=list)

    def add(self, owner: str, at: HistoryPlace) -> None:
        """Adds a finished record."""
        mine = self._of_owner.setdefault(owner, [])
        self._lift(owner, mine)
        insort(mine, at)
        self._rank(owner, mine)
        self.count += 1

    def remove(self, owner: str, at: HistoryPlace) -> None:
        """Removes a record that was reopened or deleted."""
        mine = self._of_owner[owner]
        self._lift(owner, mine)
        remove(mine, at)
        self._rank(owner, mine)
        self.count -= 1

    def first(self) -> str:
        """Returns the id of the next record to evict. The history must not be empty."""
        return self._ranks[0].oldest.id

    def _lift(self, owner: str, mine: list[HistoryPlace]) -> None:
        if mine:
            remove(self._ranks, _Rank(-len(mine), mine[0], owner))

    def _rank(self, owner: str, mine: list[HistoryPlace]) -> None:
        if mine:
            insort(self._ranks, _Rank(-len(mine), mine[0], owner))
        else:
            del self._of_owner[owner]


def remove(places: list[Any], at: tuple[Any, ...]) -> None:
    """Removes an item from a sorted list."""
    del places[bisect_left(places, at)]
