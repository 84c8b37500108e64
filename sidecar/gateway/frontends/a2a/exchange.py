"""One decided operation at its agent, from the message sent to the last event of its answer."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiohttp import web

from sidecar.gateway import routing
from sidecar.gateway.frontends.a2a.approval_wait import HeldMessage, updates_in
from sidecar.gateway.frontends.a2a.response_writers import ResponseWriter
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.reauthorization import end_of
from sidecar.gateway.request import Charged, OpenExchanges, RequestContext, WatchedExchange
from sidecar.protocols.a2a.errors import AgentError
from sidecar.upstreams.agents import AgentEvents, AgentUpstream, OutgoingOperation

_new = tuple.__new__  # as in `jsonrpc.py`
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_FAILED: Final = frozenset({"TASK_STATE_FAILED", "TASK_STATE_REJECTED"})
_UNDER_WAY: Final = frozenset({"TASK_STATE_UNSPECIFIED", "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"})


class CheckedOperation(NamedTuple):
    """A permitted operation, with its agent and the tasks that it names, which are the caller's; or the reason why the
    agent is `unable` to carry it out for anyone. `held` is a message that needs approval."""

    agent: AgentUpstream
    owning: TaskOwnership
    unable: AgentError | None
    held: HeldMessage | None = None


class AgentExchange(WatchedExchange):
    """One decided operation at its agent. `dialect` writes its answers.

    `held` is its message, if that needed approval. `told` are the ids of task and context at the beginning of the
    caller's held stream.

    The cost that an agent reports is final (`is_final`) when the task has ended or waits for its caller: the caller's
    next message is a call of its own, with its own cost.
    """

    is_final = False
    told: tuple[str, str] | None = None

    def __init__(self, charged: Charged, timeout_s: float, open_exchanges: OpenExchanges) -> None:
        content: CheckedOperation = charged.content
        self.agent, self.owning, self.held, self.lease = content.agent, content.owning, content.held, charged.lease
        request, caller = charged.request, charged.caller
        self.request, self.caller, self.call, self.timeout_s = request, caller, self.owning.intent.call, timeout_s
        self.open, self.judged_by = open_exchanges, request.now
        self.until = end_of(caller, charged.decision, request.now)
        self.dialect: ResponseWriter = request.dialect
        left_s = request.started_s + request.held_s + timeout_s - request.loop.time()
        self.deadline_s = left_s if left_s > 0 else timeout_s

    def outgoing(self, params: dict[str, Any]) -> OutgoingOperation:
        """Returns the operation as the agent receives it. Only the agent can refuse it after this, so it is charged."""
        intent = self.owning.intent
        self.lease.forwarded = True
        headers = self.request.headers
        extra: Sequence[tuple[str, str]] = ()
        if self.request.spans is not None:
            extra = self.request.spans.toward_agent(self, self.agent)
        elif "traceparent" in headers:
            extra = routing.trace_headers(headers)
        how = (intent.extensions, extra, self.owning.admit)
        return _new(OutgoingOperation, (intent.operation, params, self.caller, self.deadline_s, *how))

    def ask(self, params: dict[str, Any]) -> Coroutine[Any, Any, dict[str, Any] | AgentError]:
        """Sends the operation. Awaited, it returns the agent's answer."""
        answering = self.agent.wire.ask(self.outgoing(params))
        return answering if self.span is None else self.span.during(answering)

    def listen(self, params: dict[str, Any]) -> Coroutine[Any, Any, AgentEvents | AgentError]:
        """Sends a streaming operation. Awaited, it returns the agent's stream."""
        answering = self.agent.wire.listen(self.outgoing(params))
        return answering if self.span is None else self.span.during(answering)

    async def admit(self, result: dict[str, Any]) -> dict[str, Any]:
        """Returns the part of an answer or an event that the caller may see; the audit record names its task."""
        admitted = await self.owning.admit(result)
        self.request.record.task_id = self.owning.task
        return admitted

    def hear(self, result: Mapping[str, Any]) -> None:
        """Reads the cost, and whether it is final, from a result or an event."""
        if self.lease.plan.settles:
            self.lease.heard(result)
        if "message" in result:
            self.is_final = True
        elif (told := result.get("task", result.get("statusUpdate"))) is not None:
            state = told.get("status", _NOTHING).get("state", "TASK_STATE_UNSPECIFIED")
            self.is_final = state not in _UNDER_WAY
            if state in _FAILED:
                self.request.tool_failed()

    def heard_all(self) -> None:
        """Returns the unused part of the charge to the limits if the cost is final."""
        if self.is_final:
            self.request.answered()

    async def failed(self, error: AgentError) -> web.StreamResponse:
        """Answers with an agent's error, on the stream of a held call if there is one."""
        request = self.request
        request.answered()
        request.tool_failed()
        if self.held is not None:
            self.held.why = error
        if request.held is None:
            return await respond(request, self.dialect.error(error))
        event = self.dialect.error_event(error)
        await request.ended(200, len(event))
        return await request.end_held(event)

    def events_of(self, event: dict[str, Any]) -> Iterator[bytes]:
        """Yields the forms of an agent's event that the caller receives."""
        operation = self.owning.intent.operation
        for one in (event,) if self.told is None else updates_in(event, *self.told):
            yield self.dialect.event(operation, one)


async def respond(request: RequestContext, told: Any) -> web.StreamResponse:
    return await request.respond(told.status, told.body, told.content_type, told.headers)
