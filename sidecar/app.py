"""Which objects make up a running sidecar, and how do they begin and end?

The composition root: every object is built here, once, and handed what it needs. Starting takes the addresses first,
so that a second start on the same machine fails before it touches anything, and serves last; stopping runs the other
way: not ready at once, calls in flight finish, the evidence is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from aiohttp import web

from sidecar import __version__
from sidecar.a2a.front import AgentFront
from sidecar.a2a.owning import TASKS as OF_AGENTS
from sidecar.a2a.pages import Pages
from sidecar.admin import Admin, Role
from sidecar.answers import Shape, tell
from sidecar.arrival import Entrance
from sidecar.audit import Audit, load_key, load_or_make_key, time_ordered_ids
from sidecar.audit.checkpoints import load_or_make_attesting_key
from sidecar.audit.copies import Copied
from sidecar.audit.herald import EVERY_S, Herald, Place, to_descriptor, to_store
from sidecar.audit.sinks import open_sink, place_of
from sidecar.audit.trail import Attester, Rotation
from sidecar.callbacks import Callbacks, callbacks_from
from sidecar.counting import StoreWatch
from sidecar.crowds import Crowds, give_memory_back
from sidecar.descriptors import enough_for
from sidecar.disabled import LEDGER_FILE, Entry, KillSwitch, Ledger, Share, object_of
from sidecar.drift import DriftWatch
from sidecar.entrances import base_url_of, data_entrance, local_entrance, take
from sidecar.errors import Reason, Refusal, SettingsError, fault_in
from sidecar.exchanges import Exchanges
from sidecar.federation import Federation
from sidecar.fronts import Fronts
from sidecar.identity.proofs import KEY as PROOF_KEY
from sidecar.identity.proofs import SCRIPT as PROOF_SCRIPT
from sidecar.identity.proofs import Share as ShareProofs
from sidecar.keeping import check_keeping
from sidecar.limits import Limiter, SessionCalls, Store, StoreUnavailable, open_store
from sidecar.limits.showing import Showing, Wanted
from sidecar.listeners import Handle, Listener, Patience, check_fast_parser
from sidecar.loading import first_snapshot, next_snapshot, run_at, task_store_from, tasks_from
from sidecar.metrics import Metrics
from sidecar.oversight import Oversight, Standing
from sidecar.pipeline import Pipeline
from sidecar.places import Places
from sidecar.plain import Plain
from sidecar.pressure import Pressure
from sidecar.processes import Processes
from sidecar.refusals import Refusals
from sidecar.reloading import Reloader
from sidecar.replicas import Replicas, Serving
from sidecar.settings import Settings, load_settings
from sidecar.settings.addresses import Address, UnixAddress
from sidecar.settings.load import load
from sidecar.settings.moments import rfc3339
from sidecar.settings.secrets import read_secret
from sidecar.snapshot import Live, Service, Snapshot
from sidecar.sources import Follower
from sidecar.states import States
from sidecar.task_api.calling_back import announces
from sidecar.task_api.following import Means
from sidecar.task_api.following import Patience as TaskPatience
from sidecar.task_api.front import TaskFront
from sidecar.task_api.running import FILE, Runner
from sidecar.task_api.store import Bounds as TaskBounds
from sidecar.task_api.store import Store as TaskApiStore
from sidecar.tasks import Tasks
from sidecar.tls import follows, shown_on
from sidecar.upstreams import Account
from sidecar.upstreams.agents import Agent
from sidecar.upstreams.health import Health
from sidecar.upstreams.roaming import Roaming
from sidecar.upstreams.sessions import Sessions
from sidecar.watching import Look, Watcher, look_at
from sidecar.whole import Silence, Whole

log = logging.getLogger("sidecar")

LOOK_EVERY_S = 0.5
STDOUT = 1
LAST_WORDS_S = 1.0  # what an answer that is being written gets, even when the grace time is over
SHADOW, ENFORCE = "shadow", "enforce"
SHADOWED = "what policy or a limit would refuse is recorded and let pass"


class GrpcServer(Protocol):
    """A listener for gRPC."""

    async def stop(self, grace: float | None) -> None: ...


@dataclass(slots=True)
class App:
    """A running sidecar."""

    path: Path
    environ: Mapping[str, str]
    settings: Settings
    processes: Processes
    audit: Audit
    metrics: Metrics
    limiter: Limiter
    counting: StoreWatch
    sessions: Sessions
    pipeline: Pipeline
    live: Live
    switch: KillSwitch
    callbacks: Callbacks
    follower: Follower
    seen: InitVar[Look]
    watcher: Watcher = field(init=False)
    reloader: Reloader = field(init=False)
    drift: DriftWatch = field(init=False)
    replicas: Replicas = field(init=False)
    herald: Herald = field(init=False)
    showing: Showing = field(init=False)
    listeners: list[Listener] = field(default_factory=list)
    grpc_servers: list[GrpcServer] = field(default_factory=list)
    grpc_ports: dict[str, int] = field(default_factory=dict)
    background: list[asyncio.Task[None]] = field(default_factory=list)
    started_at: float = field(default_factory=time.time)
    _mode_told: str = ENFORCE
    _observed: set[Account] = field(default_factory=set)

    @classmethod
    async def start(cls, path: Path, environ: Mapping[str, str]) -> Self:
        """Read everything, check everything, then serve. Raises ConfigError before anything is answered."""
        check_fast_parser()
        has_source = load(path, environ, check_files=False).settings.policy.source is not None
        loaded = load(path, environ, check_files=not has_source)
        check_keeping(loaded)
        settings = loaded.settings
        async with AsyncExitStack() as undo:
            data = take(settings.server.listen, undo, path)
            settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
            metrics = Metrics(upstreams=tuple(settings.upstreams))
            audit = _open_audit(settings, metrics)
            audit.writer.start()
            undo.push_async_callback(audit.close)
            seen = look_at(path, settings)  # before it is read: what is written from now on is a change
            processes = Processes(environ)
            undo.push_async_callback(processes.close)
            follower = Follower(processes, time.time, secrets.SystemRandom().random, metrics)
            if has_source:
                prove = partial(first_snapshot, base_url="", processes=processes, make_keys=False)
                await follower.begin(settings, prove)
                settings = load_settings(path, environ)
            first = first_snapshot(settings, base_url_of(settings, data), processes)
            await first.identity.start()
            undo.push_async_callback(first.identity.close)
            ledger = Ledger.open(settings.data / LEDGER_FILE)
            counting = StoreWatch(metrics, audit.control, settings.store.degraded_calls)
            limiter = Limiter(open_store(settings.store, time.time, observer=counting))
            undo.push_async_callback(limiter.close)
            tasks = tasks_from(settings, limiter.store)
            undo.push_async_callback(tasks.store.close)
            task_store = task_store_from(settings, limiter.store)
            undo.push_async_callback(task_store.close)
            app = cls._assemble(
                path,
                environ,
                settings,
                processes,
                audit,
                metrics,
                first,
                ledger,
                limiter,
                counting,
                tasks,
                task_store,
                follower,
                seen,
            )
            await _greet(app.limiter.store)
            await app.switch.sync()  # whom other replicas disabled, before the first call
            await app._witness("start", "sidecar", version=__version__, policy_revision=first.engine.revision)
            await app._listen(data, undo)
            await app._now_serving()
            app._run_background()
            undo.pop_all()
            return app

    @classmethod
    def _assemble(
        cls,
        path: Path,
        environ: Mapping[str, str],
        settings: Settings,
        processes: Processes,
        audit: Audit,
        metrics: Metrics,
        first: Snapshot,
        ledger: Ledger,
        limiter: Limiter,
        counting: StoreWatch,
        tasks: Tasks,
        task_store: TaskApiStore,
        follower: Follower,
        seen: Look,
    ) -> Self:
        sessions = Sessions(
            time.monotonic,
            idle_s=settings.sessions.idle_s,
            max_sessions=settings.sessions.max,
            max_per_principal=settings.sessions.max_per_principal,
        )
        first.identity.share_proofs(_share_proofs(limiter.store))
        live = Live(first, time.time)
        switch = KillSwitch(ledger, share=_share(limiter.store), witness=audit.control, clock=time.time)
        places = Places(secrets.SystemRandom().random)
        states = States(audit.key.secret, time.time)
        run = partial(run_at, limiter.store) if settings.sessions.store == "redis" else None
        roaming = Roaming(sessions, run, time.time)
        exchanges = Exchanges(live, sessions, switch, tasks, Oversight(live, switch), places, states, roaming)
        session_calls = SessionCalls(settings.sessions.session_calls_per_minute, time.monotonic)
        federation = Federation(live, sessions, exchanges, metrics, key=secrets.token_bytes(32))
        callbacks = callbacks_from(
            lambda: live.current.settings,
            lambda: live.current.base_url,
            metrics,
            Standing(live, switch).objection,
            audit.control,
            partial(tasks.is_anothers, namespace=OF_AGENTS),
            partial(run_at, limiter.store),
        )
        announce = announces(callbacks.outbox)
        means = Means(task_store, tasks, live, switch, audit, announce, limiter, partial(_patience, live))
        holder = FILE if settings.tasks.store == "file" else secrets.token_hex(8)
        runner = Runner(means, metrics, holder, partial(_task_bounds, live))
        pipeline = Pipeline(
            live=live,
            session_calls=session_calls,
            limiter=limiter,
            audit=audit,
            metrics=metrics,
            exchanges=exchanges,
            fronts=Fronts(sessions, federation, Plain(exchanges, session_calls), exchanges.recall),
            agents=AgentFront(exchanges, callbacks.pushes, Pages(audit.key.secret)),
            task_front=TaskFront(exchanges, runner, callbacks.guard.check, audit.new_id),
            switch=switch,
            tasks=tasks,
            pressure=Pressure(
                settings.server.max_lag_s,
                metrics.loop_lagged,
                partial(_witness_jump, audit),
                secrets.SystemRandom().random,
            ),
            refusals=Refusals(lambda: live.current.settings.refusals, metrics, time.monotonic),
            clock=time.time,
        )
        return cls(
            path,
            environ,
            settings,
            processes,
            audit,
            metrics,
            limiter,
            counting,
            sessions,
            pipeline,
            live,
            switch,
            callbacks,
            follower,
            seen,
        )

    def __post_init__(self, seen: Look) -> None:
        self.watcher = Watcher(self.path, lambda: self.live.current.settings, seen)
        self.reloader = Reloader(
            self.live,
            partial(next_snapshot, self.path, self.environ, self.processes),
            self.watcher,
            self.metrics,
            witness=self._witness,
            serves=self._now_serving,
        )
        self.herald = Herald(_places_of_checkpoints(self.settings, self.limiter.store))
        self.showing = Showing(self.limiter.store)
        run = partial(run_at, self.limiter.store)
        self.replicas = Replicas(secrets.token_hex(8), run, self._serving, self._heard_of_news)
        self.drift = DriftWatch(self.live, self.metrics, self._witness, time.monotonic)

    @property
    def base_url(self) -> str:
        """Our address as callers write it."""
        return self.live.current.base_url

    async def stop(self) -> None:
        """Not ready at once; calls in flight finish within the grace time; the evidence is closed last."""
        until_s = asyncio.get_running_loop().time() + self.settings.server.shutdown_grace_s
        await self.pipeline.drain(self.settings.server.shutdown_grace_s)  # who comes meanwhile hears 503, not silence
        left_s = max(LAST_WORDS_S, until_s - asyncio.get_running_loop().time())
        await asyncio.gather(
            *(listener.close(left_s) for listener in self.listeners), *(one.stop(left_s) for one in self.grpc_servers)
        )
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        await self.pipeline.task_front.runner.stop(max(0.0, until_s - asyncio.get_running_loop().time()))
        await self.reloader.close()
        await asyncio.gather(*(one.close() for one in self.live.current.upstreams.values()))
        await self.processes.close()
        await self.live.current.identity.close()
        await self.pipeline.tasks.store.close()
        await self.callbacks.close()
        with suppress(SettingsError):  # logged; a disk that is full must not keep us here
            await self.pipeline.refusals.tell(self._witness)
            await self._witness("stop", "sidecar")
        await self._seal_evidence()
        await self.limiter.close()
        await self.audit.close()

    # --- what operators ask -----------------------------------------------------------------------------------------

    def readiness(self) -> tuple[bool, Mapping[str, Any]]:
        """Serving, unless draining; `degraded` while the newest files could not be taken, or the store is out."""
        if self.pipeline.draining:
            return False, {"status": "draining"}
        trouble = [*self.reloader.trouble, *self.follower.trouble]
        if told := self.counting.trouble(self.limiter.store):
            trouble.append(told)
        if not self.pipeline.tasks.store.up:
            trouble.append("the task store is out: nobody's tasks can be asked for")
        if not self.pipeline.exchanges.roaming.up:
            trouble.append("the store of sessions is out: they are answered 503")
        if not self.callbacks.outbox.store.up:
            trouble.append("the store of callbacks is out: none is taken")
        if not self.pipeline.task_front.runner.means.store.up:
            trouble.append("the store of the task API is out: no task can be created or shown")
        if self.pipeline.pressure.refused_share:
            trouble.append("the loop cannot keep up: a share of new calls is refused")
        if not self.audit.writer.up:
            trouble.append("the evidence cannot be written: what needs it is refused")
        if not self.switch.saved:
            trouble.append("disabled principals cannot be saved: a restart would not know all of them")
        trouble += [f"no usable keys of {state.issuer}" for state in self._keyless()]
        return True, {"status": "degraded", "reasons": trouble} if trouble else {"status": "ready"}

    def status(self) -> Mapping[str, Any]:
        """What runs here: version, policy, upstreams, store, sessions. No secret, no principal."""
        now = self.live.current
        ready, why = self.readiness()
        return {
            "version": __version__,
            "ready": ready,
            **why,
            "banners": list(self.banners()),
            "started_at": rfc3339(self.started_at),
            "policy": {
                "revision": now.engine.revision,
                "loaded_at": rfc3339(self.reloader.loaded_at),
                "rules": dict(now.engine.rule_counts),
                "warnings": [str(fault) for fault in now.engine.warnings],
                "mode": self._mode(),
                "shadow_until": None if now.shadow_until is None else rfc3339(now.shadow_until),
                "source": self.follower.status(now.settings),
                "replicas": None if self.replicas.skew is None else self.replicas.skew._asdict(),
            },
            "disabled_principals": len(self.disabled_principals()),
            "upstreams": self.upstreams(),
            "issuers": {state.issuer: {"usable": state.usable} for state in now.identity.key_states},
            "store": {
                "kind": self.limiter.store.kind,
                "up": self.limiter.store.up,
                "trouble": self.limiter.store.trouble or None,
                "on_failure": self.settings.store.on_failure,
                "degraded": self.limiter.store.degraded,
            },
            "sessions": len(self.sessions),
        }

    def upstreams(self) -> Mapping[str, Mapping[str, Any]]:
        """How each upstream stands, by name."""
        now = self.live.current
        servers = {name: self._upstream(name, service) for name, service in now.services.items()}
        return servers | {name: self._agent(name, agent) for name, agent in now.agents.items()}

    def _agent(self, name: str, agent: Agent) -> Mapping[str, Any]:
        stopped = {entry.principal for entry in self.disabled_principals()}
        return {**agent.account.plain(), "protocol": "a2a", "enabled": f"nhi:{name}" not in stopped}

    def _upstream(self, name: str, service: Service) -> Mapping[str, Any]:
        off = {entry.principal for entry in self.switched_off()}
        own = f"tool:{name}/"
        return {
            **service.account.plain(),
            "enabled": object_of(name) not in off,
            "disabled_tools": sorted(each.removeprefix(own) for each in off if each.startswith(own)),
            **service.catalogue.summary(),
            **self.drift.summary(service),
        }

    def discovered(self, name: str) -> Mapping[str, Any]:
        """The tools, prompts and resources that an upstream has, by name."""
        service = self.live.current.services.get(name)
        return {} if service is None else service.catalogue.discovered()

    def is_server(self, name: str) -> bool:
        """Whether an MCP server is called so."""
        return name in self.live.current.services

    def banners(self) -> tuple[str, ...]:
        """What an operator must not overlook, in sentences."""
        until = self.live.current.shadow_until
        shadow = (f"SHADOW MODE until {rfc3339(until)}: {SHADOWED}",) if self._mode() == SHADOW and until else ()
        count = len(self.disabled_principals())
        disabled = (f"{count} principal{'s are' if count > 1 else ' is'} disabled",) if count else ()
        store = self.limiter.store
        alone = (f"DEGRADED: {self.counting.trouble(store)}",) if store.degraded else ()
        return (*shadow, *alone, *disabled, *self.reloader.trouble, *self.follower.trouble)

    def disabled_principals(self) -> Sequence[Entry]:
        """Everybody who is disabled now, by hand and by policies/disabled.yaml."""
        now_s = self.pipeline.clock()
        return (*self.switch.disabled.in_force(now_s), *self.live.current.disabled.in_force(now_s))

    async def limits(self, wanted: Wanted) -> Mapping[str, Any]:
        """Who used what, and how much is left. Raises StoreUnavailable."""
        now = self.live.current
        shown, more = await self.showing.show(wanted, now.limited, now.engine.roles_of)
        return {"store": self.limiter.store.kind, "limits": shown, "more": more}

    async def disable(self, principal: str, *, reason: str, until: float | None, by: str) -> Entry:
        """Disable a principal, here and at every replica. Raises SwitchError."""
        return await self.switch.disable(principal, reason=reason, until=until, by=by)

    async def enable(self, principal: str, *, by: str) -> bool:
        """Take that back; False if there was nothing to take back. Raises SwitchError."""
        return await self.switch.enable(principal, by=by)

    def switched_off(self) -> Sequence[Entry]:
        """Every tool and server that is switched off now."""
        return self.switch.switched_off.in_force(self.pipeline.clock())

    async def switch_off(self, server: str, tool: str, *, reason: str, until: float | None, by: str) -> Entry:
        """Switch off one tool of a server, or with "" all that it offers, at every replica. Raises SwitchError."""
        return await self.switch.switch_off(object_of(server, tool), reason=reason, until=until, by=by)

    async def switch_on(self, server: str, tool: str, *, by: str) -> bool:
        """Take that back; False if there was nothing to take back. Raises SwitchError."""
        return await self.switch.switch_on(object_of(server, tool), by=by)

    async def reload(self, by: str) -> str:
        """Take models, rules, budgets, keys, issuers and upstreams as the files are now, and what the policy's source
        has."""
        await self.follower.look(self._settings_now(), self.reloader.adopt, by)
        return await self.reloader.reload(by)

    async def _witness(self, what: str, by: str, **facts: object) -> None:
        """Put on record what was done to the sidecar itself. Raises SettingsError if it cannot be."""
        try:
            await self.audit.control(what, by, **facts)
        except Refusal:
            log.error("the audit cannot be written", extra={"control": what})
            hint = "is its disk full, or read-only? Is who takes it awake?"
            place = place_of(self.settings)
            raise SettingsError([fault_in(place, "the audit cannot be written", code="A111", hint=hint)]) from None

    # --- beginnings -------------------------------------------------------------------------------------------------

    async def _listen(self, data: Listener, undo: AsyncExitStack) -> None:
        settings = self.settings
        server = settings.server
        connections = enough_for(server.max_connections)
        if connections < server.max_connections:
            log.warning("fewer connections than configured: descriptors are short", extra={"connections": connections})
        patience = Patience(
            server.header_timeout_s,
            server.keepalive_timeout_s,
            connections,
            server.connections_per_peer,
            server.max_unread_bytes,
        )
        first = self.live.current.tls
        tls = None if first is None else follows(first, lambda: self.live.current.tls)
        open_: list[tuple[Listener, Handle]] = [
            (data, partial(self.pipeline.handle, entrance=data_entrance(settings, data)))
        ]
        for local in settings.local:
            listener = take(local.listen, undo, self.path)
            open_.append((listener, partial(self.pipeline.handle, entrance=local_entrance(listener, local.principal))))
        for listener, handle in open_:
            await listener.serve(handle, self._broken, patience, tls if listener is data else None, self._is_stale)
            self.listeners.append(listener)
        await self._listen_to_grpc(undo)
        for listener, handle in self._admin_listeners(undo):
            await listener.serve(handle, _broken_at_admin, patience)
            self.listeners.append(listener)

    def _is_stale(self, transport: asyncio.BaseTransport) -> bool:
        """Whether other authorities than those that serve now vouched for who is at the other end."""
        tls = self.live.current.tls
        return shown_on(transport).trust not in ("", "" if tls is None else tls.trust)

    async def _listen_to_grpc(self, undo: AsyncExitStack) -> None:
        """Its own listener, and one for each agent with a port of its own. Raises SettingsError."""
        settings = self.settings
        address = settings.server.grpc
        if not isinstance(address, Address):
            return
        from sidecar.a2a.grpc import Calls, credentials_from, serve  # only where it is wanted: it takes its time

        def lone() -> str:
            agents = self.live.current.agents
            return next(iter(agents)) if len(agents) == 1 else ""

        first = self.live.current.tls
        credentials = None if first is None else credentials_from(lambda: (self.live.current.tls or first).pair)
        handle = partial(self.pipeline.handle, entrance=Entrance(None))
        ports = {name: one.a2a.grpc_port for name, one in settings.upstreams.items() if one.a2a is not None}
        wanted = [("", address.port), *((name, port) for name, port in ports.items() if port is not None)]
        for name, port in wanted:
            place = str(replace(address, port=port))
            try:
                server, found = await serve(
                    place,
                    Calls(handle, name, lone, settings.server.body_timeout_s),
                    max_bytes=settings.server.max_body_bytes,
                    at_once=settings.server.max_connections,
                    credentials=credentials,
                    greeting_s=settings.server.header_timeout_s,
                    idle_s=settings.server.keepalive_timeout_s,
                )
            except OSError as error:
                message = f"{place} cannot be listened on for gRPC"
                raise SettingsError([fault_in(self.path, message, code="S133", hint=str(error)[:200])]) from None
            undo.push_async_callback(server.stop, 0.0)
            self.grpc_servers.append(server)
            self.grpc_ports[name] = found

    def _admin_listeners(self, undo: AsyncExitStack) -> list[tuple[Listener, Handle]]:
        settings = self.settings
        secrets_: dict[bytes, Role] = {
            read_secret(credential.secret_path, "ours").encode(): credential.role
            for credential in settings.admin.credentials
        }
        admin = take(settings.admin.listen, undo, self.path)
        control = take(UnixAddress(settings.control_path), undo, self.path)
        found = [
            (admin, Admin(self, self.metrics, local_entrance(admin), secrets_)),
            (control, Admin(self, self.metrics, local_entrance(control), {}, trusted=True)),
        ]
        if settings.metrics is not None:
            scraped = take(settings.metrics.listen, undo, self.path)
            found.append((scraped, Admin(self, self.metrics, Entrance(None), {}, health_only=True)))
        return [(listener, handler.handle) for listener, handler in found]

    async def _broken(self, peer: str, status: int) -> web.StreamResponse:
        """Bytes that were no HTTP request are refused, and recorded, like everything else."""
        reason = Reason.MALFORMED_CALL if status < 500 else Reason.INTERNAL
        record = self.audit.recording(protocol="http", peer=peer)
        refusal = Refusal(reason, "this is no HTTP request that we serve" if status < 500 else "")
        if self.pipeline.refusals.closes(None, peer, refusal):
            return Silence()
        told = tell(refusal, Shape.PLAIN, decision_id=record.decision_id)
        self.metrics.request_started("http")
        try:
            await record.refused(refusal, http_status=told.status)
        except Refusal as unrecorded:
            told = tell(unrecorded, Shape.PLAIN, decision_id=record.decision_id)
        self.metrics.request_finished("http", "", "", refusal.answer.status, record.duration_s, {})
        return Whole(told.status, told.body, told.content_type)

    def _run_background(self) -> None:
        exchanges = self.pipeline.exchanges
        health = Health(lambda: self.live.current.upstreams, random=secrets.SystemRandom())
        jobs = (
            health.run(),
            exchanges.run_farewells(),
            exchanges.run_sweeps(),
            self.pipeline.tasks.run_sweeps(),
            self.callbacks.outbox.run(),
            self.callbacks.run_sweeps(),
            self.pipeline.task_front.runner.run(),
            self.switch.run(),
            self._keep_evidence(),
            self.watcher.run(self.reloader.files_changed),
            self.follower.run(self._settings_now, self.reloader.adopt),
            self.pipeline.pressure.run(),
            self.pipeline.refusals.run(self.audit.control),
            self.replicas.run(),
            self._watch(),
        )
        self.background = [asyncio.create_task(job) for job in jobs]
        for task in self.background:
            task.add_done_callback(_ended)

    async def _watch(self) -> None:
        """What is known only by looking. Runs as long as the process."""
        metrics, crowds = self.metrics, Crowds(give_memory_back)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            metrics.sessions(len(self.sessions))
            streams = self.pipeline.exchanges.streams
            for protocol in ("mcp", "a2a"):
                metrics.streams(protocol, sum(one.call.protocol == protocol for one in streams))
            crowds.look(len(self.pipeline.exchanges.streams))
            await self.counting.look(self.limiter.store)
            if self.replicas.skew is not None:
                metrics.replicas(*self.replicas.skew)
            metrics.budgets_reset(time.time())
            metrics.audit_depth(self.audit.writer.depth)
            metrics.audit_up(self.audit.writer.up)
            if isinstance(sink := self.audit.trail.sink, Copied):
                metrics.audit_copied(sink.copied, sink.lost)
            await self._tell_mode()  # shadow mode ends by the clock
            await self.drift.look()

    async def _keep_evidence(self) -> None:
        """Checkpoints and new files that are due by time, and the checkpoints to where they are published."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.audit.look()
            await self.herald.tell(self.audit.trail.newest)

    async def _seal_evidence(self) -> None:
        """The last checkpoint, and whoever is to hear it."""
        try:
            await self.audit.seal()
        except OSError as error:
            log.error("the end of the evidence cannot be attested", extra={"error": str(error)})
        await self.herald.tell(self.audit.trail.newest)

    def _serving(self) -> Serving:
        now = self.live.current
        return Serving(now.engine.revision, self.follower.version(now.settings))

    def _heard_of_news(self) -> None:
        """Another replica loaded something that does not serve here."""
        self.follower.hint()
        self.watcher.hint()

    def _settings_now(self) -> Settings:
        return self.live.current.settings

    def _keyless(self) -> list[Any]:
        return [state for state in self.live.current.identity.key_states if not state.usable]

    async def _now_serving(self) -> None:
        """A snapshot came into force: tell the operators what it is."""
        now = self.live.current
        self.showing.take(now.budgets)
        engine = now.engine
        self.metrics.reconfigured(upstreams=now.upstreams, limits=now.limit_labels, budgets=now.budget_labels)
        self.metrics.policy_loaded(engine.revision, engine.rule_counts, self.reloader.loaded_at)
        self.metrics.store_is(self.limiter.store.kind)
        accounts = {one.account for one in now.upstreams.values()}
        for account in self._observed - accounts:
            account.observed_by(None)
        for account in accounts:
            account.observed_by(self.metrics)
        self._observed = accounts
        for listener in self.listeners:  # who was let in by authorities that were changed comes anew
            listener.part_with_stale()
        await self._tell_mode()
        for banner in self.banners():
            log.warning(banner)
        self.watcher.hint()  # other files may count now
        self.follower.reconsider()

    def _mode(self) -> str:
        return SHADOW if self.live.current.shadows(self.pipeline.clock()) else ENFORCE

    async def _tell_mode(self) -> None:
        """The mode in force, as a metric, and each change of it on record."""
        mode, until = self._mode(), self.live.current.shadow_until
        self.metrics.enforcement(mode)
        if mode == self._mode_told:
            return
        self._mode_told = mode
        log.warning("policy is in another mode now", extra={"mode": mode, "shadow_until": until and rfc3339(until)})
        with suppress(SettingsError):  # logged
            await self._witness("mode", "sidecar", mode=mode, shadow_until=until and rfc3339(until))


