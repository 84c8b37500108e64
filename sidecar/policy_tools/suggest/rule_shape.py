"""Writes a box as one short rule.

A box of a cover is often larger than necessary, because other boxes cover parts of it. Between what the rule must allow
and what it may allow, the first possible one of these forms is chosen: one exact name, an existing role or set, a
pattern that matches no other known name (or as many as `widen` allows), a new role or set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod

from sidecar.policy import grammar
from sidecar.policy.grammar import Wrong
from sidecar.policy_tools.catalogue import Known
from sidecar.policy_tools.suggest.box_cover import cover
from sidecar.policy_tools.suggest.grid import Box, Grid, Group, bits
from sidecar.policy_tools.suggest.terms import PLAIN, Backed, Terms
from sidecar.vocabulary import PermissionKind

MIN_FOR_PATTERN = 3  # names; a pattern also matches future ones, so two do not justify it
MAX_WIDE = 4000  # patterns that are tried for `widen`
_BOUNDARIES = "_-./"
Names = frozenset[str]


@dataclass(frozen=True, slots=True)
class RuleDraft:
    """One rule to be written. `object` is an exact name or a pattern, or "" for a set of `objects`; `objects` are the
    known ones that it matches. `widened` are objects that were not used with all these actions by all these subjects.
    `whole` is the first draft of a rule of which this one is a further part, because a limit counts a whole rule."""

    kind: PermissionKind
    subjects: Names
    objects: Names
    actions: tuple[str, ...]
    object: str = ""
    widened: tuple[str, ...] = ()
    terms: Terms = PLAIN
    whole: RuleDraft | None = None


@dataclass(slots=True)
class RuleShaper:
    """Writes boxes as rules. `roles` and `sets` are the members of each role and set of the present policy; they are
    used again, and so are those of earlier rules (`more_roles`, `more_sets`). A pattern may match `widen` unused
    objects."""

    known: Known
    roles: frozenset[Names]
    sets: frozenset[Names]
    widen: int = 0
    more_roles: set[Names] = field(default_factory=set)
    more_sets: set[Names] = field(default_factory=set)

    def rules(self, kind: PermissionKind, grid: Grid, backed: Backed) -> tuple[list[RuleDraft], bool]:
        """Returns few rules for a grid of uses with the same terms, and whether it is proved that fewer are not
        enough."""
        wide = self._wide_boxes(grid, backed) if self.widen else {}
        found = cover(grid, list(wide))
        boxes = list(found.boxes)
        rows = _RuleRows(grid, boxes)
        drafts: list[RuleDraft] = []
        for at in sorted(range(len(boxes)), key=lambda at: (-prod(map(int.bit_count, boxes[at])), boxes[at])):
            must = rows.needed(at)
            if not must.subjects:  # an existing role or set made an earlier rule cover this one
                rows.replace(at, must)
                continue
            pattern = wide.get(boxes[at], "")
            draft, box = self._rule(kind, grid, must, boxes[at], pattern, backed)
            rows.replace(at, box)
            drafts.append(draft)
        return drafts, found.fewest or len(drafts) == 1

    def _rule(
        self, kind: PermissionKind, grid: Grid, must: Box, box: Box, pattern: str, backed: Backed
    ) -> tuple[RuleDraft, Box]:
        actions = tuple(sorted(grid.names(grid.actions, must.actions)))
        may = box.subjects if pattern else grid.subjects_with(must.objects, must.actions)
        least, most = grid.names(grid.subjects, must.subjects), grid.names(grid.subjects, may)
        subjects = _between(least, most, self.roles) or _between(least, most, self.more_roles) or least
        self.more_roles.add(subjects)
        holders = _mask(grid.subjects, grid.subject_at, subjects, whole=False)
        used = grid.names(grid.objects, grid.objects_with(holders, must.actions))
        if pattern:
            obj, objects = pattern, frozenset(self.known.fitting(pattern))
        else:
            held = partial(backed.holds, subjects=subjects, actions=actions)
            obj, objects = self._object(kind, grid.names(grid.objects, must.objects), used, held)
        draft = RuleDraft(kind, subjects, objects, actions, obj, tuple(sorted(objects - used)))
        return draft, Box(
            _mask(grid.subjects, grid.subject_at, subjects, whole=True),
            _mask(grid.objects, grid.object_at, objects, whole=True),
            must.actions,
        )

    def _object(self, kind: PermissionKind, must: Names, may: Names, held: Callable[[str], bool]) -> tuple[str, Names]:
        """Returns an exact name, or a pattern for which `held` is true, with the known objects that it matches;
        otherwise "" and the objects of a set."""
        if len(must) == 1:
            return next(iter(must)), must
        there = _between(must, may, self.sets)
        if there:
            return "", there
        for names in (must, may):
            pattern = pattern_of(names, kind, self.known.listed)
            fitting = frozenset(self.known.fitting(pattern)) if pattern else frozenset()
            enough = must <= fitting and len(fitting & may) >= MIN_FOR_PATTERN
            if enough and len(fitting - may) <= self.widen and held(pattern):
                return pattern, fitting
        objects = _between(must, may, self.more_sets) or must
        self.more_sets.add(objects)
        return "", objects

    def _wide_boxes(self, grid: Grid, backed: Backed) -> dict[Box, str]:
        """Returns boxes with the patterns that they stand for: each pattern matches at most `widen` known objects that
        not all of the box's subjects used."""
        found: dict[Box, str] = {}
        single = [1 << a for a in range(len(grid.actions))]
        lists = list(dict.fromkeys([sum(single), *single]))
        tables = [[grid.objects_with(1 << s, actions) for s in range(len(grid.subjects))] for actions in lists]
        for pattern in _prefixes(grid, self.known.listed)[:MAX_WIDE]:
            fitting = frozenset(self.known.fitting(pattern))
            mask = _mask(grid.objects, grid.object_at, fitting, whole=True)
            for actions, rows in zip(lists, tables, strict=True):
                subjects = self._sharing(grid, rows, mask, fitting)
                held = partial(backed.holds, pattern, grid.names(grid.subjects, subjects))
                if subjects and held(grid.names(grid.actions, actions)):
                    found.setdefault(Box(subjects, mask, actions), pattern)
        return found

    def _sharing(self, grid: Grid, rows: Sequence[int], mask: int, fitting: Names) -> int:
        """Returns subjects, those with the most used objects first, that together leave at most `widen` of the
        pattern's objects unused."""
        subjects, common = 0, mask
        for s in sorted(range(len(rows)), key=lambda s: (-(rows[s] & mask).bit_count(), s)):
            used = grid.names(grid.objects, common & rows[s])
            if len(fitting) - len(used) > self.widen or len(used) < MIN_FOR_PATTERN:
                break
            subjects, common = subjects | 1 << s, common & rows[s]
        return subjects


