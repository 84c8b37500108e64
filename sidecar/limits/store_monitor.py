"""Reports the state of the limits store as metrics, log lines and audit records."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.errors import Refusal
from sidecar.limits.store import CounterStore, Forgot, StoreObserver
from sidecar.observability.metrics import Metrics
from sidecar.vocabulary import Witness

DEGRADED = (
    "the store is unavailable: each limit admits at most {} calls here per window, and budgets of money admit none"
)
UNTOLD = (
    "the store did not receive how some calls ended: slots lapse with their lease, what was not spent stays charged "
    "until its period ends, and what was admitted without the store (charge) is not counted there"
)
OUT = "the store is unavailable: calls with limits are refused"
REFUSES = "the store refuses a part of what limits ask of it"

log = logging.getLogger("sidecar.limits.store_monitor")


@dataclass(slots=True)
class StoreMonitor(StoreObserver):
    """Reports the store as metrics, log lines and audit records. `most` is the local allowance in an outage."""

    metrics: Metrics
    witness: Witness
    most: int | None
    _degraded: bool = False
    _up: bool = True
    _warned: str = ""

    def answered(self, duration_s: float) -> None:
        self.metrics.store_answered(duration_s)

    async def forgot(self, how: Forgot, count: int) -> None:
        self.metrics.store_forgot(how)
        log.warning("the store had lost data, and received it again", extra={"how": how, "count": count})
        await self._record("store", how=how, told_again=count)

    def untold(self, counts: Mapping[str, int]) -> None:
        for verb, count in counts.items():
            self.metrics.store_untold(verb, amount=count)
        log.warning(UNTOLD, extra={verb: counts.get(verb, 0) for verb in ("give_back", "release", "charge")})

    async def look(self, store: CounterStore) -> None:
        """Reports changes of the store: whether it is up, whether it may lose counters, and whether this instance
        counts locally."""
        self.metrics.store_up(store.up)
        if store.up is not self._up:
            self._up = store.up
            if store.up:
                log.warning("the store is back")
            else:
                log.error("the store is unavailable", extra={"error": store.trouble})
        if store.warning != self._warned:
            self._warned = store.warning
            if store.warning:
                log.warning("the store is not safe", extra={"warning": store.warning})
        if store.degraded is self._degraded:
            return
        self._degraded = store.degraded
        log.warning("another counts now", extra={"degraded": store.degraded})
        await self._record("store", how="degraded" if store.degraded else "back", degraded_calls=self.most)

    def trouble(self, store: CounterStore) -> str:
        """Returns the problem of the store that an operator must know; "" if there is none."""
        if store.degraded:
            return DEGRADED.format(self.most)
        if not store.up:
            return OUT
        return REFUSES if store.trouble else ""

    async def _record(self, what: str, **facts: object) -> None:
        try:
            await self.witness(what, "sidecar", **facts)
        except Refusal:
            log.error("the audit file cannot be written", extra={"control": what})
