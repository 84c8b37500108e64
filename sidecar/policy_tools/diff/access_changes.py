"""Finds the ways in which access can widen from one policy to the other, and the limits and approvals that no longer
apply.

A question is allowed if some row allows it and none denies it. A caller therefore gains access, from `before` to
`after`, in exactly two ways:

    granted   a row of `after` allows it that no row of `before` did, and no row of `after` denies it
    lifted    a row of `before` denied it that `after` does not have, some row of `after` allows it, and none denies it

Each is an `AccessChange`: one or two boxes (subjects × objects × actions) less other boxes. Guards are assumed to hold
only as far as the rows in question need (`terms.RowGuard`): further conditions could only reduce access. Only rows that
the two policies do not share can begin a change, so equal rows cost one comparison.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sidecar.policy.patterns import WILDCARD
from sidecar.policy_tools.diff.search import TooHard
from sidecar.policy_tools.diff.terms import RowGuard, RowMeaning, RowTerm, Side, demands_as_much, place_of
from sidecar.vocabulary import RuleRef

MAX_LIFTED = 8  # allow rows under a removed deny that become a change each; more become one change together
MAX_COMPARED = 10_000_000  # pairs of rows, each way; about ten seconds
MAX_TRIMMED = 2_000_000  # pairs of rows outside of changes, each way; about five seconds


@dataclass(frozen=True, slots=True)
class AccessChange:
    """The questions in `base`, in some row of each group of `within`, and in no row of `outside`, when `guard` holds.

    `unless` are the guards of rows that would remove all of them if they held in addition to `guard`. `causes` are the
    rules that changed."""

    base: RowMeaning
    guard: RowGuard
    outside: tuple[RowMeaning, ...]
    unless: tuple[RowGuard, ...]
    causes: tuple[RuleRef, ...]
    within: tuple[tuple[RowMeaning, ...], ...] = ()


class NearMiss:
    """Finds rows that may overlap a row, by the server of their object. Counts the comparisons."""

    def __init__(self, rows: Iterable[RowMeaning]) -> None:
        self._rows = list(rows)
        self._by_place: dict[str, list[RowMeaning]] = {}
        self._compared = 0
        for row in self._rows:
            self._by_place.setdefault(place_of(row.object.pattern or WILDCARD), []).append(row)

    def __call__(self, row: RowMeaning) -> Iterator[RowMeaning]:
        """Returns the rows that may have a question in common with this one. Raises TooHard after MAX_COMPARED
        comparisons."""
        place = place_of(row.object.pattern or WILDCARD)
        near = [*self._by_place.get(place, ()), *self._by_place.get("", ())] if place else self._rows
        self._compared += len(near)
        if self._compared > MAX_COMPARED:
            raise TooHard
        return filter(row.may_meet, near)


def gained(before: Side, after: Side) -> Iterator[AccessChange]:
    """Yields the changes by which access is gained, in both ways."""
    allowed, denied, allows = NearMiss(before.allows), NearMiss(after.denies), NearMiss(after.allows)
    known = {row.key for row in before.allows}
    for row in after.allows:
        if row.key not in known:
            outside = (*allowed(row), *denied(row))
            yield AccessChange(row, row.guard, *_parted(outside, row.guard, row), (row.rule,))
    kept = {row.key for row in after.denies}
    for deny in before.denies:
        if deny.key not in kept:
            yield from _released(deny, allows, (denied,))


def freed(before: Side, after: Side) -> Iterator[AccessChange]:
    """Yields the calls that both policies allow, but `before` only with an approval, and `after` without one that is as
    strict."""
    allows, demands = NearMiss(after.allows), NearMiss(after.demands)
    denied = NearMiss((*after.denies, *before.denies))

    def demanding(row: RowMeaning) -> Iterable[RowMeaning]:
        # The same rule with other terms is reported as a changed rule.
        return (other for other in demands(row) if other.rule.id == row.rule.id or _is_as_strict(other, row))

    kept = {(row.key, row.rule.approval) for row in after.demands}
    for row in before.demands:
        if (row.key, row.rule.approval) not in kept:
            yield from _released(row, allows, (denied, demanding))


def _is_as_strict(one: RowMeaning, other: RowMeaning) -> bool:
    return demands_as_much(one.rule.approval, other.rule.approval)


def _released(
    row: RowMeaning, allows: NearMiss, others: Sequence[Callable[[RowMeaning], Iterable[RowMeaning]]]
) -> Iterator[AccessChange]:
    """Yields what `allows` allow because a restricting row was removed. The rows that `others` find restrict the
    same."""
    groups: dict[RowGuard, list[RowMeaning]] = {}
    for allow in allows(row):
        groups.setdefault(row.guard.and_(allow.guard), []).append(allow)
    near = tuple(other for find in others for other in find(row)) if groups else ()
    for guard, rows in groups.items():
        yield from _lifted(rows, AccessChange(row, guard, *_parted(near, guard, row), (row.rule,)))


def _parted(
    rows: Iterable[RowMeaning], guard: RowGuard, base: RowMeaning
) -> tuple[tuple[RowMeaning, ...], tuple[RowGuard, ...]]:
    """Returns the rows that hold whenever this guard does, and the guards of those others that cover the base."""
    holding: list[RowMeaning] = []
    others: dict[RowGuard, None] = {}
    for row in rows:
        if guard.implies(row.guard):
            holding.append(row)
        elif row.covers(base):
            others[row.guard] = None
    return tuple(holding), tuple(others)


def _lifted(rows: Sequence[RowMeaning], draft: AccessChange) -> Iterator[AccessChange]:
    if any(row.covers(draft.base) for row in rows):
        yield draft
    elif len(rows) > MAX_LIFTED:
        yield replace(draft, within=(tuple(rows),))
    else:
        yield from (inside(row, draft) for row in rows)


def inside(row: RowMeaning, draft: AccessChange) -> AccessChange:
    """Returns a change restricted to one more row: by a smaller base if, for subjects and for objects, one of the two
    contains the other, otherwise by a group in `within`."""
    base = draft.base
    subject, obj = _smaller(base.subject, row.subject), _smaller(base.object, row.object)
    left = base._replace(subject=subject or base.subject, object=obj or base.object, actions=base.actions & row.actions)
    within = draft.within if subject and obj else (*draft.within, (row,))
    return replace(draft, base=left, within=within)


def _smaller(one: RowTerm, other: RowTerm) -> RowTerm | None:
    return one if other.covers(one) else other if one.covers(other) else None


@dataclass(slots=True)
class Effort:
    """How many pairs of rows may still be compared."""

    left: int = MAX_TRIMMED


def trimmed(draft: AccessChange, effort: Effort) -> AccessChange | None:
    """Returns a change without those rows of `outside` that others make redundant; None if nothing of the change
    remains. Raises TooHard if `effort` is spent."""
    base = draft.base
    if any(row.covers(base) for row in draft.outside):
        return None
    wide: list[RowMeaning] = []
    # Rows on one exact object, by it: of these, only a row on the same object makes another one redundant.
    narrow: dict[RowTerm, list[RowMeaning]] = {}
    for row in sorted(
        dict.fromkeys(draft.outside), key=lambda row: (row.object.exact, row.subject.exact, -len(row.actions))
    ):
        same = narrow.get(row.object, [])
        effort.left -= len(wide) + len(same)
        if effort.left < 0:
            raise TooHard
        if not any(_takes_all(other, row, base) for other in (*wide, *same)):
            is_narrow = row.object.exact and not row.object.covers(base.object)
            (narrow.setdefault(row.object, same) if is_narrow else wide).append(row)
    return replace(draft, outside=(*wide, *(row for rows in narrow.values() for row in rows)))


def _takes_all(one: RowMeaning, other: RowMeaning, base: RowMeaning) -> bool:
    return (
        one.actions >= other.actions & base.actions
        and (one.object.covers(other.object) or one.object.covers(base.object))
        and (one.subject.covers(other.subject) or one.subject.covers(base.subject))
    )


# The limit of every matching allow row applies, so removing a row can lift a limit even if no answer changes. A limit
# remains if some row of the new policy matches at least the same calls, is as tight, and counts in the same way.


def lifted(before: Side, after: Side) -> Iterator[RuleRef]:
    """Yields the rules whose limits are lifted for some caller; in doubt a rule is included. Raises TooHard."""
    allowing, limiting = NearMiss(after.allows), NearMiss(after.limited)
    kept = {(row.key, row.rule.max_calls_per_hour, row.rule.per) for row in after.limited}
    for row in before.limited:
        if (row.key, row.rule.max_calls_per_hour, row.rule.per) in kept:
            continue
        tight = {other.key: other for other in limiting(row) if _is_as_tight(other.rule, row.rule)}
        if not _kept(row, tight) and any(
            # The same rule with another limit is reported as a changed rule.
            not (_kept(other, tight) or (row.rule.id == other.rule.id and other.covers(row)))
            for other in allowing(row)
        ):
            yield row.rule


def lost_limits(old: Iterable[RuleRef], new: Iterable[RuleRef]) -> list[RuleRef]:
    """Returns the rules with a limit that the new policy does not contain unchanged."""

    def said(rule: RuleRef) -> tuple[object, ...]:
        return (*rule[1:9], rule.per, rule.shadow)

    kept = {said(rule) for rule in new if rule.max_calls_per_hour is not None}
    return [rule for rule in old if rule.max_calls_per_hour is not None and not rule.shadow and said(rule) not in kept]


def _kept(row: RowMeaning, tight: Mapping[Any, RowMeaning]) -> bool:
    return row.key in tight or any(other.covers(row) and row.guard.implies(other.guard) for other in tight.values())


def _is_as_tight(one: RuleRef, other: RuleRef) -> bool:
    limit, most = one.max_calls_per_hour, other.max_calls_per_hour
    return limit is not None and most is not None and limit <= most and one.per == other.per
