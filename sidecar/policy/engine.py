"""Decides calls, one chain link at a time.

For each principal but the last, the engine decides whether it may lend its authority to the next one; for the last one
it decides the request itself. Guardrails are then checked for every principal. The same code decides calls and filters
lists, so that an entry which no call could use is not listed.

An engine is one revision of the policy. It caches each principal's roles, and for each chain, object and action a
`Case`. A further decision then only runs the conditions and looks up the result by their outcomes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from heapq import merge
from itertools import chain as chained, takewhile
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.errors import Reason
from sidecar.policy.conditions import MAX_UNITS, ConditionContext
from sidecar.policy.grammar import ON_SERVERS, STOPPING, named_actions
from sidecar.policy.link_decision import EngineDifferences, KindPolicy, LinkAnswer, LinkOutcome, LinkPolicy, LinkRows
from sidecar.policy.patterns import WILDCARD
from sidecar.policy.plain_conditions import Ran
from sidecar.policy.roles import PolicySubject, PolicySubjects, RolePaths
from sidecar.policy.source import PolicySource
from sidecar.vocabulary import (
    BEGUN,
    DELEGATE,
    Chain,
    Decision,
    EngineName,
    Fact,
    Link,
    PermissionKind,
    Principal,
    Question,
    Read,
    RowLimit,
    RuleRef,
)

if TYPE_CHECKING:
    from sidecar.policy.stock.policy import StockPolicy

# Of several reasons, the first in this order is reported.
_PRECEDENCE = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
MAX_CHAINS = 256  # whose subjects are cached, by identity: some callers get a new chain with each call
MAX_CASES = 4096  # in each of the cache's two generations
BLOCK = 4096  # names that are processed at a time
MAX_CASE_ROWS, MAX_CASE_RESULTS = 32, 32  # of a cached case
_NO_ARGUMENTS: Mapping[str, Any] = {}
_UNWRITTEN: Mapping[Mode, LinkOutcome] = {"list": "assumed", "assured": "doubted"}
"""The modes of unwritten calls, with the outcome of conditions on content that the caller has not written yet."""
_NO_CHAIN: tuple[None, tuple[PolicySubject, ...]] = (None, ())
_new = tuple.__new__  # of a named tuple, whose constructor takes twice as long

Mode = Literal["call", "list", "assured", "session"]
PossibleAnswer = Literal["allow", "approval", "conditional", "deny"]
"""The decisions on calls of one chain on one object. `conditional`: they depend on content that the caller writes."""
CaseKey = tuple[object, ...]  # mode, object, action, server, and the subjects of the chain


class Result(NamedTuple):
    """The decision of a case without facts, its fields before them, and for each fact the digest of the condition, its
    outcome and the link."""

    decision: Decision
    fields: tuple[Any, ...]
    ran: Sequence[tuple[str, Ran, Link]]


class Case:
    """The common part of all requests of one chain for one object and action, from `since_s` until `until_s`: the rows
    of each link, every condition with the position of its subject and whether the link lends, and the results by the
    conditions' outcomes. No row expires in that time (seconds since the epoch). A condition is None if it is not
    evaluated: one on content that the caller has not written yet is assumed to hold while listing, and doubted for an
    assurance."""

    __slots__ = ("conditions", "links", "results", "since_s", "until_s")

    def __init__(self, mode: Mode, links: Iterable[LinkRows], now_s: float) -> None:
        self.links = tuple(links)
        self.conditions = [
            (None if mode in _UNWRITTEN and each.from_caller and not link.lends else each, link.place, link.lends)
            for link in self.links
            for each in link.conditions
        ]
        self.since_s, self.until_s = -inf, inf
        self.results: dict[tuple[LinkOutcome, ...], Result] = {}
        for link in self.links:
            self.narrow(link.ends, now_s)

    def narrow(self, ends: Iterable[float], now_s: float) -> None:
        for end_s in ends:
            if end_s <= now_s:
                self.since_s = max(self.since_s, end_s)
            else:
                self.until_s = min(self.until_s, end_s)

    @property
    def may_be_kept(self) -> bool:
        """Whether it is small, and depends on no decision of pycasbin, which is not cached."""
        return all(len(link.rows) <= MAX_CASE_ROWS and link.policy.engine == "compiled" for link in self.links)


class _CaseCache:
    """A bounded cache of two generations. A case read from the older one moves to the younger one; when that is full,
    the older one is dropped: a flood of new keys costs bounded memory, and cases in use stay cached. A case is cached
    from its second request on, so that one-time requests displace none."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.young: dict[CaseKey, Case] = {}
        self._old: dict[CaseKey, Case] = {}
        self._asked: set[int] = set()

    def older(self, key: CaseKey) -> Case | None:
        if (case := self._old.get(key)) is not None:
            self._keep(key, case)
        return case

    def put(self, key: CaseKey, case: Case) -> None:
        mark = hash(key)
        if mark not in self._asked:
            if len(self._asked) >= MAX_CASES:
                self._asked.clear()
            self._asked.add(mark)
        elif case.may_be_kept:
            self._keep(key, case)

    def _keep(self, key: CaseKey, case: Case) -> None:
        if len(self.young) >= MAX_CASES:
            self._old, self.young = self.young, {}
        self.young[key] = case


