"""Reports the state of the sidecar from memory: codes and counts for everyone, sentences for operators only."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from sidecar import __version__
from sidecar.app.background import BackgroundJobs
from sidecar.app.container import RequestPath
from sidecar.app.policy_sources.poller import SourcePoller
from sidecar.app.reload import Reloader
from sidecar.app.tool_drift import ToolDrift
from sidecar.audit.file_sink import HARMLESS
from sidecar.errors import Fault, Refusal
from sidecar.gateway.kill_switch import SwitchEntry, object_of
from sidecar.gateway.pipeline import Pipeline
from sidecar.gateway.snapshot import Service
from sidecar.limits.store_monitor import StoreMonitor
from sidecar.observability.metrics import STATUSES
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.timestamps import rfc3339
from sidecar.storage.peers import Peers
from sidecar.tasks.api.task_record import moment
from sidecar.tasks.programs.executions import Executions
from sidecar.tasks.schedules.scheduler import ShownSchedule
from sidecar.upstreams.agents import AgentUpstream

PERIOD_S, SAMPLE_EVERY_S = 300, 5
KEPT_S = 3_660  # the last hour, and the minute before it
SHADOW, ENFORCE = "shadow", "enforce"
SHADOWED = "what policy or a limit would refuse is recorded and let pass"


class RequestSample(NamedTuple):
    """The counters at one time, by `STATUSES`. `step` numbers the steps of SAMPLE_EVERY_S since the epoch."""

    step: int
    mono_s: float
    counts: tuple[int, ...]


class RecentRequests:
    """Counts the requests of the last hour, from the differences of samples of the counters. Samples are taken when a
    step of the clock begins, so that the samples of several workers can be added."""

    def __init__(
        self,
        count: Callable[[], Mapping[str, int]],
        clock_mono: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._count, self._clock_mono, self._clock = count, clock_mono, clock
        self._samples = deque([self._sample()], maxlen=KEPT_S // SAMPLE_EVERY_S + 1)

    def _sample(self) -> RequestSample:
        counts = self._count()
        step = int(self._clock() // SAMPLE_EVERY_S)
        return RequestSample(step, self._clock_mono(), tuple(counts.get(status, 0) for status in STATUSES))

    def look(self) -> None:
        """Takes a sample if one is due."""
        if int(self._clock() // SAMPLE_EVERY_S) > self._samples[-1].step:
            self._samples.append(self._sample())

    def plain(self) -> Mapping[str, Any]:
        """The counts of the last PERIOD_S by status."""
        now = self._sample()
        before = self._samples[-min(len(self._samples), PERIOD_S // SAMPLE_EVERY_S + 1)]
        return {"period_s": round(now.mono_s - before.mono_s, 3), "by_status": _by_status(before, now)}

    def series(self) -> Mapping[str, Any]:
        """The counts of each step of the last hour by status; `at` is the end of a step in seconds since the epoch. The
        last step has not ended yet."""
        samples = [*self._samples, self._sample()._replace(step=int(self._clock() // SAMPLE_EVERY_S) + 1)]
        steps = [(after.step * SAMPLE_EVERY_S, _by_status(before, after)) for before, after in pairwise(samples)]
        return {
            "step_s": SAMPLE_EVERY_S,
            "at": [at for at, _ in steps],
            "by_status": {status: [counts[status] for _, counts in steps] for status in STATUSES},
        }


def _by_status(before: RequestSample, after: RequestSample) -> dict[str, int]:
    return {status: now - then for status, then, now in zip(STATUSES, before.counts, after.counts, strict=True)}


class Trouble(NamedTuple):
    """A reason why the sidecar is degraded: a public code, sentences for operators, and how often it applies."""

    code: str
    told: tuple[str, ...]
    times: int = 1


@dataclass(slots=True)
class StatusReport:
    """The state of the sidecar in plain values. It contains no secrets and no principals."""

    settings: Settings
    way: RequestPath
    executions: Executions
    counting: StoreMonitor
    reloader: Reloader
    follower: SourcePoller
    replicas: Peers
    drift: ToolDrift
    jobs: BackgroundJobs
    recent: RecentRequests
    started_at: float = field(default_factory=time.time)
    stopping: bool = False
    _warnings: tuple[Sequence[Fault], list[str]] = ((), [])

    @property
    def pipeline(self) -> Pipeline:
        return self.way.pipeline

    @property
    def mode(self) -> str:
        """`enforce` or `shadow`."""
        return SHADOW if self.pipeline.live.current.shadows(self.pipeline.live.clock()) else ENFORCE

    def readiness(self) -> tuple[bool, Mapping[str, Any]]:
        """Returns whether it is ready, which it is unless it is stopping, and the response: only codes and counts,
        because it is public."""
        if self.stopping:
            return False, {"status": "draining"}
        reasons = self.reasons()
        if not reasons:
            return True, {"status": "ready"}
        faults = Counter(self.reloader.faults) + Counter(self.follower.faults)
        return True, {"status": "degraded", "reasons": reasons, **({"faults": faults} if faults else {})}

    def reasons(self) -> Mapping[str, int]:
        """Returns the reasons why it is degraded, by code, with the number of occurrences of each."""
        counts = Counter[str]()
        for trouble in self._troubles():
            counts[trouble.code] += trouble.times
        return counts

    def _troubles(self) -> Iterator[Trouble]:
        reloader, follower = self.reloader, self.follower
        if reloader.faults:
            yield Trouble("files-refused", reloader.trouble, sum(reloader.faults.values()))
        elif reloader.trouble:
            yield Trouble("restart-needed", reloader.trouble, len(reloader.trouble))
        if follower.trouble:
            yield Trouble("source-refused", follower.trouble)
        store = self.pipeline.stages.limiter.store
        if told := self.counting.trouble(store):
            code = "store-degraded" if store.degraded else "store-refuses" if store.up else "store-out"
            yield Trouble(code, (told,))
        for told in self.jobs.trouble:
            yield Trouble("task-ended", (told,))
        yield from self._stores()
        if self.pipeline.stages.load_shedding.refused_share:
            yield Trouble("overloaded", ("the loop cannot keep up: a share of new calls is refused",))
        if not self.pipeline.audit.writer.up:
            yield Trouble("audit-out", ("the evidence cannot be written: what needs it is refused",))
        if not self.pipeline.stages.switch.saved:
            told = "disabled principals cannot be saved: a restart would not know all of them"
            yield Trouble("disabled-unsaved", (told,))
        if different := self.replicas.different_keys:
            told = f"other replicas on this store have other keys: {', '.join(different)}"
            yield Trouble("keys-differ", (told,), len(different))
        for kind, count in self.pipeline.live.current.engine.differences.counts.items():
            told = f"compiled rules and pycasbin decided {count} links of {kind.value} differently: they were denied"
            yield Trouble("engines-differ", (told,), count)
        for state in self.pipeline.live.current.identity.key_states:
            if not state.usable:
                yield Trouble("issuer-without-keys", (f"no usable keys of {state.issuer}",))

    def _stores(self) -> Iterator[Trouble]:
        """The stores in use that are unavailable."""
        pipeline, now = self.pipeline, self.pipeline.live.current
        api, approvals = self.way.task_api.runner.means.store, pipeline.stages.approvals
        calls_back = now.agents or now.settings.approvals.notify
        for code, needed, up, told in (
            ("task", now.upstreams, pipeline.stages.tasks.store.up, "tasks is unavailable: tasks cannot be read"),
            ("run", now.settings.agents, self.executions.store.up, "runs is unavailable: no program can be called"),
            ("session", now.services, pipeline.forwarder.roaming.up, "sessions is unavailable: they are answered 503"),
            ("callback", calls_back, self.way.callbacks.outbox.store.up, "callbacks is unavailable: none is accepted"),
            ("approval", approvals.is_used, approvals.store.up, "approvals is unavailable: calls that need it fail"),
            ("task-api", now.agents, api.up, "the task API is unavailable: no task can be created or shown"),
            ("schedule", now.settings.schedules, self.way.scheduler.up, "schedules is unavailable: no run begins"),
        ):
            if needed and not up:
                yield Trouble(f"{code}-store-out", (f"the store of {told}",))
        if unreadable := self.way.scheduler.unreadable:
            told = f"the state of these schedules cannot be read, and they do not run: {', '.join(unreadable)}"
            yield Trouble("schedule-unreadable", (told,), len(unreadable))

    def whole(self) -> Mapping[str, Any]:
        now = self.pipeline.live.current
        store = self.pipeline.stages.limiter.store
        ready, why = self.readiness()
        reasons = [line for trouble in self._troubles() for line in trouble.told]
        waiting = self.pipeline.stages.approvals.waiting
        return {
            "version": __version__,
            "ready": ready,
            **why,
            **({"reasons": reasons} if "reasons" in why else {}),
            "banners": list(self.banners()),
            "started_at": rfc3339(self.started_at),
            "policy": self._policy(),
            "disabled_principals": len(self.disabled_principals()),
            "upstreams": self.upstreams(),
            "schedules": {one.key: self._schedule(one) for one in self.way.scheduler.seen()},
            "issuers": {state.issuer: {"usable": state.usable} for state in now.identity.key_states},
            "store": {
                "kind": store.kind,
                "up": store.up,
                "trouble": store.trouble or None,
                "warning": store.warning or None,
                "on_failure": self.settings.store.on_failure,
                "degraded": store.degraded,
            },
            "evidence": {"found_at_start": list(self.pipeline.audit.found), "up": self.pipeline.audit.writer.up},
            "sessions": len(self.pipeline.forwarder.sessions),
            "approvals": {"waiting": waiting.number, "oldest_asked_at": moment(waiting.oldest_s)},
            "requests": self.recent.plain(),
        }

    def _policy(self) -> Mapping[str, Any]:
        now = self.pipeline.live.current
        return {
            "revision": now.engine.revision,
            "loaded_at": rfc3339(self.reloader.loaded_at),
            "rules": dict(now.engine.rule_counts),
            "engines": {kind.value: engine for kind, engine in now.engine.engines.items()},
            "engine_differences": {kind.value: count for kind, count in now.engine.differences.counts.items()},
            "allows_by_default": [kind.value for kind in now.engine.allowing],
            "warnings": self._texts(now.engine.warnings),
            "refused": [_plain(fault) for fault in (*self.reloader.refused, *self.follower.refused)],
            "needs_restart": list(now.waiting),
            "mode": self.mode,
            "shadow_until": None if now.shadow_until is None else rfc3339(now.shadow_until),
            "source": self.follower.status(now.settings),
            "replicas": None if self.replicas.skew is None else self.replicas.skew._asdict(),
            "replica_revisions": self.replicas.revisions,
        }

    def _texts(self, warnings: Sequence[Fault]) -> list[str]:
        """The warnings as sentences, which do not change while a policy serves."""
        if self._warnings[0] is not warnings:
            self._warnings = warnings, [str(fault) for fault in warnings]
        return self._warnings[1]

    def upstreams(self) -> Mapping[str, Mapping[str, Any]]:
        now = self.pipeline.live.current
        sessions = Counter(
            part.server for one in self.pipeline.forwarder.sessions for part in (one, *one.parts.values())
        )
        servers = {
            name: {**self._server(name, service), "sessions": sessions[name]} for name, service in now.services.items()
        }
        return servers | {name: self._agent(name, agent) for name, agent in now.agents.items()}

    def _server(self, name: str, service: Service) -> Mapping[str, Any]:
        off = {entry.principal for entry in self.switched_off()}
        own, transport = f"tool:{name}/", "stdio"
        mcp = service.definition.mcp
        if mcp is not None and mcp.command is None:  # the original data models have `http` for `auto` too
            transport = "sse" if mcp.transport == "sse" else "http"
        return {
            **service.account.plain(),
            "transport_type": transport,
            "enabled": object_of(name) not in off,
            "disabled_tools": sorted(each.removeprefix(own) for each in off if each.startswith(own)),
            **service.catalogue.summary(),
            **self.drift.summary(service),
        }

    def _agent(self, name: str, agent: AgentUpstream) -> Mapping[str, Any]:
        stopped = {entry.principal for entry in self.disabled_principals()}
        standing = {**agent.account.plain(), "protocol": "a2a", "enabled": f"nhi:{name}" not in stopped}
        with suppress(Refusal):  # it is not a program
            standing["runs"] = self.executions.standing(name)._asdict()
        return standing

    def _schedule(self, one: ShownSchedule) -> Mapping[str, Any]:
        """The state of a schedule at the last poll; another replica may be running it."""
        standing = one.standing
        return {
            "agent": one.schedule.agent,
            "source": one.source,
            "state": one.state,
            "next": moment(one.next_s),
            "last_due": moment(standing.last_due_s),
            "last_result": standing.last_result,
            "last_why": standing.last_why or None,
            "last_success": moment(standing.last_success_s),
        }

    def banners(self) -> tuple[str, ...]:
        until = self.pipeline.live.current.shadow_until
        shadow = (f"SHADOW MODE until {rfc3339(until)}: {SHADOWED}",) if self.mode == SHADOW and until else ()
        count = len(self.disabled_principals())
        disabled = (f"{count} principal{'s are' if count > 1 else ' is'} disabled",) if count else ()
        store = self.pipeline.stages.limiter.store
        alone = (f"DEGRADED: {self.counting.trouble(store)}",) if store.degraded else ()
        unsafe = (f"the store: {store.warning}",) if store.warning else ()
        broken = [one for one in self.pipeline.audit.found if one not in HARMLESS]
        doubted = (f"THE EVIDENCE is broken, a start found: {', '.join(broken)}",) if broken else ()
        allowing = ", ".join(kind.value for kind in self.pipeline.live.current.engine.allowing)
        default = (f"ALLOWED BY DEFAULT: {allowing}: what no row denies is allowed",) if allowing else ()
        return (*shadow, *default, *doubted, *alone, *unsafe, *disabled, *self.reloader.trouble, *self.follower.trouble)

    def disabled_principals(self) -> Sequence[SwitchEntry]:
        """All disabled principals: those disabled by an operator and those in policies/disabled.yaml."""
        now_s = self.pipeline.live.clock()
        by_hand, by_file = self.pipeline.stages.switch.ledger.disabled, self.pipeline.live.current.disabled
        return (*by_hand.in_force(now_s), *by_file.in_force(now_s))

    def switched_off(self) -> Sequence[SwitchEntry]:
        """All tools and servers that are switched off."""
        return self.pipeline.stages.switch.ledger.switched_off.in_force(self.pipeline.live.clock())


def _plain(fault: Fault) -> Mapping[str, Any]:
    return {"severity": fault.severity, "message": fault.message, **fault.plain()}
