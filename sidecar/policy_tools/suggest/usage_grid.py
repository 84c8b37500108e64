"""Arranges recorded use in a grid.

A rule allows a box: some subjects × some objects × some actions. The fewest rules are the fewest boxes that cover all
cells and nothing else. Subjects (objects, actions) with equal cells always go together, so each such group is one index
here; sets of indexes are bit masks, so that a whole row is compared in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.policy_tools.suggest.evidence import Triple


class Box(NamedTuple):
    """Some subjects × objects × actions, as bit masks over a grid's indexes."""

    subjects: int
    objects: int
    actions: int

    def within(self, other: Box) -> bool:
        """Whether the other box holds all of this one."""
        return not (self.subjects & ~other.subjects or self.objects & ~other.objects or self.actions & ~other.actions)

    def hull(self, other: Box) -> Box:
        """Return the smallest box around both."""
        return Box(self.subjects | other.subjects, self.objects | other.objects, self.actions | other.actions)


Group = tuple[str, ...]


def bits(mask: int) -> Iterator[int]:
    """Yield the indexes in a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(slots=True)
class Grid:
    """The cells of one permission kind. `subjects[i]` are the names of index i; likewise objects and actions.

    `rows[a][s]` is the mask of objects, `columns[a][o]` the mask of subjects that go with the other two.
    """

    subjects: list[Group]
    objects: list[Group]
    actions: list[Group]
    rows: list[list[int]]
    columns: list[list[int]]
    subject_at: dict[str, int]
    object_at: dict[str, int]

    @classmethod
    def of(cls, triples: Iterable[Triple]) -> Grid:
        """Build a grid. Names with the same use become one index."""
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
        return cls(groups[0], groups[1], groups[2], rows, columns, _places(groups[0]), _places(groups[1]))

    @property
    def cell_count(self) -> int:
        return sum(mask.bit_count() for row in self.rows for mask in row)

    def cells(self) -> Iterator[tuple[int, int, int]]:
        """Yield every cell as (subject, object, action), in order."""
        for s in range(len(self.subjects)):
            for a, row in enumerate(self.rows):
                for o in bits(row[s]):
                    yield s, o, a

    def holds(self, box: Box) -> bool:
        """Whether every cell of the box was used."""
        return not box.objects & ~self.objects_with(box.subjects, box.actions)

    def objects_with(self, subjects: int, actions: int) -> int:
        """Return the objects that all these subjects used with all these actions."""
        mask = (1 << len(self.objects)) - 1
        for a in bits(actions):
            row = self.rows[a]
            for s in bits(subjects):
                mask &= row[s]
                if not mask:
                    return 0
        return mask

    def subjects_with(self, objects: int, actions: int) -> int:
        """Return the subjects that used all these objects with all these actions."""
        mask = (1 << len(self.subjects)) - 1
        for a in bits(actions):
            column = self.columns[a]
            for o in bits(objects):
                mask &= column[o]
                if not mask:
                    return 0
        return mask

    def actions_with(self, subjects: int, objects: int) -> int:
        """Return the actions with which all these subjects used all these objects."""
        mask = 0
        for a, row in enumerate(self.rows):
            if all(not objects & ~row[s] for s in bits(subjects)):
                mask |= 1 << a
        return mask

    def grown(self, box: Box, order: str = "soa") -> Box:
        """Return a box around this one that cannot grow any more: each side in turn is extended as far as possible."""
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
        """Return the names of a mask of one side."""
        return frozenset(name for index in bits(mask) for name in groups[index])


def _places(groups: Sequence[Group]) -> dict[str, int]:
    return {name: at for at, group in enumerate(groups) for name in group}


def _alike(cells: Sequence[tuple[str, ...]], axis: int) -> list[Group]:
    """Return the names of one side, grouped by their cells on the other two, in the order of the first name."""
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
    """Split triples into groups that no rule can have in common: no subject or object links them, or the subject stands
    `apart` (it can be in no role).
    """
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
