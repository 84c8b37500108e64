"""Answers A2A operations for a CLI-program agent.

A task is a run, and has its id. A caller that waits for the answer waits until the run ends. If it disconnects, the run
continues. The owner of a run was checked earlier (`task_ownership.py`), and is checked here again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from sidecar.errors import Reason, Refusal, Unsent
from sidecar.http.client import Deadline
from sidecar.protocols.a2a import operations
from sidecar.protocols.a2a.errors import BY_REASON, AgentError
from sidecar.settings.agents import CliAgent
from sidecar.settings.programs import executable_of
from sidecar.tasks.programs import run_events
from sidecar.tasks.programs.card import DefinedCard, streams
from sidecar.tasks.programs.executions import Executions
from sidecar.tasks.programs.prompts import prompt_from
from sidecar.tasks.programs.run_record import Execution
from sidecar.tasks.worker import to_its_end
from sidecar.upstreams.agents import AgentEvents, AgentUpstream, OutgoingOperation
from sidecar.upstreams.agents.guarded_transport import GuardedAgent
from sidecar.upstreams.agents.transport import Begun
from sidecar.upstreams.upstream_account import UpstreamAccount
from sidecar.vocabulary import SKILL, Caller

Result = dict[str, Any]
Told = Mapping[str, Any] | None
"""A canonical StreamResponse; None is a heartbeat."""
DEFAULT_LISTED: Final = 50
LOOK_EVERY_S: Final = 1.0  # how often a task that waits for its caller is checked for a further turn
ANSWER_S: Final = 0.5  # a waiting caller gets the current task this long before the deadline
_END: Final = object()
_PUSHES: Final = frozenset({operations.PUSH_SET, operations.PUSH_GET, operations.PUSH_LIST, operations.PUSH_DELETE})
_STREAMED: Final = frozenset({operations.STREAM, operations.RESUBSCRIBE})
# A2A's names for refusals of runs. All others are the sidecar's own, and reported as such.
_WORDS: Final[Mapping[Reason, str]] = {
    Reason.TASK_UNKNOWN: "TASK_NOT_FOUND",
    Reason.NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    Reason.MALFORMED_CALL: "UNSUPPORTED_OPERATION",  # the task continued in the meantime
}


@dataclass(frozen=True, slots=True)
class ProgramAgent:
    """A CLI program as an agent; implements `AgentTransport`. `secrets` has the named variables of its environment."""

    name: str
    definition: CliAgent
    executions: Executions
    secrets: Mapping[str, str]

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        try:
            return self.unable(outgoing.operation) or await _ANSWERS[outgoing.operation](self, outgoing)
        except Refusal as refusal:
            return _told(refusal)

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        if (unable := self.unable(outgoing.operation)) is not None:
            return unable
        try:
            run = await (self._sent(outgoing) if outgoing.operation is operations.STREAM else self._named(outgoing))
            if isinstance(run, AgentError):
                return run
            if outgoing.operation is operations.RESUBSCRIBE and run_events.is_over(run.task):
                return _error("UNSUPPORTED_OPERATION", "The task is over: there is nothing to subscribe to")
            follow = self.executions.follow if outgoing.operation is operations.STREAM else self._follow_on
            told = follow(run.id)
            following = RunFollower(await anext(told), told, _history_of(outgoing))  # now, so that nothing is missed
            await self._told_of(run, outgoing)
        except Refusal as refusal:
            return _told(refusal)
        return following

    async def close(self) -> None:
        pass

    def unable(self, operation: operations.Operation) -> AgentError | None:
        if operation in _PUSHES:
            return _error("PUSH_NOTIFICATION_NOT_SUPPORTED")
        supported = self.definition.a2a.capabilities.supported_methods
        if operation is not operations.CARD and operation.action not in supported:
            return _error("UNSUPPORTED_OPERATION", f"This agent does not take {operation.action}")
        if operation in _STREAMED and not streams(self.definition):
            return _error("UNSUPPORTED_OPERATION", "This agent does not stream")
        return None

    async def _send(self, outgoing: OutgoingOperation) -> Result | AgentError:
        run = await self._sent(outgoing)
        if isinstance(run, AgentError):
            return run
        await self._told_of(run, outgoing)
        if not outgoing.params.get("configuration", {}).get("returnImmediately"):
            run = await self._ended(run, outgoing.deadline_s)
        if (alone := run_events.answer_alone(run.task)) is not None:
            return {"message": alone}
        return {"task": _with_history(run.task, _history_of(outgoing))}

    async def _sent(self, outgoing: OutgoingOperation) -> Execution | AgentError:
        caller, params = _whose(outgoing), outgoing.params
        message, beside = dict(params["message"]), params.get("metadata", {})
        if SKILL in beside:  # a program gets only the message
            message["metadata"] = {**message.get("metadata", {}), SKILL: beside[SKILL]}
        if params.get("configuration", {}).get("taskPushNotificationConfig"):
            return _error("PUSH_NOTIFICATION_NOT_SUPPORTED")
        if message.get("role") == "ROLE_AGENT":  # turns are counted by callers' messages
            return _error("INVALID_PARAMS", "/message/role is the agent's own, and this is its caller's")
        prompt = prompt_from(message, self.definition)
        if isinstance(prompt, AgentError):
            return prompt
        prompt = prompt._replace(trace={name.upper(): value for name, value in outgoing.extra})
        if not message.get("taskId"):
            context = message.get("contextId") or self.executions.new_id()
            ordered = self.executions.begin(self.name, prompt, caller, context)
        else:
            run = await self._mine(caller, message["taskId"])
            if message.get("contextId", run.context) != run.context:
                return _error("INVALID_PARAMS", "The task is of another context")
            if run.task["status"]["state"] not in run_events.WAITS:
                return _error("UNSUPPORTED_OPERATION", "The task does not wait for a message")
            ordered = self.executions.goes_on(run.id, prompt, caller)
        try:
            return await ordered
        except Refusal as no:  # nothing was sent, so nothing is charged
            raise Unsent(no.reason, no.detail, retry_after_s=no.retry_after_s, code=no.code) from no

    async def _follow_on(self, run_id: str) -> AsyncGenerator[Told]:
        """Follows a run like `Executions.follow`, including waits for its caller (A2A 1.0, 3.1.6)."""
        while True:
            async with aclosing(self.executions.follow(run_id)) as told:
                async for event in told:
                    yield event
            waiting = now = await self.executions.get(run_id)
            while now is not None and not run_events.is_over(now.task) and now == waiting:
                await asyncio.sleep(LOOK_EVERY_S)
                yield None
                now = await self.executions.get(run_id)
            if now is None or (run_events.is_over(now.task) and now == waiting):
                return

    async def _told_of(self, run: Execution, outgoing: OutgoingOperation) -> None:
        """Records a new run's owner before anything is sent, also if the caller disconnects now, so that it can find
        the run."""
        sends = outgoing.operation in (operations.SEND, operations.STREAM)
        if outgoing.begun is not None and sends and not outgoing.params["message"].get("taskId"):
            await to_its_end(self._owned(run, outgoing.begun))

    async def _owned(self, run: Execution, begun: Begun) -> None:
        try:
            await begun({"task": dict(run.task)})
        except Refusal:
            with suppress(Refusal):  # it may have ended by now
                await self.executions.cancel(run.id, "it could not be put on record whose it is")
            raise

    async def _ended(self, run: Execution, deadline_s: float) -> Execution:
        """Waits until the run ends or waits for its caller, or for the deadline. Returns its state then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline_s - ANSWER_S)):
                async with aclosing(self.executions.follow(run.id)) as told:
                    async for _ in told:
                        pass
        try:
            return await self.executions.get(run.id) or run
        except Refusal:  # the store is unavailable: the run continues, and its caller asks again
            return run

    async def _mine(self, caller: Caller, task: str) -> Execution:
        run = await self.executions.get(task)
        if run is None or run.target != self.name or run.owner != caller.binding:
            raise Refusal(Reason.TASK_UNKNOWN)
        return run

    async def _named(self, outgoing: OutgoingOperation) -> Execution:
        return await self._mine(_whose(outgoing), str(outgoing.params.get("id", "")))

    async def _get(self, outgoing: OutgoingOperation) -> Result | AgentError:
        return _with_history((await self._named(outgoing)).task, outgoing.params.get("historyLength"))

    async def _cancel(self, outgoing: OutgoingOperation) -> Result | AgentError:
        run = await self._named(outgoing)
        # The task API cancels on behalf of the run's owner, also because the owner lost the permission for it.
        why = self.executions.withdrawn(run, run_events.skill_of(run.task)) or "its caller cancelled it"
        return dict((await self.executions.cancel(run.id, why)).task)

    async def _extended(self, outgoing: OutgoingOperation) -> Result | AgentError:
        return _error("EXTENDED_AGENT_CARD_NOT_CONFIGURED")

    async def _list(self, outgoing: OutgoingOperation) -> Result | AgentError:
        """Returns a page of the caller's runs, newest first. A page token is the offset of the next page."""
        params = outgoing.params
        size = int(params.get("pageSize", DEFAULT_LISTED))
        token = str(params.get("pageToken", "")) or "0"
        if not token.isascii() or not token.isdigit() or len(token) > 9:
            return _error("INVALID_PARAMS", "The page token is none of this list")
        after = int(token) + size  # records that cannot be read keep their positions
        runs, total = await self.executions.page(_whose(outgoing).binding, (self.name,), None, size, int(token))
        found = [_listed(run.task, params) for run in runs if _is_wanted(run.task, params)]
        found.sort(key=lambda task: str(task["status"].get("timestamp", "")), reverse=True)
        next_token = str(after) if after < total else ""
        return {"tasks": found, "nextPageToken": next_token, "pageSize": size, "totalSize": total}


