"""Follows one task at its agent until it ends.

A task is sent once; each step is stored before the next begins. Before each request to the agent, policy and the kill
switch decide again for the whole chain: a caller that loses the permission loses the task, here and at the agent.

    unsent     a person's approval where rules demand one, rules, a slot where budgets have some, audit; then `sending`
               is stored, then the message is sent
    sending    found after a crash: the agent may or may not have it. The task fails, and is never sent again
    sent       polled, less and less often, and whenever its stream has an event, until the agent reports its end
    telling    the completion callback is queued
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Any, Final, Literal, TypeVar

import orjson

from sidecar.audit.recorder import Audit, Recording
from sidecar.errors import Reason, Refusal, Unsent
from sidecar.gateway.approvals import ApprovalRecord, ApprovalState, ended_without
from sidecar.gateway.error_responses import facts_of, message_of
from sidecar.gateway.frontends.a2a.push_notifications import PushConfigs, PushRewriter
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, push_in, stored
from sidecar.gateway.frontends.a2a.task_ownership import TERMINAL, TaskOwnership
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import ApprovalWait, CallContext, Charged, ParsedOperation, pending_approval
from sidecar.gateway.routing import AGENTS, trace_id_in
from sidecar.gateway.snapshot import Live, Snapshot
from sidecar.gateway.stages import Stages
from sidecar.http.client import Deadline
from sidecar.identity import check_caller
from sidecar.protocols.a2a.errors import BY_REASON, AgentError
from sidecar.protocols.a2a.operations import BY_ACTION, SEND
from sidecar.settings.server import TaskSettings
from sidecar.storage import RecordStore, RecordStoreOut, UnreadableRecord
from sidecar.storage.deliveries import OnBehalfOf
from sidecar.storage.sealing import AesSeal
from sidecar.storage.task_owners import TaskOwners
from sidecar.tasks.api.models import message_task, shown, without_result
from sidecar.tasks.api.request_reader import cancels, gets, hears, sends
from sidecar.tasks.api.task_record import SEEN, TASKS, Task, TaskState, TaskStep
from sidecar.tasks.webhooks.outbox import Outbox
from sidecar.upstreams.agents import AgentUpstream, OutgoingOperation
from sidecar.upstreams.agents.transport import Result
from sidecar.vocabulary import ERROR_CODE, Call, Caller, Decision

FIRST_PAUSE_S: Final = 0.2
LEAST_PAUSE_S: Final = 0.02
SLOWER: Final = 1.5
TELL_AGAIN_S: Final = 5.0
AGAIN_S: Final = 0.25  # between two attempts at an unavailable store
CANCEL_S: Final = 10.0  # the maximum wait for an agent when a task is abandoned
AWAY_S = 300.0  # how long an agent or a store may be unreachable before a task fails
MAX_RESULT_BYTES = 2**20  # a task with a larger result fails
MAX_MESSAGE_CHARS: Final = 2_000
UNKNOWN_WHETHER_SENT: Final = "The sidecar stopped while the task was being sent; whether the agent has it is not known"
_WRONG_REQUEST: Final = frozenset({-32602, -32005, -32600, -32700})
# Why an agent refused a message, by its error code. Other codes are the agent's own failures.
_REFUSED_FOR: Final[Mapping[int, Reason]] = {
    **dict.fromkeys(_WRONG_REQUEST, Reason.BAD_ARGUMENTS),
    BY_REASON["TASK_NOT_FOUND"].code: Reason.TASK_UNKNOWN,
    BY_REASON["UNSUPPORTED_OPERATION"].code: Reason.MALFORMED_CALL,
}
_LASTING: Final = frozenset({Reason.RESPONSE_REFUSED, Reason.UPSTREAM_UNKNOWN})

T = TypeVar("T")

log = logging.getLogger("sidecar.tasks.api")


class TaskChanged(Exception):
    """Another process changed the task in the meantime."""


class TookTooLong(Refusal):
    """The task took too long, and further polling does not help."""


@dataclass(frozen=True, slots=True)
class TaskServices:
    store: RecordStore[Task]
    tasks: TaskOwners
    live: Live
    switch: KillSwitch
    audit: Audit
    outbox: Outbox
    stages: Stages
    pushes: PushConfigs
    seal: Callable[[], AesSeal]

    @property
    def rules(self) -> TaskSettings:
        return self.live.current.settings.tasks

    async def push_end(self, record: Task, ended: Task) -> None:
        """Queues a push for the end of a message that did not become a task of its agent, if the message requests
        pushes."""
        if not record.action:
            return
        task, behalf = message_task(ended, None), OnBehalfOf(record.caller, record.target, record.task_type)
        update = {"taskId": task["id"], "contextId": task["contextId"], "status": task["status"]}
        try:
            if config := push_in(record.input_in(self.seal())):
                await self.pushes.tell(behalf, record.id, config, record.version, {"statusUpdate": update})
        except Refusal as refusal:
            log.warning("the end of a task cannot be pushed", extra={"reason": refusal.reason.value})


@dataclass(slots=True)
class TaskLifecycle:
    """One task. `caller` is the chain that created it, with the facts that only this process knows."""

    means: TaskServices
    record: Task
    caller: Caller
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    recording: Recording | None = None
    ear: asyncio.Task[None] | None = None
    _awaited: ApprovalRecord | None = None
    _pause_s: float = FIRST_PAUSE_S
    _away_since_s: float | None = None

    async def run(self) -> None:
        """Carries the task as far as possible. Raises RecordStoreOut."""
        steps: Mapping[TaskStep, Callable[[], Awaitable[None]]] = {
            TaskStep.UNSENT: self._send,
            TaskStep.SENDING: partial(self._fail, "ExecutionFailed", UNKNOWN_WHETHER_SENT),
            TaskStep.SENT: self._follow,
            TaskStep.TELLING: self._tell,
        }
        try:
            while self.record.step is not TaskStep.OVER:
                with suppress(TaskChanged):
                    await steps[self.record.step]()
                    continue
                await self._look_again()
        except asyncio.CancelledError:
            await self._close(Refusal(Reason.DRAINING))
            raise
        except RecordStoreOut:
            await self._close(Refusal(Reason.STORE_UNAVAILABLE))
            raise
        except Exception:  # a bug: its caller gets no details
            log.exception("bug", extra={"task": self.record.id})
            with suppress(Exception):
                await self._fail("InternalError", "Internal error", Refusal(Reason.INTERNAL))
        finally:
            if self.ear is not None:
                self.ear.cancel()

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        if self.record.state is TaskState.WAITING and not await self._is_approved():
            return
        record, now, context = self.record, self.means.live.take(), None
        try:
            intent = self._message()
            recording = self.recording = self._new_recording(intent)
            if self.caller.expires_at is not None and self._now_s() >= self.caller.expires_at:
                raise Refusal(Reason.EXPIRED, "the credential that it was created with has ended")
            if not record.approval:
                self._check_time()
            check_standing(self.means.switch, now, self.caller, intent.call, self._now_s())
            context = CallContext(now, recording)
            context.wait = ApprovalWait(self._await)
            if now.shadows(self._now_s()):
                context.shadow, recording.enforcement = True, "shadow"
            # When a task of the task API was created, it was charged to all limits except the slots of budgets'
            # `concurrency`.
            charges: Literal["all", "slots"] = "all" if record.action else "slots"
            operation = ParsedOperation(intent.call, intent, begins=False, charges=charges)
            await self.means.stages.carry_out(context, self.caller, self, operation)
        except UnreadableRecord:  # another version may continue it
            raise
        except Refusal as refusal:
            if refusal.reason is Reason.APPROVAL_PENDING:
                self.recording = None  # nothing has begun, and the task waits
                if (awaited := self._awaited) is not None and awaited.name != self.record.approval:
                    await self._save(self.record.waits(awaited.name, awaited.deadline_s, self.means.seal()))
            elif self._lacks_slot(context, refusal):
                self.recording = None  # see above
            else:
                await self._refused(refusal)
        finally:
            self.means.live.leave(now)
        if self.record.step is TaskStep.UNSENT:
            await self._rest()
            await self._look_again()

    def _lacks_slot(self, context: CallContext | None, refusal: Refusal) -> bool:
        """Whether the message lacks a slot of budgets, the only limit for which a task waits, or their store is
        unavailable."""
        if context is None or context.plan is None or context.charged:
            return False
        return not self.record.action or refusal.reason in (Reason.TOO_MANY_CONCURRENT, Reason.STORE_UNAVAILABLE)

    def _message(self) -> AgentOperation:
        record, said = self.record, self.record.input_in(self.means.seal())
        if record.action:
            return stored(record.target, BY_ACTION[record.action], dict(said), record.version, record.extensions)
        return sends(record.id, record.target, record.task_type, said, record.a2a_context, record.answers)

    async def _is_approved(self) -> bool:
        """Waits for a person's answer. Returns whether to continue; the stages then look for the approval."""
        record, approvals, approval = self.record, self.means.stages.approvals, None
        with approvals.listening(record.approval, self.awake, is_stored=True):
            try:
                approval = await approvals.find(record.approval)
                waits = self._waits_on(approval)
            except RecordStoreOut:
                raise
            except Refusal:  # its state cannot be recorded at present
                waits = True
            if waits:
                await self._rest()
                await self._look_again()
                return False
        refusal = None
        if approval is None and self._now_s() >= record.approve_by:  # another call has made a new request since
            refusal = Refusal(Reason.APPROVAL_EXPIRED)
        elif approval is not None and approval.state in (ApprovalState.REFUSED, ApprovalState.EXPIRED):
            refusal = ended_without(approval)
        if refusal is not None:
            self.recording = self._new_recording(self._message())
            await self._refused(refusal)
        return refusal is None

    def _waits_on(self, approval: ApprovalRecord | None) -> bool:
        if approval is None or approval.state not in (ApprovalState.WAITING, ApprovalState.APPROVED):
            return False
        if approval.state is ApprovalState.WAITING:
            return True
        # The agent gets the caller's own token, which is not stored, so the caller must call again.
        agent = self.means.live.current.agents.get(self.record.target)
        return agent is not None and agent.needs_token and not self.caller.token

    async def _await(self, awaited: ApprovalRecord, page: str | None) -> Refusal:
        self._awaited = awaited
        return await pending_approval(awaited, page)

    async def check(
        self, request: CallContext, caller: Caller, content: AgentOperation, decision: Decision
    ) -> tuple[AgentUpstream, TaskOwnership]:
        agent, owning = request.now.agent(self.record.target), TaskOwnership(self.means.tasks, self.caller, content)
        await owning.check()
        return agent, owning

    async def carry_out(self, charged: Charged) -> None:
        """Sends the message. The decision is already recorded; `sending` is stored before the message is sent."""
        content: tuple[AgentUpstream, TaskOwnership] = charged.content
        agent, owning = content
        intent, loop = owning.intent, asyncio.get_running_loop()
        decided_s = loop.time()
        is_message, pushing = bool(self.record.action), None
        if is_message:
            await owning.starts(self.record.id, self.record.a2a_context)
        await owning.begin()
        params = intent.params
        if intent.pushes:
            pushing = PushRewriter(self.means.pushes, self.caller, intent)
            params = await pushing.rewritten()
        record = self.record.goes_on(self._now_s())
        await self._save(record.at(TaskStep.SENDING)._replace(sender=token_hex(8)))
        await agent.cards.prepare()
        charged.lease.forwarded, limit_s = True, min(agent.timeout_s, charged.timeout_s or agent.timeout_s)
        outgoing = self._outgoing(intent, limit_s)._replace(params=owning.outward(params))
        if is_message:  # it may be a stream's: its caller reads the task
            configuration = {**outgoing.params.get("configuration", {}), "returnImmediately": True}
            at_once = {**outgoing.params, "configuration": configuration}
            outgoing = outgoing._replace(operation=SEND, params=at_once, extensions=intent.extensions)

        async def ask() -> Result | AgentError:
            if loop.time() - decided_s >= AGAIN_S:  # the store was unavailable in the meantime
                self._check(self.means.live.current, intent)
            return await self._ask(agent, outgoing)

        try:
            answer = await self._once_up(ask, Unsent)
            if not isinstance(answer, AgentError):
                answer = await self._once_up(partial(owning.admit, answer))
                if pushing is not None:
                    await pushing.settle(answer)
        finally:
            if pushing is not None:
                await pushing.undo()
        if isinstance(answer, AgentError):
            refused = _REFUSED_FOR.get(answer.kind.code, Reason.UPSTREAM_FAILED)
            code = "InvalidParameters" if answer.kind.code in _WRONG_REQUEST else "ExecutionFailed"
            await self._fail(code, _plain(answer.message) or answer.kind.message, refused=refused)
        else:
            await self._sent(answer)

    async def _sent(self, answer: dict[str, Any]) -> None:
        task = answer.get("task")
        if task is None:
            await self._complete(self.record, {"artifacts": [], "message": answer.get("message")})
            return
        if self.record.action:  # the record of the task's owner has its id at the agent
            await self.means.store.remove((self.record.id,))
            self.record = self.record._replace(step=TaskStep.OVER)
            await self._close(None)
            return
        record = self.record.at(TaskStep.SENT)._replace(a2a_task=task["id"], a2a_context=task.get("contextId", ""))
        try:
            await self._see(record, task)
        except TaskChanged:  # abandoned while the agent began it: only this process knows its id
            await self._give_up(record)
            raise

    async def _follow(self) -> None:
        await self._rest()
        await self._look_again()
        if self.record.step is not TaskStep.SENT:
            return
        record, now = self.record, self.means.live.take()
        try:
            intent = gets(record)
            self._check(now, intent)
            if self.recording is None:  # another process sent it
                recording = self._new_recording(intent)
                await recording.decided()
                self.recording = recording
            self._check_time()
            agent = now.agent(record.target)
            if self.ear is None:
                self.ear = asyncio.create_task(self._listen(agent), name=f"listens to task {record.id}")
            answer = await self._ask(agent, self._outgoing(intent, agent.timeout_s))
            if not isinstance(answer, AgentError):
                answer = await TaskOwnership(self.means.tasks, self.caller, intent).admit(answer)
                self._away_since_s = None
                await self._see(record, answer)
            elif answer.kind.reason == "TASK_NOT_FOUND":
                await self._fail("ExecutionFailed", "The agent does not know the task any more")
            else:
                await self._away(Refusal(Reason.UPSTREAM_FAILED, "it does not report the state of the task"))
        except UnreadableRecord:  # another version may continue it
            raise
        except Refusal as refusal:
            await self._refused(refusal)
        finally:
            self.means.live.leave(now)

    async def _listen(self, agent: AgentUpstream) -> None:
        """Listens to the task's stream, if the agent has one, only to poll sooner. Its content is not trusted."""
        intent = hears(self.record)
        try:
            if not (await agent.cards.card()).get("capabilities", {}).get("streaming"):
                return
            heard = await agent.wire.listen(self._outgoing(intent, agent.timeout_s))
            if isinstance(heard, AgentError):
                return
            with closing(heard):
                async with aclosing(heard.events(Deadline(None), self.means.rules.follow_s)) as events:
                    async for event in events:
                        if event is not None:
                            self.awake.set()
        except Refusal:
            return

    async def _tell(self) -> None:
        """Queues the completion callback before the task is done, so that it is delivered at least once."""
        try:
            await self._announce()
        except Refusal as refusal:
            about = {"reason": refusal.reason.value}
            if refusal.reason not in (Reason.TOO_LARGE, Reason.MALFORMED_CALL):
                log.warning("a completion callback cannot be queued yet; it is retried", extra=about)
                await asyncio.sleep(TELL_AGAIN_S)
                return
            log.warning("a completion callback is refused, and not sent", extra=about)
        await self._save(self.record.at(TaskStep.OVER))

    async def _announce(self) -> None:
        """Raises Refusal. A result that is too large is omitted from the delivery."""
        record, said = self.record, shown(self.record, self.means.live.current)
        behalf = OnBehalfOf(record.caller, record.target, record.task_type)
        headers = (("Content-Type", "application/json"),)
        put = partial(self.means.outbox.put, "task", record.id, behalf, record.callback_url, headers)
        try:
            await put(orjson.dumps(said))
        except Refusal as refusal:
            if refusal.reason is not Reason.TOO_LARGE or said["result"] is None:
                raise
            await put(orjson.dumps(without_result(said)))

    # --- the agent's answers ------------------------------------------------------------------------------------------

    async def _see(self, record: Task, task: Mapping[str, Any]) -> None:
        status = task.get("status", {})
        said = str(status.get("state", ""))
        state = SEEN.get(said, TaskState.PENDING)
        record = record._replace(a2a_state=said)
        if state is TaskState.COMPLETED:
            result = {"artifacts": task.get("artifacts", []), "message": status.get("message")}
            await self._complete(record, result)
        elif state is TaskState.FAILED:
            message = status.get("message") or {}
            told = _plain(" ".join(str(part["text"]) for part in message.get("parts", []) if "text" in part))
            otherwise = "The agent rejected the task" if said == "TASK_STATE_REJECTED" else "The agent failed"
            about = message.get("metadata")
            # The codes of the original data models: a timeout is the only cause that an agent can report.
            timed_out = isinstance(about, Mapping) and about.get(ERROR_CODE) == "Timeout"
            code = "Timeout" if timed_out else "ExecutionFailed"
            await self._end(record, TaskState.FAILED, code, told or otherwise)
        elif state is TaskState.CANCELLED:
            await self._end(record, TaskState.CANCELLED)
        else:
            if state is TaskState.RUNNING:  # a running task does not wait again, whatever the agent says
                record = record.moved(TaskState.RUNNING, self._now_s())
            if record != self.record:
                self._pause_s = FIRST_PAUSE_S
                await self._save(record)

    async def _complete(self, record: Task, result: Mapping[str, Any]) -> None:
        # The agent may have taken long, and the caller's permission may have ended in the meantime.
        self._check(self.means.live.current, sends(record.id, record.target, record.task_type, {}))
        if len(orjson.dumps(result)) > MAX_RESULT_BYTES:
            await self._end(record, TaskState.FAILED, "ExecutionFailed", "The agent's result is too large")
        else:
            await self._end(record, TaskState.COMPLETED, result=result)

    # --- failures -----------------------------------------------------------------------------------------------------

    async def _refused(self, refusal: Refusal) -> None:
        if self.record.step is TaskStep.UNSENT and refusal.reason is Reason.STORE_UNAVAILABLE:
            await self._close(refusal)  # nothing has begun, so the task is tried again
            return
        lasts = refusal.reason in _LASTING or refusal.answer.status == "permission_denied"
        if self.record.step is TaskStep.SENT:
            if not lasts and not isinstance(refusal, TookTooLong):
                await self._away(refusal)
                return
            await self._give_up(self.record)
        await self._fail(refusal.answer.seed, self._told(refusal), refusal)

    async def _away(self, refusal: Refusal) -> None:
        now_s = self._now_s()
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s >= AWAY_S:
            await self._fail(refusal.answer.seed, self._told(refusal), refusal)

    def _told(self, refusal: Refusal) -> str:
        """Returns a refusal as a sentence, with as much explanation as the settings allow."""
        manner = self.means.live.current.manner
        return message_of(refusal, facts_of(refusal, "", manner))

    async def _give_up(self, record: Task) -> None:
        """Cancels the task at the agent, because its caller lost the permission. The agent's answer is ignored."""
        intent = cancels(record)
        agent = self.means.live.current.agents.get(record.target)
        if agent is None:
            return
        with suppress(Refusal):
            recording = self._new_recording(intent)
            await recording.decided()
            try:
                await self._ask(agent, self._outgoing(intent, min(CANCEL_S, agent.timeout_s)))
            except Refusal as refusal:
                await recording.refused(refusal, http_status=refusal.answer.http)
            else:
                await recording.outcome(http_status=200, bytes_out=0)

    async def _fail(
        self, code: str, message: str, refusal: Refusal | None = None, *, refused: Reason | None = None
    ) -> None:
        record = self.record
        if not record.a2a_task:
            record = record._replace(refused=refusal.reason if refusal else refused)
        await self._end(record, TaskState.FAILED, code, message, refusal=refusal)

    async def _end(
        self,
        record: Task,
        state: TaskState,
        error_code: str = "",
        error_message: str = "",
        *,
        result: Mapping[str, Any] | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        facts = {"error_code": error_code, "error_message": error_message, "result": result}
        ended = record.ended(state, self._now_s(), **facts)
        await self.means.push_end(record, ended)
        await self._save(ended)
        await self._close(refusal)
        task, as_said = record.a2a_task, TERMINAL.get(record.a2a_state, "")
        if record.action:
            task, as_said = record.id, state.value
        if task and as_said:
            with suppress(Refusal):  # the owner store may be unavailable; the owner's record is then only stored longer
                mine = await self.means.tasks.mine(self.caller, record.target, (task,), namespace="a2a")
                for one in mine.values():
                    await self.means.tasks.saw(one, as_said, None)

    # --- permission and audit -----------------------------------------------------------------------------------------

    def _check(self, now: Snapshot, intent: AgentOperation) -> None:
        now_s = self._now_s()
        check_standing(self.means.switch, now, self.caller, intent.call, now_s)
        record = self.record
        asked = self._message() if record.action else sends(record.id, record.target, record.task_type, {})
        question = asked.call.question
        decision = now.engine.reconsider(self.caller.chain, question.without_arguments, now_s)
        if not now.shadows(now_s):
            decision.or_refuse()

    def _check_time(self) -> None:
        if self._now_s() - max(self.record.created_at, self.record.approved_at) > self.means.rules.follow_s:
            raise TookTooLong(Reason.UPSTREAM_TIMEOUT, "the task took too long")

    def _outgoing(self, intent: AgentOperation, limit_s: float) -> OutgoingOperation:
        """Returns an operation for the task's caller, even if its credential has expired, because only that caller
        receives the results."""
        return OutgoingOperation(intent.operation, intent.params, replace(self.caller, expires_at=None), limit_s)

    def _ask(self, agent: AgentUpstream, outgoing: OutgoingOperation) -> Coroutine[Any, Any, Result | AgentError]:
        """Sends an operation. OpenTelemetry gets a span of its own, linked to the request that created the task."""
        if (tracing := self.means.live.tracing) is None:
            return agent.wire.ask(outgoing)
        span, extra = tracing.later(agent, outgoing.operation.action, self.record.trace)
        return span.during(agent.wire.ask(outgoing._replace(extra=extra)))

    def _new_recording(self, intent: AgentOperation) -> Recording:
        """Returns the audit record of this task, from the first message to the agent to its end."""
        recording = Recording(self.means.audit, protocol="a2a", peer="sidecar", request_id=self.record.id)
        recording.task_id, recording.trace_id = self.record.id, trace_id_in(self.record.trace) or None
        recording.caller, recording.call = self.caller, intent.call
        recording.upstream, recording.method = self.record.target, intent.call.method
        return recording

    async def _close(self, refusal: Refusal | None) -> None:
        recording, self.recording = self.recording, None
        if recording is None or recording.done:
            return
        with suppress(Refusal):  # if this record fails, the next request whose record fails is refused
            if refusal is not None:
                await recording.refused(refusal, http_status=refusal.answer.http)
            else:
                await recording.outcome(http_status=200, bytes_out=0)

    # --- the record ---------------------------------------------------------------------------------------------------

    async def _save(self, record: Task) -> None:
        """Stores the record once the store answers. Until then only this process knows it. Raises TaskChanged,
        UnreadableRecord."""
        record, in_doubt = record._replace(revision=record.revision + 1), False
        while True:
            try:
                is_kept = await self.means.store.replace(record)
                if not is_kept and in_doubt:  # an earlier write's reply was lost; no other attempt has its `sender`
                    found = await self.means.store.get(record.id)
                    is_kept = found is not None and TASKS.codec.encode(found) == TASKS.codec.encode(record)
            except UnreadableRecord:
                raise
            except RecordStoreOut:  # the write may nevertheless have happened
                in_doubt = True
                await asyncio.sleep(AGAIN_S)
                continue
            if not is_kept:
                raise TaskChanged
            self.record = record
            return

    async def _once_up(self, ask: Callable[[], Awaitable[T]], out: type[Refusal] = Refusal) -> T:
        """Makes a request to a store, and repeats it while the store is unavailable, for as long as an agent may be
        unreachable. Raises Refusal."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + AWAY_S
        while True:
            try:
                return await ask()
            except out as refusal:
                if refusal.reason is not Reason.STORE_UNAVAILABLE or loop.time() >= until_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _look_again(self) -> None:
        record = await self.means.store.get(self.record.id)
        if record is None:  # it had ended, and was deleted
            record = self.record._replace(step=TaskStep.OVER)
        if record.is_over:
            await self._close(None if record.a2a_task else Refusal(Reason.CALLER_GONE))
        self.record = record

    async def _rest(self) -> None:
        pause_s, longest_s = self._pause_s, self.means.rules.ask_every_s
        await asyncio.sleep(LEAST_PAUSE_S)  # so that an agent that never stops streaming is not polled without pause
        self._pause_s = min(longest_s, pause_s * SLOWER)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pause_s, longest_s)):
                await self.awake.wait()
        self.awake.clear()

    def _now_s(self) -> float:
        return self.means.live.clock()


def check_standing(switch: KillSwitch, now: Snapshot, caller: Caller, call: Call, now_s: float) -> None:
    """Raises Refusal if a principal of the chain is disabled or not trusted any more, or lacks a requirement of the
    agent's address."""
    for disabled in (switch.ledger.disabled, now.disabled):
        disabled.refuse(caller.chain, call, now_s)
    if not now.identity.vouches_for(caller):
        raise Refusal(Reason.BAD_CREDENTIAL)
    check_caller(caller, now.audience(call.upstream, AGENTS))


def _plain(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text[:MAX_MESSAGE_CHARS]).strip()
