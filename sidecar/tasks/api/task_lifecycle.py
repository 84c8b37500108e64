"""Follows one task at its agent until it ends.

A task is sent once and followed until it ends; each step is stored before the next begins. Before each request to the
agent, policy and the kill switch decide again for the whole chain that created the task: a chain that loses the
permission loses the task, here and at the agent.

    unsent     rules, a slot where budgets have some, audit, then `sending` is stored, then the message is sent
    sending    found after a crash: the agent may or may not have it. The task failed, and is never sent again
    sent       polled, less and less often, and whenever its stream has an event, until the agent reports its end
    telling    the completion callback is queued
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Any, Final, TypeVar

import orjson

from sidecar.audit import Audit, Recording
from sidecar.errors import Reason, Refusal, Unsent
from sidecar.gateway.error_responses import facts_of, message_of
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation
from sidecar.gateway.frontends.a2a.task_ownership import TERMINAL, TaskOwnership
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.snapshot import Live, Snapshot
from sidecar.http.client import Deadline
from sidecar.limits import Lease, Limiter, LimitPlan, plan_charges
from sidecar.protocols.a2a.errors import BY_REASON, AgentError
from sidecar.storage import RecordStore, RecordStoreOut, UnreadableRecord
from sidecar.storage.task_owners import TaskOwners
from sidecar.tasks.api.completion_webhook import Announce
from sidecar.tasks.api.permission import check_standing, decided
from sidecar.tasks.api.request_reader import cancels, gets, hears, sends
from sidecar.tasks.api.task_record import SEEN, Task, TaskState, TaskStep, encoded
from sidecar.tasks.api.views import shown
from sidecar.upstreams.agents import AgentUpstream, OutgoingOperation
from sidecar.upstreams.agents.transport import Result
from sidecar.vocabulary import ERROR_CODE, Caller, Decision

FIRST_PAUSE_S: Final = 0.2
LEAST_PAUSE_S: Final = 0.02
SLOWER: Final = 1.5
TELL_AGAIN_S: Final = 5.0
AGAIN_S: Final = 0.25  # between two tries at a store that is out
CANCEL_S: Final = 10.0  # the longest wait for an agent when a task is given up
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
    """Another process changed the task meanwhile."""


class ResultTooLong(Refusal):
    """The result is too large, and asking again does not help."""


@dataclass(frozen=True, slots=True)
class TaskDeadlines:
    """Limits: how long a task may take, how long its agent may be unreachable, how often it is polled, and how large
    its result may be."""

    whole_s: float
    away_s: float
    every_s: float
    max_result: int


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What every task needs."""

    store: RecordStore[Task]
    tasks: TaskOwners
    live: Live
    switch: KillSwitch
    audit: Audit
    announce: Announce
    limiter: Limiter
    patience: Callable[[], TaskDeadlines]


