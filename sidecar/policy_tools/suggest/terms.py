"""Finds the parts of the present policy that a suggestion uses: roles and sets, deny rows, and the terms of its rows.

Terms are a condition, a limit, an expiry and an approval. Each recorded use takes the present terms of the rows that
decided it or, if none of them allows it any more, those of every row that allows it today; a use that passed without a
row has none. The suggestion for all other uses is therefore inside rows of the present policy, with all their
requirements. A row with a limit counts every call that it matches, and one with an approval demands it even if another
row allows the call without: such rows are always included.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, Self

from sidecar.policy import PolicySource
from sidecar.policy.model import COLUMNS
from sidecar.policy.patterns import WILDCARD, covers, glob
from sidecar.policy.roles import RoleLinks
from sidecar.policy_tools.diff.condition_parts import roles_asked
from sidecar.policy_tools.diff.terms import actions_of, approvable_actions, place_of
from sidecar.policy_tools.suggest.evidence import KINDS, Trace, Triple, UsageEvidence
from sidecar.vocabulary import ANONYMOUS, DELEGATE, ApprovalTerms, PermissionKind, RuleRef

GONE = "gone"  # the name of the count of calls that no row allows now
SPLIT_LIMIT = "one limit counts rows for several roles of tokens"
APPROVED = "it needed a person's approval, and without the current policy it is not known whose"


class Terms(NamedTuple):
    """A row's requirements in addition to subject, object and action. `of` is the id of the rule whose calls the limit
    counts together, "" without a limit."""

    when: str = ""
    expires_at: float | None = None
    limit: int | None = None
    per: Literal["subject", "origin", "rule"] = "subject"
    approval: ApprovalTerms | None = None
    of: str = ""

    @property
    def stated(self) -> tuple[object, ...]:
        """The terms as the row states them."""
        return self[:5]

    def within(self, other: Self) -> bool:
        """Whether a row with the other terms allows everything that a row with these terms allows. False if either has
        a limit or an approval."""
        if self.approval is not None or other.approval is not None:
            return False
        lasts = other.expires_at is None or (self.expires_at is not None and self.expires_at <= other.expires_at)
        return self.limit is None and other.limit is None and lasts and other.when in ("", self.when)


PLAIN = Terms()


@dataclass(slots=True)
class Backed:
    """Uses with the same terms, and the rows of the present policy that allow them, by subject. Without a present
    policy there are no rows, and a pattern has no upper bound."""

    triples: list[Triple] = field(default_factory=list)
    rows: dict[str, set[RuleRef]] = field(default_factory=dict)

    def holds(self, pattern: str, subjects: Iterable[str], actions: Collection[str]) -> bool:
        """Whether, for each of the subjects, one present row allows these actions on everything that a pattern matches,
        including objects that do not exist yet; true without rows."""
        return not self.rows or all(
            any(covers(row.object, pattern) and actions_of(row.actions).issuperset(actions) for row in self.rows[name])
            for name in subjects
        )


Groups = Mapping[PermissionKind, Mapping[Terms, Backed]]


class Backing:
    """Finds the rows of the present policy that allow a recorded use."""

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self._rows: dict[tuple[PermissionKind, str], list[RuleRef]] = {}
        self._above = lru_cache(None)(lambda name: source.roles.closure((name,)))
        self._about = lru_cache(None)(self._about_object)
        for rule in source.own_rules:
            if rule.effect == "allow" and not rule.shadow:
                key = f"{place_of(rule.object)}{WILDCARD}" if WILDCARD in rule.object else rule.object
                self._rows.setdefault((rule.kind, key), []).append(rule)

    def terms_of(self, triple: Triple, trace: Trace) -> dict[Terms, set[RuleRef]]:
        """Returns the terms of a use, each with the rows that have them, without terms that others include; empty if no
        row allows the use today."""
        held = {
            rule: terms
            for rule in self._about(triple.kind, triple.object)
            if (terms := self._terms(rule, triple)) is not None
        }
        rested = [rule for rule in held if rule.id in trace.rules]
        chosen = rested or [rule for rule in held if not self._by_token(rule, triple)]
        if chosen:
            kept = (rule for rule in held if rule.max_calls_per_hour is not None or rule.approval is not None)
            chosen += kept
        found: dict[Terms, set[RuleRef]] = {}
        for rule in chosen:
            found.setdefault(held[rule], set()).add(rule)
        return {
            terms: rules
            for terms, rules in found.items()
            if not any(terms != other and terms.within(other) for other in found)
        }

    def _terms(self, rule: RuleRef, triple: Triple) -> Terms | None:
        """Returns a row's terms, with the role in the condition if only a token can grant it; None if the row does not
        match the use, or has no column for that condition."""
        if triple.action not in actions_of(rule.actions):
            return None
        when = rule.when
        if self._by_token(rule, triple):
            if "/" not in rule.subject or "when" not in self._source.models[rule.kind].columns:
                return None
            has_role = f"has_role(principal, '{rule.subject}')"
            when = f"{has_role} && ({when})" if when else has_role
        elif not self._means(rule.subject, triple.subject):
            return None
        approval = rule.approval if triple.action in approvable_actions(rule) else None
        if rule.max_calls_per_hour is None or triple.action == DELEGATE:  # lending authority is not charged
            return Terms(when, rule.expires_at, approval=approval)
        return Terms(when, rule.expires_at, rule.max_calls_per_hour, rule.per, approval, rule.id)

    def _by_token(self, rule: RuleRef, triple: Triple) -> bool:
        return rule.subject.startswith("role:") and not self._means(rule.subject, triple.subject)

    def _means(self, written: str, name: str) -> bool:
        if written.startswith("role:"):
            return written in self._above(name)
        return written == name or (name != ANONYMOUS and glob(name, written))

    def _about_object(self, kind: PermissionKind, obj: str) -> tuple[RuleRef, ...]:
        keys = {obj, *self._source.sets.closure((obj,)), f"{place_of(obj)}{WILDCARD}", WILDCARD}
        rules = [rule for key in sorted(keys) for rule in self._rows.get((kind, key), ())]
        return tuple(rule for rule in rules if WILDCARD not in rule.object or glob(obj, rule.object))


def grouped(evidence: UsageEvidence, source: PolicySource | None) -> Groups:
    """Groups the use by terms. Removes from the evidence, and counts there, the uses that no row allows now, unless
    they passed without a row; without a present policy, those that needed an approval."""
    groups: dict[PermissionKind, dict[Terms, Backed]] = {}
    backing = Backing(source) if source else None
    for triple, trace in list(evidence.traces.items()):
        if backing is None and trace.approved:
            evidence.leave_out(APPROVED, next(iter(trace.decisions), ""))
            del evidence.traces[triple]
            continue
        held: Mapping[Terms, Collection[RuleRef]] = backing.terms_of(triple, trace) if backing else {}
        if not held and backing and not trace.without_rule:
            evidence.counts[GONE] += trace.uses
            del evidence.traces[triple]
            continue
        for terms, rows in held.items() or [(PLAIN, ())]:
            backed = groups.setdefault(triple.kind, {}).setdefault(terms, Backed())
            backed.triples.append(triple)
            if rows:
                backed.rows.setdefault(triple.subject, set()).update(rows)
    return {kind: dict(_countable(found, evidence)) for kind, found in groups.items()}


def _countable(groups: Mapping[Terms, Backed], evidence: UsageEvidence) -> Iterator[tuple[Terms, Backed]]:
    """Yields the groups without uses whose limit could not be counted like today, which are left out: one limit counts
    uses with different terms, but the parts of a rule differ only in names."""
    of = Counter(terms.of for terms in groups if terms.of)
    lost = {triple for terms, backed in groups.items() if of[terms.of] > 1 for triple in backed.triples}
    for triple in sorted(lost):
        evidence.leave_out(SPLIT_LIMIT, next(iter(evidence.traces[triple].decisions), ""))
        del evidence.traces[triple]
    for terms, backed in groups.items():
        backed.triples = [triple for triple in backed.triples if triple not in lost]
        if backed.triples:
            yield terms, backed


class Carried(NamedTuple):
    """The parts of the present policy that a suggestion repeats: deny rows, and (member, container) links."""

    denies: tuple[RuleRef, ...] = ()
    roles: tuple[tuple[str, str], ...] = ()
    sets: tuple[tuple[str, str], ...] = ()


NOTHING_CARRIED = Carried()


def carried(source: PolicySource, conditions: Iterable[str]) -> Carried:
    """Returns every deny row that is not a shadow rule, and the roles and sets that these rows and `conditions`
    need."""
    found = {(r.id, r.subject, r.object): r for r in source.own_rules if r.effect == "deny" and not r.shadow}
    denies = tuple(found.values())
    texts = {*conditions, *(rule.when for rule in denies)} - {""}
    asked = [roles_asked(text) for text in texts]
    every = {role for roles in source.roles.parents.values() for role in roles} if None in asked else set[str]()
    roles = {rule.subject for rule in denies}.union(every, *(named for named in asked if named))
    return Carried(
        denies,
        tuple(_links(source.roles.parents, roles)),
        tuple(_links(source.sets.parents, {rule.object for rule in denies})),
    )


def _links(parents: Mapping[str, tuple[str, ...]], containers: set[str]) -> Iterator[tuple[str, str]]:
    children: dict[str, list[str]] = {}
    for member, above in parents.items():
        for container in above:
            children.setdefault(container, []).append(member)
    todo, seen = sorted(containers & children.keys()), set[str]()
    while todo:
        container = todo.pop(0)
        if container not in seen:
            seen.add(container)
            yield from ((member, container) for member in children[container])
            todo += [member for member in children[container] if member in children]


@dataclass(frozen=True, slots=True)
class Present:
    """What a suggestion uses of the present policy. `roles` and `sets` are names by members; `taken` are all names of
    roles, sets and rules; `asking` are the ids of rules with terms; `columns` are those of rows by kind; `source` is
    the policy itself, None if there is none."""

    roles: Mapping[frozenset[str], str] = field(default_factory=dict)
    sets: Mapping[frozenset[str], str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    asking: frozenset[str] = frozenset()
    columns: Mapping[PermissionKind, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(KINDS, COLUMNS))
    source: PolicySource | None = None

    @classmethod
    def of(cls, source: PolicySource) -> Self:
        """Reads a loaded policy. A role with a slash is not used again: tokens may grant it, so its members are
        unknown."""
        taken = {name for links in (source.roles, source.sets) for above in links.parents.values() for name in above}
        taken.update(name for rule in source.own_rules for name in (rule.id, rule.subject, rule.object))
        asks = (
            (rule.id, rule.when, rule.approval, rule.expires_at, rule.max_calls_per_hour) for rule in source.own_rules
        )
        return cls(
            roles=_by_contents(source.roles, lambda name: "/" not in name),
            sets=_by_contents(source.sets, lambda _: True),
            taken=frozenset(taken),
            asking=frozenset(name for name, when, *others in asks if when or others != [None, None, None]),
            columns={kind: tuple(model.columns) for kind, model in source.models.items()},
            source=source,
        )


def _by_contents(links: RoleLinks, fit: Callable[[str], bool]) -> dict[frozenset[str], str]:
    """Returns the names of roles or sets by their direct and indirect members; of two with the same members, the first
    in the order of names."""
    found: dict[frozenset[str], str] = {}
    for name, contents in sorted(links.contents().items()):
        exact = frozenset(each for each in contents if not each.startswith(("role:", "set:")))
        if exact and fit(name):
            found.setdefault(exact, name)
    return found
