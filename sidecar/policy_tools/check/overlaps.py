"""Lints for rules that other rules make pointless.

Finds an allow that a deny covers, an allow that another allow covers, and a limit under which a tighter one always
applies. A rule covers another when it matches every subject, object and action that the other can match. The covering
rule is looked up: by the subjects that cover this rule's subject, then by their objects that cover its object.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from sidecar.limits.plan import BudgetRule, LimitCap
from sidecar.policy.patterns import glob
from sidecar.policy_tools.check.linted_policy import LintedPolicy, PolicyFinding
from sidecar.policy_tools.check.pattern_cover import PatternCover
from sidecar.policy_tools.glob_algebra import OBJECTS, SUBJECTS, Shapes, TooManyStates, overlap
from sidecar.vocabulary import ANONYMOUS, PermissionKind, RuleRef

MAX_ALIKE = 32  # rules compared that have the same subject and object
MAX_LIMITED = 500  # rules with a limit that are compared with each other
MAX_SET = 2000  # objects of a set that are compared with a pattern
_EVERYBODY = {PermissionKind.USER_TO_NHI: "user:*", PermissionKind.NHI_TO_NHI: "nhi:*"}


@dataclass(slots=True)
class _OnObjects:
    """The rules of one subject, by object."""

    rules: dict[str, list[RuleRef]] = field(default_factory=dict)
    patterns: PatternCover = field(default_factory=PatternCover)
    over_sets: dict[str, set[str]] = field(default_factory=dict)


class Covering:
    """An index of rules that finds those covering a given rule, once all have been added."""

    def __init__(self, policy: LintedPolicy) -> None:
        self._policy = policy
        self._by_subject: dict[str, _OnObjects] = {}
        self._subjects = PatternCover()
        self._wider: dict[tuple[PermissionKind, str], list[str]] = {}

    def add(self, rule: RuleRef) -> None:
        self._subjects.add(rule.subject)
        on = self._by_subject.setdefault(rule.subject, _OnObjects())
        on.patterns.add(rule.object)
        alike = on.rules.setdefault(rule.object, [])
        if len(alike) < MAX_ALIKE:
            alike.append(rule)

    def over(self, rule: RuleRef) -> Iterator[RuleRef]:
        """Yield the rules that cover this one, including itself if it was added."""
        asked = self._policy.asked(rule)
        key = (rule.kind, rule.subject)
        if key not in self._wider:
            self._wider[key] = self._wider_subjects(rule)
        for subject in self._wider[key]:
            on = self._by_subject[subject]
            for obj in self._wider_objects(rule.object, on):
                for other in on.rules.get(obj, ()):
                    if _means(other, rule) and _does(other, rule, asked):
                        yield other

    def _wider_subjects(self, rule: RuleRef) -> list[str]:
        name = rule.subject
        found = dict.fromkeys(self._subjects.covering(name))
        if name != ANONYMOUS:
            found.update(dict.fromkeys(("*", _EVERYBODY.get(rule.kind, "*"))))
            found.update(dict.fromkeys(self._policy.roles_above(name)))
        return [subject for subject in found if subject in self._by_subject]

    def _wider_objects(self, obj: str, on: _OnObjects) -> set[str]:
        above = self._policy.source.sets.closure((obj,)) if obj in self._policy.source.sets.parents else frozenset()
        found = {obj, "*", *above}
        if not obj.startswith("set:"):
            return found.union(on.patterns.covering(obj))
        if obj not in on.over_sets:
            on.over_sets[obj] = found | self._over_all(self._policy.things(obj), on)
        return on.over_sets[obj]

    @staticmethod
    def _over_all(things: list[str], on: _OnObjects) -> set[str]:
        """Return the patterns that match every one of these objects."""
        if not things or len(things) > MAX_SET:
            return set()
        common = on.patterns.covering(things[0])
        return {pattern for pattern in common if all(glob(thing, pattern) for thing in things)}


def _does(other: RuleRef, rule: RuleRef, asked: frozenset[str]) -> bool:
    """Whether `other` matches every possible action of the rule."""
    if other.actions == rule.actions:
        return True
    return all(any(glob(action, pattern) for pattern in other.actions) for action in asked)


def _means(other: RuleRef, rule: RuleRef) -> bool:
    """Whether `other` matches this rule's subject: `anonymous` is allowed by exactly that word only."""
    return rule.subject != ANONYMOUS or other.effect == "deny" or other.subject == ANONYMOUS


