"""Finds limits that another rule now bypasses.

Every matching allow row's limit applies, so removing a row may leave each answer unchanged and still lift a limit. A
limit is kept if some row of the new policy matches at least the same calls, is as tight, and counts in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sidecar.policy_tools.diff.access_changes import NearMiss
from sidecar.policy_tools.diff.terms import RowGuard, RowMeaning, RowTerm, Side
from sidecar.vocabulary import RuleRef

Key = tuple[RowTerm, RowTerm, frozenset[str], RowGuard]
Limit = tuple[object, ...]


def lifted(before: Side, after: Side) -> Iterator[RuleRef]:
    """Yield the rules whose limits are lifted for some caller; in doubt a rule is included. Raises TooHard."""
    allowing, limiting = NearMiss(after.allows), NearMiss(after.limited)
    kept = {(row.key, *_limit(row.rule)) for row in after.limited}
    for row in before.limited:
        if (row.key, *_limit(row.rule)) in kept:
            continue
        tight = {other.key: other for other in limiting(row) if _is_as_tight(other.rule, row.rule)}
        if not _kept(row, tight) and any(not (_is_told(row, other) or _kept(other, tight)) for other in allowing(row)):
            yield row.rule


def lost_limits(old: Iterable[RuleRef], new: Iterable[RuleRef]) -> list[RuleRef]:
    """Return the rules with a limit that the new policy does not contain unchanged."""
    kept = {_said(rule) for rule in new if rule.max_calls_per_hour is not None}
    return [rule for rule in old if rule.max_calls_per_hour is not None and not rule.shadow and _said(rule) not in kept]


def _kept(row: RowMeaning, tight: Mapping[Key, RowMeaning]) -> bool:
    return row.key in tight or any(other.covers(row) and row.guard.implies(other.guard) for other in tight.values())


def _is_told(row: RowMeaning, other: RowMeaning) -> bool:
    """Whether it is the same rule with another limit, which is reported as a changed rule."""
    return row.rule.id == other.rule.id and other.covers(row)


def _is_as_tight(one: RuleRef, other: RuleRef) -> bool:
    limit, most = one.max_calls_per_hour, other.max_calls_per_hour
    return limit is not None and most is not None and limit <= most and one.per == other.per


def _limit(rule: RuleRef) -> Limit:
    return rule.max_calls_per_hour, rule.per


def _said(rule: RuleRef) -> Limit:
    return (*rule[1:9], rule.per, rule.shadow)
