"""Finds the rules nearest to a denied question, in one pass over the rules.

A rule's rank is the number of its parts that match (subject, object, action; then expiry, condition, shadow); rules of
equal rank are ordered by the similarity of their other parts to the question. Parts are compared like in the built-in
models.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import compress, islice
from operator import not_
from typing import Literal, NamedTuple, Self

from sidecar.policy import Engine, PolicySource
from sidecar.policy.grammar import ON_SERVERS
from sidecar.policy.patterns import glob, meets_prefix, who
from sidecar.policy.roles import RoleLinks
from sidecar.policy_tools.rule_text import moment
from sidecar.vocabulary import Chain, Link, PermissionKind, RuleRef

MOST = 5
POOL = 200  # rules per question; only within the pool is similarity computed letter by letter
MAX_NAMES = 10_000  # objects that are searched for a hint
ALIKE = 0.8  # minimum similarity for a "did you mean" hint
NEAR_WITH_TWO_WRONG = 0.75  # if two parts do not match, both must be likely typing errors
_ROLE_ALIKE = 0.5  # similarity of a caller to a role

Part = Literal["subject", "object", "action", "expiry", "condition", "shadow"]
PARTS: tuple[Part, ...] = ("subject", "object", "action", "expiry", "condition", "shadow")


class Misfit(NamedTuple):
    """One part of a rule, or column of a Casbin row, that did not match: its text in the rule, and a hint."""

    part: str
    said: str
    hint: str = ""


class NearestRule(NamedTuple):
    """A rule, and why it did not allow. If there are no misfits, another rule denied, or for a row of a Casbin model,
    the rest of the matcher did not match."""

    rule: RuleRef
    misfits: tuple[Misfit, ...]


_NONE: Mapping[str, str] = {}


class Sought(NamedTuple):
    """One denied question. `roles` are the subject's, `sets` those that contain the object; `now_s` is its time in
    seconds since the epoch; `outcomes` are those of conditions by text; `server` is that of a session call, which any
    grant on the server opens, "" for any other call."""

    kind: PermissionKind
    subject: str
    roles: frozenset[str]
    object: str
    sets: frozenset[str]
    action: str
    now_s: float
    outcomes: Mapping[str, str] = _NONE
    server: str = ""

    @classmethod
    def of(
        cls,
        link: Link,
        engine: Engine,
        source: PolicySource,
        chain: Chain,
        now_s: float,
        outcomes: Mapping[str, str] = _NONE,
        server: str = "",
    ) -> Self:
        """Returns the question of a denied link; `server` is that of a session call."""
        roles = next((engine.roles_of(principal) for principal in chain if principal.name == link.subject), frozenset())
        sets = source.sets.closure((link.object,))
        return cls(link.kind, link.subject, roles, link.object, sets, link.action, now_s, outcomes, server)

    def fits(self, rule: RuleRef) -> tuple[bool, ...]:
        """Returns whether each of PARTS matches. A condition that has not run, because its row did not match, is
        assumed to hold."""
        session = bool(self.server)
        on_it = (meets_prefix(rule.object, f"{word}{self.server}/") for word in ON_SERVERS)
        outcome = self.outcomes.get(rule.when, "true") if rule.when and not session else "true"
        return (
            who(self.subject, rule.subject, rule.effect) or rule.subject in self.roles,
            glob(self.object, rule.object) or (any(on_it) if session else rule.object in self.sets),
            session or any(glob(self.action, action) for action in rule.actions),
            rule.expires_at is None or self.now_s < rule.expires_at,
            outcome == "true",
            not rule.shadow,
        )


def nearest(
    sought: Sequence[Sought], rules: Iterable[RuleRef], sets: RoleLinks, most: int = MOST
) -> list[list[NearestRule]]:
    """Returns for each question its nearest allow rules, at most `most`, nearest first. Of subject, object and action,
    at most one differs, or two that are probably typing errors."""
    pools = [_Pool(each) for each in sought]
    names = dict.fromkeys(islice(sets.parents, MAX_NAMES), True)
    for rule in rules:
        if rule.effect == "allow":
            for pool in pools:
                if pool.sought.kind is rule.kind:
                    pool.offer(rule)
        if "*" not in rule.object and len(names) < MAX_NAMES:
            names[rule.object] = True

    def objects(pattern: str) -> list[str]:
        if pattern.startswith("set:"):
            return [name for name in names if pattern in sets.closure((name,))]
        return [name for name in names if glob(name, pattern)] if "*" in pattern else [pattern]

    return [pool.best(most, objects) for pool in pools]


_Objects = Callable[[str], list[str]]
"""Returns the object names known to the policy, up to a bound, that a rule's object matches."""


