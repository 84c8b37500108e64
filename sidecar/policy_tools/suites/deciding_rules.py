"""Finds the rules that a decision rests on, for coverage.

The grounds of an answer, by the ids of the rules:

    allowed                     on every link the allow rules that match
    denied by a rule            the deny rules that match
    condition-false, expired    the allow rules whose condition did not hold, or that are expired, and nothing else
    any                         shadow rules that would have changed it

Rules that failed by condition or expiry are found by the patterns of the built-in models; all else is reported by the
engine. A test exercises a rule if it is among the grounds of one of the test's answers. A session opened by any grant
exercises no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sidecar.errors import Reason
from sidecar.policy import Engine, PolicySource
from sidecar.policy.patterns import glob, who
from sidecar.vocabulary import Chain, Decision, Link, PermissionKind, Principal, RuleRef

MAX_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class CoveredRules:
    """How much of a policy was exercised. `missing` is one `RuleRef` for each id that no answer rested on, in the order
    of files and lines; `rules` and `exercised` count ids.
    """

    rules: int
    exercised: int
    missing: tuple[RuleRef, ...]

    @property
    def percent(self) -> float:
        """Return 0 to 100; 100 if there is nothing to exercise."""
        return 100.0 * self.exercised / self.rules if self.rules else 100.0


class DecidingRules:
    """Finds the deciding rules under one policy."""

    def __init__(self, engine: Engine, source: PolicySource) -> None:
        self._engine = engine
        self._source = source
        self._index: _Waverers | None = None  # needed by few runs, and as long as the policy

    def of(self, decision: Decision, chain: Chain, now_s: float, *, session: bool = False) -> frozenset[str]:
        """Return the ids of the rules that the answer rests on."""
        if decision.allowed:
            links = [link for at, link in enumerate(decision.links) if not (session and at == len(chain) - 1)]
            rules = [rule for link in links for rule in link.rules if rule.effect == "allow"]
        else:
            known_as = {principal.name: principal for principal in chain}
            links = [link for link in decision.links if not link.allowed]
            rules = [rule for link in links for rule in link.rules]
            rules += [rule for link in links for rule in self._wavering(link, known_as[link.subject], now_s)]
        return frozenset((*decision.would_deny, *decision.would_allow, *(rule.id for rule in rules)))

    def _wavering(self, link: Link, principal: Principal, now_s: float) -> Iterator[RuleRef]:
        """Yield the allow rules that match a denied link in all but condition or expiry, if that is the reason."""
        if link.reason not in (Reason.CONDITION_FALSE, Reason.EXPIRED):
            return
        if self._index is None:
            self._index = _Waverers(self._source)
        expired = link.reason is Reason.EXPIRED
        for rule in self._index.matching(link, self._engine.roles_of(principal)):
            over = rule.expires_at is not None and rule.expires_at <= now_s
            if over is expired:
                yield rule


class _Waverers:
    """The allow rules that have a condition or an expiry, by subject."""

    def __init__(self, source: PolicySource) -> None:
        self._sets = source.sets
        self._exact: dict[tuple[PermissionKind, str], list[RuleRef]] = {}
        self._patterns: dict[PermissionKind, list[RuleRef]] = {}
        self._known: dict[tuple[object, ...], tuple[RuleRef, ...]] = {}
        for rule in source.rules:
            if rule.effect == "allow" and not rule.shadow and (rule.when or rule.expires_at is not None):
                if "*" in rule.subject:
                    self._patterns.setdefault(rule.kind, []).append(rule)
                else:
                    self._exact.setdefault((rule.kind, rule.subject), []).append(rule)

    def matching(self, link: Link, roles: frozenset[str]) -> tuple[RuleRef, ...]:
        """Return those that match subject, object and action of a link."""
        key = (link.kind, link.subject, roles, link.object, link.action)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[key] = tuple(self._found(link, roles))
        return known

    def _found(self, link: Link, roles: frozenset[str]) -> Iterator[RuleRef]:
        named = [rule for name in (link.subject, *sorted(roles)) for rule in self._exact.get((link.kind, name), ())]
        within = self._sets.closure((link.object,))
        for rule in (*named, *self._patterns.get(link.kind, ())):
            if _matches(rule, link, roles, within):
                yield rule


def _matches(rule: RuleRef, link: Link, roles: frozenset[str], within: frozenset[str]) -> bool:
    """Whether subject, object and action match. `roles` are the subject's, `within` the sets that hold the object."""
    return (
        (who(link.subject, rule.subject, rule.effect) or rule.subject in roles)
        and (glob(link.object, rule.object) or rule.object in within)
        and any(glob(link.action, action) for action in rule.actions)
    )


def covered(rules: Iterable[RuleRef], exercised: frozenset[str]) -> CoveredRules:
    """Return how many of the rules were exercised, and which were not."""
    ids: dict[str, RuleRef] = {}
    for rule in rules:
        ids.setdefault(rule.id, rule)
    missing = [rule for name, rule in ids.items() if name not in exercised]
    missing.sort(key=lambda rule: (rule.file, rule.line, rule.id))
    return CoveredRules(len(ids), len(ids) - len(missing), tuple(missing))
