"""Admits a bounded number of calls locally while the shared store is unavailable.

The number is absolute, per limit, window and instance, continues across outages within a window, and is charged to the
store when the store is available again. Calls that a budget counts are not admitted, because an uncounted budget has no
bound. When the number is used, the caller receives 503 for the outage instead of a limit refusal, because the limit may
have room.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import LimitCharge, lasting
from sidecar.limits.store import Charges, CounterUnreadable, StoreUnavailable, Verdict

if TYPE_CHECKING:
    from sidecar.limits.redis_store import RedisCounters

OWED_S = 3600.0
"""After this time, charges that could not be sent to the store are outside the one-hour window."""


class DegradedStore:
    """A shared store that admits `most` calls per limit and window locally while it is unavailable."""

    def __init__(self, shared: RedisCounters, here: MemoryCounters, most: int) -> None:
        self.inner, self.kind = shared, shared.kind
        self.look, self.run, self.ping, self.close = shared.look, shared.run, shared.ping, shared.close
        self.charge_now = shared.charge_now
        self._here = here
        self._most = most
        self._lent: dict[str, Charges] = {}  # running calls that were admitted locally

    @property
    def degraded(self) -> bool:
        return not self.inner.up

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        try:
            return await self.inner.reserve(charges, decision_id)
        except CounterUnreadable:
            raise  # one unreadable counter is not an outage
        except StoreUnavailable:
            if any(charge.unit for charge in charges):
                raise  # money is never admitted locally
        lent = tuple([self._lowered(charge) for charge in charges])
        verdict = await self._here.reserve(lent, decision_id)
        if verdict.admitted:
            self._lent[decision_id] = lent
            # The store may have recorded this decision as returned: the reservation was sent but not answered.
            self.inner.charge_later(lasting(charges), _here(decision_id), OWED_S)
        return verdict._replace(degraded=True)

    def _lowered(self, charge: LimitCharge) -> LimitCharge:
        most = min(self._most, charge.most)
        return replace(charge, most=most, interval_us=charge.most * charge.interval_us // most)

    def give_back(self, charges: Charges, decision_id: str) -> None:
        if lent := self._lent.pop(decision_id, None):
            self._here.give_back(lent, decision_id)
            self.inner.give_back(lasting(charges), _here(decision_id))
        else:
            self.inner.give_back(charges, decision_id)

    def release(self, charges: Charges, decision_id: str) -> None:
        if lent := self._lent.pop(decision_id, None):
            self._here.release(tuple([charge for charge in lent if charge.kind == "concurrency"]), decision_id)
        else:
            self.inner.release(charges, decision_id)

    def extend(self, charges: Charges, decision_id: str) -> None:
        if lent := self._lent.get(decision_id):
            self._here.extend(lent, decision_id)
        else:
            self.inner.extend(charges, decision_id)

    async def reset(self, charges: Charges) -> None:
        await self.inner.reset(charges)
        await self._here.reset(charges)

    @property
    def up(self) -> bool:
        return self.inner.up

    @property
    def trouble(self) -> str:
        return self.inner.trouble

    @property
    def warning(self) -> str:
        return self.inner.warning


def _here(decision_id: str) -> str:
    return f"{decision_id}.here"