class Engine:
    """Decides under one policy. Pure apart from its caches and Casbin's `timeMatch`, which reads the clock; safe to use
    from several threads."""

    def __init__(self, source: PolicySource) -> None:
        self.source = source
        self.revision = source.revision
        self.warnings = source.warnings
        roles = RolePaths({"": source.roles} if not source.domains else source.domains, by_domain=bool(source.domains))
        sets = RolePaths({"": source.sets})
        sets.holding("")  # computed here so that no call waits for it
        ways = {"g": roles, "g2": sets}
        self._askers = PolicySubjects(roles)
        self.roles_of = self._askers.roles_of
        links = (source.roles, source.sets, *source.domains.values())
        self._members = tuple(name for one in links for name in one.parents)
        self._sorted_names: list[Sequence[str]] = []
        self._allowed_patterns: frozenset[str] | None = None
        self.differences = EngineDifferences()
        self._dockets: dict[PermissionKind, LinkPolicy] = {
            kind: KindPolicy(
                model,
                source.tables[kind],
                source.indexes[kind],
                source.conditions,
                self._askers,
                ways,
                source.casbin.engine,
                self.differences,
            )
            for kind, model in source.models.items()
        }
        self._casbin = self._stock_policies(source) if source.stock else {}
        self._dockets.update(self._casbin)
        self.allowing = tuple(
            kind for kind, table in source.stock.items() if table.source.model.effect.allows_by_default
        )
        """The kinds whose models allow everything that no row denies."""
        self.engines: Mapping[PermissionKind, EngineName] = {
            kind: docket.engine for kind, docket in self._dockets.items()
        }
        self.asks_casbin = set(self.engines.values()) != {"compiled"}
        """Whether pycasbin decides a kind: a decision may then take milliseconds."""
        self._guardrails = self._dockets[PermissionKind.GUARDRAIL]
        self._guarded = bool(len(self._guardrails))
        self._chains: dict[int, tuple[Chain, tuple[PolicySubject, ...]]] = {}  # by identity
        self._cases = _CaseCache()
        self.rule_counts: Mapping[str, int] = {kind.value: len(docket) for kind, docket in self._dockets.items()}

    def decide(self, chain: Chain, question: Question, now_s: float, mode: Mode = "call") -> Decision:
        """Decides, link by link, whether the chain may do this at `now_s` (seconds since the epoch)."""
        known, subjects = self._chains.get(id(chain), _NO_CHAIN)  # callers reuse their chain from call to call
        if known is not chain:
            subjects = self._subjects_of(chain)
        target, action, server, _, written, _ = question
        key = (mode, target, action, server, subjects)
        case = self._cases.young.get(key) or self._cases.older(key)
        if case is None or not case.since_s <= now_s < case.until_s:
            case = Case(mode, self._links(subjects, question), now_s)
            self._cases.put(key, case)
        if not case.conditions:
            return (case.results.get(()) or self._conclude(mode, case, subjects, question, (), now_s)).decision
        units: float = MAX_UNITS
        outcomes: tuple[LinkOutcome, ...] = ()
        reads: tuple[Mapping[str, Any], ...] = ()
        for condition, place, lends in case.conditions:
            if condition is None:
                outcomes += (_UNWRITTEN[mode],)
                continue
            arguments = _NO_ARGUMENTS if lends else written
            scene = _new(ConditionContext, (chain, place, question, arguments, now_s, self.roles_of))
            plain = condition.plain
            if plain is None or (ran := plain.run(scene, units)) is None:  # like `Condition.run`
                outcome, read, units = condition.evaluate(scene, units)
            else:
                outcome, read, units = ran
            outcomes += (outcome,)
            reads += (read,)
        result = case.results.get(outcomes) or self._conclude(mode, case, subjects, question, outcomes, now_s)
        facts: tuple[Fact, ...] = ()
        for about, read in zip(result.ran, reads):  # noqa: B905 - each condition that ran has one entry in both
            facts += (_new(Fact, about + (read,)),)  # noqa: RUF005 - faster for short tuples, as below
        return _new(Decision, result.fields + (facts,))  # noqa: RUF005

    def may_list(self, chain: Chain, question: Question, now_s: float) -> bool:
        """Whether an entry may be shown in a list: false only if every call of it would be denied. Conditions on
        content that the caller will write (`args`, `call.meta`) are assumed to hold; limits are not checked."""
        return self.decide(chain, question, now_s, "list").allowed

    def reconsider(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Decides like `may_list`, with reasons, for a call that was allowed earlier and whose arguments were not
        stored."""
        return self.decide(chain, question, now_s, "list")

    def survey(self, chain: Chain, question: Question, now_s: float) -> tuple[PossibleAnswer, Decision]:
        """Returns the possible decisions on calls, whatever arguments they have, with the most favourable one. No limit
        is checked."""
        best = self.decide(chain, question, now_s, "list")
        if not best.allowed:
            return "deny", best
        least = self.decide(chain, question, now_s, "assured")
        if not least.allowed:
            return "conditional", best
        if any(_demanding(least.links, question.action)):
            return "approval", least
        return ("conditional" if any(_demanding(best.links, question.action)) else "allow"), best

    def enter(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Decides a session call on an MCP server.

        Any live allow row of the last principal on that server, whatever its actions and conditions, opens the server;
        a deny row on the server closes it. No row's limit is charged: `session_calls_per_minute` bounds these calls."""
        return self.decide(chain, question, now_s, "session")

    def objection(self, approvers: Iterable[Principal], chain: Chain, decision: Decision) -> str:
        """Returns why these principals cannot give the approvals that a decision needs; "" if they can. Each must be
        allowed to approve, and together they must have all roles that the rules name."""
        open_roles = roles = {rule.approval.role for rule in decision.approvals if rule.approval is not None}
        for approver in approvers:
            if barred := self.barred(approver, chain, roles):
                return barred
            open_roles = open_roles - self.roles_of(approver)
        return f"no one with {' and '.join(sorted(open_roles))} has approved it" if open_roles else ""

    def barred(self, person: Principal, chain: Chain, roles: Collection[str]) -> str:
        """Returns why a person cannot approve a call of the chain for one of these roles; "" for a user who has one of
        them and is not in the chain."""
        if not person.name.startswith("user:"):
            return f"{person.name} is not a person"
        if any(person.name == principal.name for principal in chain):
            return f"{person.name} is in the chain"
        return (
            ""
            if not self.roles_of(person).isdisjoint(roles)
            else f"{person.name} does not have {' or '.join(sorted(roles))}"
        )

    def names(self) -> Iterator[str]:
        """Yields every subject and object of the rows and every member of a role or set. Some occur more than once."""
        for docket in self._dockets.values():
            yield from docket.names()
        yield from self._members

    def names_after(self, prefix: str, after: str) -> Iterator[str]:
        """Returns the `names` that begin with `prefix`, in order, from the first one after `after`. Some occur more
        than once, and some are patterns. The first call sorts the names."""
        names = merge(*(_from(names, prefix, after) for names in self._all_names()))
        return takewhile(lambda name: name.startswith(prefix), names)

    def names_with(self, prefix: str, more: Iterable[str] = ()) -> Iterator[list[str]]:
        """Yields the `names` and `more` that begin with `prefix`, in order, each once, and without patterns. They come
        in portions that take about a millisecond, so that other work can run in between."""
        lists = *self._all_names(), sorted(set(more))
        for block in _merged([(names, *_bounds(names, prefix)) for names in lists]):
            yield [name for name in block if WILDCARD not in name] if WILDCARD in "".join(block) else block

    def names_around(self, name: str, prefix: str, most: int) -> set[str]:
        """Returns the neighbours of a name among the `names` with `prefix`: at most `most` of each sorted list of
        names."""
        found: set[str] = set()
        for names in self._all_names():
            first, end = _bounds(names, prefix)
            at = bisect_left(names, name, first, end)
            found.update(names[max(first, at - most // 2) : min(end, at + most // 2)])
        return found

    def has_name(self, name: str) -> bool:
        """Whether a text is one of the `names`, or another text of the rows."""
        return any(name in names[at : at + 1] for names in self._all_names() for at in (bisect_left(names, name),))

    def _all_names(self) -> Sequence[Sequence[str]]:
        if not self._sorted_names:
            lists = [*(docket.sorted_names() for docket in self._dockets.values()), sorted(set(self._members))]
            self._sorted_names = list({id(names): names for names in lists}.values())  # kinds share their texts
        return self._sorted_names

    def objects_of(self, chain: Chain, question: Question) -> Set[str] | None:
        """Returns the objects in the allow rows of the last principal; None if any name that matches the pattern in the
        question's object is possible."""
        last = self._subjects_of(chain)[-1]
        return self._dockets[_last_kind(last, question)].objects_of(last, question.object)

    def subjects_of(self, chain: Chain, question: Question, subject: str) -> Set[str] | None:
        """Returns the subjects in the allow rows of the first link; None if any name that matches the pattern `subject`
        is possible. The first principal of the chain is an example of such a name."""
        kind, obj, _ = self._first_link(chain, question)
        return self._dockets[kind].subjects_of(obj, subject)

    def may_allow_more(self, chain: Chain, question: Question, subject: str = "", *, open_roles: bool = False) -> bool:
        """Whether rows with patterns could allow names that no row contains: objects of the pattern in `question` or,
        with `subject`, first principals of this pattern, of which the chain has an example. An action or object of ""
        means any. `open_roles`: tokens may grant roles that the policy does not fill."""
        if subject:
            kind, obj, act = self._first_link(chain, question)
            return self._dockets[kind].may_allow_more(subject, obj, act, open_roles=open_roles)
        last = self._subjects_of(chain)[-1]
        docket = self._dockets[_last_kind(last, question)]
        return docket.may_allow_more(last, question.object, question.action, open_roles=False)

    def rules_of(self, name: str) -> Iterator[RuleRef]:
        """Yields the rules whose subject or object is exactly this text: a name, a role, a set or a pattern. Rules of a
        Casbin model are omitted."""
        for table in self.source.tables.values():
            yield from map(table.rule, table.rows_with(name))

    def rules_about(self, principal: Principal, link: Link, most: int) -> Iterator[RuleRef]:
        """Yields up to `most` rules of a link's kind, half of them with its subject and half with its object. Rules of
        a Casbin model are omitted."""
        policy = self._dockets[link.kind]
        if isinstance(policy, KindPolicy):
            yield from policy.rules_about(self._askers.asker(principal), link.object, most)

    def _first_link(self, chain: Chain, question: Question) -> tuple[PermissionKind, str, str]:
        """Returns the kind, object and action of the first principal's link."""
        first, *others = self._subjects_of(chain)
        if others:
            return _nhi_kind(first), others[0].name, DELEGATE
        return _last_kind(first, question), question.object, question.action

    def allowed_patterns(self) -> frozenset[str]:
        """Returns the patterns among the subjects of allow rows."""
        if self._allowed_patterns is None:
            dockets = self._dockets.values()
            self._allowed_patterns = frozenset(text for docket in dockets for text in docket.allowed_patterns())
        return self._allowed_patterns

    def casbin(self, kind: PermissionKind) -> StockPolicy | None:
        """Returns the decider of a kind with a Casbin model of its own form; None for other kinds."""
        return self._casbin.get(kind)

    def subject_of(self, principal: Principal) -> PolicySubject:
        return self._askers.asker(principal)

    def forget(self) -> None:
        """Clears the caches of subjects and cases, to measure the cost of a decision."""
        self._askers.forget()
        self._chains.clear()
        self._cases.forget()

    def _stock_policies(self, source: PolicySource) -> dict[PermissionKind, StockPolicy]:
        from sidecar.policy.stock.policy import StockDecider, StockPolicy

        deciders: dict[int, StockDecider] = {}  # by the policy's identity: one policy may serve several kinds
        found: dict[PermissionKind, StockPolicy] = {}
        for kind, table in source.stock.items():
            key = id(table.source)
            if key not in deciders:
                deciders[key] = StockDecider(table.source, source.casbin, source.attributes)
            found[kind] = StockPolicy(table, deciders[key], source.conditions, self.differences)
        return found

    def _subjects_of(self, chain: Chain) -> tuple[PolicySubject, ...]:
        subjects = tuple(map(self._askers.asker, chain))
        if len(self._chains) >= MAX_CHAINS:
            self._chains.clear()
        self._chains[id(chain)] = chain, subjects
        return subjects

    def _links(self, subjects: Sequence[PolicySubject], question: Question) -> Iterator[LinkRows]:
        """Finds the rows of each link in order, the request itself last; then the rows of the guardrails, if there are
        any, for each principal about the final object and every later NHI."""
        last = len(subjects) - 1
        for place, subject in enumerate(subjects):
            if place < last:
                policy = self._dockets[_nhi_kind(subject)]
                yield policy.find(subject, subjects[place + 1].name, DELEGATE, place, lends=True)
            else:
                policy = self._dockets[_last_kind(subject, question)]
                yield policy.find(subject, question.object, question.action, place, lends=False)
        if self._guarded:
            yield from (found for found in self._guardrail_links(subjects, question) if found.rows or found.some)

    def _guardrail_links(self, subjects: Sequence[PolicySubject], question: Question) -> Iterator[LinkRows]:
        find = self._guardrails.find
        for place, subject in enumerate(subjects):
            yield find(subject, question.object, question.action, place, lends=False)
            for later in subjects[place + 1 :]:
                if later.name.startswith("nhi:"):
                    yield find(subject, later.name, DELEGATE, place, lends=True)

    def _conclude(
        self,
        mode: Mode,
        case: Case,
        subjects: Sequence[PolicySubject],
        question: Question,
        outcomes: tuple[LinkOutcome, ...],
        now_s: float,
    ) -> Result:
        """Decides every link of a case by the outcomes of its conditions, and caches the result."""
        last, at = len(subjects) - 1, 0
        answers: list[LinkAnswer] = []
        ran: list[tuple[str, Ran, Link]] = []
        names: list[Read] = []
        for place, found in enumerate(case.links):
            came_out = outcomes[at : at + len(found.conditions)]
            at += len(found.conditions)
            answer = found.policy.judge(found, came_out, now_s)
            if place == last and mode == "session" and question.server:
                answer, ends = found.policy.opened(answer, found.subject, question.server, now_s)
                case.narrow(ends, now_s)
            before = len(ran)
            for condition, outcome in zip(found.conditions, came_out, strict=True):
                if outcome != "assumed" and outcome != "doubted":
                    word = outcome if isinstance(outcome, str) else outcome.word
                    ran.append((condition.digest, word, answer.link))
                    names += (condition.names,) if any(condition.names) else ()
            # A guardrail that neither denies nor has facts adds nothing.
            if place <= last or not answer.link.allowed or len(ran) > before or answer.would_deny:
                answers.append(answer)
        decision = self._decision(subjects, question.action, answers, limited=mode == "call")
        if mode == "call" and decision.allowed:
            approvals = tuple(_demanding(decision.links, question.action))
            decision = decision._replace(approvals=approvals) if approvals else decision
        decision = decision._replace(names_read=tuple(names))
        if self.asks_casbin:
            decision = decision._replace(engine=_engine_of(link.policy.engine for link in case.links))
        result = Result(decision, decision[:-1], ran)
        if len(case.results) >= MAX_CASE_RESULTS:  # a caller's arguments can produce many
            case.results.clear()
        case.results[outcomes] = result
        return result

    def _decision(
        self, subjects: Sequence[PolicySubject], action: str, answers: list[LinkAnswer], *, limited: bool
    ) -> Decision:
        if not answers:  # no principal: denied
            return Decision(False, self.revision, (), Reason.NO_MATCHING_RULE)
        last = answers[len(subjects) - 1]
        if len(answers) == 1:  # the common case; nothing to combine
            link = last.link
            limits = _limits(subjects, action, last.limited) if limited and last.limited else ()
            would = last.would_deny, last.would_allow
            return Decision(link.allowed, self.revision, (link,), link.reason, limits, last.until, last.roles, *would)
        denied = [answer.link.reason for answer in answers if not answer.link.allowed]
        ends = [answer.until for answer in answers if answer.until is not None]
        return Decision(
            not denied,
            self.revision,
            tuple(answer.link for answer in answers),
            next((reason for reason in _PRECEDENCE if reason in denied), None),
            _limits(subjects, action, last.limited) if limited and last.limited and not denied else (),
            min(ends, default=None) if not denied else None,
            last.roles,
            _names(answer.would_deny for answer in answers),
            _names(answer.would_allow for answer in answers),
        )


def _limits(subjects: Sequence[PolicySubject], action: str, rules: Iterable[RuleRef]) -> tuple[RowLimit, ...]:
    """Returns the limits that the call is charged to. A rule of several rows counts once."""
    if action in STOPPING:
        # A caller that has used up a limit on `use` can still stop its own work: only a rule that names this action
        # counts.
        rules = [rule for rule in rules if action in named_actions(rule.actions)]
    counted = {"subject": subjects[-1].name, "origin": subjects[0].name, "rule": ""}
    found = {
        rule.id: RowLimit(rule.id, counted[rule.per], rule.max_calls_per_hour)
        for rule in rules
        if rule.max_calls_per_hour is not None
    }
    return tuple(found.values())


def _demanding(links: Iterable[Link], action: str) -> Iterator[RuleRef]:
    """Yields the rules that demand an approval of this call. A follow-up action (`tasks/get` after `message/send`)
    needs one only by a rule that names that action, as with limits."""
    for link in links:
        for rule in link.rules:
            named = link.action == action in named_actions(rule.actions)
            if rule.approval is not None and (action in BEGUN or named):
                yield rule


def _from(names: Sequence[str], prefix: str, after: str) -> Iterator[str]:
    first = max(bisect_left(names, prefix), bisect_right(names, after))
    return (names[at] for at in range(first, len(names)))


def _bounds(names: Sequence[str], prefix: str) -> tuple[int, int]:
    return bisect_left(names, prefix), bisect_left(names, f"{prefix}\U0010ffff")


def _merged(ranges: Iterable[tuple[Sequence[str], int, int]]) -> Iterator[list[str]]:
    """Yields the texts in ranges of sorted lists in order, each once. Reads at most a block of each list at a time."""
    left = [one for one in ranges if one[1] < one[2]]
    while left:
        bound = min((names[at + BLOCK] for names, at, end in left if at + BLOCK < end), default=None)
        stops = [end if bound is None else bisect_left(names, bound, at, end) for names, at, end in left]
        parts = [names[at:stop] for (names, at, _), stop in zip(left, stops, strict=True) if at < stop]
        left = [(names, stop, end) for (names, _, end), stop in zip(left, stops, strict=True) if stop < end]
        yield list(parts[0]) if len(parts) == 1 else list(dict.fromkeys(sorted(chained(*parts))))


def _names(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in found for name in names))


def _engine_of(engines: Iterable[EngineName]) -> EngineName:
    found = set(engines)
    return "casbin" if "casbin" in found else "both" if "both" in found else "compiled"


def _nhi_kind(subject: PolicySubject) -> PermissionKind:
    return PermissionKind.NHI_TO_NHI if subject.name.startswith("nhi:") else PermissionKind.USER_TO_NHI


def _last_kind(subject: PolicySubject, question: Question) -> PermissionKind:
    """Returns the kind of the last link: of a tool, prompt, resource or MCP server; otherwise of an agent."""
    if question.server or question.object.startswith(ON_SERVERS):
        return PermissionKind.AGENT_TO_TOOL
    return _nhi_kind(subject)
