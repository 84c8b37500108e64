"""Lets messages to agents wait for a person's approval.

A waiting message is answered with a task of the sidecar in the state `auth-required`. The task belongs to the caller.
When it is approved, the message is sent and the task keeps its id (`task_ownership.py`). A stream begins with that
task, is held for a while, and continues with the agent's events if the approval comes in time. Until the message is
sent, the sidecar answers operations on the task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sidecar.errors import Reason, Refusal
from sidecar.gateway.approvals import ApprovalRecord
from sidecar.gateway.frontends.a2a.request_reader import CalledName
from sidecar.gateway.frontends.a2a.response_writers import TaskWaits
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.request import ApprovalWait, RequestContext, approval_data
from sidecar.http.server.event_stream import EventStream
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import Operation
from sidecar.protocols.sse import KEEP_ALIVE
from sidecar.vocabulary import Caller

APPROVAL: Final = "sidecar/approval"  # in a task's metadata
AUTH_REQUIRED: Final = "TASK_STATE_AUTH_REQUIRED"
ENDED: Final[Mapping[Reason, str]] = {
    Reason.APPROVAL_REFUSED: "TASK_STATE_REJECTED",
    Reason.APPROVAL_EXPIRED: "TASK_STATE_FAILED",
}


class WaitingMessages(Protocol):
    """Messages that wait, as `tasks/api/waiting_messages.py` documents them."""

    async def begin(
        self, owning: TaskOwnership, approval: ApprovalRecord, *, trace: str, reserve: bool
    ) -> dict[str, Any]: ...
    def reserve(self, task_id: str) -> None: ...
    async def release(self, task_id: str) -> None: ...
    async def find(self, task_id: str) -> dict[str, Any] | None: ...
    async def cancel(self, task_id: str, caller: Caller) -> dict[str, Any] | None: ...
    async def go_on(self, task_id: str, caller: Caller) -> None: ...
    async def take_over(self, task_id: str) -> bool: ...
    async def settle(self, task_id: str, first: Mapping[str, Any]) -> None: ...
    async def fail(self, task_id: str, why: Refusal | AgentError | None) -> None: ...


async def hold(request: RequestContext, last_event: Callable[[Refusal], Awaitable[bytes]]) -> EventStream:
    """Opens a caller's stream before there is an answer. Raises Refusal(CALLER_GONE)."""
    http: object = request.http
    request.held = http.outlet() if isinstance(http, CalledName) else await request.hold_outlet()
    request.last_event = last_event
    return request.held


def updates_in(event: dict[str, Any], task_id: str, context: str) -> Iterator[dict[str, Any]]:
    """Yields an event as updates of a task that the caller has already received: clients accept one task in a
    stream."""
    ids = {"taskId": task_id, "contextId": context}
    if (task := event.get("task")) is not None:
        ids["contextId"] = task.get("contextId") or context
        for artifact in task.get("artifacts", ()):
            yield {"artifactUpdate": {**ids, "artifact": artifact, "lastChunk": True}}
        yield {"statusUpdate": {**ids, "status": task.get("status", {})}}
    elif (message := event.get("message")) is not None:
        yield {"statusUpdate": {**ids, "status": {"state": "TASK_STATE_COMPLETED", "message": message}}}
    else:
        yield event


