"""The request pipeline: identity, policy, arguments, limits, audit, then the upstream.

The stages run in this order. Each takes typed values and returns one, or raises a `Refusal`; the audit record around
them is closed exactly once.

    stage       checks               refuses with       module
    routing     address              403 404 405        routing.py
    identity    caller               401                identity/
    frontend    operation            400 404 413 415    frontends/, tasks/api/
                memory for the body  503                http/server/body_admission.py
    admission   load, refusals       429 503            http/server/load_shedding.py, http/server/refusal_throttle.py
    switch      disabled principals  403                kill_switch/
    policy      permission           403                policy/
    ownership   owners of tasks      404                ownership.py, storage/task_owners.py
    arguments   pinned definition    403                upstreams/mcp/pins.py
                input schema         a tool's error     upstreams/mcp/arguments.py
    limits      rates and budgets    429 503            limits/
    audit       decision record      503                audit/
    forwarder   upstream             502 504            forwarder.py, response_stream.py, response_filter.py

In shadow mode, refusals by policy and limits are recorded and the call passes; all other refusals stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from sidecar.audit import Audit, Recording
from sidecar.errors import Reason, Refusal, Unsent
from sidecar.gateway import ownership, routing
from sidecar.gateway.error_responses import AnswerShape, ErrorResponse, tell
from sidecar.gateway.forwarder import Forwarder, SessionLost
from sidecar.gateway.frontends import dispatch, mcp_requests
from sidecar.gateway.frontends.a2a.frontend import AgentFrontend
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.frontends.aggregate.frontend import AggregateFrontend
from sidecar.gateway.frontends.mcp_requests import JSON, AskIntent, Intent, ServerIntent, SpreadIntent
from sidecar.gateway.frontends.rest import RestFrontend
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import RequestContext
from sidecar.gateway.request_metrics import measure
from sidecar.gateway.routing import Entrance, Route
from sidecar.gateway.snapshot import Live, Service, all_of
from sidecar.gateway.sse_session import SseSession
from sidecar.http.client import ConnectFailed, QueueFull
from sidecar.http.server.body_admission import BodyAdmission
from sidecar.http.server.cors import allowed, shared_with, wanted_verb
from sidecar.http.server.load_shedding import LoadShedding
from sidecar.http.server.refusal_throttle import RefusalThrottle
from sidecar.http.server.response import NO_HEADERS, SilentResponse, WholeResponse
from sidecar.identity import Audience, Presented
from sidecar.limits import Lease, Limiter, SessionCalls, plan_charges
from sidecar.observability.metrics import Metrics
from sidecar.policy.similar_keys import SIMILAR_KEY, Keys, similar_key
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Message, Notification, Request, malformed
from sidecar.protocols.mcp import eras, task_messages
from sidecar.protocols.mcp.eras import Era
from sidecar.storage.task_owners import TaskOwners
from sidecar.upstreams.mcp.arguments import Violation
from sidecar.upstreams.mcp.sessions import Session
from sidecar.vocabulary import ANONYMOUS, Call, Caller, Credential, Decision, Principal

DRAIN_LOOK_S = 0.05
LAST_EVENTS_S = 0.5  # after the grace time, for streams that must still send their last event
METADATA_FOLDERS = {
    routing.METADATA: routing.MCP,
    routing.AGENT_METADATA: routing.AGENTS,
    routing.TASKS_METADATA: routing.TASK_API,
}
CACHED = {"Cache-Control": "max-age=300"}
TASK_ROUTES = (routing.TASKS, routing.TASK, routing.TASK_CANCEL)
STRANGER = Caller((Principal(ANONYMOUS),), (Credential("anonymous"),))

log = logging.getLogger("sidecar.gateway.pipeline")


class TaskFrontend(Protocol):
    """The task API, which has state that outlives requests and is built above the gateway. An operation has its `call`;
    `here` says that it is carried out here, while its caller waits. `check` runs before anything is charged."""

    async def understand(self, request: RequestContext, caller: Caller, route: Route) -> Any: ...

    async def check(self, request: RequestContext, caller: Caller, asked: Any) -> None: ...

    async def carry_out(
        self,
        request: RequestContext,
        caller: Caller,
        decision: Decision,
        asked: Any,
        lease: Lease,
        timeout_s: float | None,
    ) -> web.StreamResponse: ...

    def close(self) -> None:
        """Stops accepting tasks."""


@dataclass(slots=True)
class Pipeline:
    """The policy enforcement point. One instance serves every listener of the data plane."""

    live: Live
    session_calls: SessionCalls
    limiter: Limiter
    audit: Audit
    metrics: Metrics
    exchanges: Forwarder
    federation: AggregateFrontend
    plain: RestFrontend
    agents: AgentFrontend
    task_front: TaskFrontend
    switch: KillSwitch
    tasks: TaskOwners
    pressure: LoadShedding
    refusals: RefusalThrottle
    clock: Callable[[], float]
    pace: BodyAdmission = field(default_factory=BodyAdmission)
    draining: bool = False
    inside: int = 0
    _under_way: dict[asyncio.Task[Any], RequestContext] = field(default_factory=dict)
    _telling: set[asyncio.Task[Refusal]] = field(default_factory=set)

    async def handle(self, http: web.BaseRequest, entrance: Entrance) -> web.StreamResponse:
        """Answers one request. `entrance` is the listener that received it."""
        request = self._received(http)
        request.prefix = entrance.prefix
        if entrance.shared:
            request.shared = shared_with(request.headers, entrance.shared)
        self.metrics.request_started(request.protocol)
        response = await self._answered(request, self._way(request, entrance))
        if request.shared and isinstance(response, WholeResponse):
            response.add(request.shared)
        return response

    async def _answered(self, request: RequestContext, way: Awaitable[web.StreamResponse]) -> web.StreamResponse:
        """Guarantees one answer and one end for each request."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = request
        try:
            return await way
        except Refusal as refusal:
            return await self._refuse(request, refusal)
        except asyncio.CancelledError:
            if request.cut and request.begun is None:
                task.uncancel()
                return await self._refuse(request, Refusal(Reason.DRAINING))
            gone = Refusal(Reason.DRAINING if request.cut else Reason.CALLER_GONE)
            if not self._closes(request, gone):
                await request.remember(gone, 499)
            raise
        except Exception:  # the only such handler for calls: a bug is answered once, recorded once, and not disclosed
            log.exception("bug", extra={"decision_id": request.record.decision_id})
            return await self._refuse(request, Refusal(Reason.INTERNAL))
        finally:
            del self._under_way[task]
            if not request.handed_on:
                self._finish(request)

    def _finish(self, request: RequestContext) -> None:
        self.live.leave(request.now)
        measure(self.metrics, request)
        request.let_go()

    async def _way(self, request: RequestContext, entrance: Entrance) -> web.StreamResponse:
        self.agents.greet(request)
        routing.check_framing(request.http.version, request.headers)
        routing.check_target(request.http.raw_path, request.headers)
        routing.check_entrance(request.headers, entrance)
        asked = wanted_verb(request.verb, request.headers) if request.shared else ""
        route = routing.route_of(request.raw_path, asked or request.verb, request.now.aliases, request.prefix)
        if asked:
            return await _public(request, "preflight", 204, headers=allowed(asked, request.headers))
        if route.kind in METADATA_FOLDERS:
            document = request.now.resource_metadata(route.server, METADATA_FOLDERS[route.kind], route.alias)
            return await _public(request, "metadata", 200, document, CACHED)
        if route.kind == routing.ISSUER:  # clients of MCP 2025-03-26 request its metadata at the server
            if not (url := request.now.issuer_metadata_url):
                raise Refusal(Reason.ROUTE_UNKNOWN)
            return await _public(request, "metadata", 307, headers={"Location": url, **CACHED})
        if route.kind == routing.KEYS:
            return await _public(request, "jwks", 200, request.now.signer.key_set, CACHED)
        if entrance.principal and request.headers.get("host"):  # a local listener, which knows its principal
            request.base = f"http://{request.headers['host'][0]}"
        if route.kind == routing.PUSH:
            with self._admitted(request, begins=True):
                return await self.agents.pushed(request, route)
        if route.kind in (routing.CARD, routing.SEED_CARD):
            return await self._card(request, route, entrance)
        if route.kind == routing.AGENT:
            return await self._operate(request, route, entrance)
        if route.kind in TASK_ROUTES:
            return await self._task(request, route, entrance)
        caller = await self._identify(request, route.server, entrance)
        if route.kind == routing.MESSAGES:
            return await self._take(request, caller)
        intent = await dispatch.understand(self.exchanges, request, caller, route)
        with self._admitted(request, begins=_begins(intent)):
            if isinstance(intent, SpreadIntent):
                return await self._spread(request, caller, intent)
            return await self._carry(request, caller, intent)

    async def _take(self, request: RequestContext, caller: Caller) -> web.StreamResponse:
        """Accepts a message that is answered on its session's stream (MCP 2024-11-05): 202 here, at once."""
        session, paired = self.exchanges.paired(routing.session_in(request.raw_path), caller, request.server)
        message = await dispatch.read(request, routing.head_of(request.headers))
        request.shape = AnswerShape.STATELESS  # a refusal here is answered over HTTP
        if self.draining and isinstance(message, Request):
            raise Refusal(Reason.DRAINING)
        task = paired.take(message, partial(self._answer_there, request, caller, session, paired, message))
        request.handed_on, request.paired, request.shape = True, paired, AnswerShape.SESSION
        task.add_done_callback(partial(self._abandoned, request))
        return WholeResponse(202)

    async def _answer_there(
        self, request: RequestContext, caller: Caller, session: Session, paired: SseSession, message: Message
    ) -> None:
        request.handed_on = False
        response = await self._answered(request, self._further(request, caller, session, message))
        if isinstance(response, WholeResponse) and response.body and isinstance(message, Request):
            with suppress(Refusal):  # the caller left; the outcome of its call is recorded
                await paired.outlet().write(sse.encode_event(response.body))

    async def _further(
        self, request: RequestContext, caller: Caller, session: Session, message: Message
    ) -> web.StreamResponse:
        with self._admitted(request, begins=isinstance(message, Request)):
            intent = dispatch.understand_paired(self.exchanges, request, caller, session, message)
            assert not isinstance(intent, SpreadIntent)
            return await self._carry(request, caller, intent)

    def _abandoned(self, request: RequestContext, task: asyncio.Task[None]) -> None:
        """Closes the request if the stream ended before the task's first step."""
        if request.handed_on:
            told = asyncio.create_task(request.remember(Refusal(Reason.CALLER_GONE), 499))
            self._telling.add(told)
            told.add_done_callback(self._telling.discard)
            told.add_done_callback(lambda _: self._finish(request))

    async def _carry(self, request: RequestContext, caller: Caller, intent: ServerIntent) -> web.StreamResponse:
        """Carries out an admitted call from the decision to the answer, which `drain` waits for."""
        decision = await self._ask_again(request, caller, intent.call, self._decide(request, caller, intent.call))
        service = request.now.service(request.server)
        if request.front == routing.EVERY:
            self.federation.admit(request, service, caller)
        if not isinstance(
            intent, mcp_requests.LeaveIntent
        ):  # a session can be ended also while its upstream is off or unavailable
            self.switch.switched_off.refuse_use(intent.call, self.clock())
            service.account.breaker.check()  # before waiting for the server's tools, and before charging
        intent = self._resumed(caller, intent)
        await request.breathe()
        await self._check_arguments(request, service, intent, decision)
        async with self._charged(request, caller, intent.call, decision) as (lease, timeout_s):
            opened = partial(self.exchanges.opened, request, service, caller, decision, timeout_s=timeout_s)
            if request.front != routing.EVERY:
                lease.forwarded = True
                carry_out = self.plain.carry_out if request.plain else self.exchanges.carry_out
                return await carry_out(opened(intent), intent)
            attached = await self.federation.attach(request, service, caller, intent)
            lease.forwarded = True
            try:
                return await self.exchanges.carry_out(opened(attached), attached)
            except SessionLost:
                if attached is intent:  # no session was opened for it: the message concerns the lost session
                    raise
            # The server lost its member session and did not execute the call, which is sent once more in a new one.
            attached = await self.federation.attach(request, service, caller, intent)
            return await self.exchanges.carry_out(opened(attached), attached)

    async def _operate(self, request: RequestContext, route: Route, entrance: Entrance) -> web.StreamResponse:
        """Carries out a call of an agent; the stages run on the canonical operation."""
        self.agents.enter(request, route)
        caller = await self._identify(request, route.server, entrance, routing.AGENTS, route.alias)
        intent = await self.agents.understand(request, route)
        with self._admitted(request, begins=True):
            decision = self._decide(request, caller, intent.call)
            agent, owning = self.agents.agent(request, route), TaskOwnership(self.tasks, caller, intent)
            if agent.unable(intent.operation) is None:  # otherwise no task may be disclosed
                await owning.check()
                request.record.task_id = owning.task
            agent.account.breaker.check()
            async with self._charged(request, caller, intent.call, decision) as (lease, timeout_s):
                return await self.agents.carry_out(request, agent, decision, owning, lease, timeout_s)

    async def _task(self, request: RequestContext, route: Route, entrance: Entrance) -> web.StreamResponse:
        """Carries out a request of the task API; the stages run on its operation."""
        caller = await self._identify(request, route.server, entrance, routing.TASK_API)
        asked = await self.task_front.understand(request, caller, route)
        with self._admitted(request, begins=True):
            decision = self._decide(request, caller, asked.call)
            await self.task_front.check(request, caller, asked)
            async with self._charged(request, caller, asked.call, decision, here=asked.here) as (lease, timeout_s):
                return await self.task_front.carry_out(request, caller, decision, asked, lease, timeout_s)

    async def _card(self, request: RequestContext, route: Route, entrance: Entrance) -> web.StreamResponse:
        """Serves an agent's card, which is public; authenticated callers see more."""
        name = self.agents.name_of(request, route)  # one agent has one audience, under all its names
        if request.now.identity.is_unidentified(
            self._present(request, entrance, request.now.audience(name, routing.AGENTS))
        ):
            caller = request.record.caller = STRANGER
        else:
            caller = await self._identify(request, name, entrance, routing.AGENTS, route.alias)
        try:
            self._refuse_disabled(request, caller, self.agents.card_call(request, route))
        except Refusal:
            if not caller.is_anonymous:
                raise
            raise Refusal(Reason.UPSTREAM_UNKNOWN) from None  # an unidentified caller sees an agent that does not exist
        with self._admitted(request, begins=True):
            return await self.agents.card(request, route, caller)

    @asynccontextmanager
    async def _charged(
        self, request: RequestContext, caller: Caller, call: Call, decision: Decision, *, here: bool = False
    ) -> AsyncIterator[tuple[Lease, float | None]]:
        """Reserves the call's limits and records the decision before the upstream is called. A reservation that was not
        forwarded is returned; a call answered `here` takes no slot at the upstream."""
        await request.breathe()
        plan = plan_charges(request.now.budgets, caller.chain, request.now.engine.roles_of, call, decision)
        request.plan = plan = plan.at_creation if here else plan
        async with self.limiter.reserve(plan, request.record.decision_id, excuse=request.excuse) as lease:
            request.lease = lease
            request.record.limits, request.record.charged = lease.states, lease.charged
            if lease.degraded and not request.shadow:
                request.record.enforcement = "degraded"
            request.record.mark("limits")
            await request.record.decided()
            request.record.mark("audit")
            try:
                await request.breathe()
                yield lease, plan.timeout_s
            except Refusal as refusal:
                unreached = isinstance(refusal.__cause__, ConnectFailed | QueueFull)
                if refusal.reason is Reason.UPSTREAM_OPEN or isinstance(refusal, Unsent) or unreached:
                    # The breaker opened just now, or there was no credential or no connection: nothing was sent.
                    lease.forwarded = False
                raise
            finally:
                if not lease.forwarded:
                    request.record.charged = 0  # the charge is returned
                request.record.mark("upstream")

    async def _spread(self, request: RequestContext, caller: Caller, spread: SpreadIntent) -> web.StreamResponse:
        """Carries out a call to all servers; each server is decided on separately."""
        call = self.federation.enter(request, caller, spread)
        for _ in range(self.federation.cost_of(call)):
            self._charge_session_call(request, caller, spread.call)
        request.record.mark("limits")
        await request.record.decided()  # the decision is recorded before the upstreams are called
        request.record.mark("audit")
        try:
            return await self.federation.carry_out(call)
        finally:
            request.record.mark("upstream")

    @contextmanager
    def _admitted(self, request: RequestContext, *, begins: bool) -> Iterator[None]:
        """Admits a request unless the process is draining or overloaded. A request with `begins` false belongs to work
        in progress and is always admitted: a call that waits for its caller's answer would otherwise never end."""
        if begins:
            if self.draining:
                raise Refusal(Reason.DRAINING)
            self.pressure.or_refuse()
            self._check_refusals(request)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def _check_refusals(self, request: RequestContext) -> None:
        try:
            self.refusals.check(request.record.caller)
        except Refusal as refusal:
            if not request.excuse(refusal):
                raise

    async def drain(self, grace_s: float) -> None:
        """Stops admitting requests, ends endless streams, and waits for the remaining answers, at most `grace_s`
        seconds. Requests still open then end with 503, or with the last event of a stream."""
        self.draining = True
        self.task_front.close()
        # once more, because a stream may have begun only now
        await self._wait_for_answers(grace_s, self.exchanges.drain)
        self.exchanges.cut_off()
        await self._wait_for_answers(LAST_EVENTS_S, self.exchanges.cut_off)
        for task, request in self._under_way.items():
            request.cut = True
            task.cancel()
        await self._wait_for_answers(LAST_EVENTS_S, lambda: None)

    async def _wait_for_answers(self, within_s: float, again: Callable[[], None]) -> None:
        now_s = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(
                    request.started_s <= now_s for request in self._under_way.values()
                ):  # a request that arrives now is refused at once
                    again()
                    await asyncio.sleep(DRAIN_LOOK_S)

    async def _identify(
        self, request: RequestContext, server: str, entrance: Entrance, folder: str = routing.MCP, alias: str = ""
    ) -> Caller:
        request.enter(server, folder, alias)
        audience = request.now.audience(server, folder)
        caller = await request.now.identity.identify(self._present(request, entrance, audience), audience)
        request.record.caller = caller
        request.record.mark("auth")
        return caller

    def _present(self, request: RequestContext, entrance: Entrance, audience: Audience) -> Presented:
        own = audience.gate.header if audience.gate is not None else ""
        presented = routing.presented_by(request.http, request.headers, entrance, request.now.base_url, own)
        request.presented = request.now.identity.admit(presented)
        return request.presented

    def _decide(self, request: RequestContext, caller: Caller, call: Call) -> Decision:
        now_s = self.clock()
        self._refuse_disabled(request, caller, call)
        decision = request.now.decide(caller.chain, call, now_s)
        request.record.decision = decision
        request.record.mark("policy")
        if not request.shadow:
            decision.or_refuse()
        if call.session:
            self._charge_session_call(request, caller, call)
        elif call.method != "tools/call" and (key := _similar_key(request, call, decision)) is not None:
            raise malformed(f"{key} differs from another name only in case or Unicode form", INVALID_PARAMS)
        return decision

    def _refuse_disabled(self, request: RequestContext, caller: Caller, call: Call) -> None:
        for disabled in (self.switch.disabled, request.now.disabled):
            if disabled.entries:
                disabled.refuse(caller.chain, call, self.clock())

    async def _ask_again(self, request: RequestContext, caller: Caller, call: Call, decision: Decision) -> Decision:
        """Decides again on what created the tasks that the call names: a caller that has lost that permission has lost
        the task. A task whose tool is switched off can only be ended."""
        now_s, questions = self.clock(), await ownership.created_by(self.tasks, caller, call)
        for question in questions:
            again = request.now.engine.reconsider(caller.chain, question, now_s)
            decision = request.record.decision = all_of((decision, again))
            if not request.shadow:
                decision.or_refuse()
        if len(call.tasks) == 1:
            request.record.task_id = call.tasks[0]
        if questions and call.method != task_messages.CANCEL:
            self.switch.switched_off.refuse_use(call._replace(questions=questions), now_s)
        return decision

    def _resumed(self, caller: Caller, intent: ServerIntent) -> ServerIntent:
        """Opens the `requestState` of a call that continues. Raises Refusal for a state of another call."""
        if not isinstance(intent, AskIntent) or "requestState" not in intent.message.params:
            return intent
        state = self.exchanges.states.open(caller, intent.call, intent.message.params["requestState"])
        params = {**intent.message.params, "requestState": state}
        return intent._replace(message=intent.message._replace(params=params))

    def _charge_session_call(self, request: RequestContext, caller: Caller, call: Call) -> None:
        # Reopened streams have their own limit, so that they do not use up the caller's lists and pings (threats S10).
        streams = " streams" if call.method == mcp_requests.STREAM else ""
        try:
            self.session_calls.charge(caller.last.name + streams)
        except Refusal as refusal:
            if not request.excuse(refusal):
                raise

    async def _check_arguments(
        self, request: RequestContext, service: Service, intent: ServerIntent, decision: Decision
    ) -> None:
        if not isinstance(intent, AskIntent):
            return
        if intent.call.method == "tools/list":
            await service.catalogue.learn(service.timeout_s)  # a listed tool must be callable
        if intent.call.method != "tools/call":
            return
        question = intent.call.question
        tool = service.catalogue.known(question.name) or await service.catalogue.tool(question.name, service.timeout_s)
        if tool.schema is None:
            raise Refusal(Reason.SCHEMA_UNAVAILABLE, tool.quarantine_reason)
        if not request.now.approves(question.server, tool.name, tool.definition.digest):
            raise Refusal(Reason.PIN_MISMATCH)  # also in shadow mode: this definition of the tool was never approved
        similar = _similar_key(request, intent.call, decision, tool.schema.keys)
        violation = (
            Violation(similar, SIMILAR_KEY) if similar is not None else tool.schema.violation(question.arguments)
        )
        if violation is not None:
            pointer = f"/arguments{violation.pointer}"
            data = {"pointer": pointer, "keyword": violation.keyword}
            raise Refusal(Reason.BAD_ARGUMENTS, f"{pointer} does not satisfy {violation.keyword}", data=data)
        if tool.param_headers:
            if intent.era is Era.STATELESS and not request.plain:
                eras.check_parameter_headers(routing.head_of(request.headers), tool.param_headers, question.arguments)
            request.parameter_headers = eras.parameter_headers(tool.param_headers, question.arguments)
        request.record.mark("arguments")

    def _received(self, http: web.BaseRequest) -> RequestContext:
        headers = routing.headers_of(http)
        record = Recording(
            self.audit,
            protocol=routing.protocol_of(routing.origin_form(http.raw_path), self.live.current.aliases),
            peer=http.remote or "local",
            trace_id=routing.trace_id_of(headers),
            run_id=routing.correlation_of(headers, "x-run-id"),
            thread_id=routing.correlation_of(headers, "x-thread-id"),
        )
        request = RequestContext(http, self.live.take(), headers, record, self.pace, record.protocol)
        if request.now.shadows(self.clock()):
            request.shadow, record.enforcement = True, "shadow"
        return request

    def _closes(self, request: RequestContext, refusal: Refusal) -> bool:
        """Counts a refusal. Returns whether the connection is closed without answer or record."""
        request.unanswered = request.unanswered or self._unrecorded(request, refusal, self.refusals.closes)
        return request.unanswered

    def _unrecorded(
        self, request: RequestContext, refusal: Refusal, judge: Callable[[Caller | None, str, Refusal], bool]
    ) -> bool:
        """Reports whether a refusal has no record of its own. A decided call always gets one."""
        record = request.record
        if record.done or record.is_decided or not judge(record.caller, record.peer, refusal):
            return False
        record.done, request.refusal = True, refusal
        return True

    async def _refuse(self, request: RequestContext, refusal: Refusal) -> web.StreamResponse:
        if self._closes(request, refusal):
            return SilentResponse()
        told = self._told(request, refusal)
        counted = self._unrecorded(request, refusal, self.refusals.only_counts)
        recorded = refusal if counted else await request.remember(refusal, told.status)
        if request.begun is not None:  # a stream has begun: no second answer may follow, only its end
            request.break_off()
            return request.begun
        if recorded is not refusal:
            told = self._told(request, recorded)
        response = WholeResponse(told.status, told.body, told.content_type, told.headers)
        if request.front is None:  # a proxy in front may read the rest of this connection differently
            response.force_close()
        return response

    def _told(self, request: RequestContext, refusal: Refusal) -> ErrorResponse:
        now, decision_id = request.now, request.record.decision_id
        url = "" if request.front is None else now.metadata_url(request.front, request.folder, request.alias)
        if request.dialect is not None:
            return request.dialect.tell(refusal, decision_id, now.manner, url)
        return tell(
            refusal, request.shape, decision_id=decision_id, request_id=request.request_id, method=request.method,
            manner=now.manner, resource_metadata=url,
        )  # fmt: skip


async def _public(
    request: RequestContext, method: str, status: int, body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
) -> web.StreamResponse:
    """Answers with what is public, and the same for every caller."""
    request.method = method
    await request.record.outcome(http_status=status, bytes_out=len(body))
    return WholeResponse(status, body, JSON if body else "", headers)


def _similar_key(request: RequestContext, call: Call, decision: Decision, keys: Keys | None = None) -> str | None:
    """Returns a pointer to a key that a rule, or the upstream, may confuse with another one. In a message to an agent
    only the keys that a rule reads matter."""
    upstream = request.now.settings.upstreams.get(call.upstream)
    if upstream is not None and upstream.similar_keys == "allow":
        return None
    reads = request.now.engine.names_read(decision)
    return similar_key(call.question.arguments, keys, reads, siblings=call.protocol == "mcp")


def _begins(intent: Intent) -> bool:
    """Reports whether the message begins work, rather than being an answer to the server or a notification."""
    told = isinstance(intent, SpreadIntent) and isinstance(intent.message, Notification)
    return not told and not isinstance(intent, mcp_requests.ReplyIntent | mcp_requests.NotifyIntent)
