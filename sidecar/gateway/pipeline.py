"""The request pipeline: identity, policy, arguments, limits, audit, then the upstream.

Every call passes these stages in this order, whatever its protocol. A stage returns what the next one needs, or raises
a `Refusal`. The audit record around them is closed exactly once.

    stage       checks               refuses with       where
    routing     address              403 404 405        `Pipeline._read`, routing.py
    identity    caller               401                `Pipeline._identify`, identity/
    parse       operation            400 404 413 415    `Frontend.parse`: frontends/, tasks/api/
                memory for the body  503                http/server/body_admission.py
    admission   load, refusals       429 503            `Stages.admit`
    switch      disabled principals  403                `Stages.carry_out`, kill_switch/
    policy      permission           403                `Stages.carry_out`, policy/
    ownership   owners of tasks      404                ownership.py, `Frontend.check`
    check       what the upstream    403                `Frontend.check`: pins, argument schemas, breaker
                would be sent
    limits      rates and budgets    429 503            `Stages.carry_out`, limits/
    audit       decision record      503                `Stages.carry_out`, audit/
    upstream    the answer           502 504            `Frontend.carry_out`

In shadow mode, refusals by policy and limits are recorded and the call passes; all other refusals stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from aiohttp import web

from sidecar.audit import Audit, Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.error_responses import AnswerShape, ErrorResponse, tell
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.a2a.frontend import AgentFrontend
from sidecar.gateway.frontends.aggregate.frontend import AggregateFrontend
from sidecar.gateway.frontends.mcp import McpFrontend
from sidecar.gateway.frontends.mcp_requests import JSON
from sidecar.gateway.frontends.rest import RestFrontend
from sidecar.gateway.request import ParsedOperation, RequestContext
from sidecar.gateway.request_metrics import measure
from sidecar.gateway.routing import Entrance, Route
from sidecar.gateway.snapshot import Live
from sidecar.gateway.sse_session import SseSession
from sidecar.gateway.stages import Carrier, Stages
from sidecar.http.server.body_admission import BodyAdmission
from sidecar.http.server.cors import allowed, shared_with, wanted_verb
from sidecar.http.server.response import NO_HEADERS, SilentResponse, WholeResponse
from sidecar.identity import Audience, Presented
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

    def enter(self, request: RequestContext, route: Route) -> None:
        """Prepares for refusals before the caller is known: they are written in the protocol of the address."""

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        """Reads the operation. Only what was parsed is decided on and sent."""


class TaskApi(Frontend, Protocol):
    def close(self) -> None:
        """Stops accepting tasks."""


class Asked(NamedTuple):
    """A request that was read, and who asks."""

    caller: Caller
    frontend: Frontend
    operation: ParsedOperation


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
    _under_way: dict[asyncio.Task[Any], RequestContext] = field(default_factory=dict)
    _telling: set[asyncio.Task[Refusal]] = field(default_factory=set)
    _frontends: Mapping[str, Frontend] = field(init=False)

    def __post_init__(self) -> None:
        tasks = dict.fromkeys((routing.TASKS, routing.TASK, routing.TASK_CANCEL), self.task_api)
        rest = dict.fromkeys((routing.TOOLS, routing.TOOL), self.rest)
        self._frontends = {
            routing.MCP: self.mcp, routing.SSE: self.mcp, routing.AGENT: self.agents, **rest, **tasks
        }  # fmt: skip

    async def handle(self, http: web.BaseRequest, entrance: Entrance) -> web.StreamResponse:
        """Answers one request. `entrance` is the listener that received it."""
        request = self._received(http, entrance)
        self.metrics.request_started(request.protocol)
        response = await self._answered(request, self._read(request, entrance))
        if request.shared and isinstance(response, WholeResponse):
            response.add(request.shared)
        return response

    async def _answered(
        self, request: RequestContext, reading: Awaitable[Asked | web.StreamResponse]
    ) -> web.StreamResponse:
        """Guarantees one answer and one end for each request."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = request
        try:
            asked = await reading
            return await self.stages.carry_out(request, *asked) if isinstance(asked, Asked) else asked
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

    def _received(self, http: web.BaseRequest, entrance: Entrance) -> RequestContext:
        headers, path, now = routing.headers_of(http), routing.origin_form(http.raw_path), self.live.take()
        record = Recording(self.audit, routing.protocol_of(path, now.aliases), http.remote or "local")
        if "traceparent" in headers:
            record.trace_id = routing.trace_id_of(headers)
        if "x-run-id" in headers:
            record.run_id = routing.correlation_of(headers, "x-run-id")
        if "x-thread-id" in headers:
            record.thread_id = routing.correlation_of(headers, "x-thread-id")
        request = RequestContext(http, path, now, headers, record, self.body_admission)
        request.prefix = entrance.prefix
        if entrance.shared:
            request.shared = shared_with(headers, entrance.shared)
        if now.shadow_until is not None and now.shadows(self.live.clock()):
            request.shadow, record.enforcement = True, "shadow"
        return request

    def _finish(self, request: RequestContext) -> None:
        self.live.leave(request.now)
        measure(self.metrics, request)
        request.let_go()

    async def _read(self, request: RequestContext, entrance: Entrance) -> Asked | web.StreamResponse:
        """Routes and reads a request. Returns the response to what needs no decision."""
        headers = request.headers
        if entrance.grpc:
            self.agents.greet(request)
        routing.check_envelope(request.http, headers, entrance)
        preflight = wanted_verb(request.verb, headers) if request.shared else ""
        route = routing.route_of(request.path, preflight or request.verb, request.now.aliases, request.prefix)
        if preflight:
            return await _public(request, "preflight", 204, headers=allowed(preflight, headers))
        if entrance.principal and headers.get("host"):  # a local listener, which knows its principal
            request.base = f"http://{headers['host'][0]}"
        frontend = self._frontends.get(route.kind)
        if frontend is None:
            return await self._read_other(request, route, entrance)
        if frontend is self.mcp and route.server == routing.EVERY:
            frontend = self.aggregate
        frontend.enter(request, route)
        caller = await self._identify(request, route.server, entrance, frontend.folder, route.alias)
        operation = await frontend.parse(request, caller, route)
        request.record.call = operation.call
        request.record.mark("parse")
        return Asked(caller, frontend, operation)

    async def _read_other(self, request: RequestContext, route: Route, entrance: Entrance) -> web.StreamResponse:
        """Answers what is no call: documents, cards, agents' pushes, and the messages of HTTP+SSE."""
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
        if route.kind == routing.MESSAGES:
            return await self._take(request, await self._identify(request, route.server, entrance))
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
        """Returns who reads an agent's card, which is public; authenticated callers see more."""
        name = self.agents.name_of(request, route)  # one agent has one audience, under all its names
        audience = request.now.audience(name, routing.AGENTS)
        if request.now.identity.is_unidentified(self._present(request, entrance, audience)):
            caller = request.record.caller = STRANGER
        else:
            caller = await self._identify(request, name, entrance, routing.AGENTS, route.alias)
        try:
            self.stages.refuse_disabled(request.now, caller, self.agents.card_call(request, route), self.live.clock())
        except Refusal:
            if not caller.is_anonymous:
                raise
            raise Refusal(Reason.UPSTREAM_UNKNOWN) from None  # an unidentified caller sees an agent that does not exist
        return caller

    async def _identify(
        self, request: RequestContext, server: str, entrance: Entrance, folder: str = routing.MCP, alias: str = ""
    ) -> Caller:
        request.enter(server, folder, alias)
        audience, identity = request.now.audience(server, folder), request.now.identity
        line = "" if identity.trusts_proxies else routing.lone_token(request.http, request.headers, entrance)
        if line and (known := identity.recall(line, audience)) is not None:
            caller, request.presented_kind = known, "jwt"
        else:
            caller = await identity.identify(self._present(request, entrance, audience), audience)
        request.record.caller = caller
        request.record.mark("auth")
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
        message = await self.mcp.read(request)
        request.shape = AnswerShape.STATELESS  # a refusal here is answered over HTTP
        if self.stages.draining and isinstance(message, Request):
            raise Refusal(Reason.DRAINING)
        task = paired.take(message, partial(self._answer_there, request, caller, session, paired, message))
        request.handed_on, request.paired, request.shape = True, paired, AnswerShape.SESSION
        task.add_done_callback(partial(self._abandoned, request))
        return WholeResponse(202)

    async def _answer_there(
        self, request: RequestContext, caller: Caller, session: Session, paired: SseSession, message: Message
    ) -> None:
        request.handed_on = False
        response = await self._answered(request, self._read_there(request, caller, session, message))
        if isinstance(response, WholeResponse) and response.body and isinstance(message, Request):
            with suppress(Refusal):  # the caller left; the outcome of its call is recorded
                await paired.outlet().write(sse.encode_event(response.body))

    async def _read_there(self, request: RequestContext, caller: Caller, session: Session, message: Message) -> Asked:
        operation = self.mcp.parse_paired(request, caller, session, message)
        request.record.call = operation.call
        request.record.mark("parse")
        return Asked(caller, self.mcp, operation)

    def _abandoned(self, request: RequestContext, task: asyncio.Task[None]) -> None:
        """Closes the request if the stream ended before the task's first step."""
        if request.handed_on:
            told = asyncio.create_task(request.remember(Refusal(Reason.CALLER_GONE), 499))
            self._telling.add(told)
            told.add_done_callback(self._telling.discard)
            told.add_done_callback(lambda _: self._finish(request))

    async def drain(self, grace_s: float) -> None:
        """Stops admitting requests, ends endless streams, and waits for the remaining answers, at most `grace_s`
        seconds. Requests still open then end with 503, or with the last event of a stream."""
        self.stages.draining = True
        self.task_api.close()
        # once more, because a stream may have begun only now
        await self._wait_for_answers(grace_s, self.forwarder.drain)
        self.forwarder.cut_off()
        await self._wait_for_answers(LAST_EVENTS_S, self.forwarder.cut_off)
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

    def _closes(self, request: RequestContext, refusal: Refusal) -> bool:
        """Counts a refusal. Returns whether the connection is closed without answer or record."""
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
        if self._closes(request, refusal):
            return SilentResponse()
        told = self._told(request, refusal)
        counted = self._unrecorded(request, refusal, self.stages.refusals.only_counts)
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
