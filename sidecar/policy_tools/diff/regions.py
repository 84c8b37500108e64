"""Computes for which (subject, object, action) the answer changes, as regions with a short form and an example.

A change is unknown if conditions or the time determine whether access is gained or lost.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, NamedTuple

from sidecar.policy import grammar
from sidecar.policy_tools.diff.access_changes import (
    MAX_COMPARED,
    MAX_LIFTED,
    AccessChange,
    Effort,
    freed,
    gained,
    inside,
    trimmed,
)
from sidecar.policy_tools.diff.search import Point, Search, TooHard
from sidecar.policy_tools.diff.terms import RowGuard, RowMeaning, RowTerm, Side
from sidecar.policy_tools.glob_algebra import TooManyStates
from sidecar.vocabulary import ApprovalTerms, PermissionKind, RuleRef

Change = Literal["wider", "narrower", "unknown"]
MAX_DRAFTS = 5_000  # rows that only one of the policies has, and changes; with more, the comparison stops
MAX_WAYS = 2_000  # combinations of rows, one of each group of `within`, that are tried for a witness
MAX_LISTED = 1000  # names of a difference between two roles or sets that are listed one by one


@dataclass(frozen=True, slots=True)
class Region:
    """A set of questions whose answer changes: with a subject in one of `subjects` and in none of `not_subjects`, an
    object likewise, and one of `actions`; in some row of each group of `within`; in no row of `exceptions`.

    The change is visible if `guard` holds and none of `unless` does. `witness` is a question for which it is visible;
    None if the region is `undecided`, because the search for one stopped at a bound. An unknown change gains access
    under `guard` and loses it under `lost_guard`; other regions exclude its questions as far as a simple form can.

    With `approval`, the answer is `allow` in both policies, and only one of them demands an approval with these terms;
    the policy without it is `wider`. `waits`: the wider answer to the witness needs an approval too."""

    kind: PermissionKind
    change: Change
    subjects: tuple[RowTerm, ...]
    objects: tuple[RowTerm, ...]
    actions: frozenset[str]
    guard: RowGuard
    witness: Point | None
    causes: tuple[RuleRef, ...]
    not_subjects: tuple[RowTerm, ...] = ()
    not_objects: tuple[RowTerm, ...] = ()
    within: tuple[tuple[RowMeaning, ...], ...] = ()
    exceptions: tuple[RowMeaning, ...] = ()
    unless: tuple[RowGuard, ...] = ()
    lost_guard: RowGuard | None = None
    undecided: bool = False
    approval: ApprovalTerms | None = None
    waits: bool = False

    def contains(self, point: Point) -> bool:
        subject, obj = (point.subject, point.roles), point.object
        return (
            point.action in self.actions
            and any(term.meets(*subject) for term in self.subjects)
            and any(term.meets(obj) for term in self.objects)
            and not any(term.meets(*subject) for term in self.not_subjects)
            and not any(term.meets(obj) for term in self.not_objects)
            and all(any(_has(row, point) for row in group) for group in self.within)
            and not any(_has(row, point) for row in self.exceptions)
        )

    @property
    def terms(self) -> int:
        parts = (self.subjects, self.objects, self.not_subjects, self.not_objects)
        return sum(map(len, parts)) + 3 * len(self.exceptions) + 3 * sum(map(len, self.within))


def _has(row: RowMeaning, point: Point) -> bool:
    return (
        point.action in row.actions and row.object.meets(point.object) and row.subject.meets(point.subject, point.roles)
    )


class Shaped(NamedTuple):
    """A change and its region."""

    draft: AccessChange
    region: Region


class RegionShaper:
    """Converts changes of one kind to regions with short descriptions and witnesses."""

    def __init__(self, search: Search, kind: PermissionKind) -> None:
        self._search, self._kind = search, kind

    def __call__(self, draft: AccessChange, change: Change) -> Region | None:
        """Returns the region of a change; None if it contains no question. If the search for a witness stops at a
        bound, the region is undecided and its change unknown."""
        if any(row.covers(draft.base) for row in draft.outside):
            return None
        left = _less(draft)
        if not left.actions or left.subject.is_empty or left.object.is_empty:
            return None
        base = draft.base._replace(subject=left.subject, object=left.object, actions=left.actions)
        try:
            point = self._point(replace(draft, base=base), (), draft.outside)
            if point is None:
                return None
        except (TooHard, TooManyStates):
            point, change = None, "unknown"
        return Region(
            kind=self._kind,
            change=change,
            subjects=_spelled(left.subject),
            objects=_spelled(left.object),
            actions=left.actions,
            guard=draft.guard,
            witness=point,
            causes=draft.causes,
            not_subjects=tuple(left.not_subjects),
            not_objects=tuple(left.not_objects),
            within=draft.within,
            exceptions=tuple(left.exceptions),
            unless=draft.unless,
            undecided=point is None,
        )

    def _point(self, draft: AccessChange, more: Sequence[RowMeaning], outside: Sequence[RowMeaning]) -> Point | None:
        for number, rows in enumerate(product(*draft.within)):
            if number == MAX_WAYS:
                raise TooHard
            point = self._search.find((draft.base, *rows, *more), outside)
            if point is not None:
                return point
        return None

    def without(self, one: Shaped, others: Sequence[AccessChange]) -> list[Shaped]:
        """Returns the part of a region outside of the other changes: nothing, the remainder if it has a simple form,
        otherwise the whole region."""
        if any(self._is_inside(one.draft, other) for other in others):
            return []
        other = others[0] if len(others) == 1 else None
        if other is None or other.within or len(other.outside) > MAX_LIFTED or not other.base.covers(one.draft.base):
            return [one]
        parts = [inside(row, one.draft) for row in other.outside if row.may_meet(one.draft.base)]
        shaped = ((part, self(part, one.region.change)) for part in parts)
        return [Shaped(part, region) for part, region in shaped if region is not None]

    def _is_inside(self, one: AccessChange, other: AccessChange) -> bool:
        """Whether every question of one change is in the other; False also if that is too hard to decide."""
        ways_out: list[tuple[tuple[RowMeaning, ...], tuple[RowMeaning, ...]]] = [((), (other.base,))]
        ways_out += [((), group) for group in other.within]
        ways_out += [((row,), ()) for row in other.outside]
        try:
            return all(self._point(one, more, (*one.outside, *less)) is None for more, less in ways_out)
        except (TooHard, TooManyStates):
            return False


@dataclass(slots=True)
class _Left:
    subject: RowTerm
    object: RowTerm
    actions: frozenset[str]
    not_subjects: dict[RowTerm, None] = field(default_factory=dict)
    not_objects: dict[RowTerm, None] = field(default_factory=dict)
    exceptions: list[RowMeaning] = field(default_factory=list)


def _less(draft: AccessChange) -> _Left:
    """Returns the base of a change without its outside rows. Where it can, it removes them from the subjects, objects
    or actions; the others are exceptions."""
    left = _Left(draft.base.subject, draft.base.object, draft.base.actions)
    outside = list(dict.fromkeys(draft.outside))
    for row in outside:
        if row.subject.covers(left.subject) and row.object.covers(left.object):
            left.actions -= row.actions
    outside = _meeting(left, outside)
    for row in outside:
        if row.actions >= left.actions and row.object.covers(left.object):
            left.subject = _minus(left.subject, row.subject)
        elif row.actions >= left.actions and row.subject.covers(left.subject):
            left.object = _minus(left.object, row.object)
    for row in _meeting(left, outside):
        if row.actions >= left.actions and row.object.covers(left.object):
            left.not_subjects[_by_token(row.subject, left.subject)] = None
        elif row.actions >= left.actions and row.subject.covers(left.subject):
            left.not_objects[row.object] = None
        else:
            left.exceptions.append(row)
    left.not_subjects = dict.fromkeys(_widest(left.not_subjects))
    left.not_objects = dict.fromkeys(_widest(left.not_objects))
    left.exceptions = _not_said(left, left.exceptions)
    return left


def _meeting(left: _Left, rows: Iterable[RowMeaning]) -> list[RowMeaning]:
    near = (row for row in rows if not row.actions.isdisjoint(left.actions))
    return [row for row in near if row.object.may_meet(left.object) and row.subject.may_meet(left.subject)]


def _minus(term: RowTerm, other: RowTerm) -> RowTerm:
    """Returns a term without the names and roles of the other one; unchanged if it is a pattern. A name that matches by
    a token's roles may still be in both."""
    if term.pattern is not None:
        return term
    names = frozenset(name for name in term.names if not other.meets(name))
    tokens = term.tokens - other.tokens
    return term if (names, tokens) == (term.names, term.tokens) else RowTerm("", None, names, tokens)


