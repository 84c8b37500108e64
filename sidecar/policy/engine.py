"""May they?

The chain is asked link by link (CONTRACT 1.3): each principal but the last whether it may lend the next one its
authority, the last one the question itself; then the guardrails are asked of everybody. The same walk decides calls
and filters lists, so that what is listed is what can be called (threats I9).

An engine is one revision. It remembers, but nothing that it answers depends on what it was asked before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sidecar.errors import Reason
from sidecar.policy.cases import Answer, Asker, Docket, Roles, nearest
from sidecar.policy.conditions import Purse, Scene
from sidecar.policy.judge import Subject
from sidecar.policy.memo import Memo
from sidecar.policy.patterns import glob, meets_prefix
from sidecar.policy.source import PolicySource
from sidecar.vocabulary import (
    DELEGATE,
    Chain,
    Decision,
    Fact,
    Link,
    PermissionKind,
    Principal,
    Question,
    RowLimit,
    Rule,
)

MAX_OPENING_RULES = 8  # enough evidence that somebody has a grant on a server

_Answered = tuple[Answer, tuple[Fact, ...]]
# CONTRACT 6: of several reasons, the first of these is told.
_PRECEDENCE = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
_ON_SERVERS = ("tool:", "prompt:", "resource:")


@dataclass(frozen=True, slots=True)
class _Hearing:
    """One question of one chain, at one time."""

    chain: Chain
    askers: list[Asker]
    question: Question
    now_s: float
    listing: bool
    roles_of: Callable[[Principal], frozenset[str]]
    purse: Purse

    def use(self, docket: Docket, place: int) -> _Answered:
        """The question itself, asked of the principal at `place`."""
        question = self.question
        case = docket.case(self.askers[place], question.object, question.action, self.now_s)
        if not case.conditions:
            return case.plain(), ()
        scene = Scene(self.chain, place, question, question.arguments, self.now_s, self.roles_of)
        return case.answer(scene, self.purse, listing=self.listing)

    def lend(self, docket: Docket, place: int, nhi: str) -> _Answered:
        """Whether the principal at `place` may lend its authority to this NHI. Arguments belong to the question
        itself: here there are none, and what is listed is asked as what is called."""
        case = docket.case(self.askers[place], nhi, DELEGATE, self.now_s)
        if not case.conditions:
            return case.plain(), ()
        scene = Scene(self.chain, place, self.question, {}, self.now_s, self.roles_of)
        return case.answer(scene, self.purse, listing=False)


class Engine:
    """Answers under one policy. Pure but for what it remembers; safe to use from several threads."""

    def __init__(self, source: PolicySource) -> None:
        self.revision = source.revision
        self.warnings = source.warnings
        self._roles = Roles(source.roles)
        self._sets = source.sets.contents()
        rows = list(zip(source.rules, source.columns, strict=True))
        self._dockets = {
            kind: Docket(
                model,
                [(rule, columns) for rule, columns in rows if rule.kind is kind],
                source.conditions,
                self._roles,
                source.sets,
            )
            for kind, model in source.models.items()
        }
        self._guardrails = self._dockets[PermissionKind.GUARDRAIL]
        self.rule_counts: Mapping[str, int] = {kind.value: len(docket.rows) for kind, docket in self._dockets.items()}
        self._opening: Memo[tuple[str, frozenset[str], str], tuple[Rule, ...]] = Memo(1024)

    def decide(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Whether the chain may do this at `now_s` (seconds since the epoch), link by link. Never raises for no."""
        answered = list(self._walk(chain, question, now_s, listing=False))
        return self._decision(chain, answered, limited=True)

    def may_list(self, chain: Chain, question: Question, now_s: float) -> bool:
        """Whether an entry that asks this question may be shown: false only if every call of it would be denied.

        Conditions on what the caller will write (`args`, `call.meta`) count for the caller; limits are not asked.
        """
        answered = self._walk(chain, question, now_s, listing=True)
        return bool(chain) and all(answer.link.allowed for answer, _ in answered)

    def enter(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Whether the chain may have a session call on an MCP server (CONTRACT 1.4): any live allow row of the last
        principal on that server opens it, whatever its actions and conditions; a deny row on it closes it. No row's
        limit is charged: `session_calls_per_minute` bounds these calls."""
        answered = list(self._walk(chain, question, now_s, listing=False))
        if answered:
            last = len(chain) - 1
            answered[last] = self._opened(chain[-1], question, now_s, answered[last])
        return self._decision(chain, answered, limited=False)

    def roles_of(self, principal: Principal) -> frozenset[str]:
        """Every role of a principal, from its token and from `g` rows."""
        return self._roles.asker(principal).roles

    # --- the walk -----------------------------------------------------------------------------------------------------

    def _walk(self, chain: Chain, question: Question, now_s: float, *, listing: bool) -> Iterator[_Answered]:
        """The links in order, the last one being the question itself; then what guardrails have to say."""
        askers = [self._roles.asker(principal) for principal in chain]
        hearing = _Hearing(chain, askers, question, now_s, listing, self.roles_of, Purse())
        last = len(chain) - 1
        for place in range(last):
            docket = self._dockets[_nhi_kind(chain[place])]
            yield hearing.lend(docket, place, chain[place + 1].name)
        if chain:
            yield hearing.use(self._dockets[_last_kind(chain[last], question)], last)
        if self._guardrails.rows:
            yield from self._guarded(hearing)

    def _guarded(self, hearing: _Hearing) -> Iterator[_Answered]:
        """Each principal on the final object, and on every NHI after it; told only where there is something to tell."""
        for place in range(len(hearing.chain)):
            asked = [hearing.use(self._guardrails, place)]
            asked += [
                hearing.lend(self._guardrails, place, later.name)
                for later in hearing.chain[place + 1 :]
                if later.kind == "nhi"
            ]
            for answer, facts in asked:
                if not answer.link.allowed or answer.would_deny or facts:
                    yield answer, facts

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _opened(self, principal: Principal, question: Question, now_s: float, answered: _Answered) -> _Answered:
        """The last link of a session call: as it was answered, unless a grant on the server opens it."""
        answer, facts = answered
        link = answer.link
        if link.allowed or link.reason is Reason.DENIED_BY_RULE or not question.server:
            return answered
        asker = self._roles.asker(principal)
        rules = self._opening_rules(asker, question.server)
        live = [rule for rule in rules if rule.expires_at is None or now_s < rule.expires_at]
        if not live:
            reason = Reason.EXPIRED if rules else link.reason
            return replace(answer, link=link._replace(reason=reason)), facts
        # Any one of them opens it, so it stays open until the last one ends.
        until = max(rule.expires_at for rule in live if rule.expires_at) if all(r.expires_at for r in live) else None
        shown = tuple(live[:MAX_OPENING_RULES])
        roles = self._roles.behind(asker, shown)
        opened = link._replace(allowed=True, reason=None, rules=shown)
        return replace(answer, link=opened, until=until, roles=roles), facts

    def _opening_rules(self, asker: Asker, server: str) -> tuple[Rule, ...]:
        """The allow rows of this principal that say anything about the server."""
        key = (asker.name, asker.granted, server)
        known = self._opening.get(key)
        if known is None:
            docket = self._dockets[PermissionKind.AGENT_TO_TOOL]
            rows = [docket.rows[i] for i in docket.judge.rows_of(Subject.of(asker.name, asker.roles))]
            known = tuple(
                row.rule
                for row in rows
                if row.rule.effect == "allow" and not row.rule.shadow and self._is_on(row.rule.object, server)
            )
            self._opening.put(key, known)
        return known

    def _is_on(self, pattern: str, server: str) -> bool:
        """Whether a rule's object can be the server itself or something on it."""
        if pattern.startswith("set:"):
            return any(self._is_on(element, server) for element in self._sets.get(pattern, ()))
        prefixes = (f"{word}{server}/" for word in _ON_SERVERS)
        return glob(f"nhi:{server}", pattern) or any(meets_prefix(pattern, prefix) for prefix in prefixes)

    # --- the whole ----------------------------------------------------------------------------------------------------

    def _decision(self, chain: Chain, answered: list[_Answered], *, limited: bool) -> Decision:
        links = tuple([_with_facts(answer.link, facts) if facts else answer.link for answer, facts in answered])
        if not links:  # nobody asks: denied
            return Decision(False, self.revision, (), Reason.NO_MATCHING_RULE)
        answers = [answer for answer, _ in answered]
        last = answers[len(chain) - 1]
        reason = _first([link.reason for link in links if not link.allowed])
        return Decision(
            allowed=reason is None,
            revision=self.revision,
            links=links,
            reason=reason,
            limits=_limits(chain, last.limited) if limited and reason is None and last.limited else (),
            until=nearest([answer.until for answer in answers]) if reason is None else None,
            roles=last.roles,
            would_deny=_names([answer.would_deny for answer in answers if answer.would_deny]),
            would_allow=_names([answer.would_allow for answer in answers if answer.would_allow]),
        )


def _nhi_kind(principal: Principal) -> PermissionKind:
    return PermissionKind.NHI_TO_NHI if principal.kind == "nhi" else PermissionKind.USER_TO_NHI


def _last_kind(principal: Principal, question: Question) -> PermissionKind:
    """A tool, prompt or resource, or an MCP server as a whole; else the object is an agent."""
    if question.server or question.object.startswith(_ON_SERVERS):
        return PermissionKind.AGENT_TO_TOOL
    return _nhi_kind(principal)


def _with_facts(link: Link, facts: tuple[Fact, ...]) -> Link:
    return Link(  # not _replace(): this is on the way of every call, and it is four times slower
        link.kind, link.subject, link.object, link.action, link.allowed, link.reason, link.rules, facts
    )


def _first(reasons: list[Reason | None]) -> Reason | None:
    """The reason that is told; None if there is nothing to tell."""
    if not reasons:
        return None
    return next((reason for reason in _PRECEDENCE if reason in reasons), Reason.NO_MATCHING_RULE)


def _names(found: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in found for name in names)) if found else ()


def _limits(chain: Chain, rules: tuple[Rule, ...]) -> tuple[RowLimit, ...]:
    counted = {"subject": chain[-1].name, "origin": chain[0].name, "rule": ""}
    return tuple(
        [
            RowLimit(rule.id, counted[rule.per], rule.max_calls_per_hour)
            for rule in rules
            if rule.max_calls_per_hour is not None
        ]
    )
