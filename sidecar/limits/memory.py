"""Are there counters without a server?

Every step happens between two turns of the event loop, so it is atomic by itself. Counts per process, and starts
empty. What time has emptied is swept with the calls that follow; both tables are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from sidecar.limits.counters import SECOND_US, Counter, Daily, Rate, Sliding, Slots
from sidecar.limits.plan import Charge, Kind
from sidecar.limits.store import LEASE_S, REMEMBER_S, Charges, StoreUnavailable, Verdict

MAX_COUNTERS = 200_000  # per kind, half a KB each; only verified principals and configuration make counters
MAX_RECORDS = 200_000
SWEPT_PER_CHARGE = 2


class MemoryStore:
    """A Store in this process. `clock` gives seconds since the epoch."""

    kind = "memory"
    up = True

    def __init__(
        self, clock: Callable[[], float], *, lease_s: float = LEASE_S, max_counters: int = MAX_COUNTERS
    ) -> None:
        self._clock = clock
        self._lease_us = int(lease_s * SECOND_US)
        self._max_counters = max_counters
        self._tables: dict[Kind, dict[str, Counter]] = {"hour": {}, "day": {}, "rate": {}, "concurrency": {}}
        self._records: dict[
            str, tuple[int, int]
        ] = {}  # decision id → when it was charged (0: given back), end of record

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        now_us = self._now_us()
        counters = [self._counter(charge) for charge in charges]
        asked = [counter.ask(charge, now_us) for counter, charge in zip(counters, charges, strict=True)]
        if record := self._records.get(decision_id):
            if not record[0]:
                raise StoreUnavailable("this call was given up before its charge arrived")
            return Verdict(True, now_us, tuple(asked))
        if any(standing.wait_us for standing in asked):
            return Verdict(False, now_us, tuple(asked))
        self._make_room(charges, now_us)
        self._remember(decision_id, now_us, now_us)
        charged = []
        for counter, charge in zip(counters, charges, strict=True):
            table = self._tables[charge.kind]
            table.pop(charge.key, None)
            table[charge.key] = counter  # last touched stands last, so that what time has emptied gathers in front
            charged.append(counter.charge(charge, now_us, decision_id))
        return Verdict(True, now_us, tuple(charged))

    def give_back(self, charges: Charges, decision_id: str) -> None:
        charged_us, _ = self._records.pop(decision_id, (0, 0))
        if charged_us:
            for charge in charges:
                if counter := self._tables[charge.kind].get(charge.key):
                    counter.give_back(charge, charged_us, decision_id)
        self._remember(decision_id, 0, self._now_us())

    def release(self, charges: Charges, decision_id: str) -> None:
        self._records.pop(decision_id, None)
        for charge in charges:
            if charge.kind == "concurrency" and (counter := self._tables["concurrency"].get(charge.key)):
                counter.give_back(charge, 0, decision_id)

    def extend(self, charges: Charges, decision_id: str) -> None:
        now_us = self._now_us()
        if record := self._records.pop(decision_id, None):
            self._remember(decision_id, record[0], now_us)
        for charge in charges:
            counter = self._tables[charge.kind].get(charge.key)
            if isinstance(counter, Slots):
                counter.extend(now_us, decision_id)

    async def ping(self) -> None:
        """It is here."""

    async def close(self) -> None:
        """Nothing is held."""

    def _now_us(self) -> int:
        return round(self._clock() * SECOND_US)

    def _counter(self, charge: Charge) -> Counter:
        return self._tables[charge.kind].get(charge.key) or self._fresh(charge.kind)

    def _fresh(self, kind: Kind) -> Counter:
        match kind:
            case "hour":
                return Sliding()
            case "day":
                return Daily()
            case "rate":
                return Rate()
            case "concurrency":
                return Slots(self._lease_us)

    def _make_room(self, charges: Charges, now_us: int) -> None:
        for charge in charges:
            table = self._tables[charge.kind]
            for key in list(islice(table, SWEPT_PER_CHARGE)):
                if table[key].idle(now_us):
                    del table[key]
            if len(table) >= self._max_counters and charge.key not in table:
                # Forgetting a living counter would lift its limit: refuse instead.
                raise StoreUnavailable(f"more than {self._max_counters} counters of one kind are in use")

    def _remember(self, decision_id: str, charged_us: int, now_us: int) -> None:
        for known in list(islice(self._records, SWEPT_PER_CHARGE)):
            if len(self._records) >= MAX_RECORDS or self._records[known][1] <= now_us:
                del self._records[known]
        self._records[decision_id] = (charged_us, now_us + REMEMBER_S * SECOND_US)