def _by_token(term: RowTerm, base: RowTerm) -> RowTerm:
    """Returns the term of a role for callers in `base`: `by token` if none of its names has the role by row."""
    named = base.names if base.pattern is None else {base.pattern} if base.exact else None
    if term.pattern is not None or not term.tokens or named is None or base.tokens or not term.names.isdisjoint(named):
        return term
    return RowTerm(f"{term.label} by token", None, tokens=term.tokens)


def _spelled(term: RowTerm) -> tuple[RowTerm, ...]:
    """Returns the terms by which a region names a term: one for each name of a term without a label, otherwise
    itself."""
    if term.label:
        return (term,)
    names = [RowTerm(name, name) for name in sorted(term.names)]
    tokens = [RowTerm(f"{role} by token", None, tokens=frozenset((role,))) for role in sorted(term.tokens)]
    spelled = (*names, *tokens)
    return spelled if len(spelled) <= MAX_LISTED else (replace(term, label=f"{len(spelled)} names"),)


def _widest(terms: Collection[RowTerm]) -> list[RowTerm]:
    """Returns the terms without those that another one covers. Exact names, of which there can be thousands, cover no
    pattern, so they are not compared with each other."""
    names = [term for term in terms if term.exact]
    left: list[RowTerm] = []
    for term in terms:
        if not term.exact and not any(other.covers(term) for other in left):
            left = [other for other in left if not term.covers(other)] + [term]
    return left + [term for term in names if not any(other.covers(term) for other in left)]


