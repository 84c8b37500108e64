"""What is the answer to one link, and what does it stand on?

A `Case` is one (subject with its roles, object, action) of one permission kind, for as long as none of its rows
expires. Which rows may match is known once; what is left of a call is to run the conditions among them. Their
outcomes, true, false, error or (while listing) assumed, are a key: Casbin's answer to each is remembered too. So a
question that was asked before costs a look-up and its conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from sidecar.errors import Reason
from sidecar.policy.conditions import Condition, Outcome
from sidecar.policy.grammar import NONE
from sidecar.policy.judge import Judge, Outcomes, Subject
from sidecar.policy.memo import Memo
from sidecar.policy.model import Model
from sidecar.policy.roles import Links
from sidecar.vocabulary import ANONYMOUS, Link, PermissionKind, Principal, Rule

MEMO_SIZE = 2048
MAX_REMEMBERED_CHARS = 512  # longer objects (resource URIs) are decided each time
MAX_ANSWERS = 64

# CONTRACT 1.2, 1.3: who is asked about what. Whatever else arrives is denied before Casbin (threats K1, K12).
_ASKS: Mapping[PermissionKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    PermissionKind.USER_TO_NHI: (("user:",), ("nhi:",)),
    PermissionKind.NHI_TO_NHI: (("nhi:",), ("nhi:",)),
    PermissionKind.AGENT_TO_TOOL: (("user:", "nhi:"), ("tool:", "prompt:", "resource:", "nhi:")),
    PermissionKind.GUARDRAIL: (("user:", "nhi:"), ("tool:", "prompt:", "resource:", "nhi:")),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One link's answer. `link` is without facts; `limited` are the rules whose limit applies; `until` in seconds."""

    link: Link
    limited: tuple[Rule, ...] = ()
    until: float | None = None
    roles: tuple[str, ...] = ()
    would_deny: tuple[str, ...] = ()
    would_allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asker:
    """A principal as rows see it. `roles` are all that it has, from the token and from `g` rows."""

    name: str
    granted: frozenset[str]
    roles: frozenset[str]


class Roles:
    """All roles of a principal, remembered."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self._memo: Memo[tuple[str, frozenset[str]], Asker] = Memo(MEMO_SIZE)

    def asker(self, principal: Principal) -> Asker:
        key = (principal.name, principal.roles)
        known = self._memo.get(key)
        if known is None:
            roles = principal.roles | self.links.closure((principal.name, *principal.roles))
            known = Asker(principal.name, principal.roles, roles)
            self._memo.put(key, known)
        return known

    def behind(self, asker: Asker, rules: Iterable[Rule]) -> tuple[str, ...]:
        """The roles on the ways by which these rules mean the principal, from rows or its token, each once."""
        found: dict[str, None] = {}
        for rule in rules:
            if rule.subject.startswith("role:"):
                found.update(dict.fromkeys(self.links.way((asker.name, *asker.granted), rule.subject)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Row:
    """One rule, the texts that Casbin is given for its expiry and condition, and where it stands among the judge's."""

    rule: Rule
    index: int
    expires: str
    when: str


class Docket:
    """All cases of one permission kind."""

    def __init__(
        self,
        model: Model,
        rules: Sequence[tuple[Rule, Sequence[str]]],
        conditions: Mapping[str, Condition],
        roles: Roles,
        sets: Links,
    ) -> None:
        self.kind = model.kind
        self.roles = roles
        self.conditions = conditions
        self.judge = Judge(model, [columns for _, columns in rules], sets)
        expires, when = model.columns.index("expires_at"), model.columns.index("when")
        self.rows = [Row(rule, i, columns[expires], columns[when]) for i, (rule, columns) in enumerate(rules)]
        self._memo: Memo[tuple[str, frozenset[str], str, str], Case] = Memo(MEMO_SIZE)

    def case(self, asker: Asker, obj: str, act: str, now_s: float) -> Case:
        """The case as it stands now."""
        key = (asker.name, asker.granted, obj, act)
        known = self._memo.get(key)
        if known is None or not known.since <= now_s < known.until:
            known = self._new_case(asker, obj, act, now_s)
            if len(obj) <= MAX_REMEMBERED_CHARS:
                self._memo.put(key, known)
        return known

    def _new_case(self, asker: Asker, obj: str, act: str, now_s: float) -> Case:
        rows: list[Row] = []
        if self._may_be_asked(asker, obj, act):
            found = self.judge.candidates(Subject.of(asker.name, asker.roles), obj, act)
            rows = [self.rows[index] for index in found]
        since, until = window([row.rule.expires_at for row in rows], now_s)
        texts = sorted({row.rule.when for row in rows if row.rule.when})
        return Case(
            docket=self,
            asker=asker,
            object=obj,
            action=act,
            since=since,
            until=until,
            live={row.expires: row.rule.expires_at is None or now_s < row.rule.expires_at for row in rows},
            rows=tuple(row for row in rows if not row.rule.shadow),
            shadows=tuple(row for row in rows if row.rule.shadow),
            conditions=tuple(self.conditions[text] for text in texts),
        )

    def _may_be_asked(self, asker: Asker, obj: str, act: str) -> bool:
        if not self.rows or not act:
            return False
        subjects, objects = _ASKS[self.kind]
        anonymous = asker.name == ANONYMOUS and self.kind is not PermissionKind.NHI_TO_NHI
        return (anonymous or asker.name.startswith(subjects)) and obj.startswith(objects)


