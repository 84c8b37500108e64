"""The frontend of the aggregate address.

A request that names no server is sent to every server that its caller may see, or answered here. A request that names a
server receives that server's names mapped to those of this address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import orjson
from aiohttp import web

from sidecar import __version__
from sidecar.errors import Reason, Refusal
from sidecar.gateway.forwarder import SessionLost, empty
from sidecar.gateway.frontends.aggregate import fan_out
from sidecar.gateway.frontends.aggregate.fan_out import (
    UNAVAILABLE,
    AggregateCall,
    FanOut,
    GatheredPage,
    UnavailableServer,
    note,
)
from sidecar.gateway.frontends.aggregate.names import AggregateNames, joined
from sidecar.gateway.frontends.aggregate.request_reader import EACH, AggregateReader, params_without_cursor
from sidecar.gateway.frontends.aggregate.stream_merge import StreamMerge
from sidecar.gateway.frontends.mcp import McpFrontend
from sidecar.gateway.frontends.mcp_requests import END, JSON, STREAM, AskIntent, Intent, ServerIntent, SpreadIntent
from sidecar.gateway.reauthorization import end_of
from sidecar.gateway.request import Charged, RequestContext, UpstreamExchange, asked_of
from sidecar.gateway.request_state import Seal
from sidecar.gateway.response_filter import LEFT_OUT, MAX_LEFT_OUT
from sidecar.gateway.response_stream import ResponseStream
from sidecar.gateway.routing import EVERY
from sidecar.gateway.snapshot import Service, Snapshot
from sidecar.http.server.response import NO_HEADERS
from sidecar.identity import check_caller
from sidecar.limits import SessionCalls
from sidecar.observability.metrics import Metrics
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Notification, Response, malformed
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import SESSION_VERSIONS, STATELESS_VERSIONS, Era
from sidecar.upstreams.mcp.sessions import Session
from sidecar.vocabulary import Caller, Decision

HELLO_S: Final = 2.0  # how long a server may take to report its capabilities; after that it counts as having all
TTL_MS: Final = 1_000  # how long a client may cache a merged answer: servers come and go
MAX_DECLARED_BYTES: Final = 16 * 1024
MAX_TTL_MS: Final = 86_400_000
LISTED: Final[Mapping[str, str]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
LEVELS: Final = frozenset({"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"})
_ALL: Final[Mapping[str, Mapping[str, bool]]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
    "completions": {},
}


@dataclass(slots=True, kw_only=True)
class AggregateFrontend(McpFrontend):
    """Serves the aggregate address. `seal` seals the cursors of merged lists; replicas share its key."""

    metrics: Metrics
    seal: Seal
    session_calls: SessionCalls
    parts: fan_out.MemberSessions = field(init=False)
    gathering: FanOut = field(init=False)
    _heard: dict[str, set[StreamMerge]] = field(default_factory=dict)
    _methods: Mapping[str, Callable[[AggregateCall], Awaitable[web.StreamResponse]]] = field(init=False)

    def __post_init__(self) -> None:
        self.reader = AggregateReader(self.forwarder.sessions)
        self.parts = fan_out.MemberSessions(self.forwarder, self._opened)
        self.gathering = FanOut(self.forwarder, self.parts, self.metrics)
        self._methods = {
            **dict.fromkeys(LISTED, self._list),
            "initialize": self._begin,
            "server/discover": self._discover,
            "ping": lambda call: _respond(call, {}),
            "logging/setLevel": self._set_level,
            "subscriptions/listen": self._subscribe,
            "notifications/initialized": self._tell,
            "notifications/cancelled": self._tell,
            "notifications/roots/list_changed": self._tell,
            STREAM: self._listen,
            END: lambda call: self.forwarder.leave(call.request, call.session),
        }

    async def check(self, request: RequestContext, caller: Caller, intent: Intent, decision: Decision) -> Any:
        """Finds the servers of a request that names none. A request to one server is checked as at that server's
        address, including the credential."""
        if isinstance(intent, SpreadIntent):
            return self._reach(request, caller, intent)
        service = request.now.service(request.server)
        note(request, (service,), ())
        check_caller(caller, request.now.audience(service.name))
        return await McpFrontend.check(self, request, caller, intent, decision)

    async def carry_out(self, charged: Charged) -> web.StreamResponse:
        content: AggregateCall | ServerIntent = charged.content
        if isinstance(content, AggregateCall):
            method = self._methods.get(content.intent.call.method)
            if method is None:
                raise Refusal(Reason.METHOD_UNKNOWN)
            return await method(content)
        attached = await self._attach(charged, content)
        try:
            return await McpFrontend.carry_out(self, charged._replace(content=attached))
        except SessionLost:
            if attached is content:  # no session was opened for it: the message concerns the lost session
                raise
        # The server lost its member session and did not execute the call, which is sent once more in a new session.
        return await McpFrontend.carry_out(self, charged._replace(content=await self._attach(charged, content)))

    async def _attach(self, charged: Charged, intent: ServerIntent) -> ServerIntent:
        """Opens the session of the one server called, and maps its names. Raises Refusal."""
        request, caller = charged.request, charged.caller
        service = request.now.services[request.server]
        request.outward = AggregateNames(service.name)
        session = intent.session
        if not isinstance(intent, AskIntent) or session is None or session.server != EVERY:
            return intent
        part = await self.parts.at(service, request, caller, session, service.timeout_s)
        # registered before it is sent, so that its cancellation finds it
        part.remember(intent.message.id, asked_of(intent.call, request.record))
        return intent._replace(session=part, call=intent.call._replace(protocol_version=part.version))

    def _reach(self, request: RequestContext, caller: Caller, spread: SpreadIntent) -> AggregateCall:
        """Returns the request with the servers that it may reach. Raises Refusal if policy denies it or allows no
        server."""
        now_s = self.clock()
        view = fan_out.view_of(request.now, caller, spread, now_s, self.switch, shadow=request.shadow)
        request.record.call = spread.call._replace(questions=view.questions)
        request.record.decision = view.decision
        request.record.marks["policy"] = request.record.now_s()
        if not request.shadow or not view.servers:
            view.decision.or_refuse()
        note(request, view.servers, ())
        if spread.call.method in EACH:  # it counts as many calls as at the servers' own addresses; one is charged
            for _ in view.servers[1:]:
                try:
                    self.session_calls.charge(caller.last.name)
                except Refusal as refusal:
                    if not request.excuse(refusal):
                        raise
        return AggregateCall(request, caller, spread, view.servers)

    async def _begin(self, call: AggregateCall) -> web.StreamResponse:
        declared = messages.forwarded_params(call.message, "", tasks=False)
        if len(orjson.dumps(declared)) > MAX_DECLARED_BYTES:  # it is stored for the whole session
            raise Refusal(Reason.TOO_LARGE, f"initialize may declare {MAX_DECLARED_BYTES} bytes here")
        asked = declared["protocolVersion"]
        version = asked if asked in SESSION_VERSIONS else SESSION_VERSIONS[-1]
        result = {
            "protocolVersion": version,
            "capabilities": await self._capabilities(call.servers),
            "serverInfo": _SERVER_INFO,
            "instructions": _instructions(call.servers),
        }
        session = self.forwarder.start(call.caller, EVERY, version=version, upstream_id=None)
        session.declared = {**declared, "protocolVersion": version}
        try:
            await self.forwarder.roaming.keep(session)
            return await _respond(call, result, {"Mcp-Session-Id": session.id})
        except BaseException:  # also if the caller disconnects: it never received the id
            self.forwarder.abandon(session)
            raise

    async def _discover(self, call: AggregateCall) -> web.StreamResponse:
        result = {
            "resultType": "complete",
            "supportedVersions": list(STATELESS_VERSIONS),
            "capabilities": await self._capabilities(call.servers),
            "instructions": _instructions(call.servers),
            "ttlMs": TTL_MS,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": _SERVER_INFO},
        }
        return await _respond(call, result)

    async def _capabilities(self, servers: Sequence[Service]) -> dict[str, Any]:
        """Returns the union of the servers' capabilities. A server that has not reported its own counts as having
        all."""
        unknown = [service for service in servers if service.catalogue.capabilities is None]

        async def introduced(service: Service) -> None:
            with suppress(Refusal):
                await service.catalogue.learn(min(service.timeout_s, HELLO_S))

        await asyncio.gather(*map(introduced, unknown))
        # Servers come and go during a session, so tools and changes of lists are always announced.
        union: dict[str, Any] = {"tools": {"listChanged": True}}
        for service in servers:
            said = service.catalogue.capabilities
            for name, can in (_ALL if said is None else said).items():
                if name in _ALL:
                    union[name] = {**union.get(name, {}), **_flags(name, can)}
        return union

    async def _list(self, call: AggregateCall) -> web.StreamResponse:
        message, about = call.message, (call.caller.binding, call.message.method)
        params, cursors, asked = params_without_cursor(message), dict[str, str](), call.servers
        if "cursor" in message.params:
            if (opened := self.seal.open(message.params["cursor"], *about)) is None:
                raise malformed("params.cursor is not one of this list", INVALID_PARAMS)
            cursors = orjson.loads(opened)
            asked = [service for service in asked if service.name in cursors]

        async def page(service: Service) -> GatheredPage:
            own = {**params, "cursor": cursors[service.name]} if service.name in cursors else params
            return await self.gathering.page(call, service, own)

        pages, missing = await self.gathering.each(call.request, asked, page)
        member = LISTED[message.method]
        result: dict[str, Any] = {member: [entry for one in pages for entry in one.result.get(member, ())]}
        more = {one.server: one.cursor for one in pages if one.cursor is not None}
        if more:
            result["nextCursor"] = self.seal.seal(orjson.dumps(more), *about)
        if call.intent.era is Era.STATELESS:
            result |= {"resultType": "complete", "ttlMs": _ttl_ms(pages, missing), "cacheScope": "private"}
        meta = _meta(pages, missing)
        return await _respond(call, {**result, "_meta": meta} if meta else result)

    async def _set_level(self, call: AggregateCall) -> web.StreamResponse:
        session, level = call.session, call.message.params.get("level")
        if not isinstance(level, str) or level not in LEVELS:
            raise malformed("params.level is not one of MCP's", INVALID_PARAMS)
        session.level = level
        if session.roams:
            await self.forwarder.roaming.keep(session)
        reached = [service for service in call.servers if service.name in session.parts]

        async def told(service: Service) -> GatheredPage:
            return await self.gathering.page(call, service, fan_out.set_level(level).params)

        missing = (await self.gathering.each(call.request, reached, told))[1] if reached else []
        meta = _meta((), missing)
        return await _respond(call, {"_meta": meta} if meta else {})

    async def _tell(self, call: AggregateCall) -> web.StreamResponse:
        """Sends a notification to the member sessions that it concerns, and acknowledges it to the client."""
        message, parts = call.intent.message, call.session.parts
        assert isinstance(message, Notification)
        own = Notification(message.method, messages.forwarded_params(message, "", tasks=False))

        async def told(service: Service, part: Session) -> None:
            there = call.intent.call._replace(upstream=service.name, protocol_version=part.version)
            exchange = fan_out.opened_exchange(
                service, call.request, call.caller, there, part, self.forwarder, service.timeout_s
            )
            with suppress(Refusal):  # a notification has no answer
                (await exchange.post(own)).close()

        reached = [(service, parts[service.name]) for service in call.servers if service.name in parts]
        await asyncio.gather(*(told(service, part) for service, part in reached if _concerns(message, part)))
        return await empty(call.request, 202)

    async def _listen(self, call: AggregateCall) -> web.StreamResponse:
        session, exchange, merging = call.session, self._stream(call), self._merging(call)
        close = partial(exchange.cut_off, Reason.SESSION_UNKNOWN)
        session.open_stream(close)
        self._heard.setdefault(session.id, set()).add(merging)
        try:
            with self.forwarder.place(exchange):
                async with merging.running() as answer:
                    return await ResponseStream(exchange, None).stream(answer)
        finally:
            session.close_stream(close)
            self._heard[session.id].discard(merging)
            if not self._heard[session.id]:
                del self._heard[session.id]

    async def _subscribe(self, call: AggregateCall) -> web.StreamResponse:
        exchange = self._stream(call)
        with self.forwarder.place(exchange):
            async with self._merging(call).running() as answer:
                return await ResponseStream(exchange, None).answer(answer)

    def _stream(self, call: AggregateCall) -> UpstreamExchange:
        """Returns the exchange of a merged stream. One of its servers represents all of them."""
        request, decision = call.request, call.request.record.decision
        until = None if decision is None else end_of(call.caller, decision, request.now)
        exchange = UpstreamExchange(
            request, call.caller, call.intent.call, None, self.forwarder.oversight.open, until, call.servers[0],
            call.intent.session,
        )  # fmt: skip
        exchange.has_no_end()
        return exchange

    def _merging(self, call: AggregateCall) -> StreamMerge:
        def seen(now: Snapshot) -> Sequence[Service]:
            now_s = self.clock()
            shadow = now.shadows(now_s)
            try:
                return fan_out.view_of(now, call.caller, call.intent, now_s, self.switch, shadow=shadow).servers
            except Refusal:
                return ()

        return StreamMerge(call, self.gathering, seen)

    def _opened(self, part: Session) -> None:
        """Adds a server that the session has reached to the session's streams."""
        for merging in self._heard.get(part.whole.id if part.whole is not None else "", ()):
            merging.hear(part.server)