class _RuleRows:
    """Which boxes cover each row of a grid. After a box was replaced by a smaller one, `needed` of the others grows."""

    def __init__(self, grid: Grid, boxes: Sequence[Box]) -> None:
        self._grid, self._boxes = grid, list(boxes)
        self._over: dict[tuple[int, int], set[int]] = {}
        for at, box in enumerate(boxes):
            self._enter(at, box)

    def needed(self, at: int) -> Box:
        """Returns the hull of the used cells that no other box covers; an empty box if there are none."""
        box, hull = self._boxes[at], Box(0, 0, 0)
        for a, s in product(bits(box.actions), bits(box.subjects)):
            own = box.objects & self._grid.rows[a][s]
            for other in self._over[a, s]:
                own &= -1 if other == at else ~self._boxes[other].objects
            if own:
                hull = hull.hull(Box(1 << s, own, 1 << a))
        return hull

    def replace(self, at: int, box: Box) -> None:
        old = self._boxes[at]
        for place in product(bits(old.actions), bits(old.subjects)):
            self._over[place].discard(at)
        self._boxes[at] = box
        self._enter(at, box)

    def _enter(self, at: int, box: Box) -> None:
        for place in product(bits(box.actions), bits(box.subjects)):
            self._over.setdefault(place, set()).add(at)


def pattern_of(names: Collection[str], kind: PermissionKind, listed: Collection[str]) -> str:
    """Returns the narrowest pattern with one wildcard, at the boundaries of words, that matches all these names; "" if
    there is no useful one. It is on one server, and matches all tools of a server only if that server is in `listed`,
    and never all of its prompts or resources."""
    head, tail = common_head(names), common_head([name[::-1] for name in names])[::-1]
    head = head[: max(head.rfind(mark) for mark in _BOUNDARIES) + 1]
    cuts = [tail.find(mark) for mark in _BOUNDARIES if mark in tail]
    tail = tail[min(cuts) :] if cuts else ""
    word, _, rest = head.partition(":")
    server, slash, begun = rest.partition("/")
    if any(len(head) + len(tail) > len(name) for name in names):
        tail = ""
    if word == "nhi":
        fine = bool(rest)
    else:
        whole = not (begun.partition("://")[2].strip("/") if word == "resource" else begun or tail)
        fine = bool(slash) and (not whole or (server in listed and word == "tool"))
    if not fine:
        return ""
    try:
        return grammar.object_(f"{head}*{tail}", kind)
    except Wrong:
        return ""


def common_head(names: Collection[str]) -> str:
    first, last = min(names), max(names)
    end = next((at for at, mark in enumerate(first) if last[at : at + 1] != mark), len(first))
    return first[:end]


def _between(must: Names, may: Names, groups: Collection[Names]) -> Names:
    if len(must) == 1 or must in groups:
        return must
    one = next(iter(must))
    fitting = [group for group in groups if one in group and must <= group <= may]
    return min(fitting, key=lambda group: (len(group), sorted(group)), default=frozenset())


def _mask(groups: Sequence[Group], places: Mapping[str, int], names: Names, *, whole: bool) -> int:
    """Returns the mask of the indexes of which all names are among these; without `whole`, at least one. `places` has
    the index of each name."""
    found = Counter(places[name] for name in names if name in places)
    return sum(1 << at for at, count in found.items() if not whole or count == len(groups[at]))


def _prefixes(grid: Grid, listed: Collection[str]) -> list[str]:
    """Returns every valid pattern that is the beginning of an object's name, up to a boundary of words, and a wildcard;
    shortest first."""
    found: dict[str, None] = {}
    for name in sorted(name for group in grid.objects for name in group):
        found.update((name[: at + 1] + "*", None) for at, mark in enumerate(name) if mark in _BOUNDARIES)
    kind = PermissionKind.AGENT_TO_TOOL
    return sorted(
        (pattern for pattern in found if pattern_of([pattern[:-1] + "a", pattern[:-1] + "b"], kind, listed) == pattern),
        key=lambda pattern: (len(pattern), pattern),
    )