_Answer = Callable[[ProgramAgent, OutgoingOperation], Awaitable[Result | AgentError]]
_ANSWERS: Final[Mapping[operations.Operation, _Answer]] = {
    operations.SEND: ProgramAgent._send,
    operations.GET: ProgramAgent._get,
    operations.LIST: ProgramAgent._list,
    operations.CANCEL: ProgramAgent._cancel,
    operations.CARD: ProgramAgent._extended,
}


class RunFollower(NamedTuple):
    """The events of a run; implements `AgentEvents`."""

    first: Told
    told: AsyncGenerator[Told]
    history: int | None

    async def events(self, deadline: Deadline, idle_s: float) -> AsyncGenerator[Result | AgentError | None, None]:
        try:
            async with aclosing(self.told) as told:
                yield self._shown(self.first)
                while True:
                    async with asyncio.timeout_at(deadline.at):  # a run has its own time limit
                        event = await anext(told, _END)
                    if event is _END:
                        return
                    yield self._shown(event)
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "the time of this stream is over; the task continues") from None
        except Refusal as refusal:
            yield _told(refusal)

    def close(self) -> None:
        pass

    def _shown(self, event: Any) -> Result | None:
        if event is None or "task" not in event:
            return None if event is None else dict(event)
        return {"task": _with_history(event["task"], self.history)}


