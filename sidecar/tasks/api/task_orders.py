"""Creates tasks, including those of schedules and operators, which have no request but pass all stages. A task begins
only after its audit record is written."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sidecar.audit.recorder import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway.approvals import ApprovalRecord
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.request import CallContext, Charged, ParsedOperation
from sidecar.gateway.request_metrics import judged
from sidecar.gateway.snapshot import Snapshot
from sidecar.gateway.stages import Stages
from sidecar.limits import Lease
from sidecar.observability.metrics import Metrics
from sidecar.protocols.a2a.operations import SEND
from sidecar.tasks.api.request_reader import NewTask, sends
from sidecar.tasks.api.task_lifecycle import check_standing
from sidecar.tasks.api.task_record import Task
from sidecar.tasks.api.task_runner import TaskRunner
from sidecar.vocabulary import Caller, Decision

CREATED, THERE = 201, 200  # HTTP statuses for the audit record


class PlacedOrder(NamedTuple):
    """An order without a request, and the operation that it becomes."""

    task_id: str
    task: NewTask
    intent: AgentOperation


@dataclass(slots=True)
class TaskOrders:
    """Creates tasks. Once `closed`, creates no more."""

    runner: TaskRunner
    stages: Stages
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
        """Creates a task with this id, or returns the existing one; `peer` is the source of the order. Raises
        Refusal."""
        means, intent = self.runner.means, sends(task_id, target, task_type, payload, context, answers)
        now, now_s = means.live.take(), means.live.clock()
        recording = Recording(means.audit, protocol="a2a", peer=peer, request_id=task_id)
        recording.task_id = task_id
        recording.caller, recording.upstream, recording.method = caller, target, SEND.action
        recording.call, placed, refused = intent.call, CallContext(now, recording), None
        if now.shadows(now_s):
            placed.shadow, recording.enforcement = True, "shadow"
        order = PlacedOrder(task_id, NewTask(target, task_type, payload, context=context, answers=answers), intent)
        try:
            if self.closed:
                raise Refusal(Reason.DRAINING)
            check_standing(means.switch, now, caller, intent.call, now_s)
            operation = ParsedOperation(intent.call, order, charges="creation")
            return await self.stages.carry_out(placed, caller, self, operation)
        except Refusal as refusal:
            refused = refusal
            await _put_down(recording, refusal)
            self.stages.refusals.closes(caller, peer, refusal)
            raise
        except asyncio.CancelledError:
            await _put_down(recording, Refusal(Reason.DRAINING))
            raise
        finally:
            means.live.leave(now)
            judged(self.metrics, recording, placed.plan, refused, placed.excused, shadow=placed.shadow)

    async def check(
        self, request: CallContext, caller: Caller, content: PlacedOrder, decision: Decision
    ) -> PlacedOrder:
        await self.check_agent(request.now, caller, content.intent)
        request.defers = True
        return content

    async def carry_out(self, charged: Charged) -> Task:
        """Stores the task. Returns the one that exists if another process stored it first. Raises Refusal."""
        order: PlacedOrder = charged.content
        caller, recording = charged.caller, charged.request.record
        record = self.new(caller, order.task, order.task_id, awaited=charged.request.awaited)
        put_down = partial(recording.outcome, http_status=CREATED, bytes_out=0)
        if await self.keep(record, charged.lease, put_down, once_more=True):
            return record
        recording.charged = 0  # the task has the other process's charges
        await recording.outcome(http_status=THERE, bytes_out=0)
        there = await self.runner.means.store.get(order.task_id)
        if there is None or there.owner != caller.binding:  # a task must not be returned to another caller
            raise Refusal(Reason.TASK_UNKNOWN)
        return there

    def new(
        self, caller: Caller, order: NewTask, task_id: str, trace: str = "", awaited: ApprovalRecord | None = None
    ) -> Task:
        """Returns a new task; one whose approval is `awaited` waits for it."""
        live = self.runner.means.live
        now_s, keep_s = live.clock(), live.current.settings.tasks.keep_s
        about = (order.target, order.task_type, now_s, now_s + keep_s, order.input, order.callback_url)
        record = Task(
            task_id, caller.binding, caller, *about, a2a_context=order.context, answers=order.answers, trace=trace
        )
        return record if awaited is None else record.waits(awaited.name, awaited.deadline_s, self.runner.means.seal())

    async def check_agent(self, now: Snapshot, caller: Caller, intent: AgentOperation) -> None:
        """Checks that the task could be sent, before anything is charged. Raises Refusal."""
        agent = now.agent(intent.call.upstream)
        await TaskOwnership(self.runner.means.tasks, caller, intent).check()
        agent.account.breaker.check()

    async def keep(
        self, record: Task, lease: Lease, put_down: Callable[[], Awaitable[object]], *, once_more: bool = False
    ) -> bool:
        """Stores a new task, writes its audit record, without which it is not accepted, and begins it. Returns False if
        its id exists. `once_more`: if the store's answer is lost, the same task will be ordered again, so it may run
        although this call raises. Raises Refusal."""
        runner = self.runner
        runner.reserve(record.id)
        try:
            if not await runner.add(record, once_more=once_more):
                return False
            lease.forwarded = True
            await put_down()
        except Refusal:
            if lease.forwarded:
                await runner.revoke(record)
            raise
        finally:
            runner.unreserve(record.id)
        runner.begin(record, record.caller)
        return True


async def _put_down(recording: Recording, refusal: Refusal) -> None:
    """Records the refusal, unless the outcome is recorded already. If that fails, the next order reports it."""
    if not recording.done:
        with suppress(Refusal):
            await recording.refused(refusal, http_status=refusal.answer.http)
