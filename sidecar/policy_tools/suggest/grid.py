"""Arranges recorded use in a grid, and finds its maximal boxes.

A rule allows a box: some subjects × some objects × some actions. The fewest rules are the fewest boxes that cover all
cells and nothing else. Subjects (objects, actions) with equal cells can always be in the same boxes, so each such group
is one index here; sets of indexes are bit masks, so that a whole row is compared in one step.

For one list of actions, subjects and objects form a table, and the maximal boxes are its formal concepts: the
intersections of rows. All of them are found if there are few; otherwise each row, each column, and each row intersected
with the rows most similar to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple

from sidecar.policy_tools.suggest.evidence import Triple

MAX_CONCEPTS = 3000  # of one table; with more, only some are searched for
MAX_ACTION_LISTS = 48
MAX_TABLE = 3000  # rows, of which every pair is compared; a larger table has no intersections
PARTNERS = 6  # intersections of a row with others, the largest ones


class Box(NamedTuple):
    """Some subjects × objects × actions, as bit masks over a grid's indexes."""

    subjects: int
    objects: int
    actions: int

    def hull(self, other: Box) -> Box:
        return Box(self.subjects | other.subjects, self.objects | other.objects, self.actions | other.actions)


Group = tuple[str, ...]


def bits(mask: int) -> Iterator[int]:
    """Yields the indexes in a mask, in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(slots=True)
class Grid:
    """The cells of one permission kind. `subjects[i]` are the names of index i; likewise for objects and actions.

    `rows[a][s]` is the mask of objects, `columns[a][o]` the mask of subjects that belong to the other two."""

    subjects: list[Group]
    objects: list[Group]
    actions: list[Group]
    rows: list[list[int]]
    columns: list[list[int]]
    subject_at: dict[str, int]
    object_at: dict[str, int]

    @classmethod
    def of(cls, triples: Iterable[Triple]) -> Grid:
        """Builds a grid. Names with the same use become one index."""
        cells = [tuple(triple[1:]) for triple in triples]
        groups = [_alike(cells, axis) for axis in range(3)]
        places = [{group[0]: index for index, group in enumerate(found)} for found in groups]
        rows = [[0] * len(groups[0]) for _ in groups[2]]
        columns = [[0] * len(groups[1]) for _ in groups[2]]
        for subject, obj, action in cells:
            s, o, a = places[0].get(subject), places[1].get(obj), places[2].get(action)
            if s is not None and o is not None and a is not None:  # one name stands for its whole group
                rows[a][s] |= 1 << o
                columns[a][o] |= 1 << s
        at = [{name: index for index, group in enumerate(found) for name in group} for found in groups[:2]]
        return cls(groups[0], groups[1], groups[2], rows, columns, at[0], at[1])

    def cells(self) -> Iterator[tuple[int, int, int]]:
        for s in range(len(self.subjects)):
            for a, row in enumerate(self.rows):
                for o in bits(row[s]):
                    yield s, o, a

    def holds(self, box: Box) -> bool:
        """Whether every cell of the box was used."""
        return not box.objects & ~self.objects_with(box.subjects, box.actions)

    def objects_with(self, subjects: int, actions: int) -> int:
        return _common((self.rows[a][s] for a in bits(actions) for s in bits(subjects)), len(self.objects))

    def subjects_with(self, objects: int, actions: int) -> int:
        return _common((self.columns[a][o] for a in bits(actions) for o in bits(objects)), len(self.subjects))

    def actions_with(self, subjects: int, objects: int) -> int:
        return sum(1 << a for a, row in enumerate(self.rows) if all(not objects & ~row[s] for s in bits(subjects)))

    def grown(self, box: Box, order: str = "soa") -> Box:
        """Returns a box of used cells around this one: each side in the `order` is extended as far as possible. With
        all three sides, the box is maximal."""
        subjects, objects, actions = box
        for side in order:
            if side == "s":
                subjects = self.subjects_with(objects, actions)
            elif side == "o":
                objects = self.objects_with(subjects, actions)
            else:
                actions = self.actions_with(subjects, objects)
        return Box(subjects, objects, actions)

    def names(self, groups: Sequence[Group], mask: int) -> frozenset[str]:
        return frozenset(name for index in bits(mask) for name in groups[index])


def _common(masks: Iterable[int], size: int) -> int:
    common = (1 << size) - 1
    for mask in masks:
        common &= mask
        if not common:
            break
    return common


def _alike(cells: Sequence[tuple[str, ...]], axis: int) -> list[Group]:
    numbers: dict[Hashable, int] = {}
    profiles: dict[str, list[int]] = {}
    for cell in cells:
        rest = (*cell[:axis], *cell[axis + 1 :])
        profiles.setdefault(cell[axis], []).append(numbers.setdefault(rest, len(numbers)))
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(profiles):
        groups.setdefault(tuple(sorted(profiles[name])), []).append(name)
    return [tuple(group) for group in groups.values()]


def components(triples: Iterable[Triple], apart: Callable[[str], bool]) -> list[list[Triple]]:
    """Splits triples into groups that have no subject or object in common, so that they cannot have a rule in common.
    The objects of a subject that is `apart`, which can be in no role, are separate from those of others."""
    leader: dict[tuple[int, str], tuple[int, str]] = {}

    def find(name: tuple[int, str]) -> tuple[int, str]:
        root = name
        while (above := leader.setdefault(root, root)) != root:
            root = above
        while leader[name] != root:
            leader[name], name = root, leader[name]
        return root

    def places(triple: Triple) -> tuple[tuple[int, str], tuple[int, str]]:
        return (0, triple.subject), (2 if apart(triple.subject) else 1, triple.object)

    ordered = sorted(triples)
    for triple in ordered:
        subject, obj = places(triple)
        leader[find(subject)] = find(obj)
    found: dict[tuple[int, str], list[Triple]] = {}
    for triple in ordered:
        found.setdefault(find(places(triple)[0]), []).append(triple)
    return list(found.values())


class BoxPool(NamedTuple):
    """Boxes that together cover every cell; `complete` if they include all maximal boxes. `by_subject` and `by_object`
    each cover every cell too, by a box for each subject or object and list of actions."""

    boxes: list[Box]
    complete: bool
    by_subject: list[Box]
    by_object: list[Box]


def pool(grid: Grid) -> BoxPool:
    """Collects the maximal boxes of a grid: all of them if there are few."""
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
    """Returns the lists of actions that a maximal box can have: those used together on an object by a subject, their
    intersections, and each one alone; and whether these are all."""
    every = [1 << a for a in range(len(grid.actions))]
    if len(every) == 1:
        return every, True
    together: Counter[int] = Counter()
    for s in range(len(grid.subjects)):
        for o in bits(reduce(or_, (row[s] for row in grid.rows))):
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
    """Returns boxes for one list of actions, each with all the actions that it can have, and whether these are all
    maximal ones."""
    rows = _table(grid.rows, actions, len(grid.subjects))
    columns = _table(grid.columns, actions, len(grid.objects))
    by_rows = len(rows) <= len(columns)
    concepts = _closed(rows if by_rows else columns)
    masks = _near(rows if by_rows else columns) if concepts is None else concepts
    seeds = [(0, mask) if by_rows else (mask, 0) for mask in masks]
    if concepts is None:
        seeds += [(0, mask) for mask in rows] + [(mask, 0) for mask in columns]
    found: dict[Box, None] = {}
    for subjects, objects in dict.fromkeys(seeds):
        if subjects or objects:
            subjects = subjects or _extent(rows, columns, objects)
            objects = _extent(columns, rows, subjects)
            found.setdefault(Box(subjects, objects, grid.actions_with(subjects, objects)))
    return list(found), concepts is not None


def _table(tables: list[list[int]], actions: int, count: int) -> list[int]:
    masks = [-1] * count
    for a in bits(actions):
        masks = [mask & other for mask, other in zip(masks, tables[a], strict=True)]
    return masks


def _closed(rows: list[int]) -> list[int] | None:
    found: dict[int, None] = {}
    for row in dict.fromkeys(rows):
        if row:
            found.update(dict.fromkeys([row, *(meet for other in found if (meet := other & row))]))
        if len(found) > MAX_CONCEPTS:
            return None
    return list(found)


def _near(rows: list[int]) -> list[int]:
    distinct = [row for row in dict.fromkeys(rows) if row]
    if len(distinct) > MAX_TABLE:
        return []
    found: dict[int, None] = {}
    for row in distinct:
        meets = {row & other for other in distinct} - {row, 0}
        found.update(dict.fromkeys(sorted(meets, key=lambda mask: (-mask.bit_count(), mask))[:PARTNERS]))
    return list(found)


def _extent(table: list[int], across: list[int], mask: int) -> int:
    """Returns the rows of a table that contain the whole mask. `across` are its columns, by which it is less work for a
    mask with few indexes."""
    if mask.bit_count() <= len(table) // 8:
        return _common((across[at] for at in bits(mask)), len(table))
    return sum(1 << at for at, row in enumerate(table) if not mask & ~row)
