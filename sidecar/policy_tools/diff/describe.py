"""Describes changed access in few words.

Regions that agree in all but one dimension are merged. The shortest description comes first, then wider before
narrower.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from sidecar.policy.grammar import ACTIONS, USE, USED
from sidecar.policy.patterns import WILDCARD
from sidecar.policy_tools.diff.region_shapes import Region
from sidecar.policy_tools.diff.terms import RowGuard, RowMeaning, RowTerm, actions_of
from sidecar.vocabulary import RuleRef

_ORDER = {"wider": 0, "narrower": 1, "unknown": 2}
_TIMES, _USED = "×", frozenset(USED)


def merged(regions: Iterable[Region]) -> list[Region]:
    """Merge regions that agree in all but one dimension; return them in the order of the report."""
    left = list(regions)
    size = -1
    while size != len(left):
        size = len(left)
        for key, join in (
            (_but_objects, _join_objects),
            (_but_subjects, _join_subjects),
            (_but_actions, _join_actions),
        ):
            left = _joined(left, key, join)
    return sorted(left, key=lambda one: (one.undecided, one.terms, _ORDER[one.change], one.kind, described(one)))


def described(region: Region) -> str:
    """Return one line: `role:engineers × tool:github/get_* × use`."""
    subjects = _less(_listed(region.subjects), region.not_subjects)
    objects = _less(_listed(region.objects), region.not_objects)
    return f"{subjects} {_TIMES} {objects} {_TIMES} {_own_words(region)}"


def _own_words(region: Region) -> str:
    """Return the actions as written in one of the region's rules, if that is shorter: `tasks/*`."""
    words = ["|".join(rule.actions) for rule in region.causes if actions_of(rule.actions) == region.actions]
    return min([actions_text(region.actions), *words], key=len)


def exceptions_text(region: Region, most: int) -> list[str]:
    """Return the region's other bounds, one line each: `only where …`, `except …`."""
    lines = [f"only where {_rows(group, most, 'or')}" for group in region.within]
    if region.exceptions:
        lines.append(f"except {_rows(region.exceptions, most, 'and')}")
    return lines


def guard_text(region: Region) -> str:
    """Return what must hold for the change to be visible, and what must not; "" for nothing."""
    lost = region.lost_guard
    if lost is not None:
        shared = region.guard.whens & lost.whens
        ways = [f"{change} {_holds(guard, shared) or 'otherwise'}" for change, guard in _ways(region.guard, lost)]
        return "; ".join(ways) + (f"; given {_together(shared)}" if shared else "")
    parts = [_holds(region.guard, frozenset())]
    parts += dict.fromkeys(_unless(guard, region.guard) for guard in region.unless)
    return ", ".join(part for part in parts if part)


def _ways(gained: RowGuard, lost: RowGuard) -> tuple[tuple[str, RowGuard], tuple[str, RowGuard]]:
    return ("wider", gained), ("narrower", lost)


def _holds(guard: RowGuard, known: frozenset[str]) -> str:
    whens = guard.whens - known
    parts = [f"when {_together(whens)}"] if whens else []
    if guard.before is not None:
        parts.append(f"before {moment(guard.before)}")
    return " and ".join(parts)


def _together(whens: Iterable[str]) -> str:
    return " && ".join(sorted(whens))


def _unless(other: RowGuard, guard: RowGuard) -> str:
    """Return what another row needs that this guard does not give."""
    whens = guard.missing(other.whens)
    lasts = other.before is None or (guard.before is not None and guard.before <= other.before)
    ends = "" if lasts or other.before is None else moment(other.before)
    if whens:
        return f"unless {_together(whens)}" + (f" before {ends}" if ends else "")
    return f"from {ends}" if ends else ""


def moment(seconds: float) -> str:
    """Format seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def actions_text(actions: Collection[str]) -> str:
    """Return `use`, `*`, `use except delegate`, or a list."""
    actions = frozenset(actions)
    if actions == ACTIONS:
        return WILDCARD
    used, rest = actions & _USED, sorted(actions - _USED)
    missing = [action for action in USED if action not in actions]
    if used and len(missing) + 1 < len(used):
        head = USE if not missing else f"{USE} except {'|'.join(missing)}"
        return "|".join([head, *rest])
    return "|".join([*(action for action in USED if action in actions), *rest])


def row_text(row: RowMeaning) -> str:
    return f"{row.subject.label} {_TIMES} {row.object.label} {_TIMES} {actions_text(row.actions)}"


def place(rule: RuleRef) -> str:
    return f"{rule.file}:{rule.line}" if rule.file else ""


def _rows(rows: Iterable[RowMeaning], most: int, word: str) -> str:
    shown = [row_text(row) + (f" ({row.rule.id})" if row.rule.file else "") for row in rows]
    more = len(shown) - most
    if more > 1:
        shown = [*shown[:most], f"{more} more"]
    return f"; {word} ".join(shown)


def _listed(terms: tuple[RowTerm, ...], most: int = 6) -> str:
    shown = [term.label for term in terms]
    more = len(shown) - most
    return ", ".join(shown) if more <= 1 else ", ".join([*shown[:most], f"and {more} more"])


def _less(text: str, less: tuple[RowTerm, ...]) -> str:
    return f"{text} except {_listed(less)}" if less else text


# --- merging ----------------------------------------------------------------------------------------------------------


def _joined(
    regions: list[Region], key: Callable[[Region], object], join: Callable[[Region, Region], Region]
) -> list[Region]:
    found: dict[object, Region] = {}
    for region in regions:
        same = key(region)
        found[same] = join(found[same], region) if same in found else region
    return list(found.values())


def _same(region: Region) -> tuple[object, ...]:
    """Return the values in which regions must agree to be merged."""
    within = frozenset(frozenset(row.key for row in group) for group in region.within)
    exceptions = frozenset(row.key for row in region.exceptions)
    guards = (region.guard, region.lost_guard, frozenset(region.unless))
    return region.kind, region.change, guards, within, exceptions, region.undecided


def _subjects(region: Region) -> object:
    return frozenset(region.subjects), frozenset(region.not_subjects)


def _objects(region: Region) -> object:
    return frozenset(region.objects), frozenset(region.not_objects)


def _but_subjects(region: Region) -> object:
    return _same(region), _objects(region), region.actions, frozenset(region.not_subjects)


def _but_objects(region: Region) -> object:
    return _same(region), _subjects(region), region.actions, frozenset(region.not_objects)


def _but_actions(region: Region) -> object:
    return _same(region), _subjects(region), _objects(region)


def _causes(one: Region, other: Region) -> tuple[RuleRef, ...]:
    return tuple(dict.fromkeys((*one.causes, *other.causes)))


def _join_subjects(one: Region, other: Region) -> Region:
    return replace(one, subjects=_union(one.subjects, other.subjects), causes=_causes(one, other))


def _join_objects(one: Region, other: Region) -> Region:
    return replace(one, objects=_union(one.objects, other.objects), causes=_causes(one, other))


def _join_actions(one: Region, other: Region) -> Region:
    return replace(one, actions=one.actions | other.actions, causes=_causes(one, other))


def _union(terms: tuple[RowTerm, ...], more: tuple[RowTerm, ...]) -> tuple[RowTerm, ...]:
    both = dict.fromkeys((*terms, *more))
    if len(both) > 64:  # searching for covered names would take too long
        return tuple(both)
    return tuple(term for term in both if not any(other != term and other.covers(term) for other in both))
