"""The frontends of calls that enforcement points ask about. They read and check requests like the frontends that send
calls.

The sidecar does not know what belongs to a session between caller and upstream: sessions, tasks and `requestState` of
MCP are the server's own. Tasks that a call names are therefore refused as not the caller's, and so are lists of tasks,
which would show those of all callers. An agent's pushes go to the address in the request, so that address is checked
like those of the sidecar's own callbacks.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sidecar.errors import LimitState, Reason, Refusal
from sidecar.gateway.frontends.a2a.exchange import CheckedOperation
from sidecar.gateway.frontends.a2a.frontend import AgentFrontend
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, push_in
from sidecar.gateway.frontends.mcp import McpFrontend, operation_of
from sidecar.gateway.frontends.mcp_requests import END, STREAM, AskIntent, PairIntent, ServerIntent, stream_call
from sidecar.gateway.request import Charged, ParsedOperation, RequestContext
from sidecar.gateway.routing import EVERY, MCP, Route
from sidecar.http.server.response import WholeResponse
from sidecar.protocols.a2a.operations import LIST
from sidecar.protocols.jsonrpc import Message, Request, Response, malformed
from sidecar.protocols.mcp import eras, messages
from sidecar.protocols.mcp.eras import SESSION_VERSIONS, STATELESS, VERSION_HEADER
from sidecar.upstreams.credentials.source import CredentialSource, Header
from sidecar.vocabulary import Call, Caller, Decision

REPLY = "session/reply"  # the answer to a request of the server, for which MCP defines no method
TASK_LIST = "tasks/list"
UNSAID_VERSION = "2025-03-26"  # assumed without MCP-Protocol-Version
DECISION_ID = "X-Sidecar-Decision-Id"
SENDS_CREDENTIAL = ("ext_authz",)  # protocols whose enforcement points can change the request before they send it


class Permit(WholeResponse):
    """The answer to a permitted question. `limits` are the limits that were charged, and `credential` is the header
    with the upstream's own credential, if the enforcement point must send one."""

    def __init__(self, decision_id: str, limits: tuple[LimitState, ...], credential: Header | None = None) -> None:
        super().__init__(200, headers={DECISION_ID: decision_id})
        self.limits, self.credential = limits, credential


async def permit(charged: Charged, secrets: object = None, within_s: float = 0.0) -> Permit:
    """Records the decision and returns the permit. The charge remains, because the enforcement point makes the call.
    `secrets` are those of the upstream, whose credential must be available within `within_s` seconds. Raises Refusal:
    AUDIT_UNAVAILABLE, MALFORMED_CALL for arguments that cannot be hashed, and Unsent without that credential."""
    record, credential = charged.request.record, None
    if record.protocol in SENDS_CREDENTIAL and isinstance(secrets, CredentialSource):
        credential, _ = await secrets.header_within(charged.caller, min(charged.timeout_s or within_s, within_s))
    charged.lease.forwarded = True
    try:
        await record.outcome(http_status=200, bytes_out=0, event="decision")
    except Refusal:
        charged.lease.forwarded = False
        raise
    except asyncio.CancelledError:
        charged.lease.forwarded = record.done  # otherwise nothing is on record yet
        raise
    return Permit(record.decision_id, tuple(record.limits), credential)


class CheckedMcp(McpFrontend):
    """MCP at one server's address."""

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        if route.kind != MCP or route.server == EVERY:
            raise Refusal(Reason.ROUTE_UNKNOWN)  # not an address of the server itself
        if request.verb == "POST":
            message = request.message_in(await request.body())
            if "mcp-session-id" in request.headers:
                request.in_session()
            return operation_of(request, self._intent(request, message))
        method = END if request.verb == "DELETE" else STREAM
        return operation_of(request, PairIntent(stream_call(request.server, method, _version(request))))

    def _intent(self, request: RequestContext, message: Message) -> ServerIntent:
        if isinstance(message, Response):
            return PairIntent(stream_call(request.server, REPLY, _version(request)))
        era, version = eras.version_of(request.headers, message)
        if era is STATELESS:
            eras.check_routing(request.headers, message)
        call = messages.call_from(message, era, version or UNSAID_VERSION, request.server)
        if call.method == TASK_LIST:
            raise Refusal(Reason.METHOD_UNKNOWN)
        return AskIntent(call, message, era, None) if isinstance(message, Request) else PairIntent(call)

    async def check(
        self, request: RequestContext, caller: Caller, intent: ServerIntent, decision: Decision
    ) -> ServerIntent:
        if isinstance(intent, AskIntent) and "requestState" in intent.message.params:
            params = {name: value for name, value in intent.message.params.items() if name != "requestState"}
            intent = intent._replace(message=intent.message._replace(params=params))
        return await super().check(request, caller, intent, decision)

    async def carry_out(self, charged: Charged) -> Permit:
        upstream = charged.request.now.service(charged.request.server).upstream
        return await permit(charged, upstream.secrets, upstream.timeout_s)


def _version(request: RequestContext) -> str:
    lines = request.headers.get(VERSION_HEADER, (UNSAID_VERSION,))
    if len(lines) > 1:
        raise malformed("MCP-Protocol-Version is there more than once")
    if lines[0] not in SESSION_VERSIONS:
        raise eras.unsupported(lines[0])
    return lines[0]


class CheckedAgents(AgentFrontend):
    """A2A at one agent's address."""

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        operation = await super().parse(request, caller, route)
        if operation.content.operation is LIST:
            raise Refusal(Reason.METHOD_UNKNOWN)
        return operation

    async def check(
        self, request: RequestContext, caller: Caller, intent: AgentOperation, decision: Decision
    ) -> CheckedOperation:
        checked = await super().check(request, caller, intent, decision)
        if checked.unable is not None:  # the agent answers itself, perhaps with capabilities that its card omits
            await checked.owning.check()
        if intent.sends and (config := push_in(intent.params)):
            await self.pushes.check(config.get("url", ""), caller.binding)
        return checked

    async def carry_out(self, charged: Charged) -> Permit:
        agent = charged.content.agent
        return await permit(charged, agent.wire.secrets, agent.timeout_s)


class PolicyQuestion:
    """The frontend of a question that only policy, the kill switch and limits decide."""

    folder = MCP

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        raise Refusal(Reason.ROUTE_UNKNOWN)

    async def check(self, request: RequestContext, caller: Caller, content: Call, decision: Decision) -> Call:
        return content

    async def carry_out(self, charged: Charged) -> Permit:
        return await permit(charged)


def asked_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    """Returns header lines as the pipeline reads them."""
    return [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers]
