"""What may an operator see and do, and who is one?

Its own listener, never the data one (threats O9). Without a credential it answers health and metrics only; with one,
which comes in a header and never in a cookie, status and reload. Health never does I/O: it reads what is known (O10).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson
from aiohttp import web

from sidecar.arrival import Entrance, check_entrance, headers_of
from sidecar.errors import ConfigError, Refusal
from sidecar.metrics import Metrics

Role = Literal["viewer", "operator", "pdp"]
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Operated(Protocol):
    """The running sidecar, as its operators need it."""

    def readiness(self) -> tuple[bool, Mapping[str, Any]]:
        """Whether calls are served, and why or why not."""

    def status(self) -> Mapping[str, Any]:
        """What runs here, in plain values."""

    async def reload(self, by: str) -> str:
        """Take the files as they are now; returns the new revision. Raises ConfigError and changes nothing."""


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin listener's one handler. `secrets` maps each secret to the role of its bearer; `trusted` says that
    whoever reaches the listener is an operator: the control socket, which only its owner can open."""

    app: Operated
    metrics: Metrics
    entrance: Entrance
    secrets: Mapping[bytes, Role]
    trusted: bool = False
    health_only: bool = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        try:
            check_entrance(headers_of(request), self.entrance)
        except Refusal as refusal:
            return _json({"error": refusal.detail}, refusal.answer.http)
        path = request.raw_path.partition("?")[0]
        answer = self._open(request, path)
        if answer is not None:
            return answer
        if self.health_only or not (self.secrets or self.trusted):
            return _json({"error": "no such address"}, 404)
        route = _GUARDED.get(path)
        role = self._role(request)
        if role is None:
            return _json({"error": "a credential is needed"}, 401, {"WWW-Authenticate": "Bearer"})
        if route is None:
            return _json({"error": "no such address"}, 404)
        verb, roles, handler = route
        if request.method != verb:
            return _json({"error": f"{verb} only"}, 405, {"Allow": verb})
        if role not in roles:
            return _json({"error": f"this needs one of the roles {', '.join(roles)}"}, 403)
        return await handler(self, role)

    def _open(self, request: web.BaseRequest, path: str) -> web.Response | None:
        if path not in ("/livez", "/readyz", "/metrics"):
            return None
        if request.method not in ("GET", "HEAD"):
            return _json({"error": "GET only"}, 405, {"Allow": "GET"})
        if path == "/livez":
            return _json({"status": "alive"})
        if path == "/readyz":
            ready, why = self.app.readiness()
            return _json(why, 200 if ready else 503)
        content_type, body = self.metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={**HEADERS, "Content-Type": content_type})

    def _role(self, request: web.BaseRequest) -> Role | None:
        if self.trusted:
            return "operator"
        lines = request.headers.getall("Authorization", [])
        if len(lines) != 1 or not lines[0].startswith("Bearer "):
            return None
        given = lines[0].removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        found: Role | None = None
        for secret, role in self.secrets.items():  # all of them, always: time must not tell which came close
            if hmac.compare_digest(given, secret):
                found = role
        return found

    async def _status(self, by: Role) -> web.Response:
        return _json(self.app.status())

    async def _reload(self, by: Role) -> web.Response:
        try:
            return _json({"revision": await self.app.reload(f"admin:{by}")})
        except ConfigError as error:
            faults = [str(fault) for fault in error.faults]
            return _json({"error": "the old policy serves on", "faults": faults}, 409)


_Guarded = tuple[str, tuple[Role, ...], Callable[[Admin, Role], Awaitable[web.Response]]]
_GUARDED: Mapping[str, _Guarded] = {
    "/status": ("GET", ("viewer", "operator"), Admin._status),
    "/api/reload": ("POST", ("operator",), Admin._reload),
}


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(
        body=body, status=status, headers={**HEADERS, "Content-Type": "application/json", **(headers or {})}
    )
