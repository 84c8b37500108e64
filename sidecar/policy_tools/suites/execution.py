"""Runs one policy test.

The engine that serves calls decides. A test about limits also uses their limiter, over a store in memory that only this
test uses, on a clock that advances only between calls; it takes no real time, and tests do not affect each other.

For coverage, the grounds of an answer are ids of rules:

    allowed                     on every link the allow rules that match
    denied by a rule            the deny rules that match
    condition-false, expired    the allow rules whose condition did not hold or that are expired, and no others
    any                         shadow rules that would have changed it

Rules that failed by condition or expiry are found by the matching of the built-in models; the engine reports all
others. A test exercises the rules that are among the grounds of its answers. The last link of a session call, which any
grant allows, has no grounds.
"""

from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sidecar.errors import Reason, Refusal
from sidecar.limits import Budgets, Limiter, LimitPlan, plan_charges
from sidecar.limits.memory_store import MemoryCounters
from sidecar.policy import Engine, PolicySource, grammar
from sidecar.policy_tools.nearest_rules import Sought
from sidecar.policy_tools.rule_text import approval_text
from sidecar.policy_tools.suites.loading import ListExpectation, PolicyTest
from sidecar.policy_tools.suites.suite_schema import Repeat, listed_question
from sidecar.protocols.mcp.messages import server_question
from sidecar.vocabulary import Answer, Call, Chain, Decision, Link, PermissionKind, Principal, Question, RuleRef

T = TypeVar("T")
_FOR_EVER_S = 1e9  # no lease of a slot ends before its call
_ONCE = Repeat(times=1)


class TestOutcome(NamedTuple):
    """The outcome of a test. `decision` is the policy's answer to the last call, at `now_s`; `allowed`, `reason` and
    `at` (the number of the refused call, from 1, of a test about limits; otherwise 0) include limits. `limits` are
    those that the last call was charged to, or that refused it. `rests_on` are the ids of the rules that led to the
    answer, if they are needed; `shows` are the names in a list, None for a call; `waits` is the reason why a call waits
    for an approval, otherwise ""."""

    allowed: bool
    decision: Decision
    now_s: float
    reason: Reason | None = None
    at: int = 0
    limits: tuple[str, ...] = ()
    rests_on: frozenset[str] = frozenset()
    shows: tuple[str, ...] | None = None
    waits: str = ""

    @property
    def answer(self) -> Answer:
        return "allow" if self.allowed else "approval" if self.waits else "deny"


class CoveredRules(NamedTuple):
    """How many rules of a policy were exercised, by id. `missing` are the others, in the order of files and lines."""

    rules: int
    exercised: int
    missing: tuple[RuleRef, ...]

    @property
    def percent(self) -> float:
        """From 0 to 100; 100 if there is no rule."""
        return 100.0 * self.exercised / self.rules if self.rules else 100.0


def covered(rules: Iterable[RuleRef], exercised: frozenset[str]) -> CoveredRules:
    first = {rule.id: rule for rule in reversed(list(rules))}
    missing = [rule for name, rule in first.items() if name not in exercised]
    missing.sort(key=lambda rule: (rule.file, rule.line, rule.id))
    return CoveredRules(len(first), len(first) - len(missing), tuple(missing))


