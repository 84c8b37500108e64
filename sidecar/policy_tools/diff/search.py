"""Is there anybody in all of these boxes and in none of those? One point that is, or the certainty that none is.

The subject is tried first: every way in which a name, with as few roles from its token as are needed, can meet the
subjects of the boxes; then an object that the boxes leave which such a subject is in. More roles only put it into more
boxes, so the fewest are enough. Names that the policies know are preferred; others are made by `globs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from sidecar.policy.grammar import USED
from sidecar.policy.patterns import WILDCARD
from sidecar.policy_tools.diff.terms import RowMeaning, RowTerm
from sidecar.policy_tools.glob_algebra import OBJECTS, SUBJECTS, classes, witness
from sidecar.vocabulary import ANONYMOUS, PermissionKind

MAX_KNOWN = 2_000  # names that a witness is looked for among
MAX_TRIES = 20_000  # subjects tried for one question
_NATURAL = {
    "tool": ("tools/call",),
    "prompt": ("prompts/get",),
    "resource": ("resources/read",),
    "nhi": ("message/send", "message/stream", "delegate", "tasks/get", "tasks/list", "tasks/cancel"),
}


class TooHard(Exception):
    """This question was given up at a bound. Whoever asks must say so."""


class Point(NamedTuple):
    """One thing that somebody may ask. `roles` are those that the token must grant."""

    subject: str
    roles: frozenset[str]
    object: str
    action: str


class Search:
    """Points of one permission kind. `subjects` and `objects` are the names that the policies know."""

    def __init__(self, kind: PermissionKind, subjects: Iterable[str], objects: Iterable[str]) -> None:
        self._subject_shapes, self._object_shapes = SUBJECTS[kind], OBJECTS[kind]
        self._anonymous = kind is not PermissionKind.NHI_TO_NHI
        self._subjects = [name for name in subjects if self.is_subject(name)][:MAX_KNOWN]
        self._objects = [name for name in objects if self.is_object(name)][:MAX_KNOWN]
        self._found: dict[tuple[frozenset[RowTerm], frozenset[RowTerm]], str | None] = {}

    def is_subject(self, name: str) -> bool:
        return (self._anonymous and name == ANONYMOUS) or any(shape.has(name) for shape in self._subject_shapes)

    def is_object(self, name: str) -> bool:
        return any(shape.has(name) for shape in self._object_shapes)

    def find(self, inside: Sequence[RowMeaning], outside: Iterable[RowMeaning]) -> Point | None:
        """A point in every one of `inside` and in none of `outside`. Raises TooHard, TooManyStates."""
        actions = frozenset.intersection(*(row.actions for row in inside))
        subjects = {row.subject for row in inside}
        objects = frozenset(row.object for row in inside)
        near = [row for row in outside if all(row.may_meet(other) for other in inside)]
        groups: dict[frozenset[int], set[str]] = {}
        for action in actions:
            groups.setdefault(frozenset(i for i, row in enumerate(near) if action in row.actions), set()).add(action)
        first = _NATURAL.get(inside[0].object.label.partition(":")[0], ("tools/call",))[0]
        for members, group in sorted(groups.items(), key=lambda item: (first not in item[1], len(item[0]))):
            point = self._in_group(subjects, objects, [near[i] for i in sorted(members)], group)
            if point is not None:
                return point
        return None

    def _in_group(
        self, subjects: set[RowTerm], objects: frozenset[RowTerm], outside: Sequence[RowMeaning], actions: set[str]
    ) -> Point | None:
        if self._object(objects, frozenset()) is None:
            return None
        told: set[frozenset[RowTerm]] = set()
        others = {row.subject for row in outside}
        for tries, (name, roles) in enumerate(self._candidates(subjects, others)):
            if tries > MAX_TRIES:
                raise TooHard
            met = frozenset(term for term in others if term.meets(name, roles))
            if met in told:
                continue
            told.add(met)
            found = self._object(objects, frozenset(row.object for row in outside if row.subject in met))
            if found is not None:
                return Point(name, roles, found, _action(found, actions))
        return None

    # --- subjects -----------------------------------------------------------------------------------------------------

    def _candidates(self, subjects: set[RowTerm], others: set[RowTerm]) -> Iterator[tuple[str, frozenset[str]]]:
        """Who meets all of `subjects`, in every way in which such a caller may meet the others."""
        patterns = [term for term in subjects if term.pattern is not None]
        holders = [term for term in subjects if term.pattern is None]
        for name in self._names(patterns, holders, others):
            if all(term.meets(name) for term in patterns):
                missing = [sorted(term.tokens) for term in holders if name not in term.names]
                for roles in product(*missing):
                    if name != ANONYMOUS or not roles:  # nobody vouches for roles of anonymous callers
                        yield name, frozenset(roles)

    def _names(self, patterns: Sequence[RowTerm], holders: Sequence[RowTerm], others: set[RowTerm]) -> Iterator[str]:
        exact = [term.pattern for term in patterns if term.exact and term.pattern]
        if exact:
            yield from (name for name in exact[:1] if self.is_subject(name))
            return
        for term in holders:
            yield from (name for name in sorted(term.names) if self.is_subject(name))
        if all(term.tokens for term in holders):
            if not holders:
                yield from self._subjects
            yield from self._new_names([term.pattern or "" for term in patterns], others)
            if self._anonymous and not holders:
                yield ANONYMOUS

    def _new_names(self, patterns: Sequence[str], others: set[RowTerm]) -> Iterator[str]:
        """Names that no row knows, one for each set of patterns that can be met, those that meet least first."""
        avoid = {term.pattern for term in others if term.pattern} | {name for term in others for name in term.names}
        wild = sorted({term.pattern for term in others if term.pattern and not term.exact} - {WILDCARD})
        found = classes(self._subject_shapes, patterns, wild, avoid)
        yield from (name for _, name in sorted(found, key=lambda item: len(item[0])))

    # --- objects ------------------------------------------------------------------------------------------------------

    def _object(self, inside: frozenset[RowTerm], outside: frozenset[RowTerm]) -> str | None:
        key = (inside, outside)
        if key not in self._found:
            self._found[key] = self._new_object(inside, outside)
        return self._found[key]

    def _new_object(self, inside: frozenset[RowTerm], outside: frozenset[RowTerm]) -> str | None:
        wild = [term.pattern for term in inside if term.pattern is not None]
        sets = [term.names for term in inside if term.pattern is None]
        exact = [term.pattern for term in inside if term.exact and term.pattern]
        known = exact or (sorted(frozenset.intersection(*sets)) if sets else self._objects)
        for name in known:
            met = all(term.meets(name) for term in inside) and not any(term.meets(name) for term in outside)
            if met and self.is_object(name):
                return name
        if exact or sets:
            return None
        avoid = {term.pattern for term in outside if term.pattern} | {name for term in outside for name in term.names}
        none_of = [term.pattern for term in outside if term.pattern and not term.exact]
        return witness(self._object_shapes, wild, none_of, avoid)


def _action(obj: str, actions: set[str]) -> str:
    """The action that people would try first on such an object."""
    wished = (*_NATURAL.get(obj.partition(":")[0], ()), *USED, *sorted(actions))
    return next(action for action in wished if action in actions)
