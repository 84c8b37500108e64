"""Opens the data, admin, metrics and gRPC listeners.

data       the pipeline, for agents               server.listen
local      the pipeline, for one principal each   local[].listen
gRPC       the pipeline, for agents               server.grpc, and a port for each agent that has one
admin      the operator pages                     admin.listen, and a socket that only its owner can open
metrics    health and metrics only                metrics.listen
decisions  for other enforcement points           pdp.listen; also at server.grpc, the admin listener and its socket
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from sidecar.admin.admin_app import PROBES, AdminApp, OperatorSecrets
from sidecar.admin.other_workers import OtherWorkers
from sidecar.app.session_relay import SessionRelay
from sidecar.audit.recorder import Recording
from sidecar.errors import Reason, Refusal, SettingsError, fault_in
from sidecar.gateway.error_responses import AnswerShape, tell
from sidecar.gateway.frontends.grpc_connections import GrpcConnections
from sidecar.gateway.pipeline import Pipeline
from sidecar.gateway.request_metrics import request_line
from sidecar.gateway.routing import Entrance, hosts_for
from sidecar.http.server.bound_sockets import unbound
from sidecar.http.server.fd_limits import enough_for
from sidecar.http.server.inherited_sockets import inherited
from sidecar.http.server.listeners import Handle, IsStale, Listener, ListenerDeadlines, Server, open_listener
from sidecar.http.server.response import SilentResponse, WholeResponse
from sidecar.http.tls import ShownCertificate, TlsContexts, follows
from sidecar.settings.addresses import ListenAddress, UnixAddress
from sidecar.settings.server import AdminCredential
from sidecar.settings.sidecar_file import Settings

if TYPE_CHECKING:
    from sidecar.admin.console.handler import Console
    from sidecar.admin.console.page_process import PageProcess
    from sidecar.admin.decisions import DecisionEndpoints
    from sidecar.admin.routes import OperatorAction

log = logging.getLogger("sidecar.app.servers")


class GrpcServer(Protocol):
    async def stop(self, grace: float | None) -> None: ...


@dataclass(slots=True)
class Servers:
    """All open listeners: of HTTP, data first, then local ones, then admin; of gRPC by name, "" for the common one and
    others by agent. `path` is the settings file, named in faults."""

    path: Path
    settings: Settings
    pipeline: Pipeline
    listeners: list[Listener] = field(default_factory=list)
    grpc_servers: list[GrpcServer] = field(default_factory=list)
    grpc_ports: dict[str, int] = field(default_factory=dict)
    grpc_guests: list[GrpcConnections] = field(default_factory=list)
    page_process: PageProcess | None = None

    async def open(self, data: Listener, operated: OperatorAction, undo: AsyncExitStack) -> None:
        """Serves at `data`, which is already bound, then opens all other listeners. Raises SettingsError."""
        patience = _patience(self.settings)
        first = self.pipeline.live.current.tls
        tls = None if first is None else follows(first, lambda: self.pipeline.live.current.tls)
        entrances = [(data, data_entrance(self.settings, data))]
        for local in self.settings.local:
            listener = take(local.listen, undo, self.path)
            entrances.append((listener, local_entrance(listener, local.principal)))
        relay = SessionRelay.of(self.settings, self.pipeline, [entrance for _, entrance in entrances])
        for number, (listener, entrance) in enumerate(entrances):
            handled: Handle = partial(self.pipeline.handle, entrance=entrance)
            if relay is not None:
                handled = partial(relay.handle, number=number)
            server = Server(handled, self._broken, patience, _stale_after(lambda: self.pipeline.live.current.tls))
            listener.is_shared = bool(self.settings.server.worker)
            listener.serve(server, tls if listener is data else None)
            self.listeners.append(listener)
        if relay is not None:
            relayed = take(UnixAddress(relay.sockets[relay.me]), undo, self.path)
            relayed.serve(Server(relay.handle_relayed, self._broken, patience))
            self.listeners.append(relayed)
        settings, decisions = self.settings, None
        live = self.pipeline.live

        def secrets() -> Mapping[bytes, AdminCredential]:
            return live.current.operators

        if settings.pdp is not None:
            from sidecar.admin.decisions import decisions_from

            decisions = decisions_from(self.pipeline, settings, secrets)
        await self._open_grpc(patience, undo, decisions)
        is_stale = _stale_after(lambda: self.pipeline.live.current.pdp_tls)
        for listener, handle, its_tls in await self._for_operators(operated, undo, secrets, decisions):
            listener.is_shared = bool(settings.server.worker) and listener.is_passed
            listener.serve(Server(handle, _broken_at_admin, patience, is_stale, PROBES), its_tls)
            self.listeners.append(listener)
        inherited().check_all_taken(self.path)

    def part_with_stale(self) -> None:
        """Closes connections that were authenticated by certificate authorities that have changed since."""
        for listener in self.listeners:
            listener.part_with_stale()

    def close_connections_after_answers(self) -> None:
        """Ends each HTTP/1 connection with its next answer, so that its caller connects elsewhere."""
        for listener in self.listeners:
            listener.close_connections_after_answers()

    async def close(self, left_s: float) -> None:
        await asyncio.gather(
            *(listener.close(left_s) for listener in self.listeners), *(one.stop(left_s) for one in self.grpc_servers)
        )
        if self.page_process is not None:
            await self.page_process.close()

    async def _open_console(
        self,
        operated: OperatorAction,
        admin: Listener,
        secrets: OperatorSecrets,
        others: OtherWorkers | None,
        undo: AsyncExitStack,
    ) -> Console | None:
        """Returns the console once the process that renders its pages is ready, so that the first page is served at
        once."""
        if not self.settings.admin.console.enabled:
            return None
        # Slow to import, so only when used.
        from sidecar.admin.console.page_process import PageProcess

        self.page_process = process = PageProcess()
        undo.push_async_callback(process.close)
        opening = asyncio.to_thread(_console, operated, self.settings, admin, secrets, others, process)
        console, _ = await asyncio.gather(opening, process.prepare())
        return console

    async def _for_operators(
        self,
        operated: OperatorAction,
        undo: AsyncExitStack,
        secrets: OperatorSecrets,
        decisions: DecisionEndpoints | None,
    ) -> list[tuple[Listener, Handle, TlsContexts | None]]:
        settings, metrics, live = self.settings, self.pipeline.metrics, self.pipeline.live
        admin = take(settings.admin.listen, undo, self.path)
        control = take(UnixAddress(settings.control_path), undo, self.path)
        local, entrance = None if decisions is None else replace(decisions, local=True), local_entrance(control)
        others = OtherWorkers.of(settings)
        trusted = AdminApp(operated, metrics, entrance, trusted=True, decisions=local, others=others)
        console = await self._open_console(operated, admin, secrets, others, undo)
        guarded = AdminApp(
            operated,
            metrics,
            local_entrance(admin),
            secrets=secrets,
            decisions=decisions,
            others=others,
            console=console,
        )
        found: list[tuple[Listener, Handle, TlsContexts | None]] = [
            (admin, guarded.handle, None),
            (control, trusted.handle, None),
        ]
        if settings.metrics.listen is not None:
            scraped = take(settings.metrics.listen, undo, self.path)
            health = AdminApp(operated, metrics, Entrance(None), health_only=True, others=others)
            found.append((scraped, health.handle, None))
        if others is not None:
            own_socket = take(UnixAddress(settings.worker_socket(others.me)), undo, self.path)
            entrance = local_entrance(own_socket)
            of_one = AdminApp(
                operated, metrics, entrance, trusted=True, others=others, for_workers=True, console=console
            )
            found.append((own_socket, of_one.handle, None))
        if decisions is not None and (own := settings.pdp and settings.pdp.listen):
            asked, first = take(own, undo, self.path), live.current.pdp_tls
            tls = None if first is None else follows(first, lambda: live.current.pdp_tls)
            found.append((asked, replace(decisions, local=isinstance(own, UnixAddress)).handle, tls))
        return found

    async def _broken(self, peer: str, status: int) -> web.StreamResponse:
        """Refuses and records bytes that are not a valid HTTP request."""
        pipeline, metrics = self.pipeline, self.pipeline.metrics
        reason = Reason.MALFORMED_CALL if status < 500 else Reason.INTERNAL
        record = Recording(pipeline.audit, protocol="http", peer=peer)
        refusal = Refusal(reason, "this is not a valid HTTP request" if status < 500 else "")
        if pipeline.stages.refusals.closes(None, peer, refusal):
            return SilentResponse()
        told = tell(refusal, AnswerShape.PLAIN, decision_id=record.decision_id)
        try:
            await record.refused(refusal, http_status=told.status)
        except Refusal as unrecorded:
            told = tell(unrecorded, AnswerShape.PLAIN, decision_id=record.decision_id)
        if pipeline.request_lines is not None:
            pipeline.request_lines.put(request_line(record, refusal))
        metrics.request_finished("http", "", "", refusal.answer.status, record.duration_s, {})
        return WholeResponse(told.status, told.body, told.content_type)

    async def _open_grpc(
        self, patience: ListenerDeadlines, undo: AsyncExitStack, decisions: DecisionEndpoints | None
    ) -> None:
        """Opens the gRPC listener, which also answers `decisions`, and one for each agent with its own port. Raises
        SettingsError."""
        settings = self.settings
        address = settings.server.grpc
        if not isinstance(address, ListenAddress):
            return
        # Slow to import, so only when used.
        from sidecar.gateway.decisions.ext_authz_grpc import ROOM_BYTES, AuthorizationService
        from sidecar.gateway.frontends.a2a.grpc import GrpcCalls
        from sidecar.gateway.frontends.grpc_listener import GrpcService, credentials_from, serve

        live = self.pipeline.live
        first = live.current.tls
        credentials = None if first is None else credentials_from(lambda: (live.current.tls or first).pair)
        handle = partial(self.pipeline.handle, entrance=Entrance(None, grpc=True))
        ports = {name: agent.grpc_port for name, agent in live.current.agents.items()}
        wanted = [("", address.port), *((name, port) for name, port in ports.items() if port is not None)]
        for name, port in wanted:
            place = str(replace(address, port=port))
            bounds: dict[str, Any] = {
                "patience_s": settings.server.body_timeout_s,
                "at_once": settings.server.max_connections,
                "turned_away": self.pipeline.stages.refusals.turned_away,
                "guests": GrpcConnections(patience.max_connections, patience.max_per_peer),
            }
            calls = GrpcCalls(
                handle=handle,
                agent=name,
                meant=lambda label: live.current.meant_in_grpc(label),
                authority=(settings.server.grpc_authority_header or "").lower(),
                max_bytes=settings.server.max_body_bytes,
                **bounds,
            )
            services: list[GrpcService] = [calls]
            if decisions is not None and not name:
                most = settings.server.max_body_bytes + ROOM_BYTES
                answers: dict[str, Any] = {"point": decisions.point, "name_of": decisions.name_of}
                services.append(AuthorizationService(max_bytes=most, **answers, **bounds))
            try:
                server, found = await serve(
                    place,
                    services,
                    credentials=credentials,
                    greeting_s=settings.server.header_timeout_s,
                    idle_s=settings.server.keepalive_timeout_s,
                    shares_port=bool(settings.server.worker),
                )
            except OSError as error:
                message = f"cannot listen on {place} for gRPC"
                raise SettingsError([fault_in(self.path, message, code="S133", hint=str(error)[:200])]) from None
            undo.push_async_callback(server.stop, 0.0)
            self.grpc_servers.append(server)
            self.grpc_ports[name] = found
            self.grpc_guests.append(calls.guests)


def _console(
    operated: OperatorAction,
    settings: Settings,
    admin: Listener,
    secrets: OperatorSecrets,
    others: OtherWorkers | None,
    process: PageProcess,
) -> Console:
    from sidecar.admin.console.handler import Console

    return Console.open(operated, settings.admin.console, local_entrance(admin), secrets, admin.port, others, process)


def _stale_after(current: Callable[[], TlsContexts | None]) -> IsStale:
    """Returns a function that reports whether a peer was authenticated by other authorities than the `current` ones."""

    def is_stale(shown: ShownCertificate) -> bool:
        tls = current()
        return shown.trust not in ("", "" if tls is None else tls.trust)

    return is_stale


def _patience(settings: Settings) -> ListenerDeadlines:
    server = settings.server
    connections = enough_for(server.max_connections)
    if connections < server.max_connections:
        log.warning(
            "fewer connections are accepted than configured: raise the limit of open files",
            extra={"connections": connections},
        )
    return ListenerDeadlines(
        server.header_timeout_s, server.keepalive_timeout_s, connections, server.connections_per_peer
    )


async def _broken_at_admin(peer: str, status: int) -> web.Response:
    """Refuses bytes that are not an HTTP request, without a record: the audit covers callers."""
    return web.Response(status=status, headers={"Server": "sidecar"})


def take(address: ListenAddress | UnixAddress, undo: AsyncExitStack, config: Path) -> Listener:
    """Binds an address; `undo` releases it if the start fails. Raises SettingsError, naming `config`."""
    try:
        listener = open_listener(address)
    except OSError as error:
        raise unbound(config, address, error) from None
    undo.push_async_callback(listener.close, 0.0)
    return listener


def base_url_of(settings: Settings, data: Listener) -> str:
    """The URL under which callers reach this sidecar, without a trailing slash."""
    if settings.server.public_url is not None:
        return str(settings.server.public_url).rstrip("/")
    if isinstance(data.address, UnixAddress):
        return "http://localhost"
    scheme = "http" if settings.server.tls is None else "https"
    return f"{scheme}://{replace(data.address, port=data.port)}"


def data_entrance(settings: Settings, listener: Listener) -> Entrance:
    server = settings.server
    hosts = _hosts(listener, str(server.public_url or ""), server.allowed_hosts)
    # Pages under this sidecar's own host names are same-origin. `hosts` lists the accepted names, which rules out DNS
    # rebinding.
    own = {f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts if host.endswith(f":{listener.port}")}
    if server.public_url:
        own.add(str(server.public_url).lower().rstrip("/"))
    shared = frozenset(origin.lower() for origin in server.allowed_origins)
    prefix = urlsplit(str(server.public_url or "")).path.rstrip("/")
    return Entrance(hosts, shared | own, shared, prefix=prefix, unix=isinstance(listener.address, UnixAddress))


def local_entrance(listener: Listener, principal: str = "") -> Entrance:
    """The entrance of a listener that no web page may call: a local one of `principal`, or the admin one."""
    return Entrance(hosts=_hosts(listener), principal=principal)


def _hosts(listener: Listener, public_url: str = "", allowed: Sequence[str] = ()) -> frozenset[str]:
    if isinstance(listener.address, UnixAddress):
        return hosts_for("localhost", 80, public_url, allowed)
    return hosts_for(listener.address.host, listener.port, public_url, allowed)
