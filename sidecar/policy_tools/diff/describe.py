"""Describes changed access in few words. Regions that differ in one dimension only are merged."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from sidecar.policy.grammar import ACTIONS, USE, USED
from sidecar.policy.patterns import WILDCARD
from sidecar.policy_tools.diff.regions import Region
from sidecar.policy_tools.diff.terms import RowGuard, RowMeaning, RowTerm, actions_of
from sidecar.policy_tools.rule_text import cut, moment

_ORDER = {"wider": 0, "narrower": 1, "unknown": 2}
_TIMES, _USED = "×", frozenset(USED)


def merged(regions: Iterable[Region]) -> list[Region]:
    """Merges regions that differ in one dimension only, until none do; returns them in the order of the report."""
    left = list(regions)
    size = -1
    while size != len(left):
        size = len(left)
        for side in _SIDES:
            left = _joined(left, side)
    return sorted(left, key=lambda one: (one.undecided, one.terms, _ORDER[one.change], one.kind, described(one)))


def described(region: Region) -> str:
    """Returns the subjects, objects and actions of a region on one line: `role:engineers × tool:github/get_* × use`."""
    sides = ((region.subjects, region.not_subjects), (region.objects, region.not_objects))
    names = [_listed(terms) + (f" except {_listed(less)}" if less else "") for terms, less in sides]
    # A rule with the same actions may have a shorter text for them, such as `tasks/*`.
    written = ["|".join(rule.actions) for rule in region.causes if actions_of(rule.actions) == region.actions]
    return f" {_TIMES} ".join([*names, min([actions_text(region.actions), *written], key=len)])


def exceptions_text(region: Region, most: int) -> list[str]:
    """Returns the other bounds of a region, one line each: `only where …`, `except …`. Each names at most `most`
    rows."""
    lines = [f"only where {_rows(group, most, 'or')}" for group in region.within]
    if region.exceptions:
        lines.append(f"except {_rows(region.exceptions, most, 'and')}")
    return lines


def guard_text(region: Region) -> str:
    """Returns the conditions that must hold for the change to be visible, and those that must not; "" for none."""
    lost = region.lost_guard
    if lost is not None:
        shared = region.guard.whens & lost.whens
        ways = (("wider", region.guard), ("narrower", lost))
        told = [f"{change} {_holds(guard, shared) or 'otherwise'}" for change, guard in ways]
        return "; ".join(told) + (f"; given {_together(shared)}" if shared else "")
    parts = [_holds(region.guard, frozenset())]
    parts += dict.fromkeys(_unless(guard, region.guard) for guard in region.unless)
    return ", ".join(part for part in parts if part)


def _holds(guard: RowGuard, known: frozenset[str]) -> str:
    whens = guard.whens - known
    parts = [f"when {_together(whens)}"] if whens else []
    if guard.before is not None:
        parts.append(f"before {moment(guard.before)}")
    return " and ".join(parts)


def _together(whens: Iterable[str]) -> str:
    return " && ".join(sorted(whens))


def _unless(other: RowGuard, guard: RowGuard) -> str:
    whens = guard.missing(other.whens)
    lasts = other.before is None or (guard.before is not None and guard.before <= other.before)
    ends = "" if lasts or other.before is None else moment(other.before)
    if whens:
        return f"unless {_together(whens)}" + (f" before {ends}" if ends else "")
    return f"from {ends}" if ends else ""


def actions_text(actions: Collection[str]) -> str:
    """Returns `use`, `*`, `use except delegate`, or a list."""
    actions = frozenset(actions)
    if actions == ACTIONS:
        return WILDCARD
    used, rest = actions & _USED, sorted(actions - _USED)
    missing = [action for action in USED if action not in actions]
    if used and len(missing) + 1 < len(used):
        head = USE if not missing else f"{USE} except {'|'.join(missing)}"
        return "|".join([head, *rest])
    return "|".join([*(action for action in USED if action in actions), *rest])


def _rows(rows: Iterable[RowMeaning], most: int, word: str) -> str:
    shown = [
        f" {_TIMES} ".join((row.subject.label, row.object.label, actions_text(row.actions)))
        + (f" ({row.rule.id})" if row.rule.file else "")
        for row in rows
    ]
    return f"; {word} ".join(cut(shown, most, "{} more"))


def _listed(terms: tuple[RowTerm, ...], most: int = 6) -> str:
    return ", ".join(cut([term.label for term in terms], most))


_SIDES = ("objects", "subjects", "actions")


def _joined(regions: list[Region], side: str) -> list[Region]:
    found: dict[object, Region] = {}
    for region in regions:
        same = _all_but(region, side)
        other = found.get(same)
        if other is not None:
            mine, more = getattr(other, side), getattr(region, side)
            both: Any = {side: mine | more if side == "actions" else _union(mine, more)}
            region = replace(other, causes=tuple(dict.fromkeys((*other.causes, *region.causes))), **both)
        found[same] = region
    return list(found.values())


def _all_but(region: Region, side: str) -> tuple[object, ...]:
    within = frozenset(frozenset(row.key for row in group) for group in region.within)
    exceptions = frozenset(row.key for row in region.exceptions)
    guards = (region.guard, region.lost_guard, frozenset(region.unless))
    less = (frozenset(region.not_subjects), frozenset(region.not_objects))
    sides = tuple(frozenset(getattr(region, name)) for name in _SIDES if name != side)
    approvals = (region.approval, region.waits)
    return region.kind, region.change, guards, within, exceptions, region.undecided, less, sides, approvals


def _union(terms: tuple[RowTerm, ...], more: tuple[RowTerm, ...]) -> tuple[RowTerm, ...]:
    both = dict.fromkeys((*terms, *more))
    if len(both) > 64:  # searching for covered names would take too long
        return tuple(both)
    return tuple(term for term in both if not any(other != term and other.covers(term) for other in both))
