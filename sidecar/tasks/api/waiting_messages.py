"""Stores messages of A2A that wait for approval as tasks, which the worker carries out when they are approved.

Each is a task of the sidecar, which its caller reads over A2A (`gateway/frontends/a2a/approval_wait.py`). Its record
has an owner of its own, so that the task API does not list it. Once the message is a task of its agent, the record is
deleted, and the record of the task's owner has both ids.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.approvals import ApprovalRecord, ApprovalState
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.protocols.a2a.errors import AgentError
from sidecar.tasks.api.models import message_task
from sidecar.tasks.api.task_lifecycle import UNKNOWN_WHETHER_SENT
from sidecar.tasks.api.task_record import Task, TaskState, TaskStep
from sidecar.tasks.api.task_runner import TaskRunner
from sidecar.tasks.worker import to_its_end
from sidecar.vocabulary import Caller, skill_in

PURPOSE: Final = b"sidecar/waiting-message/1\0"


@dataclass(slots=True)
class WaitingMessages:
    runner: TaskRunner

    async def begin(
        self, owning: TaskOwnership, approval: ApprovalRecord, *, trace: str, reserve: bool
    ) -> dict[str, Any]:
        """Stores a message that waits for an approval, and returns its task; the same message has the same task. With
        `reserve`, the worker leaves it to the request, which waits for the approval and sends it. Raises Refusal."""
        means, intent, caller = self.runner.means, owning.intent, owning.caller
        call, now_s = intent.call, means.live.clock()
        about = [caller.binding, call.upstream, intent.params["message"]["messageId"], approval.name]
        digest = hmac.digest(means.tasks.secret, PURPOSE + orjson.dumps(about), "sha256")
        task_id = str(UUID(bytes=digest[:16], version=4))
        await owning.begin_here(task_id)
        task_type, until_s = skill_in(intent.params), now_s + means.rules.keep_s
        record = Task(task_id, _owner(caller), caller, call.upstream, task_type, now_s, until_s, intent.params)
        record = record._replace(
            trace=trace,
            a2a_context=intent.context or str(UUID(bytes=digest[16:], version=4)),
            action=call.method,
            version=intent.version,
            extensions=intent.extensions,
        ).waits(approval.name, approval.deadline_s, means.seal())
        if reserve:
            self.runner.reserve(task_id)
        if not await self.runner.add(record):
            record = await means.store.get(task_id) or record
        elif not reserve:
            self.runner.begin(record, record.caller)
        return self._shown(record)

    def reserve(self, task_id: str) -> None:
        """Leaves a message to its request for some more seconds."""
        self.runner.reserve(task_id)

    async def release(self, task_id: str) -> None:
        """Leaves a reserved message to the worker."""
        if (record := await self._find(task_id)) is not None:
            self.runner.release(record)

    async def find(self, task_id: str) -> dict[str, Any] | None:
        """Returns the task of a message in its current state; None if the message was sent. Raises Refusal."""
        record = await self._find(task_id)
        return None if record is None else self._shown(record)

    async def cancel(self, task_id: str, caller: Caller) -> dict[str, Any] | None:
        """Ends a message that was not sent and withdraws its request for approval. Returns its task, also if it had
        already ended; None if it is being sent or was sent. Raises Refusal."""
        while (record := await self._find(task_id)) is not None:
            if record.is_over:
                return self._shown(record)
            if record.step is not TaskStep.UNSENT:
                return None
            if (ended := await to_its_end(self._end_unsent(record, caller))) is not None:
                return self._shown(ended)
        return None

    async def _end_unsent(self, record: Task, caller: Caller) -> Task | None:
        ended = await self.runner.end(record, TaskState.CANCELLED)
        if ended is not None:
            await self.runner.means.push_end(record, ended)
            await self.runner.means.stages.approvals.withdraw(record.approval, caller)
            await self._owner_saw(ended)
        return ended

    async def go_on(self, task_id: str, caller: Caller) -> None:
        """Sends an approved message whose agent receives its caller's own token, with the token of this request."""
        record = await self._find(task_id)
        if record is None or record.state is not TaskState.WAITING or not caller.token:
            return
        approval = await self.runner.means.stages.approvals.find(record.approval)
        if approval is not None and approval.state is ApprovalState.APPROVED:
            self.runner.go_on(record, caller)

    async def take_over(self, task_id: str) -> bool:
        """Marks a message as being sent by its request. Returns False if it has ended, was sent or is being sent.
        Raises Refusal."""
        record = await self._find(task_id)
        if record is None or record.step is not TaskStep.UNSENT or record.is_over:
            return False
        self.runner.reserve(task_id, math.inf)
        sending = record.goes_on(self.runner.means.live.clock()).at(TaskStep.SENDING)
        is_taken = False
        try:
            is_taken = await self.runner.means.store.replace(sending._replace(revision=record.revision + 1))
        finally:  # also if the store does not answer: the worker then continues the task, as it is stored
            if not is_taken:
                self.runner.unreserve(task_id)
        return is_taken

    async def settle(self, task_id: str, first: Mapping[str, Any]) -> None:
        """Records the agent's first answer to a message that its request sent. Raises Refusal."""
        self.runner.unreserve(task_id)
        if "message" not in first:
            await self.runner.means.store.remove((task_id,))
        else:
            result = {"artifacts": [], "message": first["message"]}
            await self._end(task_id, TaskState.COMPLETED, result=result)

    async def fail(self, task_id: str, why: Refusal | AgentError | None) -> None:
        """Ends a message that its request could not send, or may not have sent. Raises Refusal."""
        self.runner.unreserve(task_id)
        if isinstance(why, Refusal):
            facts = {"error_code": why.answer.seed, "error_message": why.answer.message, "refused": why.reason}
        elif why is not None:
            facts = {"error_code": "ExecutionFailed", "error_message": why.kind.message}
            facts["refused"] = Reason.UPSTREAM_FAILED
        else:
            facts = {"error_code": "ExecutionFailed", "error_message": UNKNOWN_WHETHER_SENT}
        await self._end(task_id, TaskState.FAILED, **facts)

    async def _end(self, task_id: str, state: TaskState, **facts: Any) -> None:
        if (record := await self._find(task_id)) is not None and not record.is_over:
            ended = record.ended(state, self.runner.means.live.clock(), **facts)
            await self.runner.means.push_end(record, ended)
            await self.runner.means.store.replace(ended._replace(revision=record.revision + 1))
            await self._owner_saw(ended)

    async def _owner_saw(self, record: Task) -> None:
        tasks = self.runner.means.tasks
        mine = await tasks.mine(record.caller, record.target, (record.id,), namespace="a2a")
        for one in mine.values():
            await tasks.saw(one, record.state.value, None)

    async def _find(self, task_id: str) -> Task | None:
        record = await self.runner.means.store.get(task_id)
        return record if record is not None and record.action else None

    def _shown(self, record: Task) -> dict[str, Any]:
        return message_task(record, self.runner.means.live.current.settings.approval_page)


def _owner(caller: Caller) -> str:
    return f"message/{caller.binding}"
