"""Covers cells with the fewest boxes.

The problem is NP-hard (minimum biclique cover, with a third side). The algorithm collects maximal boxes, all of them if
there are few (`pool`); repeatedly takes the one that covers the most remaining cells (`_greedy`); drops redundant
boxes; merges two boxes if one box can cover what only they cover; and removes some boxes and covers their cells again,
keeping a result that is not larger. If all maximal boxes are known and few, an exact search follows: it branches on the
cell that the fewest boxes cover, and prunes a branch as soon as cells of which no box covers two prove that it cannot
improve the result.

All bounds count work, not time, so the same log gives the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import product
from random import Random
from typing import NamedTuple

from sidecar.policy_tools.suggest.grid import Box, BoxPool, Grid, bits, pool

MAX_MERGE_PAIRS = 3_000_000
MAX_REBUILDS = 60
REBUILD_WORK = 800_000  # rows of boxes that are visited while rebuilding
MAX_BOXES, MAX_CELLS, MAX_STEPS = 1500, 400, 4_000  # of the exact search; one that stops at its bound proves nothing


class Cover(NamedTuple):
    """Boxes that cover every cell, and whether it is proved that no cover has fewer."""

    boxes: tuple[Box, ...]
    fewest: bool


def cover(grid: Grid, wide: Sequence[Box] = ()) -> Cover:
    """Returns the fewest boxes found. Boxes of `wide`, which include unused cells, are used only if the number becomes
    smaller by them."""
    known = pool(grid)
    state = _State(grid)
    best = _found(state, known, ())
    proved = len(best) == 1
    cells = sum(mask.bit_count() for row in grid.rows for mask in row)
    if not proved and known.complete and len(known.boxes) <= MAX_BOXES and cells <= MAX_CELLS:
        best, proved = _fewest(grid, known.boxes, best)
    if wide and len(best) > 1:
        wider = _found(state, known, wide)
        best, proved = (wider if len(wider) < len(best) else best), False
    return Cover(tuple(best), proved)


def _found(state: _State, known: BoxPool, wide: Sequence[Box]) -> list[Box]:
    """Finds a cover. Of boxes with equal gain, those of `known`, without unused cells, are preferred."""
    candidates = [*known.boxes, *wide]
    starts = [
        _irredundant(state, _greedy(state, boxes, state.uncovered(())))
        for boxes in (candidates, known.by_subject, known.by_object)
    ]
    return _improved(state, candidates, min(starts, key=len), frozenset(wide))


class _State:
    """The cells of a grid by row: the mask of objects at `a * number of subjects + s`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.width = len(grid.subjects)

    def places(self, box: Box) -> list[int]:
        subjects = list(bits(box.subjects))
        return [a * self.width + s for a in bits(box.actions) for s in subjects]

    def uncovered(self, boxes: Iterable[Box]) -> list[int]:
        left = [mask for row in self.grid.rows for mask in row]
        for box in boxes:
            self.take(left, box)
        return left

    def take(self, left: list[int], box: Box) -> None:
        for place in self.places(box):
            left[place] &= ~box.objects

    def hull(self, left: Sequence[int], within: Box | None = None) -> Box:
        hull = Box(0, 0, 0)
        for place in range(len(left)) if within is None else self.places(within):
            if mask := left[place] & (-1 if within is None else within.objects):
                a, s = divmod(place, self.width)
                hull = hull.hull(Box(1 << s, mask, 1 << a))
        return hull

    def gain(self, left: Sequence[int], box: Box) -> int:
        return sum((left[place] & box.objects).bit_count() for place in self.places(box))


def _greedy(state: _State, candidates: Sequence[Box], left: list[int]) -> list[Box]:
    """Takes the box with the largest gain until no box gains anything. Gains only fall, so the first box of the heap
    whose gain is unchanged has the largest."""
    heap = [(-gain, at) for at, box in enumerate(candidates) if (gain := state.gain(left, box))]
    heapify(heap)
    chosen: list[Box] = []
    while heap:
        old, at = heappop(heap)
        gain = state.gain(left, candidates[at])
        if -gain == old:
            chosen.append(candidates[at])
            state.take(left, candidates[at])
        elif gain:
            heappush(heap, (-gain, at))
    return chosen


def _irredundant(state: _State, boxes: Sequence[Box]) -> list[Box]:
    """Removes boxes of which others cover every used cell, the last chosen ones (with the smallest gains) first."""
    kept = list(boxes)
    once, twice = _layers(state, kept)
    used = state.uncovered(())
    for box in reversed(boxes):
        places = state.places(box)
        if all(not box.objects & once[place] & ~twice[place] & used[place] for place in places):
            kept.remove(box)
            again = _layers(state, [other for other in kept if other.subjects & box.subjects])
            for place in places:
                once[place], twice[place] = again[0][place], again[1][place]
    return kept


def _layers(state: _State, boxes: Iterable[Box]) -> tuple[list[int], list[int]]:
    once = [0] * (state.width * len(state.grid.actions))
    twice = list(once)
    for box in boxes:
        for place in state.places(box):
            twice[place] |= once[place] & box.objects
            once[place] |= box.objects
    return once, twice


