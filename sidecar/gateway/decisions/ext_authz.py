"""Envoy's external authorization (ext_authz): what both modes share, and the HTTP service mode.

In HTTP mode, Envoy sends the caller's request to `/ext-authz<path>`, with its method, headers and body. 200 allows it;
every other status is the answer to the caller. `ext_authz_grpc.py` serves the other mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiohttp import web

from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.gateway.decisions.checked import DECISION_ID, Permit
from sidecar.gateway.decisions.point import CHARGE_HEADER, SECRET_HEADER, AskedRequest, Asking, DecisionPoint
from sidecar.gateway.error_responses import plain_status
from sidecar.gateway.request import RequestContext
from sidecar.gateway.routing import AGENTS, MCP, Headers, origin_form
from sidecar.http.server.response import WholeResponse
from sidecar.settings.agent_endpoints import BEARER_HEADER, KEY_HEADER

PREFIX: Final = "/ext-authz"
PARTIAL: Final = "x-envoy-auth-partial-body"
# Headers of the enforcement point, not of its caller.
_OURS: Final = (b"x-envoy-", SECRET_HEADER.encode(), CHARGE_HEADER.encode())
_CREDENTIALS: Final = (BEARER_HEADER, KEY_HEADER, "dpop")

Line = tuple[bytes, bytes]


class ExtAuthzDecision(NamedTuple):
    """A decision for Envoy. `headers` are those of the answer to the caller or, for an allowed request, those that the
    upstream receives; `removed` are headers that the upstream must not receive."""

    allowed: bool
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    removed: tuple[str, ...]
    decision_id: str
    principal: str
    reason: Reason | None

    @property
    def plain_status(self) -> int:
        """The status for a protocol-independent response, in which a denial is never a success."""
        if self.allowed:
            return 200
        return plain_status(ANSWERS[self.reason]) if self.reason is not None else 403


async def decision_on(point: DecisionPoint, asked: AskedRequest, name: str, *, charge: bool) -> ExtAuthzDecision:
    """Decides on a request that the enforcement point `name` received."""
    request, response = await point.decide(asked, Asking("ext_authz", name, point.charges(charge)))
    caller, decision_id = request.record.caller, request.record.decision_id
    principal = "" if caller is None else caller.last.name
    if isinstance(response, Permit):
        headers = [(DECISION_ID, decision_id)]
        if response.credential is not None:
            headers.append(response.credential)
        sent = {header.lower() for header, _ in headers}
        removed = tuple(header for header in _carriers(request) if header not in sent)
        return ExtAuthzDecision(True, 200, headers, b"", removed, decision_id, principal, None)
    assert isinstance(response, WholeResponse)  # refusals of decisions always have a response
    headers = [(header, value) for header, value in response.lines if header != "Server"]
    return ExtAuthzDecision(False, response.status, headers, response.body, (), decision_id, principal, request.reason)


def _carriers(request: RequestContext) -> Iterable[str]:
    """Returns the headers that can carry a credential of the caller. Envoy removes them, so none reaches the
    upstream."""
    gate = request.now.audience(request.server, request.folder).gate
    return dict.fromkeys((*_CREDENTIALS, *(() if gate is None else (gate.header,))))


def callers_lines(lines: Iterable[Line]) -> list[Line]:
    """Returns the header lines of the caller."""
    return [line for line in lines if not line[0].lower().startswith(_OURS)]


def partial_fault(lines: Iterable[str]) -> Refusal | None:
    """Returns why a partial body prevents a decision, by the lines of `x-envoy-auth-partial-body`; None if the body is
    complete."""
    if all(line == "false" for line in lines):
        return None
    return Refusal(Reason.TOO_LARGE, "its body is larger than the enforcement point's max_request_bytes")


def target_in(point: DecisionPoint, target: str, extensions: Mapping[str, str]) -> str:
    """Returns the target of a request here. `upstream: <server>` stands for the server's address, whatever the path is;
    with `agent: <name>` the path is one of that agent's own. Raises ValueError if both are given."""
    server, agent = extensions.get("upstream", ""), extensions.get("agent", "")
    if server and agent:
        raise ValueError("context_extensions name an upstream and an agent: remove one")
    found = point.target(target)
    if server:
        return f"/{MCP}/{server}"
    if agent and not f"{found.partition('?')[0]}/".startswith(f"/{AGENTS}/{agent}/"):
        return f"/{AGENTS}/{agent}{target}"
    return found


@dataclass(slots=True)
class ExtAuthzEndpoint:
    """The HTTP service mode."""

    point: DecisionPoint
    takes_bearer: bool = False

    def serves(self, path: str) -> bool:
        return path == PREFIX or path.startswith(f"{PREFIX}/")

    async def answer(self, http: web.BaseRequest, headers: Headers, path: str, name: str) -> web.StreamResponse:
        """Answers one check. The peer is the enforcement point: no header reliably has the caller's address."""
        target = origin_form(http.raw_path)[len(PREFIX) :]
        fault, body = partial_fault(headers.get(PARTIAL, ())), b""
        if fault is None:
            try:
                body = await self.point.body_of(http, name)
            except Refusal as refusal:
                fault = refusal
        asked = AskedRequest(
            http.method,
            self.point.target(target if target.startswith("/") else f"/{target}"),
            callers_lines(http.raw_headers),
            body,
            http.remote or "",
            fault=fault,
        )
        decision = await decision_on(self.point, asked, name, charge=headers.get(CHARGE_HEADER) == ("true",))
        return self._told(decision)

    def _told(self, decision: ExtAuthzDecision) -> WholeResponse:
        headers = decision.headers
        if decision.removed:
            headers = [*headers, ("x-envoy-auth-headers-to-remove", ",".join(decision.removed))]
        response = WholeResponse(decision.plain_status, decision.body)
        response.add(headers)
        return response