class _Pool:
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
        glance = sum(_ends(*pair) for pair in _pairs(self.sought, rule, fits))  # a quick estimate of similarity
        entry = ((*score, glance), -self._count, rule)
        (heapq.heappushpop if full else heapq.heappush)(self._heap, entry)

    def best(self, most: int, objects: _Objects) -> list[NearestRule]:
        ranked = []
        for score, _, rule in self._heap:
            alike = _alike(self.sought, rule, self.sought.fits(rule))
            if score[0] >= 2 or alike >= NEAR_WITH_TWO_WRONG:
                ranked.append(((-score[0], -score[1], -alike, rule.id), rule))
        ranked.sort(key=lambda entry: entry[0])
        first = {rule.id: rule for _, rule in reversed(ranked)}
        found = [rule for _, rule in ranked if first[rule.id] is rule][:most]
        return [NearestRule(rule, tuple(_misfits(self.sought, rule, objects))) for rule in found]


def _pairs(sought: Sought, rule: RuleRef, fits: tuple[bool, ...]) -> list[tuple[str, str]]:
    actions = "|".join(rule.actions)
    pairs = ((sought.subject, rule.subject), (sought.object, rule.object), (sought.action, actions))
    return [pair for pair, fit in zip(pairs, fits, strict=False) if not fit]


def _ends(one: str, other: str) -> float:
    most = min(len(one), len(other))
    head = next((at for at in range(most) if one[at] != other[at]), most)
    tail = next((at for at in range(most - head) if one[-1 - at] != other[-1 - at]), most - head)
    return (head + tail) / max(len(one), len(other), 1)


def _alike(sought: Sought, rule: RuleRef, fits: tuple[bool, ...]) -> float:
    found = [
        _ROLE_ALIKE
        if said.startswith(("role:", "set:"))
        else SequenceMatcher(None, asked[:256], said[:256].replace("*", ""), autojunk=False).ratio()
        for asked, said in _pairs(sought, rule, fits)
    ]
    return min(found, default=1.0)


def _misfits(sought: Sought, rule: RuleRef, objects: _Objects) -> Iterator[Misfit]:
    for part in compress(PARTS, map(not_, sought.fits(rule))):
        match part:
            case "subject":
                role = f"{sought.subject} does not have {rule.subject}" if rule.subject.startswith("role:") else ""
                yield Misfit(part, rule.subject, role or _meant(sought.subject, [rule.subject]))
            case "object":
                yield Misfit(part, rule.object, _meant(sought.object, objects(rule.object)))
            case "action":
                yield Misfit(part, "|".join(rule.actions), _meant(sought.action, rule.actions))
            case "expiry":
                assert rule.expires_at is not None
                yield Misfit(part, moment(rule.expires_at), "it has ended")
            case "condition":
                told = {"false": "it gave false", "error": "it failed, or gave no Boolean"}
                yield Misfit(part, rule.when, told.get(sought.outcomes[rule.when], "it is not known how it came out"))
            case "shadow":
                yield Misfit(part, "a shadow rule", "it is only recorded, and allows nothing")


def _meant(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word[:256], [name for name in known if "*" not in name], n=1, cutoff=ALIKE)
    return f'did you mean "{near[0]}"?' if near else ""
