"""Computes for which (subject, object, action) the answer changes, from the rules of both policies.

What is gained from the old policy to the new is wider; what is lost is narrower. Where conditions or the time determine
whether access is gained or lost, the change is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from sidecar.policy import grammar
from sidecar.policy_tools.diff.access_changes import MAX_COMPARED, AccessChange, Effort, gained, inside, trimmed
from sidecar.policy_tools.diff.region_shapes import Change, Region, RegionShaper, Shaped
from sidecar.policy_tools.diff.search import Point, Search, TooHard
from sidecar.policy_tools.diff.terms import Side
from sidecar.vocabulary import PermissionKind

MAX_DRAFTS = 5_000  # rows that only one of the policies has; with more, the comparison is given up


def changed_regions(search: Search, kind: PermissionKind, old: Side, new: Side) -> list[Region]:
    """Return every region of one kind, unmerged: `describe` merges them. Raises TooHard."""
    if max(_only_here(old, new), _only_here(new, old)) > MAX_DRAFTS:
        raise TooHard
    shape = RegionShaper(search, kind)
    wider = _shaped(shape, "wider", gained(old, new))
    narrower = _shaped(shape, "narrower", gained(new, old))
    return _with_unknown(shape, wider, narrower)


def _only_here(here: Side, there: Side) -> int:
    pairs = ((here.allows, there.allows), (here.denies, there.denies))
    return sum(len({row.key for row in mine} - {row.key for row in theirs}) for mine, theirs in pairs)


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
    """Mark as unknown what is both gained and lost under different guards, and remove it from the other regions."""
    if len(wider) * len(narrower) > MAX_COMPARED:
        raise TooHard
    unknown: list[Shaped] = []
    partners: dict[int, list[AccessChange]] = {}
    for gain in wider:
        for loss in narrower:
            if gain.draft.guard == loss.draft.guard or not gain.draft.base.may_meet(loss.draft.base):
                continue  # under one guard an answer changes one way
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
    """Return the regions that contain a point of these names, and those that were not worked out."""
    callers, things = sorted(set(subjects)), sorted(set(objects))
    return tuple(region for region in regions if region.undecided or _holds(region, callers, things))


def _holds(region: Region, subjects: Sequence[str], objects: Sequence[str]) -> bool:
    possible = [name for name in subjects if name.startswith(grammar.SUBJECTS[region.kind])]
    callers = [name for name in possible if any(term.meets(name) for term in region.subjects)]
    things = [name for name in objects if any(term.meets(name) for term in region.objects)]
    parted = region.within or region.exceptions  # else it is the same with each of its actions
    actions = sorted(region.actions)[: None if parted else 1]
    points = product(callers, things, actions)
    return any(region.contains(Point(caller, frozenset(), thing, action)) for caller, thing, action in points)
