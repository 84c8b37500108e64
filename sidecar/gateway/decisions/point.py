"""Decides the requests that enforcement points ask about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from aiohttp import HttpVersion11, web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.decisions.checked import CheckedAgents, CheckedMcp
from sidecar.gateway.pipeline import Asked, Frontend, Pipeline
from sidecar.gateway.request import RequestContext
from sidecar.gateway.routing import Entrance
from sidecar.http.server.body_admission import BodyRoom
from sidecar.http.server.repeated_head import ArrivedBody
from sidecar.http.tls import NOTHING

AskingProtocol = Literal["authzen", "ext_authz", "auth_request"]
SECRET_HEADER: Final = "x-pdp-key"  # holds the secret of an enforcement point
CHARGE_HEADER: Final = "x-sidecar-charge"  # `true` asks for a charge (`pdp.charges`)
Read = Callable[[RequestContext], Awaitable[Asked | web.StreamResponse]]


class Asking(NamedTuple):
    """How a decision is requested: by which protocol, by which enforcement point, and whether limits are charged."""

    protocol: AskingProtocol
    enforcement_point: str
    charge: bool


class AskedRequest:
    """A request that an enforcement point received, as the pipeline sees it: the parts that it reads of an HTTP
    request. `target` is its path and query, `peer` the address of its caller, and `certificate` its caller's, as an
    element of `X-Forwarded-Client-Cert`. `fault` is the reason why the body cannot be decided on."""

    version = HttpVersion11
    transport = head = task = None
    shown = NOTHING

    def __init__(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        peer: str = "",
        certificate: str = "",
        fault: Refusal | None = None,
    ) -> None:
        self.method, self.raw_path, self.raw_headers, self.remote = method, target, headers, peer
        self.content, self.content_length, self.body_exists = ArrivedBody(None, body), len(body), bool(body)
        self.certificate, self.fault = certificate, fault


@dataclass(slots=True)
class DecisionPoint:
    """The policy decision point. `entrance` holds the web origins that may call."""

    pipeline: Pipeline
    entrance: Entrance
    mcp: CheckedMcp
    agents: CheckedAgents

    async def decide(
        self, http: AskedRequest, asking: Asking, read: Read | None = None
    ) -> tuple[RequestContext, web.StreamResponse]:
        """Decides on a request, or on the one that `read` returns, and records the decision. The response is a
        `Permit`, or the refusal that the caller would have received, with the reason in `RequestContext.reason`. A
        response that `read` returns and recorded itself needs no decision."""
        request, _ = self.pipeline.begin(http, self.entrance)  # type: ignore[arg-type]
        record, request.task = request.record, asyncio.current_task()
        record.protocol, record.enforcement_point = asking.protocol, asking.enforcement_point
        reading = self._read(request, http) if read is None else read(request)
        return request, await self.pipeline.answer(request, _charging(reading, asking.charge))

    async def _read(self, request: RequestContext, http: AskedRequest) -> Asked:
        """Reads a request to an MCP server or an agent. Raises Refusal, also for other addresses."""
        now, record = request.now, request.record
        routing.check_envelope(request.http, request.headers, self.entrance)
        route = routing.route_of(request.path, request.verb, now.aliases)
        frontend = self.frontend(route.kind)
        request.enter(route.server, frontend.folder, route.alias)
        if frontend is self.agents:
            self.agents.enter(request, route)
        audience = now.audience(route.server, frontend.folder)
        caller = await self.pipeline.identify(request, replace(self.entrance, certificate=http.certificate), audience)
        if http.fault is not None:
            raise http.fault
        operation = await frontend.parse(request, caller, route)
        record.call = operation.call
        record.marks["parse"] = record.now_s()
        return caller, frontend, operation

    async def body_of(self, http: web.BaseRequest, name: str) -> bytes:
        """Returns the body of a request of the enforcement point `name`. Raises Refusal as `routing.read_body` does."""
        with closing(BodyRoom(self.pipeline.body_admission, f"pdp {name}")) as room:
            return await routing.received_body(http, self.pipeline.live.current.bounds, room.grow, room.who)

    def charges(self, asked: bool) -> bool:
        """Reports whether a decision is charged (`pdp.charges`). `asked`: the request asked for a charge."""
        settings = self.pipeline.live.current.settings.pdp
        return settings is not None and (settings.charges == "always" or (settings.charges == "ask" and asked))

    def target(self, target: str) -> str:
        """Returns the sidecar's target for a target at an enforcement point (`pdp.paths`)."""
        settings, (path, mark, query) = self.pipeline.live.current.settings.pdp, target.partition("?")
        paths, end = {} if settings is None else settings.paths, len(path)
        while end > 0:
            if (here := paths.get(path[:end])) is not None:
                return f"{here}{path[end:]}{mark}{query}"
            end = path.rfind("/", 0, end)
        return target

    def frontend(self, kind: str) -> Frontend:
        """Returns the frontend of addresses of one kind. Raises Refusal(ROUTE_UNKNOWN)."""
        if kind == routing.MCP:
            return self.mcp
        if kind == routing.AGENT:
            return self.agents
        raise Refusal(Reason.ROUTE_UNKNOWN)


async def _charging(reading: Awaitable[Asked | web.StreamResponse], charge: bool) -> Asked | web.StreamResponse:
    """Charges all limits except slots, whose end the sidecar does not see, or none."""
    asked = await reading
    if not isinstance(asked, tuple):
        return asked
    caller, frontend, operation = asked
    charges: Any = "creation" if charge else "none"
    return caller, frontend, operation._replace(charges=charges)
