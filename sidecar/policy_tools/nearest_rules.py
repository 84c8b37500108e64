"""Finds the rules nearest to a denied question.

One pass over the rules keeps a bounded pool of the nearest. A rule's rank is the number of its parts that match
(subject, object, action; then expiry, condition, shadow); ties are broken by the similarity of the other parts to the
question. Parts are compared as in the built-in models.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import SequenceMatcher, get_close_matches
from typing import Literal, NamedTuple

from sidecar.policy.grammar import ON_SERVERS
from sidecar.policy.patterns import glob, meets_prefix, who
from sidecar.policy.roles import RoleLinks
from sidecar.vocabulary import PermissionKind, RuleRef

MOST = 5
POOL = 200  # per question; within the pool, similarity is compared letter by letter
MAX_NAMES = 10_000  # objects that are searched for a hint
ALIKE = 0.8  # minimum similarity for a "did you mean" hint
NEAR_WITH_TWO_WRONG = 0.75  # if two parts do not match, both must be likely typing errors
_ROLE_ALIKE = 0.5  # similarity of a caller to a role

Part = Literal["subject", "object", "action", "expiry", "condition", "shadow"]
PARTS: tuple[Part, ...] = ("subject", "object", "action", "expiry", "condition", "shadow")


class Misfit(NamedTuple):
    """One part of a rule that did not match: its text in the rule, and a hint."""

    part: Part
    said: str
    hint: str = ""


class NearestRule(NamedTuple):
    """A rule, and why it did not allow. Without misfits it would have allowed, but for a rule that denies."""

    rule: RuleRef
    misfits: tuple[Misfit, ...]


@dataclass(frozen=True, slots=True)
class Sought:
    """One denied question. `roles` are the subject's, `sets` those that hold the object; `outcomes` are the conditions'
    outcomes by text; `server` is set for a session call, which any grant on that server opens.
    """

    kind: PermissionKind
    subject: str
    roles: frozenset[str]
    object: str
    sets: frozenset[str]
    action: str
    now_s: float
    outcomes: Mapping[str, str] = field(default_factory=dict)
    server: str = ""

    def fits(self, rule: RuleRef) -> tuple[bool, ...]:
        """Return whether each of PARTS matches. A condition that did not run, of a row that did not match, counts as
        matching.
        """
        session = bool(self.server)
        outcome = self.outcomes.get(rule.when, "true") if rule.when and not session else "true"
        return (
            who(self.subject, rule.subject, rule.effect) or rule.subject in self.roles,
            self._is_on(rule.object) if session else glob(self.object, rule.object) or rule.object in self.sets,
            session or any(glob(self.action, action) for action in rule.actions),
            rule.expires_at is None or self.now_s < rule.expires_at,
            outcome == "true",
            not rule.shadow,
        )

    def _is_on(self, pattern: str) -> bool:
        prefixes = (f"{word}{self.server}/" for word in ON_SERVERS)
        return glob(self.object, pattern) or any(meets_prefix(pattern, prefix) for prefix in prefixes)


def nearest(
    sought: Sequence[Sought], rules: Iterable[RuleRef], sets: RoleLinks, most: int = MOST
) -> list[list[NearestRule]]:
    """Return for each question the rules that would have allowed it, but for a part or two; the nearest first."""
    pools = [_Pool(each) for each in sought]
    by_kind: dict[PermissionKind, list[_Pool]] = {}
    for pool in pools:
        by_kind.setdefault(pool.sought.kind, []).append(pool)
    names = dict.fromkeys(itertools.islice(sets.parents, MAX_NAMES), True)
    for rule in rules:
        if rule.effect == "allow":
            for pool in by_kind.get(rule.kind, ()):
                pool.offer(rule)
        if "*" not in rule.object and len(names) < MAX_NAMES:
            names[rule.object] = True
    return [pool.best(most, _Objects(sets, names)) for pool in pools]


@dataclass(frozen=True, slots=True)
class _Objects:
    """The object names that the policy knows, up to a bound."""

    sets: RoleLinks
    names: Iterable[str]

    def that_fit(self, pattern: str) -> list[str]:
        """Return those that a rule's object matches."""
        if pattern.startswith("set:"):
            return [name for name in self.names if pattern in self.sets.closure((name,))]
        return [name for name in self.names if glob(name, pattern)] if "*" in pattern else [pattern]


