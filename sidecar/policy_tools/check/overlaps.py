"""Lints for rules that other rules make redundant.

Finds an allow that a deny covers, an allow that another allow covers, and a limit that is never reached because a
tighter one always applies. A rule covers another when it matches every subject, object and action that the other can
match. Covering rules are looked up: by the subjects that cover this rule's subject, then by their objects that cover
its object.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from sidecar.limits.plan import BudgetRule, LimitCap
from sidecar.policy.patterns import WILDCARD, covers, glob
from sidecar.policy_tools.check.linted_policy import LintedPolicy, PolicyFinding
from sidecar.policy_tools.diff.terms import approvable_actions, demands_as_much
from sidecar.policy_tools.glob_algebra import OBJECTS, SUBJECTS, Shapes, TooManyStates, may_overlap, witness
from sidecar.vocabulary import ANONYMOUS, PermissionKind, RuleRef

MAX_ALIKE = 32  # rules with the same subject and object that are compared
MAX_LIMITED = 500  # rules with a limit that are compared with each other
MAX_SET = 2000  # objects of a set; whether a pattern covers a larger set is not determined
MAX_SIMILAR = 256  # patterns that differ only between their wildcards; further ones are not found
_FEW = 8  # up to this many tails of a head are tried one by one
_ALL_OF = {PermissionKind.USER_TO_NHI: "user:*", PermissionKind.NHI_TO_NHI: "nhi:*"}


class PatternCover:
    """Finds, among patterns and exact names, those that cover a text, without trying each one.

    A pattern that covers a text begins with the text's own beginning, so patterns are indexed by the part before their
    first wildcard, and below that by the part after their last one. A lookup tries only the few lengths in use."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._exact: set[str] = set()
        self._by_head: dict[str, dict[str, list[str]]] = {}
        self._lengths: list[int] = []
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: str) -> None:
        if pattern in self._exact:
            return
        self._exact.add(pattern)
        if WILDCARD not in pattern:
            return
        head, _, rest = pattern.partition(WILDCARD)
        tails = self._by_head.setdefault(head, {})
        alike = tails.setdefault(rest.rpartition(WILDCARD)[2], [])
        if len(alike) < MAX_SIMILAR:
            alike.append(pattern)
        if len(head) not in self._lengths:
            self._lengths.append(len(head))

    def covering(self, text: str) -> list[str]:
        """Returns the names and patterns that match everything that `text`, a name or a pattern, matches; `text` too if
        it was added."""
        found = [text] if text in self._exact else []
        for length in self._lengths:
            tails = self._by_head.get(text[:length]) if length <= len(text) else None
            if tails:
                ends = tails if len(tails) <= _FEW else (text[at:] for at in range(len(text) + 1))
                near = (pattern for end in ends for pattern in tails.get(end, ()))
                found += [pattern for pattern in near if pattern != text and covers(pattern, text)]
        return found


@dataclass(slots=True)
class _OnObjects:
    rules: dict[str, list[RuleRef]] = field(default_factory=dict)
    patterns: PatternCover = field(default_factory=PatternCover)
    over_sets: dict[str, set[str]] = field(default_factory=dict)


class Covering:
    """Rules of one kind, looked up by the rules that they cover."""

    def __init__(self, policy: LintedPolicy) -> None:
        self._policy = policy
        self._by_subject: dict[str, _OnObjects] = {}
        self._subjects = PatternCover()
        self._wider = lru_cache(None)(self._wider_subjects)

    def add(self, rule: RuleRef) -> None:
        self._subjects.add(rule.subject)
        on = self._by_subject.setdefault(rule.subject, _OnObjects())
        on.patterns.add(rule.object)
        alike = on.rules.setdefault(rule.object, [])
        if len(alike) < MAX_ALIKE:
            alike.append(rule)

    def over(self, rule: RuleRef) -> Iterator[RuleRef]:
        """Yields the added rules that cover this one, which may be itself."""
        asked = self._policy.asked(rule)
        for subject in self._wider(rule.kind, rule.subject):
            on = self._by_subject[subject]
            for obj in self._wider_objects(rule.object, on):
                for other in on.rules.get(obj, ()):
                    # `anonymous` is allowed only by that exact name.
                    means = rule.subject != ANONYMOUS or other.effect == "deny" or other.subject == ANONYMOUS
                    if means and (
                        other.actions == rule.actions
                        or all(any(glob(action, pattern) for pattern in other.actions) for action in asked)
                    ):
                        yield other

    def _wider_subjects(self, kind: PermissionKind, name: str) -> list[str]:
        found = dict.fromkeys(self._subjects.covering(name))
        if name != ANONYMOUS:
            found.update(dict.fromkeys(("*", _ALL_OF.get(kind, "*"))))
            found.update(dict.fromkeys(self._policy.source.roles.closure((name,))))
        return [subject for subject in found if subject in self._by_subject]

    def _wider_objects(self, obj: str, on: _OnObjects) -> set[str]:
        found = {obj, "*", *self._policy.source.sets.closure((obj,))}
        if not obj.startswith("set:"):
            return found.union(on.patterns.covering(obj))
        if obj not in on.over_sets:
            things = self._policy.things(obj)
            common = on.patterns.covering(things[0]) if 0 < len(things) <= MAX_SET else []
            over_all = {pattern for pattern in common if all(glob(thing, pattern) for thing in things)}
            on.over_sets[obj] = found | over_all
        return on.over_sets[obj]