@dataclass(slots=True)
class TestBench:
    """Runs tests. `now_s` is the time of tests without one; `known` are the entries of lists without a catalogue, by
    prefix (`tool:github/`); `exercised` collects the ids of the rules that led to answers, None without coverage."""

    engine: Engine
    source: PolicySource
    budgets: Budgets
    now_s: float
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)
    exercised: set[str] | None = None
    _wavering_by: dict[tuple[PermissionKind, str], list[RuleRef]] | None = None  # few runs need it

    def run(self, test: PolicyTest) -> TestOutcome:
        if test.listing is not None:
            return self._list(test, test.listing)
        assert test.question is not None
        return self._repeat(test, test.question)

    def _time_of(self, test: PolicyTest) -> float:
        return self.now_s if test.now_s is None else test.now_s

    def _grounds(self, test: PolicyTest, decision: Decision, now_s: float) -> frozenset[str]:
        """Returns the ids of the rules that led to the answer; none unless coverage or the test needs them, because
        finding them can take as long as the answer."""
        if self.exercised is None and test.expect.rule is None:
            return frozenset()
        found = self.rests_on(decision, test.chain, now_s, session=test.session or test.listing is not None)
        if self.exercised is not None:
            self.exercised |= found
        return found

    def _repeat(self, test: PolicyTest, question: Question) -> TestOutcome:
        """Makes all calls, but stops at the first that is refused. Limits are charged only if the test is about them:
        it has a `repeat`, or expects `limits`."""
        repeat, start_s = test.repeat or _ONCE, self._time_of(test)
        limited = test.repeat is not None or test.expect.limits is not None
        ledger, ask = _Ledger(repeat.takes), self.engine.enter if test.session else self.engine.decide
        call = Call("mcp", "", question.server, question.action, (question,), session=test.session)
        for index in range(repeat.times):
            now_s = start_s + index * repeat.every
            decision = ask(test.chain, question, now_s)
            rests_on = self._grounds(test, decision, now_s)
            if not decision.allowed:
                return TestOutcome(False, decision, now_s, decision.reason, index + 1 if limited else 0, (), rests_on)
            if waits := self._waits(test, decision):
                return TestOutcome(False, decision, now_s, rests_on=rests_on, waits=waits)
            if not limited:
                break
            plan = plan_charges(self.budgets, test.chain, self.engine.roles_of, call, decision)
            refusal = ledger.take(plan, now_s)
            if refusal is not None:
                return TestOutcome(False, decision, now_s, refusal.reason, index + 1, ledger.limits, rests_on)
        return TestOutcome(True, decision, now_s, None, 0, ledger.limits, rests_on)

    def _waits(self, test: PolicyTest, decision: Decision) -> str:
        """Returns why an allowed call waits for an approval; "" if it needs none, or the test's approvers give it."""
        if not decision.approvals:
            return ""
        if test.approvers:
            return self.engine.objection(test.approvers, test.chain, decision)
        return "; ".join(dict.fromkeys(f"{rule.id} demands {_demand(rule)}" for rule in decision.approvals))

    def _list(self, test: PolicyTest, listing: ListExpectation) -> TestOutcome:
        """Decides the list itself as a session call, then each entry as the sidecar does when it filters a list."""
        now_s = self._time_of(test)
        asked = server_question(listing.server, f"{listing.member}/list")
        decision = self.engine.enter(test.chain, asked, now_s)
        rests_on = self._grounds(test, decision, now_s)
        if not decision.allowed:
            return TestOutcome(False, decision, now_s, decision.reason, rests_on=rests_on)
        known = self.known.get(f"{listing.member.removesuffix('s')}:{listing.server}/", ())
        names = known if listing.names is None else listing.names
        shown = [name for name in names if self._is_shown(test, listing, name, now_s)]
        return TestOutcome(True, decision, now_s, rests_on=rests_on, shows=tuple(shown))

    def _is_shown(self, test: PolicyTest, listing: ListExpectation, name: str, now_s: float) -> bool:
        question = listed_question(listing.member, listing.server, name)
        if question is None:  # a rule may name an object that no entry can have
            return False
        shown = self.engine.may_list(test.chain, question, now_s)
        if self.exercised is not None:
            # An entry has no deciding rules; those of its call without arguments count if its answer is the same.
            decision = self.engine.decide(test.chain, question, now_s)
            if decision.allowed is shown:
                self.exercised |= self.rests_on(decision, test.chain, now_s)
        return shown

    def rests_on(self, decision: Decision, chain: Chain, now_s: float, *, session: bool = False) -> frozenset[str]:
        """Returns the grounds of an answer, as ids of rules."""
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
        """Yields the allow rules that match a denied link except for their condition or expiry, if that is the reason
        of the denial."""
        if link.reason not in (Reason.CONDITION_FALSE, Reason.EXPIRED):
            return
        if self._wavering_by is None:  # the allow rules with a condition or an expiry, by subject; patterns under "*"
            self._wavering_by = {}
            for rule in self.source.own_rules:
                if rule.effect == "allow" and not rule.shadow and (rule.when or rule.expires_at is not None):
                    subject = "*" if "*" in rule.subject else rule.subject
                    self._wavering_by.setdefault((rule.kind, subject), []).append(rule)
        expired = link.reason is Reason.EXPIRED
        sought = Sought.of(link, self.engine, self.source, (principal,), now_s)
        for name in (link.subject, *sorted(sought.roles), "*"):
            for rule in self._wavering_by.get((link.kind, name), ()):
                over = rule.expires_at is not None and rule.expires_at <= now_s
                if over is expired and all(sought.fits(rule)[:3]):
                    yield rule


def _demand(rule: RuleRef) -> str:
    return "" if rule.approval is None else f"the approval of {approval_text(rule.approval)}"


@dataclass(slots=True)
class _Ledger:
    """The counters of one test. A call holds its slots, and reserves its maximum cost, for `takes_s`; then its cost by
    budgets.yaml is charged."""

    takes_s: float
    limits: tuple[str, ...] = ()
    now_s: float = 0.0
    calls: int = 0
    held: deque[tuple[float, LimitPlan, str]] = field(default_factory=deque)
    store: MemoryCounters = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryCounters(lambda: self.now_s, lease_s=_FOR_EVER_S, remember_s=_FOR_EVER_S)

    def take(self, plan: LimitPlan, now_s: float) -> Refusal | None:
        """Charges a call. Returns its refusal if a limit is spent, otherwise None. `limits` are then those that refuse
        it, otherwise all that it is charged to."""
        self.now_s = now_s
        while self.held and self.held[0][0] <= now_s:
            _, ended, ended_id = self.held.popleft()
            self.store.release(ended.unspent(ended.spent(None)), ended_id)
        self.calls += 1
        call_id = str(self.calls)
        verdict = _result(self.store.reserve(plan.charges, call_id))
        if verdict.admitted:
            self.limits = tuple(charge.limit for charge in plan.charges)
            self.held.append((now_s + self.takes_s, plan, call_id))
            return None
        full = zip(plan.charges, verdict.standings, strict=True)
        self.limits = tuple(charge.limit for charge, standing in full if standing.wait_us)
        try:
            _result(Limiter(self.store).reserve(plan, call_id).charge())  # the limiter chooses the reason to report
        except Refusal as refusal:
            return refusal
        raise RuntimeError("the limiter admits what its store has refused")


def _result(step: Coroutine[Any, Any, T]) -> T:
    try:
        step.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    step.close()
    raise RuntimeError("a store in memory had to wait")


def known_names(objects: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Returns the names of the exact objects on servers, sorted, by prefix (`tool:github/`)."""
    found: dict[str, list[str]] = {}
    for name in sorted(objects):
        server, slash, rest = name.partition("/")
        if slash and "*" not in name and server.startswith(grammar.ON_SERVERS):
            found.setdefault(server + slash, []).append(rest)
    return found
