"""Admits a bounded number of calls locally while the shared store is out.

An absolute number per limit, window and instance, whatever the limit: `store.degraded_calls`, and never more than the
limit itself. It is counted here, goes on counting from one outage to the next within a window, and is charged to the
store when that is back. What costs money is not admitted: a budget that nobody counts has no bound.

Who finds this number spent hears of the outage (503), not of a limit: the limit may well have room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from sidecar.limits.counters import CounterState
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import LimitCharge, lasting
from sidecar.limits.store import Charges, CounterStore, CounterUnreadable, StoreUnavailable, Verdict

OWED_S = 3600.0
"""What could not be charged to the store for so long has left the hour."""


class SharedCounters(CounterStore, Protocol):
    """A store that others share."""

    def charge_later(self, charges: Charges, decision_id: str, within_s: float) -> None:
        """Charge what was admitted without it."""


class DegradedStore:
    """A store that is shared, and while it is out, `most` calls per limit and window by ourselves."""

    def __init__(self, shared: SharedCounters, here: MemoryCounters, most: int) -> None:
        self.kind = shared.kind
        self._shared = shared
        self._here = here
        self._most = most
        self._lent: dict[str, Charges] = {}  # the calls under way that were admitted here

    @property
    def up(self) -> bool:
        return self._shared.up

    @property
    def trouble(self) -> str:
        return self._shared.trouble

    @property
    def warning(self) -> str:
        return self._shared.warning

    @property
    def degraded(self) -> bool:
        return not self._shared.up

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        try:
            return await self._shared.reserve(charges, decision_id)
        except CounterUnreadable:
            raise  # one counter that makes no sense is no outage
        except StoreUnavailable:
            if any(charge.unit for charge in charges):
                raise  # money is never lent
        return await self._reserve_here(charges, decision_id)

    async def _reserve_here(self, charges: Charges, decision_id: str) -> Verdict:
        lent = tuple([self._lowered(charge) for charge in charges])
        verdict = await self._here.reserve(lent, decision_id)
        if verdict.admitted:
            self._lent[decision_id] = lent
            # The store may hold this decision as given back: it was asked for it, and did not answer.
            self._shared.charge_later(lasting(charges), _here(decision_id), OWED_S)
        return verdict._replace(degraded=True)

    def _lowered(self, charge: LimitCharge) -> LimitCharge:
        most = min(self._most, charge.most)
        return replace(charge, most=most, interval_us=charge.most * charge.interval_us // most)

    def give_back(self, charges: Charges, decision_id: str) -> None:
        if lent := self._lent.pop(decision_id, None):
            self._here.give_back(lent, decision_id)
            self._shared.give_back(lasting(charges), _here(decision_id))
        else:
            self._shared.give_back(charges, decision_id)

    def release(self, charges: Charges, decision_id: str) -> None:
        if lent := self._lent.pop(decision_id, None):
            self._here.release(tuple([charge for charge in lent if charge.kind == "concurrency"]), decision_id)
        else:
            self._shared.release(charges, decision_id)

    def extend(self, charges: Charges, decision_id: str) -> None:
        if lent := self._lent.get(decision_id):
            self._here.extend(lent, decision_id)
        else:
            self._shared.extend(charges, decision_id)

    async def look(self, charges: Charges) -> tuple[CounterState, ...]:
        return await self._shared.look(charges)

    async def reset(self, charges: Charges) -> None:
        await self._shared.reset(charges)
        await self._here.reset(charges)

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> Any:
        return await self._shared.run(script, key, arguments)

    async def ping(self) -> None:
        await self._shared.ping()

    async def close(self) -> None:
        await self._shared.close()


def _here(decision_id: str) -> str:
    return f"{decision_id}.here"