def denied_anyway(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P611: an allow rule whose calls are all denied by a deny rule or a guardrail."""
    denies = {kind: Covering(policy) for kind in PermissionKind}
    for rule in policy.rules:
        if rule.effect == "deny" and not rule.shadow and rule.expires_at is None and not rule.when:
            denies[rule.kind].add(rule)
    guarded = denies[PermissionKind.GUARDRAIL]
    for rule in policy.allows:
        deny = next(denies[rule.kind].over(rule), None) or next(guarded.over(rule), None)
        if deny is not None:
            message = f"everything that this allows is denied by {_named(deny)}"
            yield PolicyFinding("P611", message, "remove this row, or narrow the deny", rule, "obj")


def said_twice(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P612: an allow that adds nothing. P613: a limit above that of a covering allow. P614: two limits that count some
    of the same calls."""
    told = set[tuple[str, int, str, str]]()
    allows = {kind: Covering(policy) for kind in PermissionKind}
    for rule in policy.rules:
        if rule.effect == "allow" and not rule.shadow:
            allows[rule.kind].add(rule)
    for rule in policy.allows:
        for other in allows[rule.kind].over(rule):
            if other == rule or not _lasts(other, rule):
                continue
            mutual = _lasts(rule, other) and any(one == rule for one in allows[rule.kind].over(other))
            found = _beside(rule, other, mutual=mutual)
            if found is not None:
                told.add(_spot(rule))
                yield found
                break
    yield from _both_count(policy, told)


def _lasts(other: RuleRef, rule: RuleRef) -> bool:
    """Whether the other rule applies whenever this one does, by condition and expiry."""
    if other.when not in ("", rule.when):
        return False
    return other.expires_at is None or (rule.expires_at is not None and rule.expires_at <= other.expires_at)


def _beside(rule: RuleRef, other: RuleRef, *, mutual: bool) -> PolicyFinding | None:
    """Returns the finding for `rule`, which `other` covers; None if `rule` adds something. Of two `mutual` rules, which
    cover each other, the later one is reported."""
    limit, tighter = rule.max_calls_per_hour, other.max_calls_per_hour
    counted_alike = other.per in (rule.per, "rule")
    demands = _demands_more(rule, other)
    if limit is not None and tighter is not None and tighter < limit and counted_alike:
        message = f"{limit} calls an hour are never reached: {_named(other)} allows {tighter} of the same calls"
        hint = "lower it" if demands else "lower it, or remove this row"
        return PolicyFinding("P613", message, hint, rule, "max_calls_per_hour")
    if demands or (limit is not None and (tighter is None or tighter > limit or not counted_alike)):
        return None
    if _demands_more(other, rule):
        hint = "remove this row: its calls wait for the approval that the other row requires"
        return PolicyFinding("P612", f"{_named(other)} allows this already", hint, rule, "obj")
    if mutual and _spot(rule) < _spot(other) and (other.max_calls_per_hour is None or limit == tighter):
        return None
    return PolicyFinding("P612", f"{_named(other)} allows this already", "remove one of the two", rule, "obj")


def _demands_more(rule: RuleRef, other: RuleRef) -> bool:
    """Whether some of a rule's calls need an approval that another rule, which covers it, does not demand as
    strictly."""
    covered = demands_as_much(other.approval, rule.approval)
    return rule.approval is not None and not (covered and approvable_actions(rule) <= approvable_actions(other))


def _both_count(policy: LintedPolicy, told: Container[tuple[str, int, str, str]]) -> Iterator[PolicyFinding]:
    """Yields a finding for each of the first MAX_LIMITED rules with a limit, except those in `told`, whose calls an
    earlier one counts too."""
    limited = [rule for rule in policy.allows if rule.max_calls_per_hour is not None and _spot(rule) not in told]
    for at, rule in enumerate(limited[:MAX_LIMITED]):
        other = next((one for one in limited[:at] if one.id != rule.id and _meet(policy, one, rule)), None)
        if other is not None:
            amounts = f"{rule.max_calls_per_hour} and {other.max_calls_per_hour} an hour"
            message = f"some calls count here and for {_named(other)}: {amounts}"
            hint = "the limit that is reached first refuses; neither replaces the other"
            yield PolicyFinding("P614", message, hint, rule, "max_calls_per_hour")


def _meet(policy: LintedPolicy, one: RuleRef, other: RuleRef) -> bool:
    if one.kind is not other.kind or policy.asked(one).isdisjoint(policy.asked(other)):
        return False
    if not _have_common(OBJECTS[one.kind], one.object, other.object, "set:", policy.things):
        return False
    subjects = (one.subject, other.subject)
    if one.subject == other.subject or ANONYMOUS in subjects:
        return one.subject == other.subject
    return _have_common(SUBJECTS[one.kind], *subjects, "role:", policy.people)


def _have_common(shapes: Shapes, one: str, other: str, container: str, contents: Callable[[str], list[str]]) -> bool:
    groups = [set(contents(name)) for name in (one, other) if name.startswith(container)]
    if len(groups) == 2:
        return not groups[0].isdisjoint(groups[1])
    if groups:
        pattern = other if one.startswith(container) else one
        return any(glob(name, pattern) for name in groups[0])
    try:
        return may_overlap(one, other) and witness(shapes, (one, other)) is not None
    except TooManyStates:
        return False


def _spot(rule: RuleRef) -> tuple[str, int, str, str]:
    return rule.file, rule.line, rule.subject, rule.object


def _named(rule: RuleRef) -> str:
    return f'"{rule.id}" ({rule.file}:{rule.line})'


def above_a_budget(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P613: a rule's limit is above what an entry of budgets.yaml permits in an hour."""
    ceilings = _Ceilings(policy)
    for rule in policy.rules:
        lowest = ceilings.lowest(rule) if rule.max_calls_per_hour is not None and not rule.shadow else None
        if lowest is not None and lowest[0] < (rule.max_calls_per_hour or 0):
            most, entry = lowest
            message = f"{rule.max_calls_per_hour} calls an hour are never reached: budgets.yaml allows {most}"
            hint = f"{entry.source}: {entry.pattern} applies to all of these calls"
            yield PolicyFinding("P613", message, hint, rule, "max_calls_per_hour")


class _Ceilings:
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
        """Returns the tightest entry that always applies and counts at least the calls that the rule's limit counts,
        with its maximum in an hour; None if there is none."""
        over = [] if rule.object.startswith("set:") else [f"tools:{one}" for one in self._objects.covering(rule.object)]
        for name in (rule.subject, *self._policy.source.roles.closure((rule.subject,))):
            patterns = self._subjects.covering(name)
            is_role = name.startswith("role:")
            over += [f"principals:{pattern}" for pattern in patterns if pattern.startswith("role:") is is_role]
        alone = "*" not in rule.subject and not rule.subject.startswith("role:")
        found = [pair for key in over for pair in self._entries.get(key, ())]
        counting = (pair for pair in found if not pair[1].each or rule.per == "subject" or alone)
        return min(counting, key=lambda pair: pair[0], default=None)


def _in_an_hour(cap: LimitCap) -> int | None:
    """Returns the maximum number of calls that a cap permits in any 60 minutes; None if it sets no bound."""
    if cap.kind == "hour":
        return cap.most
    if cap.kind in ("day", "month"):  # two of these periods can meet within an hour
        return 2 * cap.most
    if cap.kind == "rate" and cap.interval_us:
        return cap.most + 3_600_000_000 // cap.interval_us
    return None