@dataclass(slots=True)
class Case:
    """See above. In force while `since` <= now < `until`, in seconds since the epoch."""

    docket: Docket
    asker: Asker
    object: str
    action: str
    since: float
    until: float
    live: Mapping[str, bool]
    rows: tuple[Row, ...]
    shadows: tuple[Row, ...]
    conditions: tuple[Condition, ...]
    answers: dict[tuple[Outcome, ...], Answer] = field(default_factory=dict)

    @property
    def tells(self) -> bool:
        """Whether there is anything to say, if this is asked of a guardrail."""
        if self.conditions:
            return True
        answer = self.answer(())
        return not answer.link.allowed or bool(answer.would_deny)

    def answer(self, outcomes: tuple[Outcome, ...]) -> Answer:
        """The answer, by how each condition came out."""
        known = self.answers.get(outcomes)
        if known is None:
            if len(self.answers) >= MAX_ANSWERS:
                self.answers.clear()
            known = self.answers[outcomes] = self._decided(outcomes)
        return known

    def _decided(self, outcomes: tuple[Outcome, ...]) -> Answer:
        came_out: dict[str, Outcome] = {NONE: "true"}
        came_out.update(zip((condition.text for condition in self.conditions), outcomes, strict=True))
        holds: dict[tuple[str, str], bool] = {
            (row.when, row.rule.effect): _holds(came_out[row.when], row.rule.effect)
            for row in (*self.rows, *self.shadows)
        }
        matching = [row.rule for row in self.rows if self.live[row.expires] and holds[row.when, row.rule.effect]]
        denies = tuple(rule for rule in matching if rule.effect == "deny")
        allows = tuple(rule for rule in matching if rule.effect == "allow")
        allowed = self._ask(Outcomes(self.live, holds), allows, denies)
        rests_on = denies or allows
        would = [row.rule for row in self.shadows if self.live[row.expires] and holds[row.when, row.rule.effect]]
        return Answer(
            link=Link(
                kind=self.docket.kind,
                subject=self.asker.name,
                object=self.object,
                action=self.action,
                allowed=allowed,
                reason=None if allowed else self._reason(denies, holds),
                rules=rests_on,
            ),
            limited=tuple(rule for rule in allows if rule.max_calls_per_hour is not None) if allowed else (),
            until=nearest(rule.expires_at for rule in allows) if allowed else None,
            roles=self.docket.roles.behind(self.asker, rests_on),
            would_deny=tuple(rule.id for rule in would if rule.effect == "deny"),
            would_allow=tuple(rule.id for rule in would if rule.effect == "allow"),
        )

    def _ask(self, outcomes: Outcomes, allows: Sequence[Rule], denies: Sequence[Rule]) -> bool:
        """Casbin's word. It must agree with the rows that the link will say it rests on, or nothing is allowed."""
        guardrail = self.docket.kind is PermissionKind.GUARDRAIL
        expected = not denies and (guardrail or bool(allows))
        if not self.rows:
            return expected
        subject = Subject.of(self.asker.name, self.asker.roles)
        indexes = [row.index for row in self.rows]
        allowed = self.docket.judge.allows(subject, self.object, self.action, indexes, outcomes)
        if allowed is not expected:
            raise RuntimeError(f"Casbin and the rows disagree about {self.docket.kind.value}")
        return allowed

    def _reason(self, denies: Sequence[Rule], holds: Mapping[tuple[str, str], bool]) -> Reason:
        """CONTRACT 6: a rule denies; a grant has expired that would have held; a condition is not met; no rule."""
        if denies:
            return Reason.DENIED_BY_RULE
        allows = [row for row in self.rows if row.rule.effect == "allow"]
        if any(not self.live[row.expires] and holds[row.when, "allow"] for row in allows):
            return Reason.EXPIRED
        if any(self.live[row.expires] for row in allows):
            return Reason.CONDITION_FALSE
        return Reason.EXPIRED if allows else Reason.NO_MATCHING_RULE


def _holds(outcome: Outcome, effect: str) -> bool:
    """CONTRACT 2.1: what is not plainly true or false is no match on an allow row, and a match on a deny row.
    CONTRACT 1.4: what is assumed while listing counts as true on an allow row, and as false on a deny row."""
    if outcome == "error":
        return effect == "deny"
    if outcome == "assumed":
        return effect == "allow"
    return outcome == "true"


def window(ends: Sequence[float | None], now_s: float) -> tuple[float, float]:
    """From when and until when the same of some expiries have passed: `since` <= now < `until`."""
    since = max((end for end in ends if end is not None and end <= now_s), default=-inf)
    return since, min((end for end in ends if end is not None and end > now_s), default=inf)


def nearest(ends: Iterable[float | None]) -> float | None:
    """The nearest of some expiries; None when nothing expires."""
    return min([end for end in ends if end is not None], default=None)