_SERVER_INFO = {"name": "sidecar", "version": __version__}


def _instructions(servers: Sequence[Service]) -> str:
    """Returns the sidecar's own instructions. A server's instructions apply to its own address only."""
    names = ", ".join(service.name for service in servers)
    return f"Tools and prompts are named {joined('server', 'name')}. Servers: {names}."


def _flags(name: str, can: object) -> dict[str, bool]:
    """Returns the known capabilities that are true. Unknown ones belong to extensions."""
    given = can if isinstance(can, dict) else {}
    flags = {flag: True for flag in _ALL[name] if given.get(flag) is True}
    return {**flags, "listChanged": True} if "listChanged" in _ALL[name] else flags


def _ttl_ms(pages: Sequence[GatheredPage], missing: Sequence[UnavailableServer]) -> int:
    if missing:
        return 0  # do not cache: an unavailable server may return
    ttls = [one.result.get("ttlMs") for one in pages]
    return min((int(ttl) for ttl in ttls if isinstance(ttl, int | float) and 0 <= ttl < MAX_TTL_MS), default=TTL_MS)


def _meta(pages: Sequence[GatheredPage], missing: Sequence[UnavailableServer]) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if missing:
        meta[UNAVAILABLE] = [one.told for one in missing]
    if left_out := [entry for one in pages for entry in one.left_out]:
        meta[LEFT_OUT] = left_out[:MAX_LEFT_OUT]
    return meta


def _concerns(message: Notification, part: Session) -> bool:
    if message.method != "notifications/cancelled":
        return message.method != "notifications/initialized"
    request_id = message.params.get("requestId")
    return isinstance(request_id, str | int) and request_id in part.sent


async def _respond(
    call: AggregateCall, result: dict[str, Any], headers: Mapping[str, str] = NO_HEADERS
) -> web.StreamResponse:
    return await call.request.respond(200, jsonrpc.encode_response(Response(call.message.id, result)), JSON, headers)
