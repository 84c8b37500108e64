"""The frontend of the aggregate address.

A request that names no server is sent to every server that its caller may see, or answered here. A request that names
a server gets the mapping of that server's names to those of this address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiohttp import web

from sidecar import __version__
from sidecar.errors import Reason, Refusal
from sidecar.gateway.forwarder import Forwarder, empty
from sidecar.gateway.frontends.aggregate.cursors import Seal
from sidecar.gateway.frontends.aggregate.fan_out import UNAVAILABLE, FanOut, GatheredPage, UnavailableServer, note
from sidecar.gateway.frontends.aggregate.member_sessions import MemberSessions, is_whole, opened_exchange, set_level
from sidecar.gateway.frontends.aggregate.names import AggregateNames, joined
from sidecar.gateway.frontends.aggregate.request_reader import AggregateReader, SpreadIntent, params_without
from sidecar.gateway.frontends.aggregate.stream_merge import StreamMerge
from sidecar.gateway.frontends.aggregate.visible_servers import view_of
from sidecar.gateway.frontends.mcp_requests import END, JSON, STREAM, AskIntent, Intent
from sidecar.gateway.reauthorization import end_of
from sidecar.gateway.request import RequestContext, UpstreamExchange, asked_of
from sidecar.gateway.response_filter import LEFT_OUT, MAX_LEFT_OUT
from sidecar.gateway.response_stream import ResponseStream
from sidecar.gateway.routing import EVERY, head_of
from sidecar.gateway.snapshot import Live, Service, Snapshot
from sidecar.http.server.response import WholeResponse
from sidecar.identity import check_caller
from sidecar.observability.metrics import Metrics
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Notification, Request, Response, malformed
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import SESSION_VERSIONS, STATELESS_VERSIONS, Era
from sidecar.upstreams.mcp.sessions import Session, Sessions
from sidecar.vocabulary import Caller

HELLO_S: Final = 2.0  # how long a server may take to report its capabilities before all are assumed
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

Carry = Callable[[RequestContext, Caller, SpreadIntent, Sequence[Service]], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class AggregateFrontend:
    """Serves the aggregate address. `key` seals cursors."""

    live: Live
    sessions: Sessions
    exchanges: Forwarder
    metrics: Metrics
    key: bytes
    parts: MemberSessions = field(init=False)
    gathering: FanOut = field(init=False)
    _seal: Seal = field(init=False)
    _heard: dict[str, set[StreamMerge]] = field(default_factory=dict)
    _ways: Mapping[str, Carry] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = MemberSessions(self.sessions, self.exchanges, self._opened)
        self.gathering = FanOut(self.exchanges, self.parts, self.metrics)
        self._seal = Seal(self.key)
        self._ways = {
            **dict.fromkeys(LISTED, self._list),
            "initialize": self._begin,
            "server/discover": self._discover,
            "ping": self._ping,
            "logging/setLevel": self._set_level,
            "subscriptions/listen": self._subscribe,
            "notifications/initialized": self._tell,
            "notifications/cancelled": self._tell,
            "notifications/roots/list_changed": self._tell,
            STREAM: self._listen,
            END: self._leave,
        }

    # --- what every call here goes through ----------------------------------------------------------------------------

    def understanding(self, request: RequestContext, caller: Caller) -> AggregateReader:
        """Returns the reader of one request's messages."""
        return AggregateReader(self.sessions, caller, request.headers, head_of(request.headers), request.in_session)

    def enter(self, request: RequestContext, caller: Caller, spread: SpreadIntent) -> Sequence[Service]:
        """Returns the servers that the request may reach, which are recorded. Raises Refusal if policy denies it, or
        leaves none."""
        now_s, switch = self.live.clock(), self.exchanges.switch
        for disabled in (switch.disabled, request.now.disabled):
            disabled.refuse(caller.chain, spread.call, now_s)
        view = view_of(request.now, caller, spread, now_s, switch, shadow=request.shadow)
        request.record.call = spread.call._replace(questions=view.questions)
        request.record.decision = view.decision
        request.record.mark("policy")
        if not request.shadow or not view.servers:
            view.decision.or_refuse()
        note(request, view.servers, ())
        return view.servers

    async def attach(self, request: RequestContext, service: Service, caller: Caller, intent: Intent) -> Intent:
        """Prepares a call of one server: opens that server's session and maps its names. Raises Refusal if the
        credential does not meet the server's requirements, or the server begins no session."""
        request.outward = AggregateNames(service.name)
        session = intent.session
        if not isinstance(intent, AskIntent) or session is None or not is_whole(session):
            return intent
        part = await self.parts.at(request, service, caller, session, service.timeout_s)
        part.remember(
            intent.message.id, asked_of(intent.call, request.record)
        )  # registered before it is sent, so that its cancellation finds it
        return intent._replace(session=part, call=intent.call._replace(protocol_version=part.version))

    def admit(self, request: RequestContext, service: Service, caller: Caller) -> None:
        """Checks the credential as at the server's own address. Raises Refusal."""
        note(request, (service,), ())
        check_caller(caller, request.now.audience(service.name))

    async def carry_out(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        """Returns the answer to a request that names no server. Raises Refusal."""
        way = self._ways.get(spread.call.method)
        if way is None:
            raise Refusal(Reason.METHOD_UNKNOWN)
        return await way(request, caller, spread, servers)

    # --- hello --------------------------------------------------------------------------------------------------------

    async def _begin(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        message = _request(spread)
        declared = messages.forwarded_params(message, "", tasks=False)
        if len(jsonrpc.encode(declared)) > MAX_DECLARED_BYTES:  # it is stored as long as the session
            raise Refusal(Reason.TOO_LARGE, f"initialize may declare {MAX_DECLARED_BYTES} bytes here")
        asked = declared["protocolVersion"]
        version = asked if asked in SESSION_VERSIONS else SESSION_VERSIONS[-1]
        result = {
            "protocolVersion": version,
            "capabilities": await self._capabilities(servers),
            "serverInfo": _SERVER_INFO,
            "instructions": _instructions(servers),
        }
        session, ended = self.sessions.start(caller, EVERY, version=version, upstream_id=None)
        session.declared = {**declared, "protocolVersion": version}
        for other in ended:
            self.exchanges.say_farewell(other)
        try:
            await self.exchanges.roaming.keep(session)
            return await _respond(request, message, result, {"Mcp-Session-Id": session.id})
        except Refusal:
            self.sessions.end(session)
            self.exchanges.roaming.forget_soon(session)
            raise

    async def _discover(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        result = {
            "resultType": "complete",
            "supportedVersions": list(STATELESS_VERSIONS),
            "capabilities": await self._capabilities(servers),
            "instructions": _instructions(servers),
            "ttlMs": TTL_MS,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": _SERVER_INFO},
        }
        return await _respond(request, _request(spread), result)

    async def _capabilities(self, servers: Sequence[Service]) -> dict[str, Any]:
        """Returns the union of the servers' capabilities. A server that has not reported its own is assumed to have
        all."""
        unknown = [service for service in servers if service.catalogue.capabilities is None]
        await asyncio.gather(*(_introduced(service) for service in unknown))
        # Servers come and go during a session, so tools and changes of lists are always announced.
        union: dict[str, Any] = {"tools": {"listChanged": True}}
        for service in servers:
            said = service.catalogue.capabilities
            for name, can in (_ALL if said is None else said).items():
                if name in _ALL:
                    union[name] = {**union.get(name, {}), **_flags(name, can)}
        return union

    async def _ping(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        return await _respond(request, _request(spread), {})

    # --- lists --------------------------------------------------------------------------------------------------------

    async def _list(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        message = _request(spread)
        params, cursors, asked = params_without(message, "cursor"), dict[str, str](), servers
        if "cursor" in message.params:
            cursors = dict(self._seal.open(caller.binding, message.method, message.params["cursor"]))
            asked = [service for service in servers if service.name in cursors]

        async def page(service: Service) -> GatheredPage:
            own = {**params, "cursor": cursors[service.name]} if service.name in cursors else params
            return await self.gathering.page(request, service, caller, spread, own)

        pages, missing = await self.gathering.each(request, asked, page)
        member = LISTED[message.method]
        result: dict[str, Any] = {member: [entry for one in pages for entry in one.result.get(member, ())]}
        more = {one.server: one.cursor for one in pages if one.cursor is not None}
        if more:
            result["nextCursor"] = self._seal.seal(caller.binding, message.method, more)
        if spread.era is Era.STATELESS:
            result |= {"resultType": "complete", "ttlMs": _ttl_ms(pages, missing), "cacheScope": "private"}
        meta = _meta(pages, missing)
        return await _respond(request, message, {**result, "_meta": meta} if meta else result)

    # --- what goes to the sessions behind one -------------------------------------------------------------------------

    async def _set_level(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        message, session = _request(spread), _session(spread)
        level = message.params.get("level")
        if not isinstance(level, str) or level not in LEVELS:
            raise malformed("params.level is not one of MCP's", INVALID_PARAMS)
        session.level = level
        if session.roams:
            await self.exchanges.roaming.keep(session)
        reached = [service for service in servers if service.name in session.parts]

        async def told(service: Service) -> GatheredPage:
            return await self.gathering.page(request, service, caller, spread, set_level(level).params)

        missing: list[UnavailableServer] = []
        if reached:
            _, missing = await self.gathering.each(request, reached, told)
        meta = _meta((), missing)
        return await _respond(request, message, {"_meta": meta} if meta else {})

    async def _tell(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        """Sends a notification to the member sessions that it concerns, and acknowledges it to the client."""
        session, message = _session(spread), spread.message
        assert isinstance(message, Notification)
        concerned = [service for service in servers if _concerns(message, session.parts.get(service.name))]
        await asyncio.gather(*(self._notify(request, service, caller, spread) for service in concerned))
        return await empty(request, 202)

    async def _notify(self, request: RequestContext, service: Service, caller: Caller, spread: SpreadIntent) -> None:
        part, message = _session(spread).parts[service.name], spread.message
        assert isinstance(message, Notification)
        call = spread.call._replace(upstream=service.name, protocol_version=part.version)
        exchange = opened_exchange(request, service, caller, call, part, self.exchanges, service.timeout_s)
        with suppress(Refusal):  # a notification has no answer
            answer = await exchange.post(
                Notification(message.method, messages.forwarded_params(message, "", tasks=False))
            )
            answer.close()

    async def _leave(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        return await self.exchanges.leave(request, _session(spread))

    # --- streams ------------------------------------------------------------------------------------------------------

    async def _listen(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        session, exchange = _session(spread), self._stream(request, caller, spread, servers)
        close = partial(exchange.cut_off, Reason.SESSION_UNKNOWN)
        session.open_stream(close)
        merging = self._merging(request, caller, spread)
        self._heard.setdefault(session.id, set()).add(merging)
        try:
            with self.exchanges.place(exchange):
                async with merging.running(servers) as answer:
                    return await ResponseStream(exchange, None).stream(answer)
        finally:
            session.close_stream(close)
            self._heard[session.id].discard(merging)
            if not self._heard[session.id]:
                del self._heard[session.id]

    async def _subscribe(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> web.StreamResponse:
        exchange = self._stream(request, caller, spread, servers)
        with self.exchanges.place(exchange):
            async with self._merging(request, caller, spread).running(servers) as answer:
                return await ResponseStream(exchange, None).answer(answer)

    def _stream(
        self, request: RequestContext, caller: Caller, spread: SpreadIntent, servers: Sequence[Service]
    ) -> UpstreamExchange:
        """Returns the caller's stream. Its session is the aggregate session; any of the servers stands for all of
        them."""
        exchange = UpstreamExchange(
            request,
            caller,
            spread.call,
            None,
            self.exchanges.streams,
            request.now,
            None,
            service=servers[0],
            session=spread.session,
        )
        if request.record.decision is not None:
            exchange.until = end_of(caller, request.record.decision, request.now)
        exchange.has_no_end()
        return exchange

    def _merging(self, request: RequestContext, caller: Caller, spread: SpreadIntent) -> StreamMerge:
        see = partial(self._seen, caller, spread)
        return StreamMerge(request, caller, spread, self.exchanges, self.gathering, self.live, see)

    def _seen(self, caller: Caller, spread: SpreadIntent, now: Snapshot) -> Sequence[Service]:
        now_s = self.live.clock()
        try:
            return view_of(now, caller, spread, now_s, self.exchanges.switch, shadow=now.shadows(now_s)).servers
        except Refusal:
            return ()

    def _opened(self, service: Service, part: Session) -> None:
        """Adds a server that the session has reached to the session's streams."""
        for merging in self._heard.get(part.whole.id if part.whole is not None else "", ()):
            merging.hear(service.name)


_SERVER_INFO = {"name": "sidecar", "version": __version__}


def _instructions(servers: Sequence[Service]) -> str:
    """Returns sidecar's own instructions: a server's instructions apply to its own address, and no server speaks for
    others."""
    names = ", ".join(service.name for service in servers)
    return f"Tools and prompts are named {joined('server', 'name')}. Servers: {names}."


async def _introduced(service: Service) -> None:
    with suppress(Refusal):
        await service.catalogue.learn(min(service.timeout_s, HELLO_S))


def _flags(name: str, can: object) -> dict[str, bool]:
    """Returns the known capabilities that are true; others belong to extensions."""
    given = can if isinstance(can, dict) else {}
    flags = {flag: True for flag in _ALL[name] if given.get(flag) is True}
    return {**flags, "listChanged": True} if "listChanged" in _ALL[name] else flags


def _ttl_ms(pages: Sequence[GatheredPage], missing: Sequence[UnavailableServer]) -> int:
    if missing:
        return 0  # do not cache: a server may come back
    ttls = [one.result.get("ttlMs") for one in pages]
    return min((int(ttl) for ttl in ttls if isinstance(ttl, int | float) and 0 <= ttl < MAX_TTL_MS), default=TTL_MS)


def _meta(pages: Sequence[GatheredPage], missing: Sequence[UnavailableServer]) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if missing:
        meta[UNAVAILABLE] = [one.told for one in missing]
    if left_out := [entry for one in pages for entry in one.left_out]:
        meta[LEFT_OUT] = left_out[:MAX_LEFT_OUT]
    return meta


def _concerns(message: Notification, part: Session | None) -> bool:
    if part is None or message.method == "notifications/initialized":
        return False
    if message.method != "notifications/cancelled":
        return True
    request_id = message.params.get("requestId")
    return isinstance(request_id, str | int) and request_id in part.sent


def _request(spread: SpreadIntent) -> Request:
    assert isinstance(spread.message, Request)
    return spread.message


def _session(spread: SpreadIntent) -> Session:
    if spread.session is None:
        raise Refusal(Reason.METHOD_UNKNOWN)
    return spread.session


async def _respond(
    request: RequestContext, message: Request, result: dict[str, Any], headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    body = jsonrpc.encode_response(Response(message.id, result))
    await request.ended(200, len(body))
    return WholeResponse(200, body, JSON, headers or {})
