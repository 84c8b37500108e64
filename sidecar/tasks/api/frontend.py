"""The frontend of the task API. A new task is stored before its caller gets an answer. A sent task is cancelled at its
agent, an unsent one here."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.approvals import ApprovalState
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.frontends.mcp_requests import JSON
from sidecar.gateway.reauthorization import end_of
from sidecar.gateway.request import Charged, ParsedOperation, RequestContext, WatchedExchange
from sidecar.gateway.routing import Route
from sidecar.http.server.response import WholeResponse
from sidecar.identity import check_caller
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import GET, LIST
from sidecar.storage import RecordPage
from sidecar.tasks.api.models import A2aTask, cancelled, created, shown, without_result
from sidecar.tasks.api.request_reader import TaskQuery, TaskRequest, cancels, gets, order_in, sends, wanted_in
from sidecar.tasks.api.task_orders import TaskOrders
from sidecar.tasks.api.task_record import SEEN, Task, TaskState, TaskStep
from sidecar.tasks.api.task_runner import TaskRunner
from sidecar.tasks.worker import to_its_end
from sidecar.upstreams.agents import OutgoingOperation
from sidecar.vocabulary import Caller, Decision, Question

LOOK_AGAIN_S: Final = 0.02
SLOWEST_LOOK_S: Final = 0.5
_PRIVATE: Final[Mapping[str, str]] = {"Cache-Control": "no-store"}  # the response belongs to one caller

CheckUrl = Callable[[str, str], Awaitable[None]]
"""Checks that a callback URL may be called on behalf of this chain, given by its binding. Raises Refusal."""


@dataclass(slots=True)
class TaskFrontend:
    forwarder: Forwarder
    orders: TaskOrders
    check_url: CheckUrl
    new_id: Callable[[], str]
    folder: str = routing.TASK_API

    @property
    def runner(self) -> TaskRunner:
        return self.orders.runner

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        """Reads the request. Raises Refusal, the same for an unknown task and a task of another owner."""
        if route.kind == routing.TASKS:
            asked = await self._for_all(request, caller)
        else:
            verb = GET if route.kind == routing.TASK else None
            request.asks("tasks/get" if verb is GET else "tasks/cancel")
            routing.check_no_query(request.path)
            if verb is None and request.http.body_exists:
                await request.body()  # the body is read and ignored
            record = await self._own(caller, route.rest)
            intent = gets(record) if verb is GET else cancels(record)
            asked = TaskRequest(intent.call, intent, record.id, record, here=verb is GET)
        if asked.task_id:
            request.record.request_id = request.record.task_id = asked.task_id
        request.goes_to(asked.call.upstream)
        if asked.call.upstream:  # the same check as at the agent's own address
            check_caller(caller, request.now.audience(asked.call.upstream, routing.AGENTS))
        return ParsedOperation(asked.call, asked, charges="creation" if asked.here else "all")

    async def _for_all(self, request: RequestContext, caller: Caller) -> TaskRequest:
        if request.verb == "GET":
            request.asks(LIST.action)
            query = wanted_in(request.now, request.path.partition("?")[2])
            return TaskRequest(query.call, query=query)
        request.asks("message/send")
        routing.check_no_query(request.path)
        order, task_id = order_in(request.now, caller, await request.body()), self.new_id()
        request.record.request_id = request.record.task_id = task_id
        intent = sends(task_id, order.target, order.task_type, order.input)
        return TaskRequest(intent.call, intent, task_id, order=order)

    async def _own(self, caller: Caller, task_id: str) -> Task:
        record = await self.runner.means.store.get(task_id)
        if record is None or record.owner != caller.binding:
            raise Refusal(Reason.TASK_UNKNOWN)
        return record

    def close(self) -> None:
        self.orders.closed = True

    async def check(
        self, request: RequestContext, caller: Caller, asked: TaskRequest, decision: Decision
    ) -> TaskRequest:
        if asked.order is not None and asked.intent is not None:
            request.defers = True
            await self.orders.check_agent(request.now, caller, asked.intent)
            if asked.order.callback_url:
                await self.check_url(asked.order.callback_url, caller.binding)
        return asked

    async def carry_out(self, charged: Charged) -> web.StreamResponse:
        """Carries out the request and returns the response, after the audit record. Raises Refusal."""
        request, caller, lease = charged.request, charged.caller, charged.lease
        asked: TaskRequest = charged.content
        if asked.order is not None:
            trace = "" if request.spans is None else request.spans.traceparent(request)
            new = self.orders.new(caller, asked.order, asked.task_id, trace, request.awaited)
            body = orjson.dumps(created(new))
            if not await self.orders.keep(new, lease, partial(request.ended, 201, len(body))):
                raise ValueError("an id came twice")  # a task must not be returned to another caller
            return WholeResponse(201, body, JSON, {**_PRIVATE, "Location": f"{request.prefix}/a2a/tasks/{new.id}"})
        if asked.query is not None:
            lease.forwarded = True
            return await self._list(request, caller, asked.query)
        assert asked.record is not None
        if asked.here:
            lease.forwarded = True
            if asked.record.state is TaskState.WAITING and request.now.agent(asked.record.target).needs_token:
                approval = await self.orders.stages.approvals.find(asked.record.approval)
                if approval is not None and approval.state is ApprovalState.APPROVED:
                    self.runner.go_on(asked.record, caller)
            return await _respond(request, shown(asked.record, request.now))
        return await self._cancel(charged, asked.record)

    async def _list(self, request: RequestContext, caller: Caller, wanted: TaskQuery) -> web.StreamResponse:
        now, now_s = request.now, self.runner.means.live.clock()

        def may_see(name: str) -> bool:
            asked = (Question(f"nhi:{name}", one.action, "") for one in (LIST, GET))
            return request.shadow or all(now.engine.may_list(caller.chain, one, now_s) for one in asked)

        shows = list(filter(may_see, [wanted.target] if wanted.target else sorted(now.agents)))
        page = RecordPage(shows, wanted.state, wanted.limit, wanted.offset)
        records, total = await self.runner.means.store.page(caller.binding, page)
        entries = _within([shown(one, now) for one in records], now.bounds.max_response_bytes)
        about = {"tasks": entries, "total": total, "limit": wanted.limit, "offset": wanted.offset}
        return await _respond(request, about)

    async def _cancel(self, charged: Charged, record: Task) -> web.StreamResponse:
        """Ends an unsent task at once, and cancels a sent one at its agent. A task that is being sent must be sent
        first: only then does it have an id there. Raises Refusal."""
        request, caller, timeout_s = charged.request, charged.caller, charged.timeout_s
        limit_s, pause_s = min(request.now.agent(record.target).timeout_s, timeout_s or float("inf")), LOOK_AGAIN_S
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    if record.is_over:
                        raise Refusal(Reason.NOT_CANCELABLE, f"it is {record.state}")
                    if record.step is TaskStep.SENT:
                        said = await self._cancel_there(charged, record, limit_s)
                        return await _respond(request, cancelled(await self._cancelled(caller, record, said)))
                    if record.step is TaskStep.UNSENT:
                        ended = await to_its_end(self._end_unsent(caller, record))
                        if ended is not None:
                            return await _respond(request, cancelled(ended))
                    await asyncio.sleep(pause_s)
                    pause_s = min(SLOWEST_LOOK_S, pause_s * 2)
                    record = await self._own(caller, record.id)
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "the agent has not answered yet") from None

    async def _end_unsent(self, caller: Caller, record: Task) -> Task | None:
        ended = await self.runner.end(record, TaskState.CANCELLED)
        if ended is not None and record.approval:
            await self.orders.stages.approvals.withdraw(record.approval, caller)
        return ended

    async def _cancel_there(self, charged: Charged, record: Task, limit_s: float) -> str:
        """Cancels the task at the agent; returns its state there. Raises Refusal."""
        request, caller = charged.request, charged.caller
        agent, intent = request.now.agent(record.target), cancels(record)
        agent.account.breaker.check()
        until, opened = end_of(caller, charged.decision, request.now), self.forwarder.oversight.open
        charged.lease.forwarded = True
        with WatchedExchange(request, caller, intent.call, limit_s, opened, until) as overseen:
            extra, left_s = routing.trace_headers(request.headers), overseen.left_s(limit_s) or limit_s
            if request.spans is not None:
                extra = request.spans.toward_agent(overseen, agent)
            answering = agent.wire.ask(OutgoingOperation(intent.operation, intent.params, caller, left_s, (), extra))
            answer = await (answering if overseen.span is None else overseen.span.during(answering))
            if isinstance(answer, AgentError):
                if answer.kind.reason in ("TASK_NOT_CANCELABLE", "UNSUPPORTED_OPERATION", "TASK_NOT_FOUND"):
                    raise Refusal(Reason.NOT_CANCELABLE, f"the agent says: {answer.kind.message}")
                raise Refusal(Reason.UPSTREAM_FAILED, "the agent answered with an error")
            await TaskOwnership(self.forwarder.tasks, caller, intent).admit(answer)
        said = str(answer.get("status", {}).get("state", ""))
        if SEEN.get(said) in (TaskState.COMPLETED, TaskState.FAILED):
            self.runner.wake(record)  # the agent ended it first; the task's lifecycle detects this
            raise Refusal(Reason.NOT_CANCELABLE, f"it is {SEEN[said]}")
        return said

    async def _cancelled(self, caller: Caller, record: Task, said: str) -> Task:
        while not record.is_over:
            ended = await self.runner.end(record._replace(a2a_state=said), TaskState.CANCELLED)
            record = ended or await self._own(caller, record.id)
        if record.state is not TaskState.CANCELLED:
            raise Refusal(Reason.NOT_CANCELABLE, f"it is {record.state}")
        return record


def _within(entries: list[A2aTask], most: int) -> list[A2aTask]:
    """Omits results once together they exceed `most` bytes. Each remains at the URL of its task."""
    room = most
    for entry in entries:
        if entry["result"] is None:
            continue
        room -= len(orjson.dumps(entry["result"]))
        if room < 0:
            entry |= without_result(entry)
    return entries


async def _respond(request: RequestContext, said: Mapping[str, Any]) -> web.StreamResponse:
    return await request.respond(200, orjson.dumps(said), JSON, _PRIVATE)
