"""The operators' HTTP API: credentials, roles, and its routes.

It has its own listener, never the data listener (threats O9). Requests without a credential get health and metrics
only; with one, which is sent in a header and never in a cookie, status, reload and the kill switch. Health checks do no
I/O and use only state in memory (O10).
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol
from urllib.parse import unquote

from aiohttp import web

from sidecar.admin import run_routes
from sidecar.admin.limit_routes import UnclearError, checked, wanted_in
from sidecar.admin.operator_api import OperatorApi
from sidecar.admin.principal_routes import bare_order_of, order_of, plain, reset_order_of, tool_order_of
from sidecar.admin.requests import HEADERS, AdminRequest, answered, problem, refused
from sidecar.errors import ConfigError, Refusal
from sidecar.gateway.kill_switch import SwitchEntry, SwitchError, is_name
from sidecar.gateway.routing import Entrance, check_entrance, check_target, headers_of, origin_form
from sidecar.limits import StoreUnavailable
from sidecar.limits.usage_report import NoSuchLimit, UsageQuery
from sidecar.observability.metrics import Metrics
from sidecar.policy.patterns import glob

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
Role = Literal["viewer", "operator", "pdp"]
PROBES: Final = ("/livez", "/readyz")
NO_UPSTREAM = "no upstream has this name"


class OperatorAction(Protocol):
    """The operations of the running sidecar that the admin API calls."""

    @property
    def desk(self) -> OperatorApi:
        """CLI-program agents, their runs, and schedules."""

    def readiness(self) -> tuple[bool, Mapping[str, Any]]:
        """Whether calls are served, and the reasons."""

    def status(self) -> Mapping[str, Any]:
        """The state of this sidecar, in plain values."""

    async def reload(self, by: str) -> str:
        """Reload the files. Returns the new revision. Raises ConfigError and changes nothing."""

    def upstreams(self) -> Mapping[str, Mapping[str, Any]]:
        """The state of each upstream, in plain values."""

    def is_server(self, name: str) -> bool: ...
    def discovered(self, name: str) -> Mapping[str, Any]:
        """What an upstream offers, by name."""

    async def switch_off(self, server: str, tool: str, *, reason: str, until: float | None, by: str) -> SwitchEntry:
        """Switch off a tool, or with "" a whole server. Raises SwitchError."""

    async def switch_on(self, server: str, tool: str, *, by: str) -> bool:
        """Undo `switch_off`. Returns False if nothing was switched off. Raises SwitchError."""

    async def limits(self, wanted: UsageQuery) -> Mapping[str, Any]:
        """Usage and remaining amounts. Raises StoreUnavailable."""

    async def reset_limits(self, principal: str, limit: str, *, by: str) -> Sequence[str]:
        """Reset the counters that belong to one principal alone. Raises NoSuchLimit, StoreUnavailable, Refusal."""

    def disabled_principals(self) -> Sequence[SwitchEntry]:
        """All disabled principals."""

    def known_principal(self, name: str) -> tuple[bool, str]:
        """Whether any setting or rule names this principal, and the most similar known name."""

    async def disable(self, principal: str, *, reason: str, until: float | None, by: str) -> SwitchEntry:
        """Disable a principal. Raises SwitchError."""

    async def enable(self, principal: str, *, by: str) -> bool:
        """Re-enable a principal. Returns False if it was not disabled. Raises SwitchError."""


@dataclass(frozen=True, slots=True)
class AdminApp:
    """The handler of the admin listener. `secrets` maps each secret to the role of its bearer. With `trusted`, all
    callers are operators: this is the control socket, which only its owner can open."""

    app: OperatorAction
    metrics: Metrics
    entrance: Entrance
    secrets: Mapping[bytes, Role]
    trusted: bool = False
    health_only: bool = False
    _scraper: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "scrapes"))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
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
        verbs, name = _route_of(path)
        role = self._role(request)
        if role is None:
            return problem("a credential is needed", 401, {"WWW-Authenticate": "Bearer"})
        if verbs is None:
            return problem("no such address", 404)
        if request.method not in verbs:
            return problem(f"{' or '.join(verbs)} only", 405, {"Allow": ", ".join(verbs)})
        roles, handler = verbs[request.method]
        if role not in roles:
            return problem(f"this needs one of the roles {', '.join(roles)}", 403)
        try:
            return await handler(self, AdminRequest(request, self._by(request, role), name, self.trusted))
        except Refusal as refusal:
            return refused(refusal)

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

    async def _status(self, asked: AdminRequest) -> web.Response:
        return answered(self.app.status())

    async def _reload(self, asked: AdminRequest) -> web.Response:
        try:
            await bare_order_of(asked.request)
            return answered({"revision": await self.app.reload(asked.by)})
        except ConfigError as error:
            faults = [str(fault) for fault in error.faults]
            return problem("the old policy serves on", 409, faults=faults)
        except SwitchError as error:
            return problem(str(error), 400)

    async def _limits(self, asked: AdminRequest) -> web.Response:
        try:
            return answered(await self.app.limits(wanted_in(asked.query)))
        except UnclearError as error:
            return problem(str(error), 400)
        except StoreUnavailable:
            return problem("the store is out: nobody can say", 503)

    async def _reset_limits(self, asked: AdminRequest) -> web.Response:
        try:
            said, if_known = await reset_order_of(asked.request)
            wanted = checked({"principal": "", **said})
            known, nearest = self.app.known_principal(wanted.principal)
            if if_known and not known:
                return _unknown(wanted.principal, nearest, "no limit is reset")
            names = await self.app.reset_limits(wanted.principal, wanted.limit, by=asked.by)
        except SwitchError as error:
            return problem(str(error), error.status)
        except UnclearError as error:
            return problem(str(error), 400)
        except NoSuchLimit as error:
            return problem(str(error), 404, reason="limit-unknown")
        except StoreUnavailable:
            return problem("the store is out: it cannot be told", 503)
        return answered({"principal": wanted.principal, "known": known, "reset": names})

    async def _principals(self, asked: AdminRequest) -> web.Response:
        return answered({"disabled": [plain(entry) for entry in self.app.disabled_principals()]})

    async def _disable(self, asked: AdminRequest) -> web.Response:
        try:
            reason, until, if_known = await order_of(asked.request)
            known, nearest = self.app.known_principal(asked.name)
            if if_known and not known and is_name(asked.name):
                return _unknown(asked.name, nearest, "nothing is disabled")
            entry = await self.app.disable(asked.name, reason=reason, until=until, by=asked.by)
        except SwitchError as error:
            return problem(str(error), error.status)
        return answered({"principal": asked.name, "disabled": True, "known": known, "entry": plain(entry)})

    async def _enable(self, asked: AdminRequest) -> web.Response:
        try:
            await bare_order_of(asked.request)
            changed = await self.app.enable(asked.name, by=asked.by)
        except SwitchError as error:
            return problem(str(error), error.status)
        still = [e for e in self.app.disabled_principals() if glob(asked.name, e.principal)]
        answer: dict[str, Any] = {"principal": asked.name, "disabled": bool(still), "changed": changed}
        if still:
            return problem(f"{still[0].source} disables it", 409, **answer, entry=plain(still[0]))
        return answered(answer)

    async def _upstreams(self, asked: AdminRequest) -> web.Response:
        return answered({"upstreams": self.app.upstreams()})

    async def _upstream(self, asked: AdminRequest) -> web.Response:
        known = self.app.upstreams().get(asked.name)
        if known is None:
            return problem(NO_UPSTREAM, 404)
        return answered({"name": asked.name, **known, "discovered": self.app.discovered(asked.name)})

    async def _switch_off(self, asked: AdminRequest) -> web.Response:
        if not self.app.is_server(asked.name):  # a mistyped name must not look like a tool that is off
            return problem(NO_UPSTREAM, 404)
        try:
            tool, reason, until = await tool_order_of(asked.request)
            entry = await self.app.switch_off(asked.name, tool, reason=reason, until=until, by=asked.by)
        except SwitchError as error:
            return problem(str(error), error.status)
        listed = self.app.discovered(asked.name)["tools"]
        known = not tool or not listed or tool in listed  # unknown until the server has sent a list
        answer = {"upstream": asked.name, "tool": tool or None, "enabled": False, "known": known}
        return answered({**answer, "entry": plain(entry)})

    async def _switch_on(self, asked: AdminRequest) -> web.Response:
        try:
            tool, _, _ = await tool_order_of(asked.request)
            changed = await self.app.switch_on(asked.name, tool, by=asked.by)
        except SwitchError as error:
            return problem(str(error), error.status)
        return answered({"upstream": asked.name, "tool": tool or None, "enabled": True, "changed": changed})


def _unknown(name: str, nearest: str, what: str) -> web.Response:
    meant = f'; did you mean "{nearest}"?' if nearest else ""
    told = f"{what}: no rule, role, key or setting names {name}, and it has not called{meant}"
    return problem(told, 404, reason="principal-unknown", nearest=nearest or None)


_Handler = Callable[[AdminApp, AdminRequest], Awaitable[web.StreamResponse]]
_Verbs = Mapping[str, tuple[tuple[Role, ...], _Handler]]


def _seen(handler: _Handler) -> _Verbs:
    return {"GET": (("viewer", "operator"), handler)}


def _done(handler: _Handler) -> _Verbs:
    return {"POST": (("operator",), handler)}


def _at_desk(handler: run_routes.OnDesk) -> _Handler:
    return lambda admin, asked: handler(admin.app.desk, asked)


# `{any}` may hold a `/` that is not percent-encoded, because principals are written as they are.
ADDRESSES: Final[Mapping[str, _Verbs]] = {
    "/status": _seen(AdminApp._status),
    "/api/reload": _done(AdminApp._reload),
    "/api/limits": _seen(AdminApp._limits),
    "/api/limits/reset": _done(AdminApp._reset_limits),
    "/api/principals": _seen(AdminApp._principals),
    "/api/principals/{any}/disable": _done(AdminApp._disable),
    "/api/principals/{any}/enable": _done(AdminApp._enable),
    "/api/upstreams": _seen(AdminApp._upstreams),
    "/api/upstreams/{name}": _seen(AdminApp._upstream),
    "/api/upstreams/{any}/disable": _done(AdminApp._switch_off),
    "/api/upstreams/{any}/enable": _done(AdminApp._switch_on),
    "/api/agents": _seen(_at_desk(run_routes.agents)),
    "/api/agents/{name}": _seen(_at_desk(run_routes.agent)),
    "/api/agents/{name}/runs": {**_seen(_at_desk(run_routes.runs_of_agent)), **_done(_at_desk(run_routes.order))},
    "/api/runs": _seen(_at_desk(run_routes.runs)),
    "/api/runs/{name}": _seen(_at_desk(run_routes.run)),
    "/api/runs/{name}/output": _seen(_at_desk(run_routes.output)),
    "/api/runs/{name}/answer": _done(_at_desk(run_routes.answer)),
    "/api/runs/{name}/cancel": _done(_at_desk(run_routes.cancel)),
    "/api/schedules": {**_seen(_at_desk(run_routes.schedules)), **_done(_at_desk(run_routes.add_schedule))},
    "/api/schedules/{name}": {"DELETE": (("operator",), _at_desk(run_routes.remove_schedule))},
    "/api/schedules/{name}/run": _done(_at_desk(run_routes.run_schedule)),
    "/api/schedules/{name}/pause": _done(_at_desk(run_routes.pause)),
    "/api/schedules/{name}/resume": _done(_at_desk(run_routes.resume)),
}
_SHAPES: Final = {"any": "([^?#]{0,4096})", "name": "([^/?#]{1,64})"}
_ROUTES: Final = [(re.compile(path.format(**_SHAPES)), verbs) for path, verbs in ADDRESSES.items()]


def _route_of(path: str) -> tuple[_Verbs | None, str]:
    """The handlers of a path by HTTP method, and the name in the path: percent-encoded, or with a plain `/`."""
    for pattern, verbs in _ROUTES:
        if found := pattern.fullmatch(path):
            return verbs, unquote("".join(found.groups()))
    return None, ""


def _uid_of(request: web.BaseRequest) -> int | None:
    """The user id of the peer of a Unix socket, where the system provides it (Linux)."""
    sock = request.transport.get_extra_info("socket") if request.transport else None
    if sock is None or sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
