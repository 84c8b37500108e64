"""Finds the smallest exact cover of boxes.

A set cover of few cells by few boxes: branch on the cell with the fewest boxes left, and prune a branch as soon as
cells that no two boxes share show that it cannot win. The search is bounded: an unfinished one proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.policy_tools.suggest.usage_grid import Box, Grid, bits

MAX_BOXES = 1500
MAX_CELLS = 400
MAX_STEPS = 4_000


def fewest(grid: Grid, boxes: Sequence[Box], known: Sequence[Box]) -> tuple[list[Box], bool]:
    """Return a cover with the fewest boxes, at most as many as `known`, and whether it is proved minimal."""
    numbers = {cell: at for at, cell in enumerate(grid.cells())}
    masks = [_mask(box, numbers) for box in boxes]
    search = _Search.of(masks, len(numbers), len(known))
    search.run((1 << len(numbers)) - 1, ())
    best = list(known) if search.best is None else [boxes[at] for at in search.best]
    return best, search.steps <= MAX_STEPS


def _mask(box: Box, numbers: dict[tuple[int, int, int], int]) -> int:
    return sum(1 << numbers[s, o, a] for s in bits(box.subjects) for o in bits(box.objects) for a in bits(box.actions))


@dataclass(slots=True)
class _Search:
    """`over[cell]` are the boxes that cover it, largest first; `near[cell]` all cells that share a box with it."""

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
        """Cover what is left with fewer than `limit` boxes in all."""
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
        """Return a number of cells of which no two share a box."""
        count = 0
        while left:
            cell = (
                min(bits(left), key=lambda cell: self.near[cell].bit_count())
                if left.bit_count() < 60
                else ((left & -left).bit_length() - 1)
            )
            left &= ~self.near[cell]
            count += 1
        return count