def _not_said(left: _Left, rows: Sequence[RowMeaning]) -> list[RowMeaning]:
    return [
        row._replace(actions=row.actions & left.actions)
        for row in rows
        if not any(term.covers(row.subject) for term in left.not_subjects)
        and not any(term.covers(row.object) for term in left.not_objects)
    ]


def changed_regions(search: Search, kind: PermissionKind, old: Side, new: Side) -> list[Region]:
    """Returns every region of one kind; `describe.merged` merges them. Raises TooHard if there are too many changes, or
    too many comparisons are needed."""
    if max(_only_here(old, new), _only_here(new, old)) > MAX_DRAFTS:
        raise TooHard
    shape = RegionShaper(search, kind)
    wider = _shaped(shape, "wider", gained(old, new))
    narrower = _shaped(shape, "narrower", gained(new, old))
    access = _with_unknown(shape, wider, narrower)
    return [
        *(_waiting(region, (new if region.change == "wider" else old).demands) for region in access),
        *_of_approvals(shape, "wider", old, new),
        *_of_approvals(shape, "narrower", new, old),
    ]


def _of_approvals(shape: RegionShaper, change: Change, before: Side, after: Side) -> Iterator[Region]:
    """Yields the regions where `before` demands an approval and `after` does not, separately for each terms."""
    drafts: dict[ApprovalTerms | None, list[AccessChange]] = {}
    for draft in freed(before, after):
        drafts.setdefault(draft.base.rule.approval, []).append(draft)
    for terms, some in drafts.items():
        for shaped in _shaped(shape, change, some):
            yield _waiting(replace(shaped.region, approval=terms), after.demands)


def _waiting(region: Region, demands: Iterable[RowMeaning]) -> Region:
    """Returns the region with `waits`: whether its witness needs an approval by these rows."""
    point, guard = region.witness, region.guard
    if point is None or region.change == "unknown":
        return region
    return replace(region, waits=any(_has(row, point) and guard.implies(row.guard) for row in demands))