@dataclass(slots=True)
class HeldMessage:
    """A message that needs approval, as its request waits with it. `task` is the task that its caller received.
    `sends`: this request sends the message. `is_settled`: the agent has answered; if it has not, `why` is the
    reason."""

    request: RequestContext
    owning: TaskOwnership
    messages: WaitingMessages
    task: dict[str, Any] | None = None
    sends: bool = False
    is_settled: bool = False
    why: Refusal | AgentError | None = None

    @property
    def wait(self) -> ApprovalWait:
        if self.owning.task:
            return ApprovalWait(self._pending_again)
        if not self._operation.streams:
            return ApprovalWait(self._pending)
        return ApprovalWait(self._pending, self.request.now.settings.approvals.hold, self._tick)

    @property
    def ids(self) -> tuple[str, str] | None:
        """The task and context that its caller received; None if it did not wait here."""
        return None if self.task is None else (self.task["id"], self.task["contextId"])

    @property
    def _operation(self) -> Operation:
        return self.owning.intent.operation

    async def _pending_again(self, approval: ApprovalRecord, page: str | None) -> Refusal:
        """Returns the answer to a message into a task that the agent has. The task waits for the same message again."""
        task, data = self.owning.task, approval_data(approval, page)
        context = self.owning.intent.context or task
        text = "A person must approve this message: send it again then"
        status = {"state": AUTH_REQUIRED, "message": said_of(task, context, approval.name, text)}
        shown = {"id": task, "contextId": context, "status": status, "metadata": {APPROVAL: dict(data)}}
        return TaskWaits(self._operation, shown, data)

    async def _tick(self, approval: ApprovalRecord, _: str | None) -> None:
        """Reports to the caller that its stream is held. Raises Refusal."""
        if self.task is not None:
            self.messages.reserve(self.task["id"])
            assert self.request.held is not None
            await self.request.held.write(KEEP_ALIVE)
            return
        task = await self._begin(approval, reserve=True)
        outlet = await hold(self.request, self._last_event)
        await outlet.write(self._event({"task": task}))

    async def _pending(self, approval: ApprovalRecord, page: str | None) -> Refusal:
        """Returns the answer, which is the task. A held stream has already sent it, and ends."""
        task = self.task
        if task is None:
            task = await self._begin(approval, reserve=False)
        else:
            await self.messages.release(task["id"])
        return TaskWaits(self._operation, task, approval_data(approval, page))

    async def _begin(self, approval: ApprovalRecord, *, reserve: bool) -> dict[str, Any]:
        spans = self.request.spans
        trace = "" if spans is None else spans.traceparent(self.request)
        self.task = await self.messages.begin(self.owning, approval, trace=trace, reserve=reserve)
        return self.task

    def _event(self, event: dict[str, Any]) -> bytes:
        dialect: Any = self.request.dialect
        written: bytes = dialect.event(self._operation, event)
        return written

    async def _last_event(self, refusal: Refusal) -> bytes:
        """Returns the last event of a held stream that does not continue."""
        assert self.task is not None
        if refusal.reason is Reason.APPROVAL_PENDING:
            return b""
        if not self.sends:
            with suppress(Refusal):  # its reservation lapses, and the worker continues it
                await self.messages.release(self.task["id"])
        if (state := ENDED.get(refusal.reason)) is None:
            return refusal_event(self.request, refusal)
        ids, text = (self.task["id"], self.task["contextId"]), refusal.answer.message
        if refusal.detail:
            text = f"{text}: {refusal.detail}"
        status = {"state": state, "message": said_of(*ids, str(refusal.reason), text)}
        return self._event({"statusUpdate": {"taskId": ids[0], "contextId": ids[1], "status": status}})

    async def take_over(self) -> None:
        """Takes the approved message, to send it in this request. Raises Refusal if another process sends it, or its
        caller cancelled it."""
        if self.task is None:
            return
        if not await self.messages.take_over(self.task["id"]):
            raise Refusal(Reason.APPROVAL_PENDING, "its task goes on elsewhere, or was canceled")
        self.sends = True
        await self.owning.starts(self.task["id"], self.task["contextId"])

    async def settle(self, first: Mapping[str, Any]) -> None:
        """Records the agent's first answer."""
        if self.task is not None:
            await self.messages.settle(self.task["id"], first)
            self.is_settled = True

    async def give_up(self) -> None:
        """Ends the task if the agent has not answered."""
        if self.task is not None and self.sends and not self.is_settled:
            with suppress(Refusal):  # the worker ends it, like one that was being sent
                await self.messages.fail(self.task["id"], self.why)


def refusal_event(request: RequestContext, refusal: Refusal) -> bytes:
    dialect: Any = request.dialect
    written: bytes = dialect.refusal_event(refusal, request.record.decision_id, request.now.manner)
    return written


def waits(task: Mapping[str, Any]) -> bool:
    """Whether a task of the sidecar waits for approval or is being sent."""
    return task["status"]["state"] in (AUTH_REQUIRED, "TASK_STATE_SUBMITTED")


def said_of(task_id: str, context: str, about: str, text: str) -> dict[str, Any]:
    """Returns a message of the sidecar about a task."""
    ids = {"messageId": f"{task_id}-{about}", "contextId": context, "taskId": task_id}
    return {**ids, "role": "ROLE_AGENT", "parts": [{"text": text}]}
