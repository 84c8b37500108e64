"""The stages of a call, from the decision to the answer, in one order for every protocol.

A call of the data plane comes from `pipeline.py`; a task that a schedule or an operator starts has no request
(`tasks/api/task_orders.py`). Both pass `Stages.carry_out`, the only function that asks policy, charges limits, and
records the decision before the upstream is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sidecar.errors import CredentialFault, Reason, Refusal, Unsent
from sidecar.gateway import ownership
from sidecar.gateway.approvals import ApprovalRecord, Approvals
from sidecar.gateway.frontends.mcp_requests import STREAM
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import CallContext, Charged, ParsedOperation
from sidecar.gateway.snapshot import Snapshot, all_of
from sidecar.http.client import ConnectFailed, InvalidRequest, NoCapacity, QueueFull
from sidecar.http.server.load_shedding import LoadShedding
from sidecar.http.server.refusal_throttle import RefusalThrottle
from sidecar.limits import NOTHING, Limiter, SessionCalls, plan_charges
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed
from sidecar.protocols.mcp import task_messages
from sidecar.storage.task_owners import TaskOwners
from sidecar.vocabulary import Call, Caller, Decision

Answer = TypeVar("Answer", covariant=True)
_new = tuple.__new__  # of a named tuple, whose constructor takes twice as long


class Carrier(Protocol[Answer]):
    """What one protocol adds to the stages. Both methods raise Refusal."""

    async def check(self, request: Any, caller: Caller, content: Any, decision: Decision) -> Any:
        """Checks the content of a permitted operation before anything is charged. Returns it in the form to be sent."""

    def carry_out(self, charged: Charged) -> Coroutine[Any, Any, Answer]:
        """Sends the operation to its upstream, and returns the answer once its outcome is recorded."""


@dataclass(slots=True)
class Stages:
    """The stages and what they need. While `draining`, new work is refused; `inside` counts the calls in progress.
    `clock` returns seconds since the epoch."""

    limiter: Limiter
    session_calls: SessionCalls
    switch: KillSwitch
    tasks: TaskOwners
    load_shedding: LoadShedding
    refusals: RefusalThrottle
    approvals: Approvals
    clock: Callable[[], float]
    draining: bool = False
    inside: int = 0

    async def carry_out(
        self, request: CallContext, caller: Caller, frontend: Carrier[Answer], operation: ParsedOperation
    ) -> Answer:
        """Carries one operation from the decision to the answer. Raises Refusal."""
        (call, content, begins, charges), record, now, large = operation, request.record, request.now, request.large
        marks, read_clock = record.marks, record.now_s
        # Operations that begin no work are always admitted: a call may wait for its caller's answer to its server.
        if begins and (self.draining or self.load_shedding.refused_share or self.refusals.refused):
            self.admit(request)
        self.inside += 1
        try:
            now_s = self.clock()
            if self.switch.ledger.flips or now.disabled.entries:
                self.refuse_disabled(now, caller, call, now_s)
            decision = record.decision = now.decide(caller.chain, call, now_s)
            marks["policy"] = read_clock()
            if not decision.allowed and not request.shadow:
                decision.or_refuse()
            if call.session:
                if charges != "none":
                    self._charge_session_call(request, caller, call)
            elif call.method != "tools/call" and (key := now.similar_key(call, decision)) is not None:
                raise malformed(f"{key} differs from another name only in case or Unicode form", INVALID_PARAMS)
            if call.tasks or call.wants_task:
                decision = await self._decide_tasks(request, caller, call, decision, now_s)
            if large:
                await asyncio.sleep(0)
            checked = await frontend.check(request, caller, content, decision)
            approval = None
            if decision.approvals:
                approval = await self._approval(request, caller, call, decision)
                marks["approval"] = read_clock()
            if large:
                await asyncio.sleep(0)
            plan = plan_charges(now.budgets, caller.chain, now.engine.roles_of, call, decision)
            if charges != "all":
                plan = NOTHING if charges == "none" else plan.at_creation if charges == "creation" else plan.of_slots
            request.plan = plan
            del now  # a stream that stays open holds no old policy in memory
            lease, used = self.limiter.reserve(plan, record.decision_id), None
            request.lease = lease
            try:
                if lease.pending:
                    await lease.charge(request.excuse)
                request.charged = True
                record.limits, record.charged = lease, lease.charged
                if lease.degraded and not request.shadow:
                    record.enforcement = "degraded"
                marks["limits"] = read_clock()
                if approval is not None:
                    used = await self.approvals.use(approval, request)
                if not record.enforcement_point:  # a decision for an enforcement point is recorded with its answer
                    await record.decided()  # before the upstream is called
                marks["audit"] = read_clock()
                try:
                    if large:
                        await asyncio.sleep(0)
                    charged = _new(Charged, (request, caller, checked, decision, lease, plan.timeout_s))
                    return await frontend.carry_out(charged)
                except Refusal as refusal:
                    if _was_not_sent(refusal):
                        lease.forwarded = False
                    raise
                finally:
                    if not lease.forwarded:
                        record.charged = 0  # the charge is returned
                    # otherwise its end is in the record, or there was no upstream
                    if "upstream" not in marks and not record.enforcement_point:
                        marks["upstream"] = read_clock()
            finally:
                lease.end()
                if used is not None and not (record.is_decided or record.done):
                    await self.approvals.give_back(used)
        finally:
            self.inside -= 1

    async def _approval(
        self, request: CallContext, caller: Caller, call: Call, decision: Decision
    ) -> ApprovalRecord | None:
        """Returns the approval of a call that needs one; None if another call will use it. In shadow mode it records
        that none was requested."""
        if request.shadow:
            request.excuse(Refusal(Reason.APPROVAL_PENDING))
            return None
        if request.defers:
            request.awaited = await self.approvals.ask(request, caller, call, decision)
            return None
        asked_s = request.record.now_s()
        try:
            approval = await self.approvals.require(request, caller, call, decision)
        finally:
            request.held_s = request.record.now_s() - asked_s
        # The call may have been held: the current policy must allow it, with the same demands.
        now, now_s = self.approvals.live.current, self.clock()
        if caller.expires_at is not None and caller.expires_at <= now_s:
            raise Refusal(Reason.BAD_CREDENTIAL, credential_fault=CredentialFault.EXPIRED)
        self.refuse_disabled(now, caller, call, now_s)
        again = now.decide(caller.chain, call, now_s)
        again.or_refuse()
        if not self.approvals.is_bound(approval, caller, call, again):
            raise Refusal(Reason.APPROVAL_PENDING, "what the policy demands of this call has changed: call again")
        return approval

    def admit(self, request: CallContext) -> None:
        """Raises Refusal for new work while the process is draining or overloaded, or the caller was refused often."""
        if self.draining:
            raise Refusal(Reason.DRAINING)
        self.load_shedding.or_refuse()
        try:
            self.refusals.check(request.record.caller)
        except Refusal as refusal:
            if not request.excuse(refusal):
                raise

    def refuse_disabled(self, now: Snapshot, caller: Caller, call: Call, now_s: float) -> None:
        """Raises Refusal if the target or a principal of the chain is disabled."""
        for disabled in (self.switch.ledger.disabled, now.disabled):
            if disabled.entries:
                disabled.refuse(caller.chain, call, now_s)

    async def _decide_tasks(
        self, request: CallContext, caller: Caller, call: Call, decision: Decision, now_s: float
    ) -> Decision:
        """Decides again on the questions that created the call's MCP tasks: a caller that has lost that permission has
        lost the task. A task whose tool is disabled can only be ended."""
        questions = await ownership.created_by(self.tasks, caller, call)
        for question in questions:
            again = request.now.engine.reconsider(caller.chain, question, now_s)
            decision = request.record.decision = all_of((decision, again))
            if not request.shadow:
                decision.or_refuse()
        if len(call.tasks) == 1:
            request.record.task_id = call.tasks[0]
        if questions and call.method != task_messages.CANCEL:
            self.switch.ledger.switched_off.refuse_use(call._replace(questions=questions), now_s)
        return decision

    def _charge_session_call(self, request: CallContext, caller: Caller, call: Call) -> None:
        # Reopened streams have their own limit, so that they do not use up the caller's lists and pings.
        streams = " streams" if call.method == STREAM else ""
        try:
            self.session_calls.charge(caller.last.name + streams)
        except Refusal as refusal:
            if not request.excuse(refusal):
                raise


def _was_not_sent(refusal: Refusal) -> bool:
    """Reports whether nothing reached the upstream: its breaker is open, or there was no credential or connection."""
    unreached = isinstance(refusal.__cause__, ConnectFailed | QueueFull | NoCapacity | InvalidRequest)
    return refusal.reason is Reason.UPSTREAM_OPEN or isinstance(refusal, Unsent) or unreached
