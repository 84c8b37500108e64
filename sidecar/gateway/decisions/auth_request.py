"""nginx's `auth_request`: decides whether a caller may enter an MCP server or an agent as a whole.

    GET /auth/nginx   X-Original-URI, X-Original-Method and the caller's credentials

nginx sends no body, so no tool and no message is decided. `Mcp-Method` and `Mcp-Name` are not read: nothing compares
them with the body here. nginx accepts three answers, 200, 401 and 403, and turns all others into 500. Every refusal
except 401 is therefore 403, also if the sidecar cannot decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.decisions.checked import DECISION_ID, Permit, PolicyQuestion, permit
from sidecar.gateway.decisions.point import CHARGE_HEADER, SECRET_HEADER, AskedRequest, Asking, DecisionPoint
from sidecar.gateway.error_responses import DenyManner, ErrorResponse, facts_of, headers_of
from sidecar.gateway.frontends.mcp_requests import stream_call
from sidecar.gateway.pipeline import Asked
from sidecar.gateway.request import Charged, ParsedOperation, RequestContext
from sidecar.gateway.routing import Headers
from sidecar.protocols.a2a.operations import OPERATIONS, SEND
from sidecar.protocols.jsonrpc import malformed
from sidecar.vocabulary import Call, Caller, Decision, Question

PATH: Final = "/auth/nginx"
URI, METHOD = "x-original-uri", "x-original-method"
PRINCIPAL, REASON = "X-Sidecar-Principal", "X-Sidecar-Reason"
ENTER: Final = "enter"  # the method, for which no protocol has a name
_FOLDERS: Final = {
    routing.MCP: routing.MCP, routing.SSE: routing.MCP, routing.MESSAGES: routing.MCP, routing.AGENT: routing.AGENTS,
    routing.CARD: routing.AGENTS,
}  # fmt: skip
# nginx chooses a location by the decoded path without dot segments, so a path that differs from it is refused.
_PLAIN_REST: Final = re.compile(
    r"(?:/(?!\.{1,2}(?:[/;]|\Z))(?:[\w.~:@!$&'()*+,;=-]|%(?!2[ef5]|5c|00)[0-9a-f]{2})+)*/?", re.ASCII | re.IGNORECASE
)
_OWN_HEADERS: Final = frozenset({SECRET_HEADER.encode(), b"content-length", b"transfer-encoding"})


class NginxRefusal:
    """Writes refusals as nginx reads them. `X-Sidecar-Reason` is for its log."""

    def tell(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse:
        headers = {DECISION_ID: decision_id, REASON: refusal.reason.value}
        if refusal.answer.http != 401:
            return ErrorResponse(403, b"", "", headers)
        told = headers_of(refusal, facts_of(refusal, decision_id, manner), resource_metadata)
        return ErrorResponse(401, b"", "", {**headers, "WWW-Authenticate": told["WWW-Authenticate"]})


class EntryQuestion(PolicyQuestion):
    """Asks whether an upstream may be entered. It must exist and not be switched off."""

    def __init__(self, point: DecisionPoint) -> None:
        self.switch, self.clock = point.mcp.switch, point.mcp.clock

    async def check(self, request: RequestContext, caller: Caller, content: Call, decision: Decision) -> Call:
        now, ledger = request.now, self.switch.ledger
        if content.protocol == "mcp":
            now.service(content.upstream)
            ledger.switched_off.refuse_use(content, self.clock())
        else:
            now.agent(content.upstream)
        return content

    async def carry_out(self, charged: Charged) -> Permit:
        response = await permit(charged)
        response.add({PRINCIPAL: charged.caller.last.name}.items())
        return response


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """The endpoint of `auth_request`."""

    point: DecisionPoint
    takes_bearer: bool = False
    entry: EntryQuestion = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entry", EntryQuestion(self.point))

    def serves(self, path: str) -> bool:
        """Reports whether a path belongs to this protocol."""
        return path == PATH

    async def answer(self, http: web.BaseRequest, headers: Headers, path: str, name: str) -> web.StreamResponse:
        """Answers nginx, whose name as an enforcement point is `name`."""
        uris, methods = headers.get(URI, ()), headers.get(METHOD, ())
        is_whole = http.method == "GET" and len(uris) == len(methods) == 1
        target, method = (self.point.target(uris[0]), methods[0]) if is_whole else ("/", "GET")
        lines = [(line, value) for line, value in http.raw_headers if line.lower() not in _OWN_HEADERS]
        asked = AskedRequest(method, target, lines, peer=http.remote or "")
        asking = Asking("auth_request", name, self.point.charges(headers.get(CHARGE_HEADER) == ("true",)))
        _, response = await self.point.decide(asked, asking, partial(self._read, is_whole))
        return response

    async def _read(self, is_whole: bool, request: RequestContext) -> Asked:
        """Reads the upstream and its caller from the request. Raises Refusal."""
        now, point, record = request.now, self.point, request.record
        request.dialect = NginxRefusal()
        if not is_whole:
            raise malformed("this is for GET with one X-Original-URI and one X-Original-Method")
        routing.check_envelope(request.http, request.headers, point.entrance)
        route = routing.route_of(request.path, request.verb, now.aliases)
        folder = _FOLDERS.get(route.kind)
        if folder is None or route.server == routing.EVERY or not _PLAIN_REST.fullmatch(route.rest):
            raise Refusal(Reason.ROUTE_UNKNOWN)
        request.enter(route.server, folder, route.alias)
        caller = await point.pipeline.identify(request, point.entrance, now.audience(route.server, folder))
        if folder == routing.MCP:
            call = stream_call(route.server, ENTER, "")
        else:
            call = agent_call(request, caller, route.server, point.mcp.clock())
        request.asks(ENTER)
        record.call = call
        record.marks["parse"] = record.now_s()
        return caller, self.entry, ParsedOperation(call, call)


def agent_call(request: RequestContext, caller: Caller, agent: str, now_s: float) -> Call:
    """Returns the call that enters an agent: the first of its operations that policy may allow."""
    target, may = f"nhi:{agent}", request.now.engine.may_list
    questions = [Question(target, operation.action, "") for operation in OPERATIONS]
    first = next((one for one in questions if may(caller.chain, one, now_s)), Question(target, SEND.action, ""))
    return Call("a2a", "1.0", agent, ENTER, (first,), session=True)
