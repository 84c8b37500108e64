"""Finds the boxes that cannot grow.

For one list of actions, subjects and objects form a table, and the boxes that cannot grow are its formal concepts: the
intersections of rows. All of them are found if there are few; else each row, each column, and each row intersected with
the rows most similar to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.policy_tools.suggest.usage_grid import Box, Grid, bits

MAX_CONCEPTS = 3000  # of one table; with more, only some are searched for
MAX_ACTION_LISTS = 48
MAX_TABLE = 3000  # rows of which every pair is compared
PARTNERS = 6


@dataclass(frozen=True, slots=True)
class BoxPool:
    """Boxes that together cover every cell; `complete` if there is no other box that cannot grow. `by_subject` and
    `by_object` each cover every cell too, with everything that one subject or object has in common in one box.
    """

    boxes: list[Box]
    complete: bool
    by_subject: list[Box]
    by_object: list[Box]


def pool(grid: Grid) -> BoxPool:
    """Return the boxes from which a cover can be made."""
    lists, complete = _action_lists(grid)
    found: dict[Box, None] = {}
    by_subject: dict[Box, None] = {}
    by_object: dict[Box, None] = {}
    for actions in lists:
        boxes, all_of_them = _boxes(grid, actions)
        complete = complete and all_of_them
        found.update(dict.fromkeys(boxes))
        rows = _table(grid.rows, actions, len(grid.subjects))
        columns = _table(grid.columns, actions, len(grid.objects))
        by_subject.update((grid.grown(Box(1 << s, row, actions), "sa"), None) for s, row in enumerate(rows) if row)
        by_object.update((grid.grown(Box(col, 1 << o, actions), "oa"), None) for o, col in enumerate(columns) if col)
    return BoxPool(list(found), complete, list(by_subject), list(by_object))


def _action_lists(grid: Grid) -> tuple[list[int], bool]:
    """Return the lists of actions that a box may need: those that some subject used on some object, their
    intersections, and each action by itself.
    """
    every = [1 << a for a in range(len(grid.actions))]
    if len(every) == 1:
        return every, True
    together: Counter[int] = Counter()
    for s in range(len(grid.subjects)):
        for o in bits(_union(row[s] for row in grid.rows)):
            together[sum(1 << a for a, row in enumerate(grid.rows) if row[s] >> o & 1)] += 1
    found = dict.fromkeys([*every, *(actions for actions, _ in together.most_common(MAX_ACTION_LISTS))])
    complete = len(together) <= MAX_ACTION_LISTS
    for one in list(found):
        for other in list(found):
            if len(found) >= MAX_ACTION_LISTS:
                return list(found), False
            if one & other:
                found.setdefault(one & other)
    return list(found), complete


def _boxes(grid: Grid, actions: int) -> tuple[list[Box], bool]:
    """Return boxes for one list of actions, each grown to all the actions that it can have."""
    rows = _table(grid.rows, actions, len(grid.subjects))
    columns = _table(grid.columns, actions, len(grid.objects))
    by_rows = len(rows) <= len(columns)
    concepts = _closed(rows if by_rows else columns)
    if concepts is not None:
        seeds = [(0, mask) if by_rows else (mask, 0) for mask in concepts]
    else:
        near = _near(rows if by_rows else columns)
        seeds = [(0, mask) if by_rows else (mask, 0) for mask in near]
        seeds += [(0, mask) for mask in rows] + [(mask, 0) for mask in columns]
    found: dict[Box, None] = {}
    for subjects, objects in dict.fromkeys(seeds):
        if not subjects and not objects:
            continue
        if not subjects:
            subjects = _extent(rows, columns, objects)
        objects = _extent(columns, rows, subjects)
        found.setdefault(Box(subjects, objects, grid.actions_with(subjects, objects)))
    return list(found), concepts is not None


def _table(tables: list[list[int]], actions: int, count: int) -> list[int]:
    """Return the rows (or columns) of what was used with all of these actions."""
    masks = [-1] * count
    for a in bits(actions):
        masks = [mask & other for mask, other in zip(masks, tables[a], strict=True)]
    return masks


def _closed(rows: list[int]) -> list[int] | None:
    """Return every intersection of rows; None when there are too many."""
    found: dict[int, None] = {}
    for row in dict.fromkeys(rows):
        if row:
            found.update(dict.fromkeys([row, *(meet for other in found if (meet := other & row))]))
        if len(found) > MAX_CONCEPTS:
            return None
    return list(found)


def _near(rows: list[int]) -> list[int]:
    """Return the intersections of each row with those most similar to it."""
    distinct = [row for row in dict.fromkeys(rows) if row]
    if len(distinct) > MAX_TABLE:
        return []
    found: dict[int, None] = {}
    for row in distinct:
        meets = {row & other for other in distinct} - {row, 0}
        found.update(dict.fromkeys(sorted(meets, key=lambda mask: (-mask.bit_count(), mask))[:PARTNERS]))
    return list(found)


def _extent(table: list[int], across: list[int], mask: int) -> int:
    """Return the rows of a table that contain the whole mask, by its rows or its columns, whichever is less work."""
    if mask.bit_count() <= len(table) // 8:
        common = (1 << len(table)) - 1
        for at in bits(mask):
            common &= across[at]
            if not common:
                break
        return common
    return sum(1 << at for at, row in enumerate(table) if not mask & ~row)


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