class _Pool:
    """The nearest rules so far."""

    def __init__(self, sought: Sought) -> None:
        self.sought = sought
        self._heap: list[tuple[tuple[int, int, float], int, RuleRef]] = []
        self._count = 0

    def offer(self, rule: RuleRef) -> None:
        fits = self.sought.fits(rule)
        score = (sum(fits[:3]), sum(fits))
        full = len(self._heap) >= POOL
        if score[0] == 0 or (full and score < self._heap[0][0][:2]):
            return
        self._count += 1
        entry = ((*score, _glance(self.sought, rule, fits)), -self._count, rule)
        if full:
            heapq.heappushpop(self._heap, entry)
        else:
            heapq.heappush(self._heap, entry)

    def best(self, most: int, objects: _Objects) -> list[NearestRule]:
        """Return the nearest rules, each id once."""
        ranked = []
        for score, _, rule in self._heap:
            fits = self.sought.fits(rule)
            alike = _alike(self.sought, rule, fits)
            if sum(fits[:3]) >= 2 or alike >= NEAR_WITH_TWO_WRONG:
                ranked.append(((-score[0], -score[1], -alike, rule.id), rule, fits))
        ranked.sort(key=lambda entry: entry[0])
        found: dict[str, NearestRule] = {}
        for _, rule, fits in ranked:
            if rule.id not in found:
                found[rule.id] = NearestRule(rule, tuple(_misfits(self.sought, rule, fits, objects)))
            if len(found) == most:
                break
        return list(found.values())


def _pairs(sought: Sought, rule: RuleRef, fits: tuple[bool, ...]) -> list[tuple[str, str]]:
    """Return the question's and the rule's text for each part that does not match."""
    pairs = (
        (sought.subject, rule.subject),
        (sought.object, rule.object),
        (sought.action, "|".join(rule.actions)),
    )
    return [pair for pair, fit in zip(pairs, fits, strict=False) if not fit]


def _glance(sought: Sought, rule: RuleRef, fits: tuple[bool, ...]) -> float:
    """Return a quick estimate of similarity, by the beginnings and ends of two names."""
    return sum(_ends(*pair) for pair in _pairs(sought, rule, fits))


def _ends(one: str, other: str) -> float:
    most = min(len(one), len(other))
    head = next((at for at in range(most) if one[at] != other[at]), most)
    tail = next((at for at in range(most - head) if one[-1 - at] != other[-1 - at]), most - head)
    return (head + tail) / max(len(one), len(other), 1)


def _alike(sought: Sought, rule: RuleRef, fits: tuple[bool, ...]) -> float:
    """Return the least similarity of the parts that do not match; 1 if all match."""
    found = [
        _ROLE_ALIKE if said.startswith(("role:", "set:")) else _likeness(asked, said)
        for asked, said in _pairs(sought, rule, fits)
    ]
    return min(found, default=1.0)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one[:256], other[:256].replace("*", ""), autojunk=False).ratio()


def _misfits(sought: Sought, rule: RuleRef, fits: tuple[bool, ...], objects: _Objects) -> Iterable[Misfit]:
    for part, fit in zip(PARTS, fits, strict=True):
        if not fit:
            yield _misfit(part, sought, rule, objects)


def _misfit(part: Part, sought: Sought, rule: RuleRef, objects: _Objects) -> Misfit:
    match part:
        case "subject":
            if rule.subject.startswith("role:"):
                return Misfit(part, rule.subject, f"{sought.subject} does not have {rule.subject}")
            return Misfit(part, rule.subject, _meant(sought.subject, [rule.subject]))
        case "object":
            return Misfit(part, rule.object, _meant(sought.object, objects.that_fit(rule.object)))
        case "action":
            return Misfit(part, "|".join(rule.actions), _meant(sought.action, rule.actions))
        case "expiry":
            assert rule.expires_at is not None
            return Misfit(part, moment(rule.expires_at), "it has ended")
        case "condition":
            outcome = sought.outcomes[rule.when]
            return Misfit(part, rule.when, _OUTCOMES.get(outcome, "it is not known how it came out"))
        case "shadow":
            return Misfit(part, "a shadow rule", "it is only recorded, and allows nothing")


_OUTCOMES = {"false": "it gave false", "error": "it failed, or gave no Boolean"}


def _meant(word: str, known: Iterable[str]) -> str:
    """Return `did you mean "…"?`, or "" when nothing is similar."""
    near = get_close_matches(word[:256], [name for name in known if "*" not in name], n=1, cutoff=ALIKE)
    return f'did you mean "{near[0]}"?' if near else ""


def moment(at_s: float) -> str:
    """Format seconds since the epoch as RFC 3339."""
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
