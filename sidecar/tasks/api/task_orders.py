"""Creates tasks, from requests and from schedules.

An order by a schedule or from an operator's terminal has no request, and passes the same checks here in the same order:
capacity, kill switch, policy, the agent's availability, limits. Audit is written first, then the task is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sidecar.audit import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.request_metrics import judged
from sidecar.gateway.snapshot import Snapshot
from sidecar.http.server.load_shedding import LoadShedding
from sidecar.http.server.refusal_throttle import RefusalThrottle
from sidecar.limits import Lease, LimitPlan, plan_charges
from sidecar.observability.metrics import Metrics
from sidecar.protocols.a2a.operations import SEND
from sidecar.tasks.api.request_reader import NewTask, sends, unknown
from sidecar.tasks.api.task_lifecycle import check_standing, decided
from sidecar.tasks.api.task_record import Task, TaskState
from sidecar.tasks.api.task_runner import TaskRunner
from sidecar.vocabulary import Caller

CREATED, THERE = 201, 200  # HTTP statuses for the audit record


@dataclass(slots=True)
class TaskOrders:
    """Creates tasks. Once `closed`, creates no more."""

    runner: TaskRunner
    pressure: LoadShedding
    refusals: RefusalThrottle
    metrics: Metrics
    closed: bool = False

    async def place(
        self,
        caller: Caller,
        target: str,
        task_type: str,
        payload: Mapping[str, Any],
        task_id: str,
        *,
        peer: str,
        context: str = "",
        answers: str = "",
    ) -> Task:
        """Creates a task with this id, or returns the one that exists: a caller that is unsure repeats its order.
        `peer` says where it comes from; see NewTask for the others. Raises Refusal, as over HTTP."""
        means = self.runner.means
        now = means.live.take()
        recording = Recording(means.audit, protocol="a2a", peer=peer, request_id=task_id)
        recording.task_id = task_id
        recording.caller, recording.upstream, recording.method = caller, target, SEND.action
        order = NewTask(target, task_type, payload, context=context, answers=answers)
        placing, refused = _Placing(self, now, caller, order, recording), None
        try:
            return await placing.carried_out(task_id)
        except Refusal as refusal:
            refused = refusal
            await _put_down(recording, refusal)
            self.refusals.closes(caller, peer, refusal)
            raise
        except asyncio.CancelledError:
            await _put_down(recording, Refusal(Reason.DRAINING))
            raise
        finally:
            means.live.leave(now)
            judged(self.metrics, recording, placing.plan, refused, placing.excused, shadow=placing.shadow)

    def new(self, caller: Caller, order: NewTask, task_id: str) -> Task:
        live = self.runner.means.live
        now_s, keep_s = live.clock(), live.current.settings.tasks.keep_s
        about = (order.target, order.task_type, now_s, now_s + keep_s, order.input, order.callback_url)
        return Task(task_id, caller.binding, caller, *about, a2a_context=order.context, answers=order.answers)

    async def check(self, now: Snapshot, caller: Caller, intent: AgentOperation) -> None:
        """Checks that the task could be sent, before anything is charged. Raises Refusal."""
        agent = now.agent(intent.call.upstream)
        await TaskOwnership(self.runner.means.tasks, caller, intent).check()
        agent.account.breaker.check()

    async def keep(
        self, record: Task, lease: Lease, put_down: Callable[[], Awaitable[object]], *, once_more: bool = False
    ) -> bool:
        """Stores a new task, writes its audit record, without which it is not accepted, and begins it. Returns False if
        its id exists; `once_more` means that the caller repeats an order whose answer is lost. Raises Refusal."""
        if not await self.runner.add(record, once_more=once_more):
            return False
        lease.forwarded = True
        try:
            await put_down()
        except Refusal:
            await self.runner.end(record, TaskState.CANCELLED)
            raise
        self.runner.begin(record, record.caller)
        return True

    def admit(self, caller: Caller) -> None:
        if self.closed:
            raise Refusal(Reason.DRAINING)
        self.pressure.or_refuse()
        self.refusals.check(caller)


@dataclass(slots=True)
class _Placing:
    orders: TaskOrders
    now: Snapshot
    caller: Caller
    order: NewTask
    recording: Recording
    plan: LimitPlan | None = None
    excused: list[Refusal] = field(default_factory=list)

    @property
    def shadow(self) -> bool:
        return self.now.shadows(self.orders.runner.means.live.clock())

    async def carried_out(self, task_id: str) -> Task:
        order = self.order
        intent = sends(task_id, order.target, order.task_type, order.input, order.context, order.answers)
        self.recording.call = intent.call
        try:
            self.orders.admit(self.caller)
        except Refusal as refusal:
            if refusal.reason is not Reason.TOO_MANY_REFUSALS or not self._excuse(refusal):
                raise
        means, now = self.orders.runner.means, self.now
        check_standing(means.switch, now, self.caller, intent.call, means.live.clock())
        decision = decided(now, intent.call, self.recording, means.live.clock())
        self.recording.mark("policy")
        await self.orders.check(now, self.caller, intent)
        plan = plan_charges(now.budgets, self.caller.chain, now.engine.roles_of, intent.call, decision)
        self.plan = plan = plan.at_creation
        async with means.limiter.reserve(plan, self.recording.decision_id, excuse=self._excuse) as lease:
            try:
                return await self._kept(task_id, lease)
            finally:
                if not lease.forwarded:
                    self.recording.charged = 0  # it is refunded

    async def _kept(self, task_id: str, lease: Lease) -> Task:
        recording = self.recording
        recording.limits, recording.charged = lease.states, lease.charged
        if lease.degraded and not self.shadow:
            recording.enforcement = "degraded"
        recording.mark("limits")
        await recording.decided()
        recording.mark("audit")
        record = self.orders.new(self.caller, self.order, task_id)
        put_down = partial(recording.outcome, http_status=CREATED, bytes_out=0)
        if await self.orders.keep(record, lease, put_down, once_more=True):
            return record
        recording.charged = 0  # another process was faster: the task has that one's charges
        await recording.outcome(http_status=THERE, bytes_out=0)
        there = await self.orders.runner.means.store.get(task_id)
        if there is None or there.owner != self.caller.binding:  # a task must not be returned to another caller
            raise unknown()
        return there

    def _excuse(self, refusal: Refusal) -> bool:
        if self.shadow:
            self.excused.append(refusal)
            name = f"limit:{refusal.limit.name}" if refusal.limit else refusal.reason.value
            self.recording.excused = (*self.recording.excused, name)
        return self.shadow


async def _put_down(recording: Recording, refusal: Refusal) -> None:
    """Records the refusal, unless the outcome is recorded already. If that fails, the next order reports it."""
    if not recording.done:
        with suppress(Refusal):
            await recording.refused(refusal, http_status=refusal.answer.http)
