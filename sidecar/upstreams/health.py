"""Probes upstreams periodically, and as soon as a breaker lets a try through, so that callers' requests are not the
try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Final, Protocol

from sidecar.errors import Reason, Refusal
from sidecar.settings.upstreams import ProbeSettings
from sidecar.upstreams.breaker import BreakerState
from sidecar.upstreams.health_report import sentence
from sidecar.upstreams.upstream_account import UpstreamAccount

TICK_S: Final = 0.1
FIRST_WITHIN_S: Final = 5.0  # after a start, so that a hundred servers are not all probed at once
JITTER: Final = 0.2
EXPLORE_EVERY_S: Final = 300.0  # prompts and resources: no call waits for them
_CLOSING_S: Final = 3.0


class ProbeAnswer(Protocol):
    """Probes an upstream and lists its other offers. Both methods raise Refusal."""

    async def probe(self, within_s: float) -> None: ...
    async def explore(self) -> None: ...


class ProbedUpstream(Protocol):
    """An upstream that is probed."""

    @property
    def probe(self) -> ProbeSettings: ...
    @property
    def account(self) -> UpstreamAccount: ...
    @property
    def asked(self) -> ProbeAnswer: ...
    @property
    def timeout_s(self) -> float: ...


@dataclass(slots=True)
class _Plan:
    """The time of the next probe, and the probe in progress. Times are monotonic seconds."""

    patient: ProbedUpstream
    due_at: float
    explored_at: float = -inf
    flight: asyncio.Task[None] | None = None


@dataclass(slots=True)
class HealthProbes:
    """Probes all upstreams in `patients`, while they are in it."""

    patients: Callable[[], Mapping[str, ProbedUpstream]]
    random: Random
    clock_mono: Callable[[], float] = time.monotonic
    _plans: dict[str, _Plan] = field(default_factory=dict)

    async def run(self) -> None:
        try:
            while True:
                self._tend()
                await asyncio.sleep(TICK_S)
        finally:
            flights = [plan.flight for plan in self._plans.values() if plan.flight is not None]
            for flight in flights:
                flight.cancel()
            if flights:
                await asyncio.wait(flights, timeout=_CLOSING_S)

    def _tend(self) -> None:
        now, patients = self.clock_mono(), self.patients()
        for name, plan in list(self._plans.items()):
            if patients.get(name) is not plan.patient:
                if plan.flight is not None:
                    plan.flight.cancel()
                del self._plans[name]
        for name, patient in patients.items():
            if name not in self._plans:
                first_s = self.random.uniform(0, min(FIRST_WITHIN_S, patient.probe.every_s))
                self._plans[name] = _Plan(patient, now + first_s)
            plan = self._plans[name]
            idle = plan.flight is None or plan.flight.done()
            if patient.probe.enabled and idle and self._is_due(plan, now):
                plan.due_at = now + patient.probe.every_s * self.random.uniform(1 - JITTER, 1 + JITTER)
                plan.flight = asyncio.create_task(self._look(plan), name=f"probe of {name}")

    def _is_due(self, plan: _Plan, now: float) -> bool:
        breaker = plan.patient.account.breaker
        if breaker.state is BreakerState.CLOSED:
            return now >= plan.due_at
        return not breaker.rest_s

    async def _look(self, plan: _Plan) -> None:
        patient = plan.patient
        refused = True
        try:
            await patient.asked.probe(patient.timeout_s)
            refused = False
        except Refusal as refusal:
            if refusal.reason is Reason.UPSTREAM_OPEN:
                return
            if not patient.account.breaker.in_a_row:  # not a fault of the connection: the conversation itself failed
                patient.account.unwelcome(sentence(refusal))
        now = self.clock_mono()
        if not refused and now - plan.explored_at >= EXPLORE_EVERY_S:
            with suppress(Refusal):  # no call waits for this; the state is already recorded
                await patient.asked.explore()
                plan.explored_at = now
        patient.account.checked()
