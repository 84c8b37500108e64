"""Starts, runs and stops one sidecar.

The start binds the data address first, so that a second start on the same machine fails before it changes anything. It
then opens the audit and the shared stores, loads the policy, builds the request path, and starts to serve. The stop
runs in reverse: readiness fails at once, calls in flight finish, and the audit is closed after everything that writes
to it. In between, the application runs the background jobs and carries out operators' requests.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sidecar import __version__
from sidecar.admin.other_workers import kept_series
from sidecar.app.background import BackgroundJobs
from sidecar.app.container import RequestPath, way_from
from sidecar.app.control_records import ControlRecords
from sidecar.app.file_watcher import FileWatcher, WatchLook, look_at, with_made
from sidecar.app.loader import check_keeping, executions_from, next_snapshot, snapshot_of
from sidecar.app.policy_examinations import PolicyExaminations
from sidecar.app.policy_sources.poller import SourcePoller
from sidecar.app.reload import Reloader, policy_facts
from sidecar.app.sampled_gauges import SampledGauges
from sidecar.app.servers import Servers, base_url_of, take
from sidecar.app.shared_store import SharedStore, key_digests
from sidecar.app.status import ENFORCE, RecentRequests, StatusReport
from sidecar.app.tool_drift import ToolDrift
from sidecar.errors import SettingsError
from sidecar.gateway.kill_switch import SwitchEntry, SwitchLedger, object_of
from sidecar.gateway.kill_switch.known_names import KnownNames, known
from sidecar.gateway.reauthorization import ContinuedPermission
from sidecar.http.server.listeners import check_fast_parser
from sidecar.limits.usage_report import UsageQuery, UsageReport
from sidecar.observability.log_lines import RequestLines
from sidecar.observability.metrics import Metrics
from sidecar.observability.telemetry import Telemetry
from sidecar.settings.load import load, load_settings
from sidecar.settings.sidecar_file import METRICS_FILE, Settings
from sidecar.settings.timestamps import rfc3339
from sidecar.storage.peers import Peers, ServedRevision
from sidecar.tasks.programs.executions import Executions
from sidecar.tasks.programs.run_record import RUNS
from sidecar.upstreams.health import HealthProbes
from sidecar.upstreams.processes.launcher import Processes

if TYPE_CHECKING:
    from sidecar.admin.operator_api import OperatorApi

LOOK_EVERY_S = 0.5
LAST_WORDS_S = 1.0  # granted to responses in progress even after the grace time
CLOSING_S = 10.0  # the maximum time after the grace time: last events, killing programs, the audit's seal

T = TypeVar("T")

log = logging.getLogger("sidecar")


class Application:
    """A running sidecar. It implements `admin.routes.OperatorAction`, largely by methods of its parts."""

    telemetry: Telemetry | None = None

    @classmethod
    async def start(cls, path: Path, environ: Mapping[str, str]) -> Self:
        """Reads and checks all settings, then serves. Raises ConfigError before any request is answered."""
        check_fast_parser()
        has_source = load(path, environ, check_files=False, all_at_once=True).settings.policy.source is not None
        loaded = load(path, environ, check_files=not has_source)
        check_keeping(loaded)
        settings = loaded.settings
        async with AsyncExitStack() as undo:
            data = take(settings.server.listen, undo, path)
            settings.own.mkdir(parents=True, exist_ok=True, mode=0o700)
            of_a2a = [name for name, one in settings.upstreams.items() if one.a2a is not None]
            agents = (*of_a2a, *settings.agents)
            top_tools = settings.metrics.tool_label.top if settings.metrics.tool_label else 0
            upstreams = (*settings.upstreams, *settings.agents)
            metrics = Metrics(upstreams=upstreams, agents=agents, top_tools=top_tools)
            if settings.server.worker:
                metrics.resume(kept_series(settings.own / METRICS_FILE))
            evidence = ControlRecords.open(settings, metrics, environ)
            undo.push_async_callback(evidence.audit.close)
            seen = look_at(path, settings)  # before the files are read, so that later writes are treated as changes
            processes = Processes(environ)
            undo.push_async_callback(processes.close)
            shared = SharedStore.open(settings, metrics, evidence.audit, undo)
            runs, common = shared.records.of(RUNS), shared.limiter.store
            executions = executions_from(settings, runs, common, processes, metrics, evidence.audit.new_id)
            undo.push_async_callback(executions.close, 0.0)
            follower = SourcePoller(processes, time.time, secrets.SystemRandom().random, metrics)
            prove = partial(snapshot_of, processes=processes, executions=executions, document=loaded.document)
            if has_source:
                await follower.begin(settings, partial(prove, base_url="", make_keys=False))
                settings = load_settings(path, environ)
            first = prove(settings, base_url_of(settings, data))
            executions.offer(first.settings.agents)
            seen = with_made(seen, settings)
            await first.identity.start()
            undo.push_async_callback(first.identity.close)
            ledger = SwitchLedger.open_all(settings.own, settings.parts)
            if settings.server.worker <= 1:
                ledger.absorb(settings.idle_parts)
            evidence.publish_at(shared.limiter.store)
            way = way_from(settings, first, ledger, shared, evidence, metrics)
            app = cls(path, environ, settings, evidence, processes, executions, follower, shared, way, seen)
            app.telemetry = Telemetry.from_environ(environ, path, metrics, app.measure)
            if app.telemetry is not None:
                undo.push_async_callback(app.telemetry.close)
                from sidecar.gateway.request_spans import RequestTracing  # imports OpenTelemetry

                app.live.tracing = RequestTracing(app.telemetry)
            await shared.greet(settings)
            await evidence.look_back()
            await app.scheduler.recall()
            await app.switch.sync()  # load principals disabled by other replicas before the first call
            await evidence.witness(
                "start",
                "sidecar",
                version=__version__,
                policy_revision=first.engine.revision,
                **policy_facts(first.engine),
            )
            await app.listening.open(data, app, undo)
            await app._now_serving()
            app._run_background()
            undo.pop_all()
            return app

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        settings: Settings,
        evidence: ControlRecords,
        processes: Processes,
        executions: Executions,
        follower: SourcePoller,
        shared: SharedStore,
        way: RequestPath,
        seen: WatchLook,
    ) -> None:
        self.settings, self.evidence, self.processes, self.executions = settings, evidence, processes, executions
        self.follower, self.shared, self.jobs = follower, shared, BackgroundJobs()
        self.pipeline, self.callbacks, self.scheduler, self.task_api = way
        self.audit, self.limiter, self.metrics = evidence.audit, shared.limiter, self.pipeline.metrics
        self.live, self.switch = self.pipeline.live, self.pipeline.stages.switch
        self.sessions = self.pipeline.forwarder.sessions
        live, metrics, witness = self.live, self.metrics, evidence.witness
        executions.objection = ContinuedPermission(live, self.switch).ends
        self.watcher = FileWatcher(path, lambda: live.current.settings, seen)
        build = partial(next_snapshot, path, environ, processes, executions)
        self.reloader = Reloader(live, build, self.watcher, metrics, witness=witness, serves=self._now_serving)
        self.examinations = PolicyExaminations(path, processes, lambda: self.watcher.seen)
        self.examined = self.examinations.see
        self.drift = ToolDrift(live, metrics, witness, time.monotonic)
        self.replicas = Peers(
            secrets.token_hex(8), self.limiter.store.run, self._serving, self._heard_of_news, self._key_digests
        )
        self.gauges = SampledGauges(self.pipeline, self.replicas)
        self.showing = UsageReport(self.limiter.store)
        self.listening = Servers(path, settings, self.pipeline)
        self.listeners, self.grpc_ports = self.listening.listeners, self.listening.grpc_ports
        recent = RecentRequests(metrics.requests_by_status, time.monotonic)
        parts = self.reloader, follower, self.replicas, self.drift, self.jobs, recent
        report = StatusReport(settings, way, executions, shared.counting, *parts)
        self.report, self._mode, self.stages = report, ENFORCE, self.pipeline.stages
        self._orders: set[asyncio.Task[Any]] = set()
        # Operators' requests
        self.readiness, self.status, self.banners = report.readiness, report.whole, report.banners
        self.upstreams, self.disabled_principals = report.upstreams, report.disabled_principals
        self.switched_off, self.traffic = report.switched_off, recent.series
        self.approvals = self.pipeline.stages.approvals
        self.disable, self.enable = self.switch.disable, self.switch.enable
        self.hear_of_switches, self.recent_records = self.switch.sync, self.audit.recent

    @property
    def base_url(self) -> str:
        return self.live.current.base_url

    @property
    def stop_takes_at_most_s(self) -> float:
        server = self.settings.server
        return (server.drain_delay_s or 0.0) + server.shutdown_grace_s + CLOSING_S

    async def stop(self) -> None:
        """Fails readiness at once, continues to serve for the drain delay, lets calls in flight finish within the grace
        time, and closes the audit after everything that writes to it."""
        self.report.stopping = True
        self.listening.close_connections_after_answers()
        await asyncio.sleep(self.settings.server.drain_delay_s or 0.0)
        now_s, grace_s = asyncio.get_running_loop().time, self.settings.server.shutdown_grace_s
        until_s = now_s() + grace_s
        self.executions.drain()
        await self.pipeline.drain(grace_s)  # new calls get 503 from here on
        await self.listening.close(max(LAST_WORDS_S, until_s - now_s()))
        await self.jobs.end()
        for order in self._orders:
            order.cancel()
        await asyncio.gather(*self._orders, return_exceptions=True)
        await self.scheduler.close()
        await self.task_api.runner.stop(max(0.0, until_s - now_s()))
        await self.executions.close(max(0.0, until_s - now_s()))
        await self.reloader.close()
        await self.examinations.close()
        await asyncio.gather(*(one.close() for one in self.live.current.upstreams.values()))
        await self.processes.close()
        await self.live.current.identity.close()
        await self.callbacks.close()
        await self.shared.records.close()
        with suppress(SettingsError):  # logged; a full disk must not block the shutdown
            await self.pipeline.stages.refusals.tell(self.evidence.witness)
            await self.evidence.witness("stop", "sidecar")
        await self.evidence.seal()
        await self.limiter.close()
        await self.audit.close()
        if self.telemetry is not None:
            await self.telemetry.close()
        self._log_requests(False, LAST_WORDS_S)

    def _run_background(self) -> None:
        forwarder = self.pipeline.forwarder
        health = HealthProbes(lambda: self.live.current.upstreams, random=secrets.SystemRandom())
        follow = partial(self.follower.run, lambda: self.live.current.settings, self.reloader.adopt)
        for name, run in (
            ("probing upstreams", health.run),
            ("ending sessions at their servers", forwarder.run_farewells),
            ("reviewing streams", forwarder.run_reviews),
            ("ending idle sessions", forwarder.run_sweeps),
            ("forgetting records", self.shared.records.run_sweeps),
            ("calling back", self.callbacks.outbox.run),
            ("the task API", self.task_api.runner.worker.run),
            ("what runs by the clock", self.scheduler.worker.run),
            ("runs of programs", self.executions.run),
            ("the kill switch", self.switch.run),
            ("requests for approval", self.approvals.run),
            ("the evidence's schedule", self.evidence.run),
            ("watching files", partial(self.watcher.run, self.reloader.files_changed)),
            ("following the policy's source", follow),
            ("watching the loop", self.pipeline.stages.load_shedding.run),
            ("counting refusals", partial(self.pipeline.stages.refusals.run, self.audit.control)),
            ("hearing of replicas", self.replicas.run),
            ("looking around", self._look_around),
        ):
            self.jobs.begin(name, run)
        for guests in self.listening.grpc_guests:
            self.jobs.begin(f"bounding who is connected to port {guests.port}", guests.run)

    async def _look_around(self) -> None:
        """Polls state that has no change notification. Runs as long as the process."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.gauges.look()
            self.report.recent.look()
            self.metrics.degraded(self.report.reasons())
            await self.shared.counting.look(self.limiter.store)
            await self._look_at_mode()
            await self.drift.look()

    def measure(self) -> None:
        """Updates the metrics of requests: of those that ended, and of those in progress."""
        self.metrics.settle()
        self.metrics.inflight(Counter(request.protocol for request in self.live.requests))

    async def _look_at_mode(self) -> None:
        """Updates the metric, and records and logs a change of mode. Shadow mode ends by the clock."""
        mode, until = self.report.mode, self.live.current.shadow_until
        self.metrics.enforcement(mode)
        if mode != self._mode:
            self._mode, facts = mode, {"mode": mode, "shadow_until": until and rfc3339(until)}
            log.warning("the enforcement mode changed", extra=facts)
            with suppress(SettingsError):  # logged
                await self.evidence.witness("mode", "sidecar", **facts)

    async def _now_serving(self) -> None:
        """Notifies all components that depend on the snapshot in force."""
        try:
            self.executions.offer(self.live.current.settings.agents)
        except SettingsError as error:  # the files changed after they were read: retain the previous agents
            log.error("the agent programs of the new settings cannot be used; the previous ones stay\n%s", error)
        self.showing.take(self.live.current.budgets)
        self.gauges.reconfigured(self.reloader.loaded_at)
        self.listening.part_with_stale()
        self._log_requests(self.live.current.settings.log.requests)
        await self._look_at_mode()
        for banner in self.banners():
            log.warning(banner)
        self.watcher.hint()  # the set of watched files may have changed
        self.follower.reconsider()

    def _log_requests(self, wanted: bool, within_s: float = 0.0) -> None:
        """Begins or ends the log's lines of requests."""
        lines = self.pipeline.request_lines
        if wanted and lines is None:
            self.pipeline.request_lines = RequestLines()
        elif lines is not None and not wanted:
            self.pipeline.request_lines = None
            lines.close(within_s)

    def _serving(self) -> ServedRevision:
        now = self.live.current
        return ServedRevision(now.engine.revision, self.follower.version(now.settings))

    def _key_digests(self) -> Mapping[str, str]:
        return key_digests(self.live.current.settings.shared_keys)

    def _heard_of_news(self) -> None:
        """Another replica loaded a revision that this one does not serve."""
        self.follower.hint()
        self.watcher.hint()

    @cached_property
    def desk(self) -> OperatorApi:
        from sidecar.admin.operator_api import OperatorApi

        parts = self.live, self.executions, self.scheduler, self.task_api.orders, self.audit.new_id, self.audit.control
        return OperatorApi(*parts, lambda: self.pipeline.stages.draining)

    def is_server(self, name: str) -> bool:
        return name in self.live.current.services

    def discovered(self, name: str) -> Mapping[str, Any]:
        """The tools, prompts and resources of an upstream, by name."""
        service = self.live.current.services.get(name)
        return {} if service is None else service.catalogue.discovered()

    async def limits(self, wanted: UsageQuery) -> Mapping[str, Any]:
        """Usage and remaining amounts. Raises StoreUnavailable."""
        now = self.live.current
        shown, more = await self.showing.show(wanted, now.limited, now.engine.roles_of)
        return {"store": self.limiter.store.kind, "limits": shown, "more": more}

    async def reset_limits(self, principal: str, limit: str, *, by: str) -> Sequence[str]:
        """Resets the counters that belong to one principal alone, and records who requested it. Returns the names of
        the limits. Raises NoSuchLimit, StoreUnavailable, Refusal(AUDIT_UNAVAILABLE)."""
        now, store = self.live.current, self.limiter.store
        charges = self.showing.own(principal, limit, now.limited, now.engine.roles_of)
        names = sorted({charge.limit for charge in charges})
        await store.ping()  # fail before the audit records a reset that cannot be done
        await self.audit.control("limits-reset", by, principal=principal, limits=names)
        await store.reset(charges)
        return names

    async def carried_out(self, order: Coroutine[Any, Any, T]) -> T:
        """Carries out an operator's order to its end, even if the operator disconnects: what has begun is also stored
        and recorded. The stop of the sidecar cancels it."""
        running = asyncio.create_task(order)
        self._orders.add(running)
        running.add_done_callback(self._orders.discard)
        return await asyncio.shield(running)

    def known_principal(self, name: str) -> KnownNames:
        return known(name, self.live.current, self.showing.known)

    async def switch_off(self, server: str, tool: str, *, reason: str, until: float | None, by: str) -> SwitchEntry:
        """Switches off one tool of a server, or with "" the whole server, on all replicas. Raises SwitchError."""
        return await self.switch.disable(object_of(server, tool), reason=reason, until=until, by=by, is_object=True)

    async def switch_on(self, server: str, tool: str, *, by: str) -> bool:
        """Reverses `switch_off`. Returns False if nothing was switched off. Raises SwitchError."""
        return await self.switch.enable(object_of(server, tool), by=by, is_object=True)

    async def reload(self, by: str) -> str:
        """Adopts a new policy from the source, if there is one, and then reloads all files. Returns the revision in
        force. Raises ConfigError if the files are invalid; those in force remain."""
        await self.follower.look(self.live.current.settings, self.reloader.adopt, by)
        return await self.reloader.reload(by)
