"""Keeps counters in this process.

Every step runs between two turns of the event loop, so it is atomic. Counters and records are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from sidecar.limits.counters import (
    SECOND_US,
    ConcurrencySlots,
    Counter,
    CounterState,
    RateLimit,
    SlidingWindow,
    by_day,
    by_month,
)
from sidecar.limits.plan import Kind, LimitCharge, lasting
from sidecar.limits.store import LEASE_S, REMEMBER_S, Charges, StoreUnavailable, Verdict

MAX_COUNTERS = 200_000  # per kind, 0.5 KB each; only verified principals and configuration create counters
MAX_RECORDS = 200_000
SWEPT_AT_ONCE = 2


class MemoryCounters:
    """A CounterStore in this process. `clock` returns seconds since the epoch."""

    kind = "memory"
    up = True
    trouble = ""
    warning = ""
    degraded = False

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        lease_s: float = LEASE_S,
        max_counters: int = MAX_COUNTERS,
        remember_s: float = REMEMBER_S,
    ) -> None:
        self._clock = clock
        self._remember_us = int(remember_s * SECOND_US)
        self._lease_us = int(lease_s * SECOND_US)
        self._max_counters = max_counters
        self._fresh: dict[Kind, Callable[[], Counter]] = {
            "hour": SlidingWindow,
            "day": by_day,
            "month": by_month,
            "rate": RateLimit,
            "concurrency": lambda: ConcurrencySlots(self._lease_us),
        }
        # Most recently used last, so that expired counters gather in front.
        self._tables: dict[Kind, OrderedDict[str, Counter]] = {kind: OrderedDict() for kind in self._fresh}
        # decision id → when it was charged (0: given back), end of record; nearest end first
        self._records: dict[str, tuple[int, int]] = {}
        self._none_ends_before_us = 0

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        now_us, tables, room = self._now_us(), self._tables, True
        counters: list[Counter] = []
        fresh: list[tuple[LimitCharge, Counter]] = []
        for charge in charges:
            counter = tables[charge.kind].get(charge.key)
            if counter is None:
                counter = self._fresh[charge.kind]()
                fresh.append((charge, counter))
            counters.append(counter)
            if not counter.has_room(charge, now_us):
                room = False
        record = self._records.get(decision_id)
        if record is not None or not room:
            return _unmoved(charges, counters, now_us, record)
        if fresh:
            self._let_in(fresh, counters, now_us)
        self._remember(decision_id, now_us, now_us)
        numbers: list[int] = []
        for charge, counter in zip(charges, counters, strict=True):
            tables[charge.kind].move_to_end(charge.key)
            numbers += counter.charge(charge, now_us, decision_id)
        return Verdict(True, now_us, tuple(numbers))

    def give_back(self, charges: Charges, decision_id: str) -> None:
        charged_us, _ = self._records.pop(decision_id, (0, 0))
        if charged_us:
            for charge in charges:
                if counter := self._tables[charge.kind].get(charge.key):
                    counter.give_back(charge, charged_us, decision_id)
        self._remember(decision_id, 0, self._now_us())

    def release(self, charges: Charges, decision_id: str) -> None:
        charged_us, _ = self._records.pop(decision_id, (0, 0))
        for charge in charges:
            counter = self._tables[charge.kind].get(charge.key)
            if counter and (charged_us or charge.kind == "concurrency"):
                counter.give_back(charge, charged_us, decision_id)

    async def look(self, charges: Charges) -> tuple[CounterState, ...]:
        now_us = self._now_us()
        known = ((charge, self._tables[charge.kind].get(charge.key)) for charge in charges)
        return tuple((counter or self._fresh[charge.kind]()).ask(charge, now_us) for charge, counter in known)

    async def reset(self, charges: Charges) -> None:
        for charge in lasting(charges):
            self._tables[charge.kind].pop(charge.key, None)

    def extend(self, charges: Charges, decision_id: str) -> None:
        now_us = self._now_us()
        if record := self._records.pop(decision_id, None):
            self._remember(decision_id, record[0], now_us)
        for charge in charges:
            counter = self._tables[charge.kind].get(charge.key)
            if isinstance(counter, ConcurrencySlots):
                counter.extend(now_us, decision_id)

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> None:
        """Returns None: this store is not shared."""

    async def ping(self) -> None:
        """Always succeeds."""

    async def close(self) -> None:
        """Nothing to release."""

    def _now_us(self) -> int:
        return round(self._clock() * SECOND_US)

    def _let_in(self, fresh: Sequence[tuple[LimitCharge, Counter]], asked: Sequence[Counter], now_us: int) -> None:
        """Sweep a few expired counters, then insert the new ones; the counters of this call are kept."""
        for charge, counter in fresh:
            table = self._tables[charge.kind]
            for key in list(islice(table, SWEPT_AT_ONCE)):
                if table[key].idle(now_us) and table[key] not in asked:
                    del table[key]
            if len(table) >= self._max_counters:
                # Dropping a live counter would lift its limit, so refuse instead.
                raise StoreUnavailable(f"more than {self._max_counters} counters of one kind are in use")
            table[charge.key] = counter

    def _remember(self, decision_id: str, charged_us: int, now_us: int) -> None:
        if now_us >= self._none_ends_before_us or len(self._records) >= MAX_RECORDS:
            self._forget(now_us)
        self._records[decision_id] = (charged_us, now_us + self._remember_us)

    def _forget(self, now_us: int) -> None:
        records = self._records
        for known in list(islice(records, SWEPT_AT_ONCE)):
            if len(records) >= MAX_RECORDS or records[known][1] <= now_us:
                del records[known]
        first = next(iter(records.values()), (0, now_us + self._remember_us))
        self._none_ends_before_us = first[1]


def _unmoved(charges: Charges, counters: Sequence[Counter], now_us: int, record: tuple[int, int] | None) -> Verdict:
    """The verdict for a call that charges nothing: it is refused, or was charged before."""
    if record and not record[0]:
        raise StoreUnavailable("this call was given up before its charge arrived")
    numbers: list[int] = []
    for charge, counter in zip(charges, counters, strict=True):
        numbers += counter.ask(charge, now_us)
    return Verdict(record is not None, now_us, tuple(numbers))