async def _broken_at_admin(peer: str, status: int) -> web.Response:
    """The evidence is of callers; who sends garbage to the operators' address is told so, and no more."""
    return web.Response(status=status, headers={"Server": "sidecar"})


def _open_audit(settings: Settings, metrics: Metrics) -> Audit:
    attesting, rotate = settings.audit.checkpoints, settings.audit.rotate
    attesting_key = load_or_make_attesting_key(settings.checkpoint_key_path)
    older = [load_key(path) for path in settings.previous_audit_key_paths if path.exists()]
    key = load_or_make_key(settings.audit_key_path)
    instance = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
    opened = open_sink(settings, key, instance, older)
    try:
        audit = Audit(
            opened.sink,
            opened.found,
            key=key,
            durability=settings.audit.durability,
            instance=instance,
            clock=time,
            new_id=time_ordered_ids(time),
            metrics=metrics,
            evidence_path=settings.evidence_path,
            attester=Attester(attesting_key, attesting.every_records, attesting.every_s),
            rotation=Rotation(rotate.max_bytes, rotate.every_s, rotate.keep),
        )
    except OSError as error:
        opened.sink.close()
        message = f"the audit cannot be written: {error}"
        raise SettingsError([fault_in(opened.place, message, code="A111")]) from None
    if audit.found:
        log.warning("the audit was not in order", extra={"found": audit.found})
    return audit


