"""Updates metrics that no request changes: twice a second, and when a snapshot comes into force."""

import logging
import time
from dataclasses import dataclass, field

from sidecar.errors import visible
from sidecar.gateway.pipeline import Pipeline
from sidecar.http.client import ANSWERS
from sidecar.http.server.memory_trim import STREAM_BYTES, MemoryTrim, give_memory_back
from sidecar.policy import Engine
from sidecar.storage.peers import Peers
from sidecar.upstreams.upstream_account import UpstreamAccount
from sidecar.vocabulary import PermissionKind

CHOOSE_EVERY_S = 60.0  # the interval at which tools with a label are chosen
LOGGED_CHARS = 200  # of each name of a link
log = logging.getLogger(__name__)


@dataclass(slots=True)
class SampledGauges:
    pipeline: Pipeline
    replicas: Peers
    _crowds: MemoryTrim = field(default_factory=lambda: MemoryTrim(give_memory_back))
    _choose_at_s: float = field(default_factory=lambda: time.monotonic() + CHOOSE_EVERY_S)
    _observed: set[UpstreamAccount] = field(default_factory=set)
    _engine: Engine | None = None
    _counted: dict[PermissionKind, int] = field(default_factory=dict)

    def look(self) -> None:
        metrics, forwarder, audit = self.pipeline.metrics, self.pipeline.forwarder, self.pipeline.audit
        metrics.sessions(len(forwarder.sessions))
        for protocol in ("mcp", "a2a"):
            metrics.streams(protocol, sum(one.call.protocol == protocol for one in forwarder.streams))
        pace = self.pipeline.body_admission
        held = pace.most + ANSWERS.most  # the peak of bytes held by bodies and responses since the last sample
        pace.most, ANSWERS.most = pace.held, ANSWERS.held
        self._crowds.look(len(forwarder.streams) + held // STREAM_BYTES)
        if self.replicas.skew is not None:
            metrics.replicas(*self.replicas.skew)
        metrics.budgets_reset(time.time())
        metrics.audit_depth(audit.writer.depth)
        metrics.audit_up(audit.writer.up)
        self._count_differences()
        if (now_s := time.monotonic()) >= self._choose_at_s:
            self._choose_at_s = now_s + CHOOSE_EVERY_S
            if not self.pipeline.live.current.settings.server.worker:
                metrics.choose_tools()

    def reconfigured(self, loaded_at: float) -> None:
        """Updates the gauges of a new snapshot, in force since `loaded_at`."""
        now, metrics = self.pipeline.live.current, self.pipeline.metrics
        metrics.reconfigured(
            upstreams=now.upstreams,
            agents=now.agents,
            limits=now.limit_labels,
            budgets=now.budget_labels,
            schedules=now.settings.schedules,
        )
        metrics.policy_loaded(now.engine.revision, now.engine.rule_counts, loaded_at)
        metrics.engines_decide({kind.value: engine for kind, engine in now.engine.engines.items()})
        self._count_differences()
        self._engine, self._counted = now.engine, {}
        metrics.store_is(self.pipeline.stages.limiter.store.kind)
        accounts = {one.account for one in now.upstreams.values()}
        for account in self._observed - accounts:
            account.observed_by(None)
        for account in accounts:
            account.observed_by(metrics)
        self._observed = accounts

    def _count_differences(self) -> None:
        """Counts what compiled rules and pycasbin decided differently; logs the first link of each kind."""
        if (engine := self._engine) is None:
            return
        for kind, count in engine.differences.counts.items():
            before = self._counted.get(kind, 0)
            if count == before:
                continue
            self._counted[kind] = count
            self.pipeline.metrics.engines_differed(kind.value, count - before)
            if not before:
                link = engine.differences.first[kind]
                said = {name: visible(getattr(link, name))[:LOGGED_CHARS] for name in ("subject", "object", "action")}
                extra = {"kind": kind.value, "revision": engine.revision, **said}
                log.error("compiled rules and pycasbin decide a link differently: it is denied", extra=extra)