def _improved(state: _State, candidates: Sequence[Box], boxes: list[Box], wide: frozenset[Box]) -> list[Box]:
    """Merges boxes; then removes some and covers their cells again, as often as the bound on work allows. Never returns
    more boxes than before."""
    best = _merged(state, boxes, wide)
    work = max(1, sum(box.subjects.bit_count() * box.actions.bit_count() for box in candidates))
    chance = Random(0)  # noqa: S311 - the same log must give the same rules
    work += len(best) * len(best) // 4
    for _ in range(min(MAX_REBUILDS, REBUILD_WORK // work) if len(best) > 2 else 0):
        kept = [box for box in best if chance.random() > 0.4]
        shuffled = sorted(candidates, key=lambda _: chance.random())
        rebuilt = kept + _greedy(state, shuffled, state.uncovered(kept))
        rebuilt = _merged(state, _irredundant(state, rebuilt), wide)
        if len(rebuilt) <= len(best):
            best = rebuilt
    return best


def _merged(state: _State, boxes: list[Box], wide: frozenset[Box]) -> list[Box]:
    kept = list(boxes)
    if len(kept) * len(kept) > MAX_MERGE_PAIRS:
        return kept
    first = 0
    joint: list[Box] | None = kept
    while first < len(kept):
        if joint is not None:
            kept, (_, twice) = joint, _layers(state, joint)
            alone = [mask & ~more for mask, more in zip(state.uncovered(()), twice, strict=True)]
            own = [state.hull(alone, box) for box in kept]
            reach = [state.grid.objects_with(box.subjects, box.actions) for box in own]
        joint = _joined(state, kept, own, reach, first, wide)
        first += joint is None
    return kept


def _joined(
    state: _State, kept: list[Box], own: list[Box], reach: list[int], first: int, wide: frozenset[Box]
) -> list[Box] | None:
    """Returns the boxes with the one at `first` merged into a later one; None if it cannot be merged. `own` are the
    hulls of the cells that only one box covers; `reach` are the objects that all subjects of such a hull used with its
    actions: for a common box, each must contain the other's objects."""
    if kept[first] in wide:
        return None
    mine, far = own[first].objects, reach[first]
    for second in range(first + 1, len(kept)):
        if own[second].objects & ~far or mine & ~reach[second] or kept[second] in wide:
            continue
        if not state.grid.holds(own[first].hull(own[second])):
            continue
        rest = [box for at, box in enumerate(kept) if at not in (first, second)]
        hull = state.hull(state.uncovered(rest))
        if state.grid.holds(hull):
            return _irredundant(state, [*rest, state.grid.grown(hull)])
    return None


def _fewest(grid: Grid, boxes: Sequence[Box], known: Sequence[Box]) -> tuple[list[Box], bool]:
    """Returns a cover by some of `boxes`, or `known` if none is smaller, and whether it is proved minimal."""
    numbers: dict[tuple[int, ...], int] = {cell: at for at, cell in enumerate(grid.cells())}
    masks = [sum(1 << numbers[cell] for cell in product(*map(bits, box))) for box in boxes]
    search = _Search.of(masks, len(numbers), len(known))
    search.run((1 << len(numbers)) - 1, ())
    best = list(known) if search.best is None else [boxes[at] for at in search.best]
    return best, search.steps <= MAX_STEPS


@dataclass(slots=True)
class _Search:
    """The exact search. `masks` are the cells of each box; `over[cell]` are the boxes that cover a cell, largest first;
    `near[cell]` is the mask of all cells in these boxes."""

    masks: list[int]
    over: list[list[int]]
    near: list[int]
    limit: int
    best: tuple[int, ...] | None = None
    steps: int = 0

    @classmethod
    def of(cls, masks: list[int], cells: int, limit: int) -> _Search:
        over: list[list[int]] = [[] for _ in range(cells)]
        near = [0] * cells
        for at in sorted(range(len(masks)), key=lambda at: -masks[at].bit_count()):
            for cell in bits(masks[at]):
                over[cell].append(at)
                near[cell] |= masks[at]
        return cls(masks, over, near, limit)

    def run(self, left: int, chosen: tuple[int, ...]) -> None:
        """Searches a cover of the cells in `left` that has, with the `chosen` boxes, fewer than `limit`. Sets
        `best`."""
        self.steps += 1
        if not left:
            self.best, self.limit = chosen, len(chosen)
            return
        if self.steps > MAX_STEPS or len(chosen) + self._at_least(left) >= self.limit:
            return
        cell = min(bits(left), key=lambda cell: len(self.over[cell]))
        for at in sorted(self.over[cell], key=lambda at: -(self.masks[at] & left).bit_count()):
            self.run(left & ~self.masks[at], (*chosen, at))

    def _at_least(self, left: int) -> int:
        count = 0
        while left:
            few = left.bit_count() < 60
            cell = min(bits(left), key=lambda cell: self.near[cell].bit_count()) if few else next(bits(left))
            left &= ~self.near[cell]
            count += 1
        return count
