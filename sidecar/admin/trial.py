"""Tries a question without making the call, and reports the result of each check. Nothing is recorded or charged.

The checks are those of the request pipeline, by the same functions and in the same order. A refusal does not end the
trial, so that all checks report. If a server has not listed its tools yet, it is asked for its list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.gateway.frontends.mcp import check_tool
from sidecar.gateway.kill_switch import SwitchEntry
from sidecar.gateway.snapshot import Service, Snapshot
from sidecar.gateway.stages import Stages
from sidecar.limits import StoreUnavailable
from sidecar.limits.usage_report import CountedLimit
from sidecar.policy_tools.audit_records import is_session
from sidecar.policy_tools.explain import Explanation, explain
from sidecar.policy_tools.explanation import as_data
from sidecar.vocabulary import Call, Chain, Decision, Question

EXPLAIN_S: Final = 5.0
LEARN_S: Final = 2.0


class TriedQuestion(NamedTuple):
    """A chain's question at `at_s`, in seconds since the epoch. Without `has_arguments`, it is about calls with any
    arguments."""

    chain: Chain
    question: Question
    at_s: float
    has_arguments: bool = True


class CheckResult(NamedTuple):
    """The result of one check. `passes` None means that there is nothing to check, or that the result is unknown or
    waits for a person. `told` explains it. `reason` is the reason of the refusal."""

    name: str
    passes: bool | None
    told: str = ""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """Tries questions under one snapshot."""

    now: Snapshot
    stages: Stages

    async def answer(self, tried: TriedQuestion) -> Mapping[str, Any]:
        """Returns the results of all checks, the explanation of policy, and the current state of the limits. Raises
        TimeoutError if the explanation takes longer than EXPLAIN_S."""
        now, (chain, question, at_s, has_arguments) = self.now, tried
        async with asyncio.timeout(EXPLAIN_S):
            found = await asyncio.to_thread(explain, now.engine, now.budgets, chain, question, at_s)
        call = self._call(question)
        limits = await self._limits(found)
        depends = not has_arguments and now.engine.survey(chain, question, at_s)[0] == "conditional"
        checks = [
            self._principals(chain, call, at_s),
            CheckResult("policy", None, "it depends on the arguments") if depends else _policy(found),
            *await self._content(call, found.decision, at_s, has_arguments=has_arguments),
            _limit_check(found, limits),
        ]
        refused = next((check for check in checks if check.passes is False), None)
        return {
            "outcome": "deny" if refused is not None else "conditional" if depends else found.answer,
            "reason": refused.reason if refused is not None else None,
            "shadow": now.shadows(at_s),
            "checks": [check._asdict() for check in checks],
            "explanation": as_data(found),
            "limits": limits,
        }

    def _call(self, question: Question) -> Call:
        name = question.server or question.object.partition(":")[2]
        protocol = "mcp" if name in self.now.services else "a2a"
        return Call(protocol, "", name, question.action, (question,), session=is_session(question))

    def _principals(self, chain: Chain, call: Call, at_s: float) -> CheckResult:
        sources = (self.stages.switch.ledger.disabled, self.now.disabled)
        found = next(filter(None, (one.touched_by(chain, call, at_s) for one in sources)), None)
        if found is None:
            return CheckResult("principals", True, "none of them is disabled")
        return CheckResult("principals", False, _switch_text(found), Reason.PRINCIPAL_DISABLED.value)

    async def _content(
        self, call: Call, decision: Decision, at_s: float, *, has_arguments: bool
    ) -> Sequence[CheckResult]:
        if call.method == "tools/call":
            found = await self._tool(call, decision, at_s)
            unwritten = CheckResult("arguments", None, "not checked: none were entered")
            return [unwritten if one.name == "arguments" and not has_arguments else one for one in found]
        if not call.session and (key := self.now.similar_key(call, decision)) is not None:
            told = f"{key} differs from another name only in case or Unicode form"
            return [CheckResult("arguments", False, told, Reason.MALFORMED_CALL.value)]
        return []

    async def _tool(self, call: Call, decision: Decision, at_s: float) -> Sequence[CheckResult]:
        question, service = call.question, self.now.services.get(call.upstream)
        switched_off = self.stages.switch.ledger.switched_off
        switch = CheckResult("switch", True, "the tool is on")
        if switched_off.turns_off(call, at_s):
            names = (f"mcp:{call.upstream}", question.object)
            entry = next(filter(None, (switched_off.find(name, at_s) for name in names)), None)
            told = "it is off" if entry is None else _switch_text(entry)
            switch = CheckResult("switch", False, told, Reason.TOOL_DISABLED.value)
        if service is None:
            unknown = CheckResult("tool", False, "no server here has this name", Reason.UPSTREAM_UNKNOWN.value)
            return (switch, unknown)
        state = service.account.breaker.state
        upstream = CheckResult("upstream", True if state == "closed" else None, f"its breaker is {state.value}")
        return (switch, upstream, *await self._definition(service, question, decision))

    async def _definition(self, service: Service, question: Question, decision: Decision) -> Sequence[CheckResult]:
        catalogue = service.catalogue
        if not catalogue.lists:
            with suppress(Refusal):
                await catalogue.learn(min(service.timeout_s, LEARN_S))
        if not catalogue.lists:
            told = "not known: the server has not listed its tools"
            return [CheckResult(name, None, told) for name in ("tool", "pin", "arguments")]
        tool = catalogue.tools.get(question.name)
        if tool is None:
            return [CheckResult("tool", False, "the server lists no such tool", Reason.TOOL_UNKNOWN.value)]
        is_pinned = question.server in self.now.required
        reached = {
            "tool": "the server lists it",
            "pin": "its definition is the pinned one" if is_pinned else "the server's tools need no pins",
            "arguments": "they fit the tool's schema",
        }
        passed = {"tool": True, "pin": True if is_pinned else None, "arguments": True}
        try:
            await asyncio.to_thread(check_tool, self.now, tool, question, decision)
        except Refusal as refusal:
            return list(_refused_tool(refusal, reached, passed))
        return [CheckResult(name, passed[name], told) for name, told in reached.items()]

    async def _limits(self, found: Explanation) -> list[dict[str, Any]] | None:
        """Returns the limits that the call would be charged to, in their current state; None if the store is
        unavailable."""
        charges = tuple(one.charge for one in found.limits)
        if not charges:
            return []
        try:
            states = await self.stages.limiter.store.look(charges)
        except StoreUnavailable:
            return None
        return [
            {
                **CountedLimit(*charged).plain(state),
                "takes": told["takes"],
                "has_room": state.remaining >= charged.charge.amount,
            }
            for charged, told, state in zip(found.limits, as_data(found)["limits"], states, strict=True)
        ]


_CHECKED_BY: Final = {Reason.SCHEMA_UNAVAILABLE: "tool", Reason.PIN_MISMATCH: "pin", Reason.BAD_ARGUMENTS: "arguments"}


def _refused_tool(
    refusal: Refusal, reached: Mapping[str, str], passed: Mapping[str, bool | None]
) -> Sequence[CheckResult]:
    """Returns the results up to the check that refused. Later checks did not run."""
    refusing, found = _CHECKED_BY[refusal.reason], list[CheckResult]()
    for name, told in reached.items():
        if name == refusing:
            return [*found, CheckResult(name, False, _told(refusal), refusal.reason.value)]
        found.append(CheckResult(name, passed[name], told))
    return found


def _policy(found: Explanation) -> CheckResult:
    if found.answer == "approval":
        return CheckResult("policy", None, "it waits for a person's approval", "approval-pending")
    if found.allowed:
        return CheckResult("policy", True, "every link is allowed")
    reason = found.decision.reason or Reason.NO_MATCHING_RULE
    return CheckResult("policy", False, ANSWERS[reason].message, reason.value)


def _limit_check(found: Explanation, limits: Sequence[Mapping[str, Any]] | None) -> CheckResult:
    if limits is None:
        return CheckResult("limits", None, "not known: the store cannot be reached")
    if not found.decision.allowed:
        return CheckResult("limits", None, "none: a denied call is charged nothing")
    spent = [limit["limit"] for limit in limits if not limit["has_room"]]
    if spent:
        return CheckResult("limits", False, f"no room in {', '.join(spent)}", Reason.RATE_LIMITED.value)
    return CheckResult("limits", True, "there is room" if limits else "the call is charged to none")


def _told(refusal: Refusal) -> str:
    return refusal.detail or ANSWERS[refusal.reason].message


def _switch_text(entry: SwitchEntry) -> str:
    by = f" by {entry.by}" if entry.by else f" in {entry.source}"
    why = f": {entry.reason}" if entry.reason else ""
    return f"{entry.principal} is disabled{by}{why}"