def _only_here(here: Side, there: Side) -> int:
    pairs = ((here.allows, there.allows), (here.denies, there.denies))
    access = sum(len({row.key for row in mine} - {row.key for row in theirs}) for mine, theirs in pairs)
    here_demanded, there_demanded = ({(row.key, row.rule.approval) for row in side.demands} for side in (here, there))
    return access + len(here_demanded - there_demanded)


def _shaped(shape: RegionShaper, change: Change, drafts: Iterable[AccessChange]) -> list[Shaped]:
    shaped: list[Shaped] = []
    effort = Effort()
    for number, draft in enumerate(drafts):
        if number == MAX_DRAFTS:
            raise TooHard
        less = trimmed(draft, effort)
        region = shape(less, change) if less is not None else None
        if less is not None and region is not None:
            shaped.append(Shaped(less, region))
    return _without_covered(shaped)


def _with_unknown(shape: RegionShaper, wider: list[Shaped], narrower: list[Shaped]) -> list[Region]:
    """Returns the regions, with access that is gained under one guard and lost under another as unknown ones. The
    others exclude it as far as a simple form can. Raises TooHard."""
    if len(wider) * len(narrower) > MAX_COMPARED:
        raise TooHard
    unknown: list[Shaped] = []
    partners: dict[int, list[AccessChange]] = {}
    for gain in wider:
        for loss in narrower:
            if gain.draft.guard == loss.draft.guard or not gain.draft.base.may_meet(loss.draft.base):
                continue  # under one guard an answer changes in one direction
            overlap = _overlap(gain.draft, loss.draft)
            both = shape(overlap, "unknown")
            if both is not None:
                unknown.append(Shaped(overlap, replace(both, lost_guard=loss.draft.guard)))
                partners.setdefault(id(gain), []).append(loss.draft)
                partners.setdefault(id(loss), []).append(gain.draft)
    left = [part for one in (*wider, *narrower) for part in shape.without(one, partners.get(id(one), []))]
    return [shaped.region for shaped in (*left, *_without_covered(unknown))]


def _overlap(one: AccessChange, other: AccessChange) -> AccessChange:
    both = inside(other.base, one)
    return replace(
        both,
        outside=(*one.outside, *other.outside),
        causes=tuple(dict.fromkeys((*one.causes, *other.causes))),
        within=(*both.within, *other.within),
    )


def _without_covered(shaped: list[Shaped]) -> list[Shaped]:
    left: list[Shaped] = []
    for one in sorted(shaped, key=lambda one: one.region.terms):
        if not any(_tells(other, one) for other in left):
            left.append(one)
    return left


def _tells(one: Shaped, other: Shaped) -> bool:
    region = one.region
    parted = region.within or region.exceptions or region.not_subjects or region.not_objects or region.undecided
    return (
        not parted
        and other.draft.guard.implies(one.draft.guard)
        and region.actions >= other.region.actions
        and all(any(term.covers(part) for term in region.subjects) for part in other.region.subjects)
        and all(any(term.covers(part) for term in region.objects) for part in other.region.objects)
    )


def with_something_in_them(
    regions: Iterable[Region], subjects: Iterable[str], objects: Iterable[str]
) -> tuple[Region, ...]:
    """Returns the regions that contain a question about these names, and those that are undecided."""
    callers, things = sorted(set(subjects)), sorted(set(objects))
    return tuple(region for region in regions if region.undecided or _holds(region, callers, things))


def _holds(region: Region, subjects: Sequence[str], objects: Sequence[str]) -> bool:
    possible = [name for name in subjects if name.startswith(grammar.SUBJECTS[region.kind])]
    callers = [name for name in possible if any(term.meets(name) for term in region.subjects)]
    things = [name for name in objects if any(term.meets(name) for term in region.objects)]
    parted = region.within or region.exceptions  # otherwise it is the same with each of its actions
    actions = sorted(region.actions)[: None if parted else 1]
    points = product(callers, things, actions)
    return any(region.contains(Point(caller, frozenset(), thing, action)) for caller, thing, action in points)
