"""What does a chain get for one question, and until when is that so?

A `Walk` is the way of one question through its chain: a case for each link, then those that guardrails add. It is
what an engine remembers of a question. The cases are known; what is left of a call is to run the conditions among
them, in one order and out of one purse. Their outcomes are a key here too: the whole decision is remembered by them,
and lacks nothing but what the conditions read. Without conditions it lacks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sidecar.errors import Reason
from sidecar.policy.cases import Answer, Case, nearest
from sidecar.policy.conditions import Outcome, Purse, Scene
from sidecar.vocabulary import Chain, Decision, Fact, Link, Principal, Question, RowLimit, Rule

MAX_DECISIONS = 32  # of one walk, by the outcomes of its conditions

# CONTRACT 6: of several reasons, the first of these is told.
_PRECEDENCE = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
_NO_ARGUMENTS: Mapping[str, Any] = {}
_Told = list[tuple[int, tuple[Fact, ...]]]


@dataclass(frozen=True, slots=True)
class Step:
    """One case on the way. `place` is where its subject stands in the chain; `lends` if it asks for authority that is
    lent: arguments belong to the question itself, so there are none, and what is listed is asked as what is called."""

    case: Case
    place: int
    lends: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """The grants of the last principal on a server. `rules` are those that live, or as many as are evidence enough."""

    rules: tuple[Rule, ...]
    until: float | None
    roles: tuple[str, ...]

    def of(self, answer: Answer) -> Answer:
        """The answer to a session call: as it was, unless a grant opens it."""
        link = answer.link
        if link.allowed or link.reason is Reason.DENIED_BY_RULE:
            return answer
        if not self.rules:
            return replace(answer, link=link._replace(reason=Reason.EXPIRED))
        opened = link._replace(allowed=True, reason=None, rules=self.rules)
        return replace(answer, link=opened, until=self.until, roles=self.roles)


@dataclass(slots=True)
class Walk:
    """See above. `names` are the chain's; of `steps`, each becomes one link, and the first of them are the chain's own.
    In force while `since` <= now < `until`, in seconds since the epoch."""

    revision: str
    names: tuple[str, ...]
    steps: tuple[Step, ...]
    since: float
    until: float
    limited: bool
    opening: Opening | None
    roles_of: Callable[[Principal], frozenset[str]]
    asking: tuple[tuple[int, Step], ...] = ()
    decisions: dict[tuple[Outcome, ...], Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asking = tuple((index, step) for index, step in enumerate(self.steps) if step.case.conditions)

    def decision(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """The decision, with how each condition came out."""
        if not self.asking:
            return self._known(())
        outcomes, told = self._run(chain, question, now_s, listing=False)
        return _with_facts(self._known(outcomes), told)

    def may_list(self, chain: Chain, question: Question, now_s: float) -> bool:
        """Whether it is allowed if all that the caller will write is as it should be."""
        outcomes = self._run(chain, question, now_s, listing=True)[0] if self.asking else ()
        return self._known(outcomes).allowed

    def _run(
        self, chain: Chain, question: Question, now_s: float, *, listing: bool
    ) -> tuple[tuple[Outcome, ...], _Told]:
        """How each condition comes out, and what is to be told of it, by the index of the link."""
        purse = Purse()
        outcomes: list[Outcome] = []
        told: _Told = []
        for index, step in self.asking:
            arguments = _NO_ARGUMENTS if step.lends else question.arguments
            scene = Scene(chain, step.place, question, arguments, now_s, self.roles_of)
            facts: list[Fact] = []
            for condition in step.case.conditions:
                if listing and condition.from_caller and not step.lends:
                    outcomes.append("assumed")
                    continue
                outcome, read = condition.run(scene, purse)
                outcomes.append(outcome)
                facts.append(Fact(condition.digest, outcome, read))
            told.append((index, tuple(facts)))
        return tuple(outcomes), told

    def _known(self, outcomes: tuple[Outcome, ...]) -> Decision:
        known = self.decisions.get(outcomes)
        if known is None:
            if len(self.decisions) >= MAX_DECISIONS:
                self.decisions.clear()
            known = self.decisions[outcomes] = self._decided(outcomes)
        return known

    def _decided(self, outcomes: tuple[Outcome, ...]) -> Decision:
        if not self.names:  # nobody asks: denied
            return Decision(False, self.revision, (), Reason.NO_MATCHING_RULE)
        answers = self._answers(outcomes)
        last = answers[len(self.names) - 1]
        reason = _first([answer.link.reason for answer in answers if not answer.link.allowed])
        return Decision(
            allowed=reason is None,
            revision=self.revision,
            links=tuple(answer.link for answer in answers),
            reason=reason,
            limits=self._limits(last.limited) if self.limited and reason is None else (),
            until=nearest(answer.until for answer in answers) if reason is None else None,
            roles=last.roles,
            would_deny=_names(answer.would_deny for answer in answers),
            would_allow=_names(answer.would_allow for answer in answers),
        )

    def _answers(self, outcomes: tuple[Outcome, ...]) -> list[Answer]:
        """The answer to each step, each taking the outcomes of its own conditions."""
        left = iter(outcomes)
        answers = [step.case.answer(tuple(next(left) for _ in step.case.conditions)) for step in self.steps]
        if self.opening is not None:
            last = len(self.names) - 1
            answers[last] = self.opening.of(answers[last])
        return answers

    def _limits(self, rules: Iterable[Rule]) -> tuple[RowLimit, ...]:
        counted = {"subject": self.names[-1], "origin": self.names[0], "rule": ""}
        return tuple(
            RowLimit(rule.id, counted[rule.per], rule.max_calls_per_hour)
            for rule in rules
            if rule.max_calls_per_hour is not None
        )


def _with_facts(decision: Decision, told: _Told) -> Decision:
    """By position, not by _replace(): this is on the way of every call, and that takes four times as long."""
    links = list(decision.links)
    for index, facts in told:
        links[index] = Link._make((*links[index][:-1], facts))
    return Decision._make((*decision[:2], tuple(links), *decision[3:]))


def _first(reasons: list[Reason | None]) -> Reason | None:
    """The reason that is told; None if there is nothing to tell."""
    if not reasons:
        return None
    return next((reason for reason in _PRECEDENCE if reason in reasons), Reason.NO_MATCHING_RULE)


def _names(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in found for name in names))
