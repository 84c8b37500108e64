"""Decides calls, one chain link at a time.

For each principal but the last, the engine decides whether it may lend its authority to the next one; for the last one
it decides the request itself (CONTRACT 1.3). Guardrails are then checked for every principal. The same code decides
calls and filters lists, so a listed entry is one that can be called (threats I9).

An engine is one revision of the policy. It caches each principal's roles and intermediate results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sidecar.errors import Reason
from sidecar.policy.grammar import ON_SERVERS, STOPPING, USED
from sidecar.policy.link_decision import Evaluation, KindPolicy, LinkAnswer
from sidecar.policy.roles import PolicySubjects, RolePaths
from sidecar.policy.similar_keys import Read
from sidecar.policy.source import PolicySource
from sidecar.policy.table import DENY
from sidecar.vocabulary import DELEGATE, Chain, Decision, PermissionKind, Principal, Question, RowLimit, RuleRef

# CONTRACT 6: of several reasons, the first in this order is reported.
_PRECEDENCE = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)


class Engine:
    """Decides under one policy. Pure apart from its caches; safe to use from several threads."""

    def __init__(self, source: PolicySource) -> None:
        self.revision = source.revision
        self.warnings = source.warnings
        roles = RolePaths({"": source.roles} if not source.domains else source.domains, by_domain=bool(source.domains))
        sets = RolePaths({"": source.sets})
        sets.holding("")  # computed here so that no call waits for it
        ways = {"g": roles, "g2": sets}
        self._askers = PolicySubjects(roles)
        self._members = tuple(name for links in (source.roles, *source.domains.values()) for name in links.parents)
        self._dockets = {
            kind: KindPolicy(model, source.tables[kind], source.indexes[kind], source.conditions, self._askers, ways)
            for kind, model in source.models.items()
        }
        self._guardrails = self._dockets[PermissionKind.GUARDRAIL]
        self._names = {condition.digest: condition.names for condition in source.conditions.values()}
        self._guarded = bool(len(self._guardrails.table))
        self.rule_counts: Mapping[str, int] = {kind.value: len(docket.table) for kind, docket in self._dockets.items()}

    def decide(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Decide, link by link, whether the chain may do this at `now_s` (seconds since the epoch)."""
        evaluation = Evaluation(chain, question, now_s, self._askers)
        return self._decision(evaluation, self._answers(evaluation), limited=True)

    def may_list(self, chain: Chain, question: Question, now_s: float) -> bool:
        """Whether an entry may be shown in a list: false only if every call of it would be denied. Conditions on what
        the caller will write (`args`, `call.meta`) count in its favour; limits are not checked."""
        evaluation = Evaluation(chain, question, now_s, self._askers, listing=True)
        return bool(chain) and all(answer.link.allowed for answer in self._answers(evaluation))

    def reconsider(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Decide as `may_list` does, with reasons: for a call allowed earlier whose arguments were not kept."""
        evaluation = Evaluation(chain, question, now_s, self._askers, listing=True)
        return self._decision(evaluation, self._answers(evaluation), limited=False)

    def enter(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Decide a session call on an MCP server (CONTRACT 1.4).

        Any live allow row of the last principal on that server opens it, whatever its actions and conditions; a deny
        row on it closes it. No row's limit is charged: `session_calls_per_minute` bounds these calls."""
        evaluation = Evaluation(chain, question, now_s, self._askers)
        answers = self._answers(evaluation)
        if chain and question.server:
            docket, last = self._dockets[PermissionKind.AGENT_TO_TOOL], len(chain) - 1
            answers[last] = docket.opened(answers[last], evaluation.askers[last], question.server, now_s)
        return self._decision(evaluation, answers, limited=False)

    def names_read(self, decision: Decision) -> list[Read]:
        """Return what the conditions evaluated for a decision read of the arguments."""
        facts = [fact for link in decision.links for fact in link.facts]
        found = [self._names[fact.condition] for fact in facts if fact.condition in self._names]
        return [read for read in found if read.tree or read.anywhere]

    def roles_of(self, principal: Principal) -> frozenset[str]:
        return self._askers.roles_of(principal)

    def names(self) -> Iterator[str]:
        """Yield every subject and object of the rows and every member of a role; some more than once."""
        for docket in self._dockets.values():
            table = docket.table
            yield from (table.texts.texts[number] for number in {*table.sub, *table.obj})
        yield from self._members

    def allowed_patterns(self) -> frozenset[str]:
        tables = [docket.table for docket in self._dockets.values()]
        found = {table.text("sub", row) for table in tables for row in range(len(table)) if not table.flags[row] & DENY}
        return frozenset(text for text in found if "*" in text)

    def forget(self) -> None:
        """Clear the caches, for measuring the cost of a decision."""
        self._askers.forget()
        for docket in self._dockets.values():
            docket.forget()

    # --- deciding the links -------------------------------------------------------------------------------------------

    def _answers(self, evaluation: Evaluation) -> list[LinkAnswer]:
        """Return the links' answers in order, the request itself last, then the guardrails' answers."""
        chain, question = evaluation.chain, evaluation.question
        last = len(chain) - 1
        answers = []
        for place in range(last):
            docket = self._dockets[_nhi_kind(chain[place])]
            answers.append(docket.answer(chain[place + 1].name, DELEGATE, evaluation, place, lends=True))
        if chain:
            docket = self._dockets[_last_kind(chain[last], question)]
            answers.append(docket.answer(question.object, question.action, evaluation, last, lends=False))
        if self._guarded:
            answers += self._guardrail_answers(evaluation)
        return answers

    def _guardrail_answers(self, evaluation: Evaluation) -> Iterator[LinkAnswer]:
        """Yield each principal's answer for the final object and every NHI after it, without neutral answers."""
        ask, question = self._guardrails.answer, evaluation.question
        for place in range(len(evaluation.chain)):
            answer = ask(question.object, question.action, evaluation, place, lends=False)
            if _says(answer):
                yield answer
            for later in evaluation.chain[place + 1 :]:
                if later.kind == "nhi":
                    answer = ask(later.name, DELEGATE, evaluation, place, lends=True)
                    if _says(answer):
                        yield answer

    def _decision(self, evaluation: Evaluation, answers: list[LinkAnswer], *, limited: bool) -> Decision:
        if not answers:  # no principal: denied
            return Decision(False, self.revision, (), Reason.NO_MATCHING_RULE)
        last = answers[len(evaluation.chain) - 1]
        if len(answers) == 1:  # the common case; nothing to combine
            link = last.link
            limits = _limits(evaluation, last.limited) if limited and last.limited else ()
            would = last.would_deny, last.would_allow
            return Decision(link.allowed, self.revision, (link,), link.reason, limits, last.until, last.roles, *would)
        denied = [answer.link.reason for answer in answers if not answer.link.allowed]
        ends = [answer.until for answer in answers if answer.until is not None]
        return Decision(
            not denied,
            self.revision,
            tuple(answer.link for answer in answers),
            next((reason for reason in _PRECEDENCE if reason in denied), None),
            _limits(evaluation, last.limited) if limited and last.limited and not denied else (),
            min(ends, default=None) if not denied else None,
            last.roles,
            _names(answer.would_deny for answer in answers),
            _names(answer.would_allow for answer in answers),
        )


def _says(answer: LinkAnswer) -> bool:
    return not answer.link.allowed or bool(answer.link.facts or answer.would_deny)


def _limits(evaluation: Evaluation, rules: Iterable[RuleRef]) -> tuple[RowLimit, ...]:
    """Return the limits that the call is charged to. A rule of several rows counts once."""
    chain, action = evaluation.chain, evaluation.question.action
    if action in STOPPING:
        # A caller that has used up a limit on `use` can still stop its own work: only a rule that names it counts.
        rules = [rule for rule in rules if action in rule.actions and not set(USED) <= set(rule.actions)]
    counted = {"subject": chain[-1].name, "origin": chain[0].name, "rule": ""}
    found = {
        rule.id: RowLimit(rule.id, counted[rule.per], rule.max_calls_per_hour)
        for rule in rules
        if rule.max_calls_per_hour is not None
    }
    return tuple(found.values())


def _names(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in found for name in names))


def _nhi_kind(principal: Principal) -> PermissionKind:
    return PermissionKind.NHI_TO_NHI if principal.kind == "nhi" else PermissionKind.USER_TO_NHI


def _last_kind(principal: Principal, question: Question) -> PermissionKind:
    """Return the kind of the last link: of a tool, prompt, resource or MCP server; else of an agent."""
    if question.server or question.object.startswith(ON_SERVERS):
        return PermissionKind.AGENT_TO_TOOL
    return _nhi_kind(principal)
