"""Decides one link of a chain by a Casbin model.

A `StockPolicy` is one permission kind, with the interface of `KindPolicy`, which is for the sidecar's own models. A
link that depends on names alone is decided when its rows are looked up, once for each case. A link that reads
attributes, the time or conditions is decided in each call: the whole matcher is then one condition
(`MatcherCondition`), whose outcome holds the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sidecar.errors import Reason
from sidecar.policy.attributes import Attributes
from sidecar.policy.conditions import Condition, ConditionContext
from sidecar.policy.grammar import NONE
from sidecar.policy.link_decision import (
    ASKED,
    BY_ID,
    EngineDifferences,
    LinkAnswer,
    LinkOutcome,
    LinkRows,
    MatcherOutcome,
    RowsDecision,
)
from sidecar.policy.roles import PolicySubject
from sidecar.policy.stock.expression import EvaluationError
from sidecar.policy.stock.model import Effect
from sidecar.policy.stock.reading import EFFECT, WHEN, StockSource, role_options
from sidecar.policy.stock.request import CasbinRequests, RequestTexts
from sidecar.policy.stock.rules import Rules
from sidecar.policy.stock.table import StockTable
from sidecar.settings.policy import CasbinSettings
from sidecar.vocabulary import ANONYMOUS, EngineName, Link, Read, RuleRef

_ALLOWED, _FAILED, _DIFFERS = 1, 2, 4  # bits of `LinkRows.some`
_DIFFERENCE = "compiled rules and pycasbin differ"


@dataclass(frozen=True, eq=False)
class MatcherCondition:
    """A matcher that is evaluated in each call, with the interface of `Condition`."""

    policy: StockPolicy
    texts: RequestTexts
    object: str
    plain: None = None

    @property
    def text(self) -> str:
        return self.policy.table.source.model.matcher

    @property
    def digest(self) -> str:
        return self.policy.digest

    @property
    def names(self) -> Read:
        return self.policy.reader.arguments

    @property
    def from_caller(self) -> bool:
        return self.policy.reader.from_caller

    def evaluate(self, scene: ConditionContext, units: float) -> tuple[MatcherOutcome, Mapping[str, Any], float]:
        try:
            request, read = self.policy.reader.full(self.texts, self.object, scene)
        except EvaluationError as error:
            return MatcherOutcome("error", RowsDecision(False, (), str(error))), {}, units
        outcome, units = self.policy.decided(request, scene, units)
        return outcome, read, units


class Decider(Protocol):
    """Decides by the rows of a model. The decider is the compiled rules or pycasbin."""

    def decide(self, request: Sequence[Any]) -> RowsDecision: ...

    def matching(self, request: Sequence[Any]) -> tuple[Sequence[int], str]: ...


class _Compared:
    """Decides by compiled rules and by pycasbin, and refuses if they differ."""

    def __init__(self, rules: Decider, casbin: Decider) -> None:
        self._rules, self._casbin = rules, casbin

    def decide(self, request: Sequence[Any]) -> RowsDecision:
        ours, theirs = self._rules.decide(request), self._casbin.decide(request)
        return ours if ours.allowed is theirs.allowed else RowsDecision(False, (), _DIFFERENCE)

    def matching(self, request: Sequence[Any]) -> tuple[Sequence[int], str]:
        (ours, failed), (theirs, also_failed) = self._rules.matching(request), self._casbin.matching(request)
        if list(ours) == list(theirs) and bool(failed) is bool(also_failed):
            return ours, failed
        return (), _DIFFERENCE


class StockDecider:
    """Decides by one policy, whichever kinds it serves. `each_call` is true if its matcher is evaluated in each call;
    `rules` are the compiled rules, which tools also read."""

    def __init__(self, source: StockSource, settings: CasbinSettings, attributes: Attributes) -> None:
        self.reader = CasbinRequests(source, settings, attributes)
        self.rules = Rules(source.model, source.rows, source.links, role_options(settings), source.index)
        self.each_call = self.rules.expression.dynamic or not source.is_plain
        self.engine: EngineName = "casbin" if source.foreign else settings.engine
        decider: Decider = self.rules
        if self.engine != "compiled":
            from sidecar.policy.casbin_engine import CasbinEngine  # takes a third of a second to import

            roles = {name: graph.holds for name, graph in self.rules.roles.items()}
            casbin = CasbinEngine(source.model, source.rows, roles, reads_rows=source.reads_rows)
            decider = casbin if self.engine == "casbin" else _Compared(self.rules, casbin)
        self.decide, self.matching = decider.decide, decider.matching


class StockPolicy:
    """Decides all requests of one permission kind."""

    def __init__(
        self,
        table: StockTable,
        decider: StockDecider,
        conditions: Mapping[str, Condition],
        differences: EngineDifferences,
    ) -> None:
        self.kind, self.table, self.decider = table.kind, table, decider
        self.reader, self.digest, self.engine = decider.reader, table.digest, decider.engine
        self._subjects, self._objects = ASKED[table.kind]
        self._conditions, self._differences = conditions, differences

    def find(self, subject: PolicySubject, obj: str, act: str, place: int, *, lends: bool) -> LinkRows:
        texts = self._texts(subject, obj, act)
        if texts is None:
            return LinkRows(self, subject, obj, act, place, lends, [])
        request = self.reader.plain(texts)
        if self.decider.each_call:
            by_default = self.table.source.model.effect.allows_by_default
            is_open = by_default or self.decider.rules.may_match(request)
            conditions = (MatcherCondition(self, texts, obj),) if is_open or self.engine != "compiled" else ()
            return LinkRows(self, subject, obj, act, place, lends, [], _ALLOWED * is_open, conditions)
        decision = self.decider.decide(request)
        some = _ALLOWED * decision.allowed | _FAILED * bool(decision.failed)
        some |= _DIFFERS * (decision.failed == _DIFFERENCE)
        return LinkRows(self, subject, obj, act, place, lends, list(decision.rows), some)

    def judge(self, found: LinkRows, outcomes: Sequence[LinkOutcome], now_s: float) -> LinkAnswer:
        """Decides one link. `outcomes` is that of the matcher, if it is evaluated in each call."""
        about = self.kind, found.subject.name, found.object, found.action
        expired = False
        failed = _DIFFERENCE if found.some & _DIFFERS else "failed" * bool(found.some & _FAILED)
        decision = RowsDecision(bool(found.some & _ALLOWED), tuple(found.rows), failed)
        if outcomes:
            (outcome,) = outcomes
            if isinstance(outcome, str):  # not evaluated: it reads content that the caller has not written yet
                allowed = outcome == "assumed" and bool(found.some & _ALLOWED)
                return LinkAnswer(Link(*about, allowed, None if allowed else Reason.NO_MATCHING_RULE))
            decision, expired = outcome.decision, outcome.expired
        # Without rows the matcher alone decides, over the single row that Casbin then assumes.
        rules = tuple(sorted(map(self.table.rule, decision.rows if len(self.table) else ()), key=BY_ID))
        reason = None if decision.allowed else _reason(decision, expired)
        link = Link(*about, decision.allowed, reason, rules)
        if decision.failed == _DIFFERENCE:
            self._differences.note(link)
        limited = tuple(rule for rule in rules if rule.max_calls_per_hour is not None) if decision.allowed else ()
        ends = [rule.expires_at for rule in rules if rule.expires_at is not None] if decision.allowed else []
        return LinkAnswer(link, self._roles(found.subject, rules), limited, min(ends, default=None))

    def opened(
        self, answer: LinkAnswer, asker: PolicySubject, server: str, now_s: float
    ) -> tuple[LinkAnswer, Iterable[float]]:
        """Returns the answer to a session call, and the times at which it may change. If the policy has names for
        objects on the server, a live row that may concern the caller and allows something opens it, and so does a model
        that allows by default; if all such rows have expired, the reason is EXPIRED. Otherwise the answer is
        unchanged."""
        link, table = answer.link, self.table
        texts = self.reader.caller(asker)
        if link.allowed or link.reason is Reason.DENIED_BY_RULE or texts is None or not self.reader.names_on(server):
            return answer, ()
        rows = self.decider.rules.opening(self.reader.plain(texts))
        ends = [(row, table.end_of(row)) for row in rows]
        live = [row for row, end in ends if end is None or now_s < end]
        times = tuple(end for _, end in ends if end is not None)
        by_default = table.source.model.effect.allows_by_default
        if not live and not by_default:
            return (answer._replace(link=link._replace(reason=Reason.EXPIRED)) if rows else answer), times
        rules = tuple(sorted(map(table.rule, live), key=BY_ID))
        endless = by_default or len(times) < len(ends)
        link = link._replace(allowed=True, reason=None, rules=rules)
        until = None if endless else max(times)
        return answer._replace(link=link, roles=self._roles(asker, rules), until=until), times

    def decided(self, request: Sequence[Any], scene: ConditionContext, units: float) -> tuple[MatcherOutcome, float]:
        """Decides a request with all its attributes. Also returns the remaining units."""
        table = self.table
        if table.source.is_plain or not len(table):
            return _outcome(self.decider.decide(request)), units
        matching, failed = self.decider.matching(request)
        words: list[tuple[int, str]] = []
        expired = False
        for row in matching:
            effect, end, when = table.text(EFFECT, row), table.end_of(row), table.text(WHEN, row)
            if end is not None and scene.now_s >= end:
                expired = expired or effect == "allow"
                continue
            if when != NONE:
                came_out, _, units = self._conditions[when].run(scene, units)
                if came_out != "true" and not (came_out == "error" and effect == "deny"):
                    continue
            words.append((row, effect))
        return _outcome(concluded(table.source.model.effect, words, failed), expired), units

    def __len__(self) -> int:
        return len(self.table)

    def names(self) -> Iterator[str]:
        return self.reader.known(self.table.names())

    def sorted_names(self) -> Sequence[str]:
        return sorted(set(self.names()))

    def objects_of(self, subject: PolicySubject, pattern: str) -> None:
        return None  # a Casbin model may compare in any way

    def subjects_of(self, obj: str, pattern: str) -> None:
        return None

    def may_allow_more(self, subject: PolicySubject | str, obj: str, act: str, *, open_roles: bool) -> bool:
        return True

    def allowed_patterns(self) -> Iterator[str]:
        return self.reader.patterns()

    def _texts(self, subject: PolicySubject, obj: str, act: str) -> RequestTexts | None:
        if not act or not subject.name.startswith((*self._subjects, ANONYMOUS)) or not obj.startswith(self._objects):
            return None
        return self.reader.texts(subject, obj, act)

    def _roles(self, subject: PolicySubject, rules: Iterable[RuleRef]) -> tuple[str, ...]:
        """Returns the roles through which rules match the subject."""
        graph, texts = self.decider.rules.roles.get("g"), self.reader.caller(subject)
        if graph is None or texts is None:
            return ()
        try:
            held = graph.containers(texts.caller, texts.dom if graph.form.by_domain else "")
        except EvaluationError:  # of a condition that did not affect the decision
            return ()
        return tuple(dict.fromkeys(rule.subject for rule in rules if rule.subject in held))


def concluded(effect: Effect, matching: Iterable[tuple[int, str]], failed: str) -> RowsDecision:
    """Applies an effect to the matching rows, given with the texts of their effects, and to a failure after them."""
    allows: list[int] = []
    for row, word in matching:
        if word == "deny" and effect is not Effect.ALLOW_OVERRIDE:
            return RowsDecision(False, (row,))
        if word == "allow":
            allows.append(row)
            if effect in (Effect.PRIORITY, Effect.SUBJECT_PRIORITY):
                break
    stopped = bool(allows) and effect not in (Effect.ALLOW_AND_DENY, Effect.DENY_OVERRIDE)
    if failed and not stopped:
        return RowsDecision(False, (), failed)
    return RowsDecision(bool(allows) or effect.allows_by_default, tuple(allows))


def _outcome(decision: RowsDecision, expired: bool = False) -> MatcherOutcome:
    return MatcherOutcome("error" if decision.failed else "true" if decision.allowed else "false", decision, expired)


def _reason(decision: RowsDecision, expired: bool) -> Reason:
    if decision.rows:
        return Reason.DENIED_BY_RULE
    if expired:
        return Reason.EXPIRED
    return Reason.CONDITION_FALSE if decision.failed else Reason.NO_MATCHING_RULE