async def _witness_jump(audit: Audit, seconds: float) -> None:
    """What was recorded before and after it has times that cannot be compared."""
    with suppress(Refusal):  # logged where it happened, and the audit says itself that it cannot write
        await audit.control("clock-jump", "sidecar", seconds=round(seconds, 3))


async def _greet(store: Store) -> None:
    """Connect before the first call needs it. A store that is out stops no start: calls with limits are refused."""
    try:
        await store.ping()
    except StoreUnavailable as error:
        log.warning("the store is out: calls with limits are refused until it answers", extra={"error": str(error)})


def _patience(live: Live) -> TaskPatience:
    chosen = live.current.settings.tasks
    return TaskPatience(chosen.follow_s, chosen.away_s, chosen.ask_every_s, chosen.max_result)


def _task_bounds(live: Live) -> TaskBounds:
    chosen = live.current.settings.tasks
    return TaskBounds(chosen.max_per_principal, chosen.max)


def _share(store: Store) -> Share:
    """How the kill switch of this replica reaches those of the others; a store that is out is asked again later."""

    async def share(script: str, key: str, arguments: Sequence[str]) -> Any:
        try:
            return await store.run(script, key, arguments)
        except StoreUnavailable:
            return None

    return share


def _places_of_checkpoints(settings: Settings, store: Store) -> Mapping[str, Place]:
    """Where checkpoints are published."""

    async def run(script: str, key: str, arguments: Sequence[str]) -> Any:
        try:
            return await store.run(script, key, arguments)
        except StoreUnavailable as error:
            raise OSError(str(error)) from None

    known = {"stdout": to_descriptor(STDOUT), "store": to_store(run)}
    return {name: known[name] for name in settings.audit.checkpoints.to}


def _share_proofs(store: Store) -> ShareProofs:
    """How replicas know which proofs were used. A store that is out lets none pass."""

    async def share(name: str, for_ms: int) -> bool | None:
        try:
            answer = await store.run(PROOF_SCRIPT, f"{PROOF_KEY}{name}", [str(for_ms)])
        except StoreUnavailable:
            raise Refusal(Reason.STORE_UNAVAILABLE) from None
        return None if answer is None else bool(answer)

    return share


def _ended(task: asyncio.Task[None]) -> None:
    """What runs as long as the process does not end by itself: a bug that must not go unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a background task died", exc_info=error)
