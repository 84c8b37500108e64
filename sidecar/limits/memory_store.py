"""Stores counters in this process.

Every step runs between two turns of the event loop, so it is atomic. Counters and records are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, islice

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
MAX_BOUND = 8192
SWEPT_AT_ONCE = 2
SWEPT_WHEN_FULL = 100

Bound = tuple[tuple[LimitCharge, Counter], ...]
"""The charges of a plan, each with its counter."""


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
        self._tables: dict[Kind, OrderedDict[str, Counter]] = {kind: OrderedDict() for kind in self._fresh}
        # The counters of the charges of a plan, by their identity; no longer valid once a counter was dropped.
        self._bound: dict[int, tuple[Charges, Bound]] = {}
        # decision id → the time of the charge (0: returned), end of record; nearest end first
        self._records: dict[str, tuple[int, int]] = {}
        self._none_ends_before_us = 0

    def charge_now(self, charges: Charges, decision_id: str, now_us: int = 0) -> list[int] | None:
        if decision_id in self._records:  # charged or returned earlier
            return None
        now_us = now_us or round(self._clock() * SECOND_US)
        bound = self._bound.get(id(charges))
        counters = self._counters_of(charges) if bound is None else bound[1]
        numbers: list[int] = []
        for charge, counter in counters:
            if (told := counter.take(charge, now_us, decision_id)) is None:
                self._undo(counters[: len(numbers) // 3], decision_id)
                return None
            numbers += told
        if bound is None:
            self._bind(charges, counters, now_us, decision_id)
        if now_us >= self._none_ends_before_us or len(self._records) >= MAX_RECORDS:
            self._forget(now_us)
        self._records[decision_id] = now_us, now_us + self._remember_us
        return numbers

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        now_us = self._now_us()
        if (numbers := self.charge_now(charges, decision_id, now_us)) is not None:
            return Verdict(True, now_us, tuple(numbers))
        record = self._records.get(decision_id)
        if record and not record[0]:
            raise StoreUnavailable("this call was given up before its charge arrived")
        states = [counter.ask(charge, now_us) for charge, counter in self._counters_of(charges)]
        return Verdict(record is not None, now_us, tuple(chain.from_iterable(states)))

    def _undo(self, taken: Bound, decision_id: str) -> None:
        for charge, counter in taken:
            counter.undo(charge, decision_id)

    def give_back(self, charges: Charges, decision_id: str) -> None:
        charged_us, _ = self._records.pop(decision_id, (0, 0))
        if charged_us:
            for charge in charges:
                if counter := self._tables[charge.kind].get(charge.key):
                    counter.give_back(charge, charged_us, decision_id)
        now_us = self._now_us()
        self._forget(now_us)
        self._records[decision_id] = 0, now_us + self._remember_us

    def release(self, charges: Charges, decision_id: str) -> None:
        charged_us, _ = self._records.pop(decision_id, (0, 0))
        for charge in charges:
            counter = self._tables[charge.kind].get(charge.key)
            if counter and (charged_us or charge.kind == "concurrency"):
                counter.give_back(charge, charged_us, decision_id)

    async def look(self, charges: Charges) -> tuple[CounterState, ...]:
        now_us = self._now_us()
        return tuple([counter.ask(charge, now_us) for charge, counter in self._counters_of(charges)])

    async def reset(self, charges: Charges) -> None:
        for charge in lasting(charges):
            self._tables[charge.kind].pop(charge.key, None)
        self._bound.clear()

    def extend(self, charges: Charges, decision_id: str) -> None:
        now_us = self._now_us()
        if record := self._records.pop(decision_id, None):
            self._records[decision_id] = record[0], now_us + self._remember_us
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

    def _counters_of(self, charges: Charges) -> Bound:
        """Returns each charge with its counter, which is a new one if it is not in use."""
        known = ((charge, self._tables[charge.kind].get(charge.key)) for charge in charges)
        return tuple([(charge, self._fresh[charge.kind]() if found is None else found) for charge, found in known])

    def _bind(self, charges: Charges, counters: Bound, now_us: int, decision_id: str) -> None:
        """Inserts the new ones among these counters, which were just charged, and stores their plan. Raises
        StoreUnavailable if there is no room for one; the charges are then undone."""
        for charge, counter in counters:
            table = self._tables[charge.kind]
            if charge.key in table:
                continue
            self._sweep(table, now_us)
            if len(table) >= self._max_counters:  # dropping a live counter would lift its limit, so refuse instead
                self._undo(counters, decision_id)
                raise StoreUnavailable(f"more than {self._max_counters} counters of one kind are in use")
            table[charge.key] = counter
        if len(self._bound) >= MAX_BOUND:
            self._bound.clear()
        self._bound[id(charges)] = charges, counters

    def _sweep(self, table: OrderedDict[str, Counter], now_us: int) -> None:
        """Drops the first few counters if they are idle; the others move to the end, so that all are checked in
        turn."""
        many = SWEPT_AT_ONCE if len(table) < self._max_counters else SWEPT_WHEN_FULL
        for _ in range(min(many, len(table))):
            key, counter = table.popitem(last=False)
            if counter.idle(now_us):
                self._bound.clear()
            else:
                table[key] = counter

    def _forget(self, now_us: int) -> None:
        records = self._records
        for known in list(islice(records, SWEPT_AT_ONCE)):
            if len(records) >= MAX_RECORDS or records[known][1] <= now_us:
                del records[known]
        first = next(iter(records.values()), (0, now_us + self._remember_us))
        self._none_ends_before_us = first[1]
