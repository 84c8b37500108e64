"""Chooses which finished records give way when there are too many.

The oldest of whoever has most of them there, so that nobody's many push out another's few. Among those who have as many
it is whose oldest is older. Nothing here looks at all of them: owners stand in order, and each one's own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class HistoryPlace(NamedTuple):
    """A place in time, which orders what came at once as it came."""

    created_at: float
    number: int
    id: str


class _Rank(NamedTuple):
    """An owner's place: who has most comes first, then whose oldest is older."""

    fewer: int
    oldest: HistoryPlace
    owner: str


@dataclass(slots=True)
class RecordHistory:
    """What is done, of one target or in all."""

    count: int = 0
    _of_owner: dict[str, list[HistoryPlace]] = field(default_factory=dict)
    _ranks: list[_Rank] = field(default_factory=list)

    def add(self, owner: str, at: HistoryPlace) -> None:
        """One more is done."""
        mine = self._of_owner.setdefault(owner, [])
        self._lift(owner, mine)
        insort(mine, at)
        self._rank(owner, mine)
        self.count += 1

    def remove(self, owner: str, at: HistoryPlace) -> None:
        """One of them goes on, or is forgotten."""
        mine = self._of_owner[owner]
        self._lift(owner, mine)
        remove(mine, at)
        self._rank(owner, mine)
        self.count -= 1

    def first(self) -> str:
        """The id of what gives way next. There is something."""
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
    """Take it out of a list in order, where it is."""
    del places[bisect_left(places, at)]
