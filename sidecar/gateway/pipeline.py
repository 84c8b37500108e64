"""The request pipeline: identity, policy, arguments, limits, audit, then the upstream.

Every call passes these stages in this order, whatever its protocol. A stage returns what the next one needs, or raises
a `Refusal`. The audit record around them is closed exactly once.

    stage       checks               refuses with       where
    routing     address              400 403 404 405    `Pipeline._read`, routing.py
    identity    caller               401 403            `Pipeline._read`, identity/
    parse       operation            400 404 413 415    `Frontend.parse`: frontends/, tasks/api/
                memory for the body  503                http/server/body_admission.py
    admission   load, refusals       429 503            `Stages.admit`
    switch      disabled principals  403                `Stages.carry_out`, kill_switch/
    policy      permission           403                `Stages.carry_out`, policy/
    ownership   owners of tasks      404                ownership.py, `Frontend.check`
    check       what the upstream    200 403 404 503    `Frontend.check`: pins, argument schemas, breaker
                would be sent
    limits      rates and budgets    429 503            `Stages.carry_out`, limits/
    audit       decision record      503                `Stages.carry_out`, audit/
    upstream    the answer           429 502 503 504    `Frontend.carry_out`

In shadow mode, refusals by policy and limits are recorded and the call passes; all other refusals remain in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from aiohttp import web

from sidecar.audit.recorder import Audit, Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.error_responses import AnswerShape, ErrorResponse, tell
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.a2a.frontend import AgentFrontend
from sidecar.gateway.frontends.aggregate.frontend import AggregateFrontend
from sidecar.gateway.frontends.mcp import McpFrontend
from sidecar.gateway.frontends.mcp_requests import JSON
from sidecar.gateway.frontends.rest import RestFrontend, told_approval
from sidecar.gateway.request import ParsedOperation, RequestContext
from sidecar.gateway.request_metrics import measure, request_line
from sidecar.gateway.routing import Entrance, Route
from sidecar.gateway.snapshot import Live
from sidecar.gateway.sse_session import SseSession
from sidecar.gateway.stages import Carrier, Stages
from sidecar.http.server.body_admission import BodyAdmission
from sidecar.http.server.cors import allowed, shared_with, wanted_verb
from sidecar.http.server.request import HttpRequest
from sidecar.http.server.response import NO_HEADERS, SilentResponse, WholeResponse
from sidecar.identity import Audience, Presented, digest_of
from sidecar.observability.log_lines import RequestLines
from sidecar.observability.metrics import Metrics
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import Message, Request
from sidecar.upstreams.mcp.sessions import Session
from sidecar.vocabulary import ANONYMOUS, Caller, Credential, Principal

DRAIN_LOOK_S = 0.05
LAST_EVENTS_S = 0.5  # after the grace time, for streams that must still send their last event
METADATA_FOLDERS = {
    routing.METADATA: routing.MCP,
    routing.AGENT_METADATA: routing.AGENTS,
    routing.TASKS_METADATA: routing.TASK_API,
}
CACHED = {"Cache-Control": "max-age=300"}
STRANGER = Caller((Principal(ANONYMOUS),), (Credential("anonymous"),))

log = logging.getLogger("sidecar.gateway.pipeline")


class Frontend(Carrier[web.StreamResponse], Protocol):
    """What one protocol adds to the pipeline. All methods raise Refusal."""

    folder: str
    """The folder of its addresses, which determines the audience of credentials."""

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        """Reads the operation. Only what was parsed is decided on and sent."""


class TaskApi(Frontend, Protocol):
    def close(self) -> None:
        """Stops accepting tasks."""


Asked = tuple[Caller, Frontend, ParsedOperation]
"""A request as it was read: the caller, the frontend that carries it out, and the operation."""


class CallRoute(NamedTuple):
    """How calls at one address are read under one snapshot."""

    protocol: str
    route: Route
    frontend: Frontend
    audience: Audience


@dataclass(slots=True)
class Pipeline:
    """The policy enforcement point. One instance serves every listener of the data plane."""

    live: Live
    stages: Stages
    audit: Audit
    metrics: Metrics
    forwarder: Forwarder
    mcp: McpFrontend
    aggregate: AggregateFrontend
    rest: RestFrontend
    agents: AgentFrontend
    task_api: TaskApi
    body_admission: BodyAdmission = field(default_factory=BodyAdmission)
    request_lines: RequestLines | None = None
    """Writes a line for each request to the log, if that is configured."""
    _telling: set[asyncio.Task[Refusal]] = field(default_factory=set)
    _frontends: Mapping[str, Frontend] = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        tasks = dict.fromkeys((routing.TASKS, routing.TASK, routing.TASK_CANCEL), self.task_api)
        rest = dict.fromkeys((routing.TOOLS, routing.TOOL), self.rest)
        self._frontends = {
            routing.MCP: self.mcp, routing.SSE: self.mcp, routing.AGENT: self.agents, **rest, **tasks
        }  # fmt: skip

    def handle(self, http: HttpRequest, entrance: Entrance) -> Coroutine[Any, Any, web.StreamResponse]:
        """Returns the answer to one request. `entrance` is the listener that received it."""
        request, known = self.begin(http, entrance)
        return self.answer(request, self._read(request, entrance, known))

    def begin(self, http: HttpRequest, entrance: Entrance) -> tuple[RequestContext, CallRoute | None]:
        """Returns the context of a new request, and its route if that is known."""
        head, path, now = http.head, http.raw_path, self.live.current
        headers = routing.headers_of(http) if head is None or head.lines is None else head.lines
        known = now.call_routes.get((path, http.method, entrance.prefix))  # of paths in origin form
        if known is not None:
            protocol = known.protocol
        else:
            path = routing.origin_form(path)
            protocol = routing.protocol_of(path, now.aliases)
        record = Recording(self.audit, protocol, http.remote or "local")
        if "traceparent" in headers:
            record.trace_id = routing.trace_id_of(headers)
        if "x-run-id" in headers:
            record.run_id = routing.correlation_of(headers, "x-run-id")
        if "x-thread-id" in headers:
            record.thread_id = routing.correlation_of(headers, "x-thread-id")
        request = RequestContext(http, path, now, headers, record, self.body_admission, entrance.prefix, self._loop)
        if (tracing := self.live.tracing) is not None:
            request.spans = tracing.begin(headers, record.started_s)
        if entrance.shared:
            request.shared = shared_with(headers, entrance.shared)
        if now.shadow_until is not None and now.shadows(self.live.clock()):
            request.shadow, record.enforcement = True, "shadow"
        return request, known

    async def answer(
        self, request: RequestContext, reading: Awaitable[Asked | web.StreamResponse]
    ) -> web.StreamResponse:
        """Returns the answer to a request that `reading` reads. A request has one answer, or none if its caller is
        gone, and one terminal record, unless a flood of refusals is only counted."""
        self.live.requests.add(request)
        if request.spans is not None:
            reading = request.spans.reading(request, reading)
        try:
            asked = await reading
            response = await self.stages.carry_out(request, *asked) if isinstance(asked, tuple) else asked
        except Refusal as refusal:
            response = await self._refuse(request, refusal)
        except asyncio.CancelledError:
            if not request.cut or request.begun is not None:
                gone = Refusal(Reason.DRAINING if request.cut else Reason.CALLER_GONE)
                if request.record.enforcement_point or not self._closes(request, gone):
                    await request.remember(gone, 499)
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            response = await self._refuse(request, Refusal(Reason.DRAINING))
        except Exception:  # the only such handler for calls: a bug is answered once, recorded once, and not disclosed
            log.exception("bug", extra={"decision_id": request.record.decision_id})
            response = await self._refuse(request, Refusal(Reason.INTERNAL))
        finally:
            if not request.handed_on:
                self._finish(request)
        if request.shared and request.begun is None and isinstance(response, WholeResponse):
            response.add(request.shared)
        return response

    def _finish(self, request: RequestContext) -> None:
        self.live.requests.discard(request)
        measure(self.metrics, request)
        if self.request_lines is not None and not request.unanswered:
            self.request_lines.put(request_line(request.record, request.refusal))
        if request.spans is not None and not request.unanswered:
            request.spans.end(request)
        if request.refusal is not None:
            request.reason = request.refusal.reason
        # These refer back here: a body of a megabyte must not wait for the garbage collector.
        request.refusal = request.lease = request.task = None
        request.excused = ()

    async def _read(
        self, request: RequestContext, entrance: Entrance, known: CallRoute | None
    ) -> Asked | web.StreamResponse:
        """Reads a request, by its route if that is known. Returns the response if the request needs no decision."""
        headers, now, head, record = request.headers, request.now, request.http.head, request.record
        if entrance.grpc:
            request.task = asyncio.current_task()
            self.agents.greet(request)
        if head is None or head.lines is None:  # otherwise the same head was checked on this connection
            routing.check_envelope(request.http, headers, entrance)
            token = digest_of(routing.lone_token(headers, entrance, request.http.shown))
            if head is not None:
                head.lines, head.token = headers, token
        else:
            token = head.token
        if entrance.principal and headers.get("host"):  # a local listener, which knows its principal
            request.base = f"http://{headers['host'][0]}"
        if known is None:
            preflight = wanted_verb(request.verb, headers) if request.shared else ""
            route = routing.route_of(request.path, preflight or request.verb, now.aliases, request.prefix)
            if preflight:
                return await _public(request, "preflight", 204, headers=allowed(preflight, headers))
            if (known := self._call_route(request, route)) is None:
                return await self._read_other(request, route, entrance)
        _, route, frontend, audience = known
        if frontend is self.agents:
            self.agents.enter(request, route)
        request.enter(route.server, frontend.folder, route.alias)
        found = now.identity.recall(token, audience)
        if found is not None and (caller := found.alone) is not None:
            request.presented_kind, record.caller = "jwt", caller
            record.marks["auth"] = record.now_s()
        else:
            caller = await self.identify(request, entrance, audience)
        operation = await frontend.parse(request, caller, route)
        record.call = operation.call
        record.marks["parse"] = record.now_s()
        return caller, frontend, operation

    def _call_route(self, request: RequestContext, route: Route) -> CallRoute | None:
        """Returns None for a route that takes no calls. Routes to whole upstreams are cached."""
        frontend, now = self._frontends.get(route.kind), request.now
        if frontend is None:
            return None
        if frontend is self.mcp and route.server == routing.EVERY:
            frontend = self.aggregate
        found = CallRoute(request.protocol, route, frontend, now.audience(route.server, frontend.folder))
        exists = route.server == routing.EVERY or now.has_upstream(route.server)
        if exists and route.rest in routing.WHOLE and "?" not in request.path:  # so that callers cannot fill the cache
            now.call_routes[request.path, request.verb, request.prefix] = found
        return found

    async def _read_other(self, request: RequestContext, route: Route, entrance: Entrance) -> web.StreamResponse:
        """Answers requests that are not answered by a frontend: documents, cards, agents' pushes, the state of an
        approval, and messages of HTTP+SSE, whose answers are sent on another stream."""
        now = request.now
        if route.kind in METADATA_FOLDERS:
            document = now.resource_metadata(route.server, METADATA_FOLDERS[route.kind], route.alias)
            return await _public(request, "metadata", 200, document, CACHED)
        if route.kind == routing.ISSUER:  # clients of MCP 2025-03-26 request its metadata at the server
            if not (url := now.issuer_metadata_url):
                raise Refusal(Reason.ROUTE_UNKNOWN)
            return await _public(request, "metadata", 307, headers={"Location": url, **CACHED})
        if route.kind == routing.KEYS:
            return await _public(request, "jwks", 200, now.signer.key_set, CACHED)
        if route.kind == routing.APPROVAL:
            request.enter(route.server, routing.MCP)
            asking = await self.identify(request, entrance, now.audience(route.server))
            self.stages.admit(request)
            if (approval := await self.stages.approvals.state_for(asking, route.rest)) is None:
                raise Refusal(Reason.ROUTE_UNKNOWN)
            return await _public(request, "approval", 200, told_approval(approval).encoded())
        if route.kind == routing.MESSAGES:
            request.enter(route.server, routing.MCP)
            return await self._take(request, await self.identify(request, entrance, now.audience(route.server)))
        caller = None if route.kind == routing.PUSH else await self._card_reader(request, route, entrance)
        self.stages.admit(request)
        self.stages.inside += 1
        try:
            if caller is None:
                return await self.agents.pushed(request, route)
            return await self.agents.card(request, route, caller)
        finally:
            self.stages.inside -= 1

    async def _card_reader(self, request: RequestContext, route: Route, entrance: Entrance) -> Caller:
        """Returns the caller of a request for an agent's card. Cards are public: without a credential it is
        `anonymous`. Raises Refusal."""
        name = self.agents.name_of(request, route)  # one agent has one audience, under all its names
        audience = request.now.audience(name, routing.AGENTS)
        if request.now.identity.is_unidentified(self._present(request, entrance, audience)):
            caller = request.record.caller = STRANGER
        else:
            request.enter(name, routing.AGENTS, route.alias)
            caller = await self.identify(request, entrance, audience)
        try:
            self.stages.refuse_disabled(request.now, caller, self.agents.card_call(request, route), self.live.clock())
        except Refusal:
            if not caller.is_anonymous:
                raise
            raise Refusal(Reason.UPSTREAM_UNKNOWN) from None  # without a credential, as if there were no such agent
        return caller

    async def identify(self, request: RequestContext, entrance: Entrance, audience: Audience) -> Caller:
        """Returns the caller, by the credentials of the request. Raises Refusal."""
        presented = self._present(request, entrance, audience)
        caller = request.record.caller = await request.now.identity.identify(presented, audience)
        request.record.marks["auth"] = request.record.now_s()
        return caller

    def _present(self, request: RequestContext, entrance: Entrance, audience: Audience) -> Presented:
        own, identity = audience.gate.header if audience.gate is not None else "", request.now.identity
        proxied, base_url = identity.trusts_proxies, request.now.base_url
        presented = routing.presented_by(request.http, request.headers, entrance, base_url, own, proxied=proxied)
        admitted = identity.admit(presented)
        kind = admitted.kinds[0]
        request.presented_kind = kind if kind != ANONYMOUS else "none"
        return admitted

    async def _take(self, request: RequestContext, caller: Caller) -> web.StreamResponse:
        """Accepts a message that is answered on its session's stream (MCP 2024-11-05): 202 here, at once."""
        session, paired = self.forwarder.paired(routing.session_in(request.path), caller, request.server)
        message = request.message_in(await request.body())
        request.shape = AnswerShape.STATELESS  # a refusal here is answered over HTTP
        if self.stages.draining and isinstance(message, Request):
            raise Refusal(Reason.DRAINING)
        task = paired.take(message, partial(self._answer_there, request, caller, session, paired, message))
        request.handed_on, request.paired, request.shape = True, paired, AnswerShape.SESSION
        request.task = task
        task.add_done_callback(partial(self._abandoned, request))
        return WholeResponse(202)

    async def _answer_there(
        self, request: RequestContext, caller: Caller, session: Session, paired: SseSession, message: Message
    ) -> None:
        request.handed_on = False
        response = await self.answer(request, self._read_there(request, caller, session, message))
        if isinstance(response, WholeResponse) and response.body and isinstance(message, Request):
            with suppress(Refusal):  # the caller disconnected; the outcome of its call is recorded
                await paired.outlet().write(sse.encode_event(response.body))

    async def _read_there(self, request: RequestContext, caller: Caller, session: Session, message: Message) -> Asked:
        operation = self.mcp.parse_paired(request, caller, session, message)
        request.record.call = operation.call
        request.record.marks["parse"] = request.record.now_s()
        return caller, self.mcp, operation

    def _abandoned(self, request: RequestContext, task: asyncio.Task[None]) -> None:
        """Records and ends the request if its task was cancelled before its first step."""
        if request.handed_on:
            told = asyncio.create_task(request.remember(Refusal(Reason.CALLER_GONE), 499))
            self._telling.add(told)
            told.add_done_callback(self._telling.discard)
            told.add_done_callback(lambda _: self._finish(request))

    async def drain(self, grace_s: float) -> None:
        """Stops admitting requests, ends endless streams, and waits for the remaining answers, at most `grace_s`
        seconds. Requests still open then end with 503, or with the last event of a stream."""
        self.stages.draining = True
        self.stages.approvals.release()
        self.task_api.close()
        # repeatedly, because a stream may begin in the meantime
        await self._wait_for_answers(grace_s, self.forwarder.drain)
        self.forwarder.cut_off()
        await self._wait_for_answers(LAST_EVENTS_S, self.forwarder.cut_off)
        for request in self.live.requests:
            request.cut = True
            if (task := request.task or request.http.task) is not None:
                task.cancel()
        await self._wait_for_answers(LAST_EVENTS_S, lambda: None)

    async def _wait_for_answers(self, within_s: float, again: Callable[[], None]) -> None:
        now_s = self._loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                # a request that arrives now is refused at once
                while any(request.started_s <= now_s for request in self.live.requests):
                    again()
                    await asyncio.sleep(DRAIN_LOOK_S)

    def _closes(self, request: RequestContext, refusal: Refusal) -> bool:
        """Counts a refusal. Returns whether the connection is closed without an answer or a record, as in a flood of
        unauthenticated requests."""
        request.unanswered = request.unanswered or self._unrecorded(request, refusal, self.stages.refusals.closes)
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
        refusals, record = self.stages.refusals, request.record
        if record.enforcement_point:  # it always gets an answer, however many of its questions are refused
            request.refusal = refusal  # even if its record is written, as for a permit that was written too late
            point = record.enforcement_point
            counted = record.caller is None and self._unrecorded(
                request, refusal, lambda *_: refusals.only_counts_asked(point, refusal)
            )
        elif self._closes(request, refusal):
            return SilentResponse()
        else:
            counted = self._unrecorded(request, refusal, refusals.only_counts)
        if request.held is not None and request.last_event is not None:
            recorded = refusal if counted else await request.remember(refusal, 200)
            return await request.end_held(await request.last_event(recorded))
        told = self._told(request, refusal)
        recorded = refusal if counted else await request.remember(refusal, told.status)
        if request.held is not None:
            body = (told if recorded is refusal else self._told(request, recorded)).body
            return await request.end_held(sse.encode_event(body))
        if request.begun is not None:  # a stream has begun: it can only be ended, not answered again
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
    """Answers a request that needs no decision."""
    request.method = method
    await request.record.outcome(http_status=status, bytes_out=len(body))
    return WholeResponse(status, body, JSON if body else "", headers)