def denied_anyway(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P611: an allow rule all of whose calls are always denied by a deny rule or a guardrail."""
    denies = {kind: Covering(policy) for kind in PermissionKind}
    for rule in policy.rules:
        if rule.effect == "deny" and not rule.shadow and rule.expires_at is None and not rule.when:
            denies[rule.kind].add(rule)
    guarded = denies[PermissionKind.GUARDRAIL]
    for rule in policy.rules:
        if rule.effect != "allow" or rule.shadow or not policy.asked(rule) or rule.kind not in policy.standard:
            continue
        deny = next(denies[rule.kind].over(rule), None) or next(guarded.over(rule), None)
        if deny is not None:
            message = f"everything that this allows is denied by {_named(deny)}"
            yield PolicyFinding("P611", message, "take this row away, or narrow the deny", rule, "obj")


def said_twice(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P612: an allow rule that adds nothing. P613: its limit is above that of an allow that covers it. P614: another
    rule's limit counts some of the same calls.
    """
    told = set[tuple[str, int, str, str]]()
    allows = {kind: Covering(policy) for kind in PermissionKind}
    for rule in policy.rules:
        if rule.effect == "allow" and not rule.shadow:
            allows[rule.kind].add(rule)
    for rule in policy.rules:
        if rule.effect != "allow" or rule.shadow or not policy.asked(rule) or rule.kind not in policy.standard:
            continue
        for other in allows[rule.kind].over(rule):
            if other == rule or not _lasts(other, rule):
                continue
            found = _beside(rule, other, mutual=_is_mutual(allows[rule.kind], rule, other))
            if found is not None:
                told.add(_spot(rule))
                yield found
                break
    yield from _both_count(policy, told)


def _lasts(other: RuleRef, rule: RuleRef) -> bool:
    """Whether `other` holds whenever `rule` does."""
    if other.when not in ("", rule.when):
        return False
    return other.expires_at is None or (rule.expires_at is not None and rule.expires_at <= other.expires_at)


def _is_mutual(allows: Covering, rule: RuleRef, other: RuleRef) -> bool:
    return _lasts(rule, other) and any(one == rule for one in allows.over(other))


def _beside(rule: RuleRef, other: RuleRef, *, mutual: bool) -> PolicyFinding | None:
    """Return the finding for `rule` beside `other`, which covers it. Of two equal rules, the later one is reported."""
    limit, tighter = rule.max_calls_per_hour, other.max_calls_per_hour
    counted_alike = other.per in (rule.per, "rule")
    if limit is not None and tighter is not None and tighter < limit and counted_alike:
        message = f"{limit} calls an hour are never reached: {_named(other)} allows {tighter} of the same calls"
        return PolicyFinding("P613", message, "lower it, or take this row away", rule, "max_calls_per_hour")
    if limit is not None and (tighter is None or tighter > limit or not counted_alike):
        return None
    if mutual and _spot(rule) < _spot(other) and (other.max_calls_per_hour is None or limit == tighter):
        return None
    return PolicyFinding("P612", f"{_named(other)} allows this already", "take one of the two away", rule, "obj")


def _both_count(policy: LintedPolicy, told: Container[tuple[str, int, str, str]]) -> Iterator[PolicyFinding]:
    """Yield each limited rule with the first other one that counts a common call. `told` are rules already reported as
    pointless.
    """
    limited = [rule for rule in policy.rules if _counts_calls(policy, rule) and _spot(rule) not in told]
    for at, rule in enumerate(limited[:MAX_LIMITED]):
        earlier = (one for one in limited[:at] if one.id != rule.id and _meet(policy, one, rule))
        other = next(earlier, None)
        if other is not None:
            message = (
                f"some calls count here and for {_named(other)}: "
                f"{rule.max_calls_per_hour} and {other.max_calls_per_hour} an hour"
            )
            hint = "the limit that is spent first refuses; neither lifts the other"
            yield PolicyFinding("P614", message, hint, rule, "max_calls_per_hour")


def _counts_calls(policy: LintedPolicy, rule: RuleRef) -> bool:
    limited = rule.effect == "allow" and not rule.shadow and rule.max_calls_per_hour is not None
    return limited and rule.kind in policy.standard and bool(policy.asked(rule))


def _meet(policy: LintedPolicy, one: RuleRef, other: RuleRef) -> bool:
    """Whether some call certainly matches both, conditions and expiry aside."""
    if one.kind is not other.kind or policy.asked(one).isdisjoint(policy.asked(other)):
        return False
    return _same_object(policy, one, other) and _same_subject(policy, one, other)


def _same_object(policy: LintedPolicy, one: RuleRef, other: RuleRef) -> bool:
    sides = [policy.things(rule.object) if rule.object.startswith("set:") else None for rule in (one, other)]
    if sides[0] is not None and sides[1] is not None:
        return not set(sides[0]).isdisjoint(sides[1])
    if sides[0] is not None or sides[1] is not None:
        pattern = other.object if sides[0] is not None else one.object
        return any(glob(thing, pattern) for thing in sides[0] or sides[1] or ())
    return _some_name(OBJECTS[one.kind], one.object, other.object)


def _same_subject(policy: LintedPolicy, one: RuleRef, other: RuleRef) -> bool:
    if one.subject == other.subject:
        return True
    roles = [rule.subject for rule in (one, other) if rule.subject.startswith("role:")]
    if len(roles) == 2:
        return not set(policy.people(roles[0])).isdisjoint(policy.people(roles[1]))
    if roles:
        pattern = other.subject if roles[0] == one.subject else one.subject
        return any(glob(name, pattern) for name in policy.people(roles[0]))
    return ANONYMOUS not in (one.subject, other.subject) and _some_name(SUBJECTS[one.kind], one.subject, other.subject)


def _some_name(shapes: Shapes, one: str, other: str) -> bool:
    try:
        return overlap(shapes, one, other) is not None
    except TooManyStates:
        return False


def _spot(rule: RuleRef) -> tuple[str, int, str, str]:
    return rule.file, rule.line, rule.subject, rule.object


def _named(rule: RuleRef) -> str:
    return f'"{rule.id}" ({rule.file}:{rule.line})'


# --- limits and budgets -----------------------------------------------------------------------------------------------


def above_a_budget(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P613: a rule's limit is above what an entry of budgets.yaml permits in an hour."""
    ceilings = _Ceilings(policy)
    for rule in policy.rules:
        if rule.max_calls_per_hour is None or rule.shadow:
            continue
        lowest = ceilings.lowest(rule)
        if lowest is not None and lowest[0] < rule.max_calls_per_hour:
            most, entry = lowest
            message = f"{rule.max_calls_per_hour} calls an hour are never reached: budgets.yaml allows {most}"
            hint = f"{entry.source}: {entry.pattern} applies to all of these calls"
            yield PolicyFinding("P613", message, hint, rule, "max_calls_per_hour")


class _Ceilings:
    """The most calls in any hour that budgets permit, by subject and object."""

    def __init__(self, policy: LintedPolicy) -> None:
        self._policy = policy
        self._entries: dict[str, list[tuple[int, BudgetRule]]] = {}
        for entry in (*policy.budgets.tools, *policy.budgets.principals):
            most = min((one for cap in entry.caps if (one := _in_an_hour(cap)) is not None), default=None)
            if most is not None:
                self._entries.setdefault(f"{entry.source}:{entry.pattern}", []).append((most, entry))
        self._objects = PatternCover(entry.pattern for entry in policy.budgets.tools)
        self._subjects = PatternCover(entry.pattern for entry in policy.budgets.principals)

    def lowest(self, rule: RuleRef) -> tuple[int, BudgetRule] | None:
        """Return the tightest entry that always applies and counts at least the calls that the rule's own limit
        counts.
        """
        found = [pair for pair in self._over(rule) if _counts(pair[1], rule)]
        return min(found, key=lambda pair: pair[0], default=None)

    def _over(self, rule: RuleRef) -> Iterator[tuple[int, BudgetRule]]:
        for name in (rule.subject, *self._policy.roles_above(rule.subject)):
            for pattern in self._subjects.covering(name):
                if name.startswith("role:") == pattern.startswith("role:"):
                    yield from self._entries.get(f"principals:{pattern}", ())
        if not rule.object.startswith("set:"):
            for pattern in self._objects.covering(rule.object):
                yield from self._entries.get(f"tools:{pattern}", ())


def _counts(entry: BudgetRule, rule: RuleRef) -> bool:
    alone = "*" not in rule.subject and not rule.subject.startswith("role:")
    return not entry.each or rule.per == "subject" or alone


def _in_an_hour(cap: LimitCap) -> int | None:
    """Return the most calls that a cap permits in any 60 minutes; None if it does not bound them."""
    if cap.kind == "hour":
        return cap.most
    if cap.kind in ("day", "month"):  # two of these periods can meet within an hour
        return 2 * cap.most
    if cap.kind == "rate" and cap.interval_us:
        return cap.most + 3_600_000_000 // cap.interval_us
    return None
