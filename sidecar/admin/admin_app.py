"""The handler of the admin listener, which is separate from that of callers.

Without a credential, only health, metrics, the login page of the console and the metadata of AuthZEN are served. A
credential is sent in a header; only the console uses a cookie. A health check uses only state in memory, of this worker
and, over their sockets, of the others.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sidecar.admin.other_workers import BY_HEADER, FLOW_SOCKET, SERIES, SESSION_SOCKET, SYNC, OtherWorkers
from sidecar.admin.requests import HEADERS, answered, problem
from sidecar.errors import Refusal
from sidecar.gateway.routing import Entrance, check_envelope, headers_of, origin_form
from sidecar.observability.metrics import Metrics
from sidecar.settings.server import AdminCredential
from sidecar.vocabulary import Principal

if TYPE_CHECKING:
    from sidecar.admin.console.handler import Console
    from sidecar.admin.decisions import DecisionEndpoints
    from sidecar.admin.routes import OperatorAction, Role
    from sidecar.observability.worker_series import WorkerSeries

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
ADMIN: Final = "admin"  # the issuer of people with a credential of the admin listener
PROBES: Final = ("/livez", "/readyz")
OperatorSecrets = Callable[[], Mapping[bytes, AdminCredential]]
"""Returns the credentials in force by their secrets."""


def _no_secrets() -> Mapping[bytes, AdminCredential]:
    return {}


@dataclass(frozen=True, slots=True)
class AdminApp:
    """The handler of the admin listener, or of a similar one. `secrets` returns the credential of each secret.
    `trusted`: it is the control socket, which only its owner can open, so that all its callers are operators.
    `health_only`: it serves only health and metrics. `decisions` answers enforcement points. `others` are the workers
    that serve the same address. `for_workers`: it is the socket at which a worker answers the others."""

    app: OperatorAction
    metrics: Metrics
    entrance: Entrance
    secrets: OperatorSecrets = _no_secrets
    trusted: bool = False
    health_only: bool = False
    decisions: DecisionEndpoints | None = None
    others: OtherWorkers | None = None
    for_workers: bool = False
    console: Console | None = None
    _scraper: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "scrapes"))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = origin_form(request.raw_path).partition("?")[0]
        if self.decisions is not None and self.decisions.serves(path):
            return await self.decisions.handle(request)
        answering = self._answer(request, path)
        return await (answering if request.method in ("GET", "HEAD") else self.app.carried_out(answering))

    async def _answer(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if self.console is not None and not self.for_workers and _is_of_console(path):
            return await self.console.handle(request)
        try:
            headers = headers_of(request)
            check_envelope(request, headers, self.entrance)
        except Refusal as refusal:
            return problem(refusal.detail, refusal.answer.http)
        answer = await self._open(request, path)
        if answer is not None:
            return answer
        if self.health_only or not (self.trusted or self.secrets()):
            return problem("no such address", 404)
        role: Role
        person = None
        if self.trusted:
            role, by = "operator", self._orderer(request)
        elif (credential := self._credential(request)) is not None:
            role, by, person = credential.role, name_of(credential), person_of(credential)
        else:
            return problem("a credential is needed", 401, {"WWW-Authenticate": "Bearer"})
        if self.console is not None and self.for_workers and _is_of_console(path):
            return await self.console.handle_of_worker(request, by)
        from sidecar.admin.routes import answer_operator  # only when the first operator calls

        response = await answer_operator(self.app, request, path, role, by, here=self.trusted, person=person)
        if self.others is None or self.for_workers:
            return response
        return await self.others.complete(request.method, path, by, response)

    async def _open(self, request: web.BaseRequest, path: str) -> web.Response | None:
        if self.for_workers and path == SYNC:
            await self.app.hear_of_switches()
            return answered({})
        if path not in (*PROBES, "/metrics", *((SERIES,) if self.for_workers else ())):
            return None
        if request.method not in ("GET", "HEAD"):
            return problem("GET only", 405, {"Allow": "GET"})
        if path == "/livez":
            return answered({"status": "alive"})
        if path == "/readyz":
            ready, why = self.app.readiness()
            if self.others is not None and not self.for_workers:
                ready, why = await self.others.readiness(ready, why)
            return answered(why, 200 if ready else 503)
        # With hundreds of upstreams the text is megabytes, so it is rendered off the event loop. It has its own thread,
        # because the shared ones may all wait for a disk when metrics are needed most.
        others = None if self.others is None or path == SERIES else await self.others.series()
        self.app.measure()
        accept = "" if path == SERIES else request.headers.get("Accept", "")
        render = partial(self._rendered, accept, others)
        content_type, body = await asyncio.get_running_loop().run_in_executor(self._scraper, render)
        return web.Response(body=body, headers={**HEADERS, "Content-Type": content_type})

    def _rendered(self, accept: str, others: Sequence[WorkerSeries] | None) -> tuple[str, bytes]:
        """The media type and the text of the metrics; without `others`, at a worker, its own series for another one."""
        if self.others is None:
            return self.metrics.render(accept)
        raw = self.others.keep(self.metrics.exposition.series())
        return ("application/json", raw) if others is None else self.metrics.render(accept, others)

    def _orderer(self, request: web.BaseRequest) -> str:
        """The operator who makes a request at the control socket. A request from another worker names its operator."""
        told = request.headers.get(BY_HEADER, "") if self.for_workers else ""
        return told or _user_at(request)

    def _credential(self, request: web.BaseRequest) -> AdminCredential | None:
        lines = request.headers.getall("Authorization", [])
        if len(lines) != 1 or not lines[0].startswith("Bearer "):
            return None
        return credential_of(lines[0].removeprefix("Bearer "), self.secrets())


def name_of(credential: AdminCredential) -> str:
    """The holder of a credential, as audit records name it."""
    return f"{ADMIN}:{credential.name or credential.role}"


def person_of(credential: AdminCredential) -> Principal | None:
    """The person who holds a credential; None if it names no person."""
    return None if credential.principal is None else Principal(credential.principal, ADMIN)


def credential_of(given: str, secrets: Mapping[bytes, AdminCredential]) -> AdminCredential | None:
    """The credential with this secret; None if there is none."""
    raw, found = given.encode("utf-8", "surrogateescape"), None
    for secret, credential in secrets.items():  # compared with all, so that the time does not depend on which matches
        if hmac.compare_digest(raw, secret):
            found = credential
    return found


def _is_of_console(path: str) -> bool:
    return path in ("/", "/console") or path.startswith(("/console/", SESSION_SOCKET, FLOW_SOCKET))


def _user_at(request: web.BaseRequest) -> str:
    """The peer of the control socket, as named in audit records, with its user id if the system provides it (Linux)."""
    sock = request.transport.get_extra_info("socket") if request.transport else None
    if sock is None or sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return "local"
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return f"local:uid={uid}"
