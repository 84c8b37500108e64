"""The operators' HTTP API, on a listener of its own (threats O9).

Requests without a credential get health and metrics only; a credential is sent in a header and never in a cookie.
Health checks do no I/O and use only state in memory (O10).
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiohttp import web

from sidecar.admin.models import RunAnswer, RunOrder
from sidecar.admin.requests import HEADERS, MAX_ORDER_BYTES, answered, body_of, order_in, problem, query_in, refused
from sidecar.admin.routes import AdminRequest, OperatorAction, OperatorRoute, Role, route_of
from sidecar.errors import ConfigError, Refusal
from sidecar.gateway.kill_switch import SwitchError
from sidecar.gateway.routing import Entrance, check_entrance, check_target, headers_of, origin_form
from sidecar.limits import StoreUnavailable
from sidecar.limits.usage_report import NoSuchLimit
from sidecar.observability.metrics import Metrics
from sidecar.tasks.schedules.scheduler import Conflict

__all__ = ["PROBES", "AdminApp", "OperatorAction", "Role"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
PROBES: Final = ("/livez", "/readyz")


@dataclass(frozen=True, slots=True)
class AdminApp:
    """The handler of the admin listener. `secrets` maps each secret to its bearer's role. `trusted` is the control
    socket, which only its owner can open, so that all its callers are operators.
    """

    app: OperatorAction
    metrics: Metrics
    entrance: Entrance
    secrets: Mapping[bytes, Role]
    trusted: bool = False
    health_only: bool = False
    _scraper: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "scrapes"))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            headers = headers_of(request)
            check_target(request.raw_path, headers)
            check_entrance(headers, self.entrance)
        except Refusal as refusal:
            return problem(refusal.detail, refusal.answer.http)
        path = origin_form(request.raw_path).partition("?")[0]
        answer = await self._open(request, path)
        if answer is not None:
            return answer
        if self.health_only or not (self.secrets or self.trusted):
            return problem("no such address", 404)
        verbs, name = route_of(path)
        role = self._role(request)
        if role is None:
            return problem("a credential is needed", 401, {"WWW-Authenticate": "Bearer"})
        if not verbs:
            return problem("no such address", 404)
        route = verbs.get(request.method)
        if route is None:
            return problem(f"{' or '.join(verbs)} only", 405, {"Allow": ", ".join(verbs)})
        if role not in route.roles:
            return problem(f"this needs one of the roles {', '.join(route.roles)}", 403)
        try:
            return await self._routed(route, request, self._by(request, role), name)
        except (Refusal, ConfigError, SwitchError, NoSuchLimit, Conflict, StoreUnavailable) as error:
            return _failed(error)

    async def _routed(self, route: OperatorRoute, request: web.BaseRequest, by: str, name: str) -> web.StreamResponse:
        query = query_in(request.raw_path, route.query)
        body: Mapping[str, Any] = {}
        if route.request is not None:
            is_large = route.request in (RunOrder, RunAnswer)
            raw = await body_of(request, self.app.desk.max_order_bytes if is_large else MAX_ORDER_BYTES)
            body = order_in(raw, route.request)
        answer = await route.handler(AdminRequest(self.app, request, by, name, self.trusted, query, body))
        if isinstance(answer, web.StreamResponse):
            return answer
        run_id = answer.get("run_id") if route.status == 201 else None
        return answered(answer, route.status, {"Location": f"/api/runs/{run_id}"} if run_id else {})

    async def _open(self, request: web.BaseRequest, path: str) -> web.Response | None:
        if path not in (*PROBES, "/metrics"):
            return None
        if request.method not in ("GET", "HEAD"):
            return problem("GET only", 405, {"Allow": "GET"})
        if path == "/livez":
            return answered({"status": "alive"})
        if path == "/readyz":
            ready, why = self.app.readiness()
            return answered(why, 200 if ready else 503)
        # With hundreds of upstreams the text is megabytes, so it is rendered off the event loop. It has its own thread,
        # because the shared ones may all wait for a disk when metrics are needed most.
        render = partial(self.metrics.render, request.headers.get("Accept", ""))
        content_type, body = await asyncio.get_running_loop().run_in_executor(self._scraper, render)
        return web.Response(body=body, headers={**HEADERS, "Content-Type": content_type})

    def _role(self, request: web.BaseRequest) -> Role | None:
        if self.trusted:
            return "operator"
        lines = request.headers.getall("Authorization", [])
        if len(lines) != 1 or not lines[0].startswith("Bearer "):
            return None
        given = lines[0].removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        found: Role | None = None
        for secret, role in self.secrets.items():  # compare with all secrets, so that the time taken reveals nothing
            if hmac.compare_digest(given, secret):
                found = role
        return found

    def _by(self, request: web.BaseRequest, role: Role) -> str:
        """The operator, as audit records name it: a credential's role, or the user of the process at the socket."""
        if not self.trusted:
            return f"admin:{role}"
        uid = _uid_of(request)
        return "local" if uid is None else f"local:uid={uid}"


def _failed(error: Exception) -> web.Response:
    match error:
        case Refusal():
            return refused(error)
        case ConfigError():
            return problem("the old policy serves on", 409, faults=[str(fault) for fault in error.faults])
        case SwitchError():
            return problem(str(error), error.status)
        case NoSuchLimit():
            return problem(str(error), 404, reason="limit-unknown")
        case StoreUnavailable():
            return problem("the store of the limits cannot be reached", 503)
    return problem(str(error), 409)


def _uid_of(request: web.BaseRequest) -> int | None:
    """The user id of the peer of a Unix socket, where the system provides it (Linux)."""
    sock = request.transport.get_extra_info("socket") if request.transport else None
    if sock is None or sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
