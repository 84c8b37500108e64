"""Explains decisions link by link: the engine that serves calls answers, and its answer is traced back to rows and
limits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.errors import Reason, visible
from sidecar.limits import Budgets, LimitCharge, plan_charges, rule_label
from sidecar.limits.plan import BudgetRule, label_of
from sidecar.policy import Engine, PolicySource
from sidecar.policy.conditions import ConditionContext
from sidecar.policy.patterns import glob
from sidecar.policy.roles import domain_of, is_granted
from sidecar.policy.rows import MAX_LINE_CHARS
from sidecar.policy_tools.audit_records import RecordedQuestion, is_session
from sidecar.policy_tools.casbin_trace import CasbinRequest, CasbinTrace
from sidecar.policy_tools.nearest_rules import NearestRule, Sought, nearest
from sidecar.policy_tools.recorded_conditions import RecordedKey
from sidecar.policy_tools.replay import Candidate
from sidecar.policy_tools.rule_text import csv_row
from sidecar.vocabulary import (
    DELEGATE,
    SESSION_ACTIONS,
    Answer,
    Call,
    Chain,
    Decision,
    EngineName,
    Fact,
    Link,
    PermissionKind,
    Principal,
    Question,
    RuleRef,
)

TOGETHER = "all together"
MAX_HOLDERS = 100  # users that are named for one role
MAX_LINES = 100_000  # that are read of one file of rows; the text of a row below them is derived from its rule
MAX_COMPARED = 20_000  # rules that are compared with denied links, in about 0.1 s


class Ground(NamedTuple):
    """A rule that led to the answer. `text` is its row. `roles` are those on the path from the subject to the rule's
    role, of which a token granted the first if `from_token`; `sets` are those on the path from the object to the rule's
    set."""

    rule: RuleRef
    text: str
    roles: tuple[str, ...] = ()
    from_token: bool = False
    sets: tuple[str, ...] = ()


class Ran(NamedTuple):
    """A condition, its outcome, and the values that it read, by path. `source` is "" if it was evaluated now, otherwise
    `the record`, or the reason why the outcome is unknown."""

    text: str
    outcome: str
    read: Mapping[str, Any]
    source: str = ""


class Traced(NamedTuple):
    """One link and its grounds. `near` are the nearest rules with the text of their rows, if no rule decided a denied
    link. `casbin` is the request to a Casbin model of another form. `engine` decided the link; `by_default`: it is
    allowed because no row denies it."""

    link: Link
    grounds: tuple[Ground, ...]
    conditions: tuple[Ran, ...]
    near: tuple[tuple[NearestRule, str], ...] = ()
    casbin: CasbinRequest | None = None
    engine: EngineName = "compiled"
    by_default: bool = False

    @property
    def missing(self) -> RuleRef | None:
        """The narrowest rule that would allow a link that no rule allows; None for a link with another reason, for one
        that a Casbin model of another form decided, and for session calls, which any grant allows."""
        link = self.link
        if link.reason is not Reason.NO_MATCHING_RULE or self.casbin is not None or link.action in SESSION_ACTIONS:
            return None
        return RuleRef("", link.kind, link.subject, link.object, (link.action,), "allow")


class ChargedLimit(NamedTuple):
    """One limit that the call would be charged to. `counted_for` names the principal of its counter."""

    charge: LimitCharge
    counted_for: str


class RoleHolders(NamedTuple):
    """Who may approve with a role: the users outside of the chain that have it by rows, the first MAX_HOLDERS of
    `total`, and the roles that a token can grant, by which a user has it."""

    role: str
    users: tuple[str, ...]
    total: int
    tokens: tuple[str, ...]


class ApprovalNeed(NamedTuple):
    """The rules that demand approvals, and who may give them. `given_by` are the assumed approvers, and `objection` is
    the reason why they are not enough, "" if they are."""

    rules: tuple[RuleRef, ...]
    holders: tuple[RoleHolders, ...]
    given_by: tuple[str, ...] = ()
    objection: str = ""


class Explanation(NamedTuple):
    """An explained answer at `at_s`, in seconds since the epoch. If a record does not determine the answer, `answer` is
    None and `why` names the missing fact; `decision` is then one of those that are possible."""

    answer: Answer | None
    decision: Decision
    chain: Chain
    question: Question
    session: bool
    at_s: float
    links: tuple[Traced, ...]
    guardrail_rows: int
    limits: tuple[ChargedLimit, ...]
    timeout_s: float | None
    would_deny: tuple[Ground, ...]
    would_allow: tuple[Ground, ...]
    why: str = ""
    approval: ApprovalNeed | None = None

    @property
    def allowed(self) -> bool | None:
        return None if self.answer is None else self.answer == "allow"


def explain(
    engine: Engine, budgets: Budgets, chain: Chain, question: Question, at_s: float, approvers: Sequence[Principal] = ()
) -> Explanation:
    """Explains a call at `at_s`, in seconds since the epoch. If it needs an approval, `approvers` are assumed to have
    given it."""
    ask = engine.enter if is_session(question) else engine.decide
    decision = ask(chain, question, at_s)
    trace = _Trace(engine.source, engine, chain, question, at_s)
    return trace.explanation(decision, decision.answer, budgets, approvers)


def explain_record(
    candidate: Candidate, budgets: Budgets, asked: RecordedQuestion, approvers: Sequence[Principal] = ()
) -> Explanation:
    """Explains a recorded question by the policy of `candidate`."""
    answer = candidate.decide(asked)
    case = candidate.case
    trace = _Trace(candidate.source, candidate.engine, asked.chain, asked.question, asked.at_s)
    trace.is_record = True
    trace.sources = {**dict.fromkeys(case.by_record, "the record"), **case.unknown}
    return trace.explanation(answer.decision, answer.answer, budgets, approvers, answer.why)


class _Trace:
    def __init__(self, source: PolicySource, engine: Engine, chain: Chain, question: Question, at_s: float) -> None:
        self._source, self._engine, self._chain = source, engine, chain
        self._question, self._at_s = question, at_s
        self._texts = {condition.digest: condition.text for condition in source.conditions.values()}
        self._texts |= {table.digest: table.source.model.matcher for table in source.stock.values()}
        self.sources: Mapping[RecordedKey, str] = {}
        self.is_record = False

    def explanation(
        self,
        decision: Decision,
        answer: Answer | None,
        budgets: Budgets,
        approvers: Sequence[Principal] = (),
        why: str = "",
    ) -> Explanation:
        charges, timeout_s = self._charges(decision, budgets) if decision.allowed and answer else ((), None)
        approval = self._approval(decision, approvers) if decision.approvals else None
        if approval is not None and answer == "approval" and approvers and not approval.objection:
            answer = "allow"
        return Explanation(
            answer=answer,
            approval=approval,
            decision=decision,
            chain=self._chain,
            question=self._question,
            session=is_session(self._question),
            at_s=self._at_s,
            links=self._links(decision),
            guardrail_rows=self._engine.rule_counts.get(PermissionKind.GUARDRAIL.value, 0),
            limits=charges,
            timeout_s=timeout_s,
            would_deny=self._shadows(decision.would_deny),
            would_allow=self._shadows(decision.would_allow),
            why=why,
        )

    def _approval(self, decision: Decision, approvers: Sequence[Principal]) -> ApprovalNeed:
        roles = dict.fromkeys(rule.approval.role for rule in decision.approvals if rule.approval is not None)
        given_by = tuple(approver.name for approver in approvers)
        objection = self._engine.objection(approvers, self._chain, decision) if approvers else ""
        return ApprovalNeed(decision.approvals, tuple(map(self._holders, roles)), given_by, objection)

    def _holders(self, role: str) -> RoleHolders:
        by_domain = self._source.domains
        members = {name for name in self._source.roles.members(role) if not by_domain or is_granted(name)}
        for domain, links in by_domain.items():
            members |= {name for name in links.members(role) if is_granted(name) or domain_of(name) == domain}
        chain = {each.name for each in self._chain}
        users = sorted(name for name in members - chain if name.startswith("user:"))
        tokens = tuple(sorted(name for name in (role, *members) if is_granted(name)))
        return RoleHolders(role, tuple(users[:MAX_HOLDERS]), len(users), tokens)

    def _links(self, decision: Decision) -> tuple[Traced, ...]:
        traces = [self._casbin(place, link) for place, link in enumerate(decision.links)]
        near = self._near(decision, traces)
        shown = [one.rule for each in near.values() for one in each]
        rows = _rows([*shown, *(rule for link in decision.links for rule in link.rules)])
        return tuple(
            Traced(
                link=link,
                grounds=tuple(self._ground(link, rule, rows, trace) for rule in link.rules),
                conditions=tuple(self._ran(fact) for fact in decision.facts if fact.link is link),
                near=tuple((each, rows(each.rule)) for each in near.get(id(link), ())),
                casbin=trace.request if trace is not None else None,
                engine=self._engine.engines[link.kind],
                by_default=link.allowed and not link.rules and link.kind in self._engine.allowing,
            )
            for link, trace in zip(decision.links, traces, strict=True)
        )

    def _casbin(self, place: int, link: Link) -> CasbinTrace | None:
        """Traces a link by its place in the decision; None if one of the sidecar's own models decides its kind.
        Guardrails, whose links follow those of the chain, always have such a model."""
        policy = self._engine.casbin(link.kind)
        if policy is None:
            return None
        last = place == len(self._chain) - 1
        arguments = self._question.arguments if last else {}
        scene = ConditionContext(self._chain, place, self._question, arguments, self._at_s, self._engine.roles_of)
        subject = self._engine.subject_of(self._chain[place])
        server = self._question.server if last and is_session(self._question) else ""
        return CasbinTrace(policy, subject, link, None if self.is_record else scene, server)

    def _near(self, decision: Decision, traces: Sequence[CasbinTrace | None]) -> Mapping[int, Sequence[NearestRule]]:
        """Returns the nearest rules of each link that is denied without a rule, by the `id` of the link."""
        denied = [
            (link, trace)
            for link, trace in zip(decision.links, traces, strict=True)
            if not link.allowed and not link.rules
        ]
        found = {id(link): trace.nearest() for link, trace in denied if trace is not None}
        own = [link for link, trace in denied if trace is None]
        if own:
            sought = [self._sought(link, decision) for link in own]
            near = nearest(sought, self._rules_near(own), self._source.sets)
            found |= {id(link): each for link, each in zip(own, near, strict=True)}
        return found

    def _rules_near(self, links: Sequence[Link]) -> Iterable[RuleRef]:
        """Returns the rules to compare: all of a small policy; of a large one, those about the subject or the object of
        a link."""
        if sum(self._engine.rule_counts.values()) <= MAX_COMPARED:
            return self._source.own_rules
        callers = {principal.name: principal for principal in self._chain}
        most = MAX_COMPARED // len(links)
        return (rule for link in links for rule in self._engine.rules_about(callers[link.subject], link, most))

    def _sought(self, link: Link, decision: Decision) -> Sought:
        last = (link.object, link.action) == self._question[:2]
        server = self._question.server if last and is_session(self._question) else ""
        facts = [fact for fact in decision.facts if fact.link is link]
        outcomes = {self._texts[fact.condition]: self._ran(fact).outcome for fact in facts}
        return Sought.of(link, self._engine, self._source, self._chain, self._at_s, outcomes, server)

    def _ground(
        self, link: Link, rule: RuleRef, rows: Callable[[RuleRef], str], trace: CasbinTrace | None = None
    ) -> Ground:
        granted = next((each.roles for each in self._chain if each.name == link.subject), frozenset())
        if trace is not None:
            return Ground(rule, rows(rule), *trace.ways(rule))
        roles = (
            self._source.roles.way((link.subject, *granted), rule.subject) if rule.subject.startswith("role:") else ()
        )
        sets = self._source.sets.way((link.object,), rule.object) if rule.object.startswith("set:") else ()
        own = self._source.roles.parents.get(link.subject, ())
        return Ground(rule, rows(rule), roles, bool(roles) and roles[0] in granted and roles[0] not in own, sets)

    def _ran(self, fact: Fact) -> Ran:
        key = RecordedKey(fact.condition, fact.link.subject, fact.link.action == DELEGATE)
        source = self.sources.get(key, "")
        outcome = "unknown" if source not in ("", "the record") else fact.outcome
        return Ran(self._texts[fact.condition], outcome, fact.inputs, source)

    def _shadows(self, ids: Sequence[str]) -> tuple[Ground, ...]:
        first: dict[str, RuleRef] = {}
        for table in self._source.tables.values() if ids else ():
            for row in table.in_shadow():
                if (name := table.id_of(row)) in ids:
                    first.setdefault(name, table.rule(row))
        rules = [first[name] for name in ids if name in first]
        rows = _rows(rules)
        link = Link(PermissionKind.AGENT_TO_TOOL, self._chain[-1].name, *self._question[:2], allowed=False)
        return tuple(self._ground(link, rule, rows) for rule in rules)

    def _charges(self, decision: Decision, budgets: Budgets) -> tuple[tuple[ChargedLimit, ...], float | None]:
        question, session = self._question, is_session(self._question)
        call = Call("mcp", "", question.server, question.action, (question,), session=session)
        plan = plan_charges(budgets, self._chain, self._engine.roles_of, call, decision)
        whose = {rule_label(row.rule_id): iter((row.counted_for or TOGETHER,)) for row in decision.limits}
        for entry in budgets.entries:
            for cap in entry.caps:
                whose[label_of(entry, cap)] = iter(self._counted_for(entry))
        charges = tuple(ChargedLimit(charge, next(whose[charge.limit])) for charge in plan.charges)
        return charges, plan.timeout_s

    def _counted_for(self, entry: BudgetRule) -> list[str]:
        """Returns the principals whose counters an entry of budgets.yaml charges, in the order of its charges."""
        if not entry.each:
            return [TOGETHER]
        if entry.names_objects:
            return [self._chain[-1].name]
        by_role = entry.pattern.startswith("role:")
        known_as = {one.name: self._engine.roles_of(one) if by_role else (one.name,) for one in self._chain}
        return [name for name, words in known_as.items() if any(glob(word, entry.pattern) for word in words)]


def _rows(rules: Iterable[RuleRef]) -> Callable[[RuleRef], str]:
    """Returns a function from one of these rules to its row: as written in its CSV file, otherwise derived from the
    rule. Each file is read once."""
    wanted: dict[str, set[int]] = {}
    for rule in rules:
        if rule.line and rule.file.endswith(".csv"):
            wanted.setdefault(rule.file, set()).add(rule.line)
    known = {(file, line): text for file, lines in wanted.items() for line, text in _read(file, lines)}

    def row_of(rule: RuleRef) -> str:
        text = known.get((rule.file, rule.line), "")
        return text if rule.subject in text and rule.object in text else csv_row(rule)  # the file may have changed

    return row_of


def _read(path: str, wanted: set[int]) -> Iterator[tuple[int, str]]:
    with suppress(OSError), Path(path).open("rb") as file:  # without the file, the row is derived from the rule
        for number in range(1, min(max(wanted), MAX_LINES) + 1):
            raw = file.readline(4 * MAX_LINE_CHARS)
            if number in wanted and raw:
                yield number, visible(raw.decode("utf-8-sig", "replace").strip())