@dataclass(slots=True)
class TaskLifecycle:
    """One task. `caller` is the chain that created it, with what only this process knows of it."""

    means: TaskServices
    record: Task
    caller: Caller
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    recording: Recording | None = None
    ear: asyncio.Task[None] | None = None
    _pause_s: float = FIRST_PAUSE_S
    _away_since_s: float | None = None

    @property
    def is_sending(self) -> bool:
        """Whether it is being sent: if that is interrupted, the outcome is never known."""
        return self.record.step is TaskStep.SENDING

    async def run(self) -> None:
        """Carries the task as far as possible. Raises RecordStoreOut."""
        steps = {
            TaskStep.UNSENT: self._send,
            TaskStep.SENDING: self._lost_sight,
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
            await self._fail("InternalError", "Internal error", Refusal(Reason.INTERNAL))
        finally:
            if self.ear is not None:
                self.ear.cancel()

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        record, now = self.record, self.means.live.take()
        try:
            about = (record.id, record.target, record.task_type, record.input or {})
            intent = sends(*about, record.a2a_context, record.answers)
            recording = self.recording = self._new_recording(intent)
            if self.caller.expires_at is not None and self._now_s() >= self.caller.expires_at:
                raise Refusal(Reason.EXPIRED, "the credential that it was created with has ended")
            if self._now_s() - record.created_at > self.means.patience().whole_s:
                raise ResultTooLong(Reason.UPSTREAM_TIMEOUT, "the task took too long")
            decision, chain = self._check(now, intent, at_first=True), self.caller.chain
            plan = plan_charges(now.budgets, chain, now.engine.roles_of, intent.call, decision)
            async with AsyncExitStack() as held:
                lease = await self._slots(held, now, plan, recording)
                if lease is not None:
                    await self._say(now.agent(record.target), intent, recording, lease, plan.timeout_s)
        except Refusal as refusal:
            await self._refused(refusal)
        finally:
            self.means.live.leave(now)
        if self.record.step is TaskStep.UNSENT:
            await self._rest()
            await self._look_again()

    async def _slots(self, held: AsyncExitStack, now: Snapshot, plan: LimitPlan, recording: Recording) -> Lease | None:
        """Takes the slots of budgets' `concurrency` that a message to the agent needs; all else was charged when the
        task was created. Returns None if there is no slot: the task then waits."""
        slots = LimitPlan(plan.slots)
        shadows = now.shadows(self._now_s())
        reserved = self.means.limiter.reserve(slots, recording.decision_id, excuse=lambda _: shadows)
        try:
            return await held.enter_async_context(reserved)
        except Refusal:
            self.recording = None  # nothing has begun
            return None

    async def _say(
        self, agent: AgentUpstream, intent: AgentOperation, recording: Recording, lease: Lease, timeout_s: float | None
    ) -> None:
        """Sends the message once and handles its answer. Raises Refusal."""
        owning = TaskOwnership(self.means.tasks, self.caller, intent)
        loop = asyncio.get_running_loop()
        decided_s = loop.time()
        await owning.check()
        await recording.decided()  # first the audit record, then `sending` is stored, then the message is sent
        await owning.begin()
        await self._save(self.record.at(TaskStep.SENDING)._replace(sender=token_hex(8)))
        await agent.cards.prepare()
        lease.forwarded, limit_s = True, min(agent.timeout_s, timeout_s or agent.timeout_s)
        outgoing = OutgoingOperation(intent.operation, owning.outward(intent.params), self._shown_as, limit_s)

        async def ask() -> Result | AgentError:
            if loop.time() - decided_s >= AGAIN_S:  # the store was out meanwhile
                self._check(self.means.live.current, intent)
            return await agent.wire.ask(outgoing)

        answer = await self._once_up(ask, Unsent)
        if isinstance(answer, AgentError):
            refused = _REFUSED_FOR.get(answer.kind.code, Reason.UPSTREAM_FAILED)
            await self._fail(_code_of(answer), _plain(answer.message) or answer.kind.message, refused=refused)
        else:
            await self._sent(owning, answer)

    async def _sent(self, owning: TaskOwnership, answer: dict[str, Any]) -> None:
        """Handles an agent's answer to a message: a result at once, or a task."""
        answer = await self._once_up(partial(owning.admit, answer))
        task = answer.get("task")
        if task is None:
            await self._complete(self.record, {"artifacts": [], "message": answer.get("message")})
            return
        record = self.record.at(TaskStep.SENT)._replace(a2a_task=task["id"], a2a_context=task.get("contextId", ""))
        try:
            await self._see(record, task)
        except TaskChanged:  # given up while the agent began it: only this process knows that it did
            await self._give_up(record)
            raise

    async def _lost_sight(self) -> None:
        """Fails a task whose process stopped while sending it."""
        await self._fail("ExecutionFailed", UNKNOWN_WHETHER_SENT)

    async def _follow(self) -> None:
        await self._rest()
        await self._look_again()
        if self.record.step is not TaskStep.SENT:
            return
        record, now, patience = self.record, self.means.live.take(), self.means.patience()
        try:
            intent = gets(record)
            self._check(now, intent)
            if self.recording is None:  # another process sent it
                recording = self._new_recording(intent)
                await recording.decided()
                self.recording = recording
            if self._now_s() - record.created_at > patience.whole_s:
                raise ResultTooLong(Reason.UPSTREAM_TIMEOUT, "the task took too long")
            agent = now.agent(record.target)
            if self.ear is None:
                self.ear = asyncio.create_task(self._listen(agent), name=f"listens to task {record.id}")
            answer = await agent.wire.ask(
                OutgoingOperation(intent.operation, intent.params, self._shown_as, agent.timeout_s)
            )
            if not isinstance(answer, AgentError):
                answer = await TaskOwnership(self.means.tasks, self.caller, intent).admit(answer)
                self._away_since_s = None
                await self._see(record, answer)
            elif answer.kind.reason == "TASK_NOT_FOUND":
                await self._fail("ExecutionFailed", "The agent does not know the task any more")
            else:
                await self._away(Refusal(Reason.UPSTREAM_FAILED, "it does not say how the task stands"))
        except Refusal as refusal:
            await self._refused(refusal)
        finally:
            self.means.live.leave(now)

    async def _listen(self, agent: AgentUpstream) -> None:
        """Listens to the task's stream, if the agent has one, to poll sooner after an event. The content is neither
        trusted nor needed: without a stream, the task is polled all the same."""
        intent = hears(self.record)
        try:
            if not (await agent.cards.card()).get("capabilities", {}).get("streaming"):
                return
            outgoing = OutgoingOperation(intent.operation, intent.params, self._shown_as, agent.timeout_s)
            heard = await agent.wire.listen(outgoing)
            if isinstance(heard, AgentError):
                return
            try:
                async with aclosing(heard.events(Deadline(None), self.means.patience().whole_s)) as events:
                    async for event in events:
                        if event is not None:
                            self.awake.set()
            finally:
                heard.close()
        except Refusal:
            return

    async def _tell(self) -> None:
        """Queues the completion callback before the task is done, so that it is delivered at least once."""
        now = self.means.live.current
        try:
            await self.means.announce(self.record, shown(self.record, now))
        except Refusal as refusal:
            if refusal.reason not in (Reason.TOO_LARGE, Reason.MALFORMED_CALL):
                log.warning("a task's end cannot be told yet", extra={"reason": refusal.reason.value})
                await asyncio.sleep(TELL_AGAIN_S)
                return
            log.warning("a task's end is told to nobody", extra={"reason": refusal.reason.value})
        await self._save(self.record.at(TaskStep.OVER))

    # --- the agent's answers ------------------------------------------------------------------------------------------

    async def _see(self, record: Task, task: Mapping[str, Any]) -> None:
        """Takes over the state that the agent reports."""
        status = task.get("status", {})
        said = str(status.get("state", ""))
        state = SEEN.get(said, TaskState.PENDING)
        record = record._replace(a2a_state=said)
        if state is TaskState.COMPLETED:
            result = {"artifacts": task.get("artifacts", []), "message": status.get("message")}
            await self._complete(record, result)
        elif state is TaskState.FAILED:
            otherwise = "The agent rejected the task" if said == "TASK_STATE_REJECTED" else "The agent failed"
            told = _text_of(status.get("message")) or otherwise
            await self._end(record, TaskState.FAILED, _failure_of(status.get("message")), told)
        elif state is TaskState.CANCELLED:
            await self._end(record, TaskState.CANCELLED)
        else:
            await self._goes_on(record, state)

    async def _goes_on(self, record: Task, state: TaskState) -> None:
        if state is TaskState.RUNNING:  # a running task does not wait again, whatever the agent says
            record = record.moved(TaskState.RUNNING, self._now_s())
        if record != self.record:
            self._pause_s = FIRST_PAUSE_S
            await self._save(record)

    async def _complete(self, record: Task, result: Mapping[str, Any]) -> None:
        # The agent may have taken long, and the caller's permission may have ended meanwhile.
        self._check(self.means.live.current, sends(record.id, record.target, record.task_type, {}))
        if len(orjson.dumps(result)) > self.means.patience().max_result:
            await self._end(record, TaskState.FAILED, "ExecutionFailed", "The agent's result is too large")
        else:
            await self._end(record, TaskState.COMPLETED, result=result)

    # --- failures -----------------------------------------------------------------------------------------------------

    async def _refused(self, refusal: Refusal) -> None:
        """Handles a refusal, by the sidecar or on the way to the agent."""
        if self.record.step is TaskStep.UNSENT and refusal.reason is Reason.STORE_UNAVAILABLE:
            await self._close(refusal)  # nothing has begun: it is tried again
            return
        lasts = (
            isinstance(refusal, ResultTooLong)
            or refusal.reason in _LASTING
            or refusal.answer.status == "permission_denied"
        )
        if self.record.step is TaskStep.SENT and not lasts:
            await self._away(refusal)
            return
        if self.record.step is TaskStep.SENT:
            await self._give_up(self.record)
        await self._fail(refusal.answer.seed, self._told(refusal), refusal)

    async def _away(self, refusal: Refusal) -> None:
        """Waits for an agent that does not answer; it may come back."""
        now_s = self._now_s()
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s >= self.means.patience().away_s:
            await self._fail(refusal.answer.seed, self._told(refusal), refusal)

    def _told(self, refusal: Refusal) -> str:
        """Returns a refusal as a sentence, as far as the operator's settings explain refusals."""
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
                limit_s = min(CANCEL_S, agent.timeout_s)
                await agent.wire.ask(OutgoingOperation(intent.operation, intent.params, self._shown_as, limit_s))
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
        await self._save(record.ended(state, self._now_s(), **facts))
        await self._close(refusal)
        with suppress(Refusal):  # the owner store may be out; the owner's record is only kept longer then
            await self._saw(record)

    async def _saw(self, record: Task) -> None:
        if record.a2a_task and record.a2a_state in TERMINAL:
            mine = await self.means.tasks.mine(self.caller, record.target, (record.a2a_task,), namespace="a2a")
            for one in mine.values():
                await self.means.tasks.saw(one, TERMINAL[record.a2a_state], None)

    # --- permission and audit -----------------------------------------------------------------------------------------

    def _check(self, now: Snapshot, intent: AgentOperation, *, at_first: bool = False) -> Decision:
        """Checks that the chain still has the permission. Raises Refusal."""
        now_s = self._now_s()
        check_standing(self.means.switch, now, self.caller, intent.call, now_s)
        if at_first and self.recording is not None:
            return decided(now, intent.call, self.recording, now_s)
        question = sends(self.record.id, self.record.target, self.record.task_type, {}).call.question
        decision = now.engine.reconsider(self.caller.chain, question.without_arguments, now_s)
        if not now.shadows(now_s):
            decision.or_refuse()
        return decision

    @property
    def _shown_as(self) -> Caller:
        """Returns the caller on whose behalf the agent is asked. An accepted task continues under the present rules,
        even if the credential it began with has expired: its results go only to its owner."""
        return replace(self.caller, expires_at=None)

    def _new_recording(self, intent: AgentOperation) -> Recording:
        """Returns the audit record of this task, from the first message to the agent to its end."""
        recording = self.means.audit.recording(protocol="a2a", peer="sidecar", request_id=self.record.id)
        recording.task_id = self.record.id
        recording.caller, recording.call = self.caller, intent.call
        recording.upstream, recording.method = self.record.target, intent.call.method
        return recording

    async def _close(self, refusal: Refusal | None) -> None:
        recording, self.recording = self.recording, None
        if recording is None or recording.done:
            return
        with suppress(Refusal):  # if it cannot be recorded, the next request that cannot be is refused
            if refusal is not None:
                await recording.refused(refusal, http_status=refusal.answer.http)
            else:
                await recording.outcome(http_status=200, bytes_out=0)

    # --- the record ---------------------------------------------------------------------------------------------------

    async def _save(self, record: Task) -> None:
        """Stores the record, as soon as the store answers: until then only this process knows what was sent and what
        came of it. Raises TaskChanged, and UnreadableRecord."""
        record, in_doubt = record._replace(revision=record.revision + 1), False
        while True:
            try:
                if await self.means.store.replace(record) or (in_doubt and await self._is_kept(record)):
                    break
                raise TaskChanged
            except UnreadableRecord:
                raise
            except RecordStoreOut:  # the write may have happened all the same
                in_doubt = True
                await asyncio.sleep(AGAIN_S)
        self.record = record

    async def _is_kept(self, record: Task) -> bool:
        """Whether the store has exactly this record, from an earlier write whose reply was lost. No other attempt has
        its `sender`."""
        found = await self.means.store.get(record.id)
        return found is not None and encoded(found) == encoded(record)

    async def _once_up(self, ask: Callable[[], Awaitable[T]], out: type[Refusal] = Refusal) -> T:
        """Asks a store, again while it is out, for as long as an agent may be unreachable. Raises Refusal."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.means.patience().away_s
        while True:
            try:
                return await ask()
            except out as refusal:
                if refusal.reason is not Reason.STORE_UNAVAILABLE or loop.time() >= until_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _look_again(self) -> None:
        """Reads the record again, as another process may have changed it."""
        record = await self.means.store.get(self.record.id)
        if record is None:  # it was over, and has been deleted
            record = self.record._replace(step=TaskStep.OVER)
        if record.is_over:
            await self._close(None if record.a2a_task else Refusal(Reason.CALLER_GONE))
        self.record = record

    async def _rest(self) -> None:
        pause_s, longest_s = self._pause_s, self.means.patience().every_s
        await asyncio.sleep(LEAST_PAUSE_S)  # so that an agent that never stops streaming is not polled without pause
        self._pause_s = min(longest_s, pause_s * SLOWER)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pause_s, longest_s)):
                await self.awake.wait()
        self.awake.clear()

    def _now_s(self) -> float:
        return self.means.live.clock()


def _code_of(error: AgentError) -> str:
    """Returns the seed's error code for an agent's error."""
    return "InvalidParameters" if error.kind.code in _WRONG_REQUEST else "ExecutionFailed"


def _failure_of(message: Mapping[str, Any] | None) -> str:
    """Returns the seed's code for why a task failed; a timeout is the only cause that an agent can report."""
    said = (message or {}).get("metadata")
    return "Timeout" if isinstance(said, Mapping) and said.get(ERROR_CODE) == "Timeout" else "ExecutionFailed"


def _text_of(message: Mapping[str, Any] | None) -> str:
    """Returns a message's text as one printable line."""
    parts = (message or {}).get("parts", [])
    text = " ".join(str(part["text"]) for part in parts if "text" in part)
    return _plain(text)


def _plain(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text[:MAX_MESSAGE_CHARS]).strip()
