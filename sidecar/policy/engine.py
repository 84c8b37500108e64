"""May they?

The chain is asked link by link (CONTRACT 1.3): each principal but the last whether it may lend the next one its
authority, the last one the question itself; then the guardrails are asked of everybody. The same walk decides calls
and filters lists, so that what is listed is what can be called (threats I9).

An engine is one revision. It remembers, but nothing that it answers depends on what it was asked before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sidecar.policy.cases import MAX_REMEMBERED_CHARS, Asker, Docket, Roles, window
from sidecar.policy.judge import Subject
from sidecar.policy.memo import Memo
from sidecar.policy.patterns import glob, meets_prefix
from sidecar.policy.source import PolicySource
from sidecar.policy.walks import Opening, Step, Walk
from sidecar.vocabulary import DELEGATE, Chain, Decision, PermissionKind, Principal, Question, Rule

MEMO_SIZE = 2048
MAX_OPENING_RULES = 8  # enough evidence that somebody has a grant on a server

_ON_SERVERS = ("tool:", "prompt:", "resource:")


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
        self._known_grants: Memo[tuple[str, frozenset[str], str], tuple[Rule, ...]] = Memo(1024)
        self._walks: Memo[tuple[object, ...], Walk] = Memo(MEMO_SIZE)

    def decide(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Whether the chain may do this at `now_s` (seconds since the epoch), link by link. Never raises for no."""
        return self._walk(chain, question, now_s).decision(chain, question, now_s)

    def may_list(self, chain: Chain, question: Question, now_s: float) -> bool:
        """Whether an entry that asks this question may be shown: false only if every call of it would be denied.

        Conditions on what the caller will write (`args`, `call.meta`) count for the caller; limits are not asked.
        """
        return self._walk(chain, question, now_s).may_list(chain, question, now_s)

    def enter(self, chain: Chain, question: Question, now_s: float) -> Decision:
        """Whether the chain may have a session call on an MCP server (CONTRACT 1.4): any live allow row of the last
        principal on that server opens it, whatever its actions and conditions; a deny row on it closes it. No row's
        limit is charged: `session_calls_per_minute` bounds these calls."""
        return self._walk(chain, question, now_s, entering=True).decision(chain, question, now_s)

    def roles_of(self, principal: Principal) -> frozenset[str]:
        """Every role of a principal, from its token and from `g` rows."""
        return self._roles.asker(principal).roles

    # --- the walk -----------------------------------------------------------------------------------------------------

    def _walk(self, chain: Chain, question: Question, now_s: float, *, entering: bool = False) -> Walk:
        """The walk as it stands now. All that it depends on is in its key, but for what conditions read."""
        key: list[object] = [question.object, question.action, question.server, entering]
        for principal in chain:
            key += (principal.name, principal.roles)
        remembered = tuple(key)
        walk = self._walks.get(remembered)
        if walk is None or not walk.since <= now_s < walk.until:
            walk = self._new_walk(chain, question, now_s, entering=entering)
            if len(question.object) <= MAX_REMEMBERED_CHARS:
                self._walks.put(remembered, walk)
        return walk

    def _new_walk(self, chain: Chain, question: Question, now_s: float, *, entering: bool) -> Walk:
        steps = list(self._steps(chain, question, now_s))
        grants = self._grants(chain[-1], question.server) if entering and chain and question.server else ()
        since, until = window([rule.expires_at for rule in grants], now_s)
        return Walk(
            revision=self.revision,
            names=tuple(principal.name for principal in chain),
            steps=tuple(step for at, step in enumerate(steps) if at < len(chain) or step.case.tells),
            since=max([since, *(step.case.since for step in steps)]),
            until=min([until, *(step.case.until for step in steps)]),
            limited=not entering,
            opening=self._opening(chain[-1], grants, now_s) if grants else None,
            roles_of=self.roles_of,
        )

    def _steps(self, chain: Chain, question: Question, now_s: float) -> Iterator[Step]:
        """The links in order, the last one being the question itself; then whatever guardrails are asked."""
        askers = [self._roles.asker(principal) for principal in chain]
        last = len(chain) - 1
        for place in range(last):
            docket = self._dockets[_nhi_kind(chain[place])]
            yield Step(docket.case(askers[place], chain[place + 1].name, DELEGATE, now_s), place, lends=True)
        if chain:
            docket = self._dockets[_last_kind(chain[last], question)]
            yield Step(docket.case(askers[last], question.object, question.action, now_s), last, lends=False)
        if self._guardrails.rows:
            yield from self._guarded(chain, askers, question, now_s)

    def _guarded(self, chain: Chain, askers: list[Asker], question: Question, now_s: float) -> Iterator[Step]:
        """Each principal on the final object, and on every NHI after it."""
        ask = self._guardrails.case
        for place, asker in enumerate(askers):
            yield Step(ask(asker, question.object, question.action, now_s), place, lends=False)
            for later in chain[place + 1 :]:
                if later.kind == "nhi":
                    yield Step(ask(asker, later.name, DELEGATE, now_s), place, lends=True)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _opening(self, principal: Principal, grants: tuple[Rule, ...], now_s: float) -> Opening:
        live = [rule for rule in grants if rule.expires_at is None or now_s < rule.expires_at]
        ends = [rule.expires_at for rule in live if rule.expires_at is not None]
        shown = tuple(live[:MAX_OPENING_RULES])
        # Any one of them opens it, so it stays open until the last one ends.
        until = max(ends) if ends and len(ends) == len(live) else None
        return Opening(shown, until, self._roles.behind(self._roles.asker(principal), shown))

    def _grants(self, principal: Principal, server: str) -> tuple[Rule, ...]:
        """The allow rows of this principal that say anything about the server, live or expired."""
        asker = self._roles.asker(principal)
        key = (asker.name, asker.granted, server)
        known = self._known_grants.get(key)
        if known is None:
            docket = self._dockets[PermissionKind.AGENT_TO_TOOL]
            rows = [docket.rows[i] for i in docket.judge.rows_of(Subject.of(asker.name, asker.roles))]
            known = tuple(
                row.rule
                for row in rows
                if row.rule.effect == "allow" and not row.rule.shadow and self._is_on(row.rule.object, server)
            )
            self._known_grants.put(key, known)
        return known

    def _is_on(self, pattern: str, server: str) -> bool:
        """Whether a rule's object can be the server itself or something on it."""
        if pattern.startswith("set:"):
            return any(self._is_on(element, server) for element in self._sets.get(pattern, ()))
        prefixes = (f"{word}{server}/" for word in _ON_SERVERS)
        return glob(f"nhi:{server}", pattern) or any(meets_prefix(pattern, prefix) for prefix in prefixes)


def _nhi_kind(principal: Principal) -> PermissionKind:
    return PermissionKind.NHI_TO_NHI if principal.kind == "nhi" else PermissionKind.USER_TO_NHI


def _last_kind(principal: Principal, question: Question) -> PermissionKind:
    """A tool, prompt or resource, or an MCP server as a whole; else the object is an agent."""
    if question.server or question.object.startswith(_ON_SERVERS):
        return PermissionKind.AGENT_TO_TOOL
    return _nhi_kind(principal)
