"""Updates metrics that no request moves: twice a second, or when a snapshot comes into force."""

import time
from dataclasses import dataclass, field

from sidecar.gateway.pipeline import Pipeline
from sidecar.http.client import ANSWERS
from sidecar.http.server.memory_trim import STREAM_BYTES, MemoryTrim, give_memory_back
from sidecar.storage.peers import Peers
from sidecar.upstreams.upstream_account import UpstreamAccount


@dataclass(slots=True)
class SampledGauges:
    pipeline: Pipeline
    replicas: Peers
    _crowds: MemoryTrim = field(default_factory=lambda: MemoryTrim(give_memory_back))
    _observed: set[UpstreamAccount] = field(default_factory=set)

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

    def reconfigured(self, loaded_at: float) -> None:
        """Update the gauges of a new snapshot, in force since `loaded_at`."""
        now, metrics = self.pipeline.live.current, self.pipeline.metrics
        metrics.reconfigured(
            upstreams=now.upstreams,
            agents=now.agents,
            limits=now.limit_labels,
            budgets=now.budget_labels,
            schedules=now.settings.schedules,
        )
        metrics.policy_loaded(now.engine.revision, now.engine.rule_counts, loaded_at)
        metrics.store_is(self.pipeline.stages.limiter.store.kind)
        accounts = {one.account for one in now.upstreams.values()}
        for account in self._observed - accounts:
            account.observed_by(None)
        for account in accounts:
            account.observed_by(metrics)
        self._observed = accounts
