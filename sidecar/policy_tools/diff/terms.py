"""Normalizes rows so that two policies can be compared.

The term of a role is the set of names that have it by `g` rows, with the roles by which a token may grant it; `role:x`
in two policies is therefore one term exactly if its members are the same. Parts of conditions with different texts are
treated as independent, unless one implies the other (`condition_parts`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, Self

from sidecar.policy import PolicySource
from sidecar.policy.grammar import ACTIONS, named_actions
from sidecar.policy.patterns import WILDCARD, covers, glob, globs
from sidecar.policy.roles import RoleLinks, is_granted
from sidecar.policy_tools.diff.condition_parts import HAS_ROLE, asks_of, conjuncts, implies
from sidecar.policy_tools.glob_algebra import may_overlap
from sidecar.vocabulary import ANONYMOUS, BEGUN, DELEGATE, ApprovalTerms, PermissionKind, RuleRef


@dataclass(frozen=True, slots=True)
class RowTerm:
    """The subjects or objects of a row: the names that match `pattern`; without one, `names`, and callers whose token
    grants one of the roles in `tokens`.

    `anonymous`: whether a wildcard matches anonymous callers too, as it does on deny rows. `label` is for display."""

    label: str
    pattern: str | None = None
    names: frozenset[str] = frozenset()
    tokens: frozenset[str] = frozenset()
    anonymous: bool = False

    @property
    def exact(self) -> bool:
        return self.pattern is not None and WILDCARD not in self.pattern

    @property
    def is_empty(self) -> bool:
        return self.pattern is None and not self.names and not self.tokens

    def meets(self, name: str, roles: frozenset[str] = frozenset()) -> bool:
        if self.pattern is None:
            return name in self.names or not self.tokens.isdisjoint(roles)
        if name == ANONYMOUS and not self.anonymous:
            return self.pattern == ANONYMOUS
        return glob(name, self.pattern)

    def covers(self, other: Self) -> bool:
        """Whether this term matches everything that the other one matches; False if a quick check does not show it."""
        if self is other:
            return True
        if self.pattern is None:
            if other.pattern is None:
                return other.names <= self.names and other.tokens <= self.tokens
            return other.exact and other.pattern in self.names
        if other.pattern is not None:
            return covers(self.pattern, other.pattern) and (self.anonymous or not other.anonymous)
        return self.pattern == WILDCARD or (not other.tokens and all(map(self.meets, other.names)))

    def may_meet(self, other: Self) -> bool:
        """Whether some name, with some roles of a token, may match both: False is certain."""
        if self.pattern is not None and other.pattern is not None:
            return may_overlap(self.pattern, other.pattern)
        if self.tokens or other.tokens:
            return True
        if self.pattern is not None:
            return any(map(self.meets, other.names))
        return any(map(other.meets, self.names))


EVERY_CALLER = RowTerm(WILDCARD, WILDCARD, anonymous=True)
EVERYTHING = RowTerm(WILDCARD, WILDCARD)


class RowGuard(NamedTuple):
    """When a row applies: all of these parts of conditions hold, and the time is before the expiry (None: no expiry).

    As an assumption it is minimal: no other condition holds, and the time is just before the expiry."""

    whens: frozenset[str] = frozenset()
    before: float | None = None

    def and_(self, other: Self) -> Self:
        ends = [end for end in (self.before, other.before) if end is not None]
        return self._replace(whens=self.whens | other.whens, before=min(ends, default=None))

    def implies(self, other: Self) -> bool:
        lasts = other.before is None or (self.before is not None and self.before <= other.before)
        return lasts and not self.missing(other.whens)

    def missing(self, whens: frozenset[str]) -> frozenset[str]:
        """Returns those of the parts that do not follow from the parts of this guard."""
        rest = whens - self.whens
        if not rest or not self.whens:
            return rest
        return frozenset(part for part in rest if not any(implies(mine, part) for mine in self.whens))


ALWAYS = RowGuard()
THEN, NOW = " [its members then]", " [its members now]"
_Holders = tuple[frozenset[str], frozenset[str]]  # of a role: names that have it by row, roles that a token may grant


class RowMeaning(NamedTuple):
    """A rule that decides, in the terms of its policy."""

    subject: RowTerm
    object: RowTerm
    actions: frozenset[str]
    guard: RowGuard
    rule: RuleRef

    @property
    def key(self) -> tuple[RowTerm, RowTerm, frozenset[str], RowGuard]:
        """The content of the row: two rows of one effect with the same key have the same effect on every answer."""
        return self[:4]

    def may_meet(self, other: Self) -> bool:
        return (
            not self.actions.isdisjoint(other.actions)
            and self.object.may_meet(other.object)
            and self.subject.may_meet(other.subject)
        )

    def covers(self, other: Self) -> bool:
        return self.actions >= other.actions and self.object.covers(other.object) and self.subject.covers(other.subject)


class Side(NamedTuple):
    """The rows of one kind in one policy: those that allow and those that deny, without duplicates; those with a limit;
    and those that demand an approval, with the actions that need it."""

    allows: list[RowMeaning]
    denies: list[RowMeaning]
    limited: list[RowMeaning]
    demands: list[RowMeaning]


class Reader:
    """Converts the rules of both policies to rows, with one `RowTerm` object for equal terms of both.

    A part of a condition that tests a role whose members changed has another meaning in each policy, marked by THEN and
    NOW. If the role only gained members, the part with the former members implies the one with the present members, so
    a row of the old policy gets both; if it only lost members, a row of the new policy does."""

    def __init__(self, old: PolicySource, new: PolicySource) -> None:
        self._others = moved(old, new)
        before, after = old.roles.contents(), new.roles.contents()
        won = {role for role in self._others if before.get(role, frozenset()) <= after.get(role, frozenset())}
        lost = {role for role in self._others if before.get(role, frozenset()) >= after.get(role, frozenset())}
        self._stricter = {THEN: won, NOW: lost}
        self._terms: dict[RowTerm, RowTerm] = {}

    def sides(self, rules: Iterable[RuleRef], source: PolicySource, moment: str) -> dict[PermissionKind, Side]:
        """Converts the rules of one policy except shadow rules. `moment` is THEN for the old one, NOW for the new
        one."""
        sides = {kind: Side([], [], [], []) for kind in PermissionKind}
        subject = lru_cache(None)(partial(self._subject, _holders(source.roles)))
        object_ = lru_cache(None)(partial(self._object, source.sets.contents()))
        known: set[object] = set()
        for rule in rules:
            if rule.shadow:
                continue
            guard = RowGuard(self._parts(rule.when, moment), rule.expires_at)
            sub, obj = subject(rule.subject, rule.effect), object_(rule.object)
            row = RowMeaning(sub, obj, actions_of(rule.actions), guard, rule)
            if rule.max_calls_per_hour is not None:
                sides[rule.kind].limited.append(row)
            if rule.approval is not None:
                sides[rule.kind].demands.append(row._replace(actions=approvable_actions(rule)))
            said = (rule.kind, rule.effect, row.key)
            if said not in known:
                known.add(said)
                (sides[rule.kind].denies if rule.effect == "deny" else sides[rule.kind].allows).append(row)
        sides[PermissionKind.GUARDRAIL].allows.append(_UNLESS_DENIED)
        return sides

    def _parts(self, condition: str, moment: str) -> frozenset[str]:
        """Returns the parts of a condition, marking those with a different meaning in the other policy."""
        parts = conjuncts(condition)
        if not asks_of(condition, self._others):
            return parts
        found = {part for part in parts if not asks_of(part, self._others)}
        for part in parts - found:
            asked = HAS_ROLE.fullmatch(part)
            both = asked is not None and (asked[1] or asked[2]) in self._stricter[moment]
            found |= {part + THEN, part + NOW} if both else {part + moment}
        return frozenset(found)

    def _subject(self, roles: Mapping[str, _Holders], text: str, effect: str) -> RowTerm:
        if text.startswith("role:"):
            return self._one(RowTerm(text, None, *(roles.get(text) or (frozenset(), _granted({text})))))
        anonymous = glob(ANONYMOUS, text) and (effect == "deny" or text == ANONYMOUS)
        return self._one(RowTerm(text, text, anonymous=anonymous))

    def _object(self, sets: Mapping[str, frozenset[str]], text: str) -> RowTerm:
        if text.startswith("set:"):
            names = frozenset(name for name in sets.get(text, ()) if not name.startswith("set:"))
            return self._one(RowTerm(text, None, names))
        return self._one(RowTerm(text, text))

    def _one(self, term: RowTerm) -> RowTerm:
        return self._terms.setdefault(term, term)


_UNLESS_DENIED = RowMeaning(
    EVERY_CALLER,
    EVERYTHING,
    ACTIONS,
    ALWAYS,
    RuleRef("unless a guardrail denies", PermissionKind.GUARDRAIL, WILDCARD, WILDCARD, (WILDCARD,), "allow"),
)
"""Guardrails can only deny, so they are compared as if an allow row for everything were with them."""


def _holders(links: RoleLinks) -> dict[str, _Holders]:
    found = {}
    for role, members in links.contents().items():
        brings = frozenset(name for name in members if name.startswith("role:"))
        found[role] = (members - brings, _granted(brings | {role}))
    return found


def _granted(roles: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(is_granted, roles))


@lru_cache(4096)
def actions_of(patterns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(action for action in ACTIONS if globs(action, "|".join(patterns)))


def approvable_actions(rule: RuleRef) -> frozenset[str]:
    """Returns the actions for which a rule with an approval demands it: those that begin work or delegate, and those
    that it names."""
    return actions_of(rule.actions) & {*BEGUN, DELEGATE, *named_actions(rule.actions)}


def demands_as_much(one: ApprovalTerms | None, other: ApprovalTerms | None) -> bool:
    """Whether the terms `one` are at least as strict as `other`; None demands no approval. Different roles are not
    compared."""
    if one is None or other is None:
        return other is None
    lasting = (one.valid_s or 0) <= (other.valid_s or 0)
    return one.role == other.role and one.within_s <= other.within_s and lasting and one.reason >= other.reason


def changed_meanings(
    old: Iterable[RuleRef], new: Iterable[RuleRef], old_source: PolicySource, new_source: PolicySource
) -> set[RuleRef]:
    """Returns the deciding fields of the rules that only one policy has, and of those that depend on a role or set
    whose members changed."""
    before, after = (
        {RuleRef("", *rule[1:7], when=rule.when) for rule in rules if not rule.shadow} for rules in (old, new)
    )
    others = moved(old_source, new_source)
    return (before ^ after) | {
        one for one in before & after if others & {one.subject, one.object} or asks_of(one.when, others)
    }


def changed_demands(old: Iterable[RuleRef], new: Iterable[RuleRef]) -> set[RuleRef]:
    """Returns the deciding fields and the terms of those rules with an approval that only one policy has."""
    before, after = (
        {RuleRef(rule.id, *rule[1:7], when=rule.when, approval=rule.approval) for rule in rules if rule.approval}
        for rules in (old, new)
    )
    return before ^ after


def moved(old: PolicySource, new: PolicySource) -> frozenset[str]:
    """Returns every role and set whose direct or indirect members differ between the policies."""
    found: set[str] = set()
    for before, after in ((old.roles.contents(), new.roles.contents()), (old.sets.contents(), new.sets.contents())):
        found |= {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return frozenset(found)


def place_of(pattern: str) -> str:
    """Returns the place of a rule's object: `tool:github/` for one on a server, the name itself for an NHI, and "" for
    a set or a pattern that may match objects in several places."""
    head, slash, _ = pattern.partition("/")
    if WILDCARD in head or pattern.startswith("set:"):
        return ""
    return head + slash