class ProgramProbe(NamedTuple):
    """Checks that the program can be found; implements `ProbeAnswer` of the health probes."""

    account: UpstreamAccount
    find: Callable[[], str | None]

    async def probe(self, within_s: float) -> None:
        given = self.account.breaker.enter()
        if self.find() is None:
            self.account.faulted(given, "there is no such program")
            raise Refusal(Reason.UPSTREAM_FAILED, "there is no such program")
        self.account.answered(given)

    async def explore(self) -> None:
        pass


def cli_agent_from(
    name: str, definition: CliAgent, executions: Executions, environ: Mapping[str, str]
) -> AgentUpstream:
    """Builds an agent from its definition; starts nothing yet. Raises SettingsError."""
    executions.make_runner(name, definition)  # fails now instead of when it is in force
    account, named, longest_s = UpstreamAccount(name, definition.breaker), definition.all_env(), definition.longest_s
    wire = ProgramAgent(name, definition, executions, named)
    return AgentUpstream(
        name,
        definition,
        GuardedAgent(wire, account, definition.max_queue + definition.places, longest_s, ""),
        account,
        DefinedCard(name, definition),
        ProgramProbe(account, partial(executable_of, definition.executable, named, environ)),
        definition.probe,
        longest_s,
        agent_id=definition.a2a.agent_id,
        grpc_port=definition.a2a.grpc_port,
        anonymous=definition.anonymous,
        unable=wire.unable,
    )


def _told(refusal: Refusal) -> AgentError:
    """Converts a refusal to an agent's error. Raises it if the sidecar must report it."""
    word = _WORDS.get(refusal.reason)
    if word is None:
        raise refusal
    return _error(word)


def _error(word: str, message: str = "") -> AgentError:
    kind = BY_REASON[word]
    return AgentError(kind.code, message or kind.message)


def _whose(outgoing: OutgoingOperation) -> Caller:
    if outgoing.caller is None:
        raise Refusal(Reason.TASK_UNKNOWN)  # the sidecar itself has no runs
    return outgoing.caller


def _history_of(outgoing: OutgoingOperation) -> int | None:
    length = outgoing.params.get("configuration", {}).get("historyLength")
    return None if length is None else int(length)


def _with_history(task: Mapping[str, Any], length: int | None) -> Result:
    """Returns the task with its last `length` messages; None means all."""
    history = task.get("history", ())
    if length is None or len(history) <= length:
        return dict(task)
    kept = {name: value for name, value in task.items() if name != "history"}
    return kept if length <= 0 else {**kept, "history": list(history[-length:])}


def _is_wanted(task: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    status = task["status"]
    wanted = params.get("contextId", task["contextId"]), params.get("status", status["state"])
    since = params.get("statusTimestampAfter", status["timestamp"])
    return wanted == (task["contextId"], status["state"]) and _sortable(status["timestamp"]) >= _sortable(since)


def _sortable(moment: str) -> tuple[str, str]:
    """Returns a sortable form of a canonical timestamp, whose fraction may be of any length."""
    whole, _, fraction = moment.removesuffix("Z").partition(".")
    return whole, fraction.rstrip("0")


def _listed(task: Mapping[str, Any], params: Mapping[str, Any]) -> Result:
    shown = _with_history(task, params.get("historyLength"))
    if not params.get("includeArtifacts"):
        shown.pop("artifacts", None)
    return shown
