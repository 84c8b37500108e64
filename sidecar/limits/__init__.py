"""Reserves and settles the limits of calls.

    budgets.py            parses budgets.yaml into rules; amounts.py: exact decimal amounts
    plan.py               turns an allowed call into its charges: the counters that it moves
    __init__.py           opens the store; reserves all charges or none, holds slots, returns the unused part
    store.py              the interface of a counter store: memory_store.py or redis_store.py (admit.lua, settle.lua,
                          whole.lua)
    topology.py           finds the server that counts: a single node, Sentinel's primary, or the slot's owner
    store_connection.py   holds one connection to that server; redis_pipeline.py: pipelines calls over it
    counter_memory.py     restores counters that the store lost (epoch.lua, guard.lua, restore.lua)
    refusal_tracker.py    tracks a store that answers with errors
    degraded.py           admits a bounded number of calls while the store is unavailable
    counters.py           the arithmetic of hours, days, months, rates and slots
    session_calls.py      limits lists and pings
    usage_report.py       reports used and remaining limits; store_monitor.py: the state of the store

A call is charged before the request is sent to the upstream. Once sending begins, it remains charged, whatever the
upstream does; until then every charge is returned (argument refused, caller disconnected, internal error). The maximum
cost of a call is reserved; the part that its complete response did not cost is returned. Without a response the whole
reservation remains, because the cost is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from sidecar.errors import LimitState, Reason, Refusal
from sidecar.limits.amounts import MILLION, in_units
from sidecar.limits.budgets import load_budgets
from sidecar.limits.counters import SECOND_US
from sidecar.limits.degraded import DegradedStore
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import NOTHING, Budgets, Kind, LimitCharge, LimitPlan, plan_charges, rule_label
from sidecar.limits.session_calls import SessionCalls
from sidecar.limits.store import LEASE_S, UNSEEN, CounterStore, StoreObserver, StoreUnavailable, Verdict
from sidecar.settings.store import StoreSettings

__all__ = [
    "NOTHING", "Budgets", "CounterStore", "Lease", "LimitCharge", "LimitPlan", "Limiter", "SessionCalls",
    "StoreObserver", "StoreUnavailable", "load_budgets", "open_store", "plan_charges", "rule_label",
]  # fmt: skip

RETRY_OUTAGE_S = 1.0

_REASONS: dict[Kind, Reason] = {
    "hour": Reason.RATE_LIMITED,
    "rate": Reason.RATE_LIMITED,
    "day": Reason.QUOTA_SPENT,
    "month": Reason.QUOTA_SPENT,
    "concurrency": Reason.TOO_MANY_CONCURRENT,
}


Excuse = Callable[[Refusal], bool]


def open_store(
    chosen: StoreSettings, clock: Callable[[], float], *, lease_s: float = LEASE_S, observer: StoreObserver = UNSEEN
) -> CounterStore:
    """Builds the store of the settings without connecting. `clock` returns seconds since the epoch. Raises
    SettingsError for unusable files."""
    if chosen.is_memory:
        return MemoryCounters(clock, lease_s=lease_s)
    from sidecar.limits.redis_store import RedisCounters
    from sidecar.limits.topology import finder_of  # 0.5 s of imports that `memory://` does not need

    kind = {"sentinel": "redis+sentinel", "cluster": "redis+cluster"}.get(chosen.place.kind, "redis")
    finder = finder_of(chosen)
    shared = RedisCounters(finder, lease_s=lease_s, deadline_s=chosen.timeout, observer=observer, kind=kind)
    if chosen.degraded_calls is None:
        return shared
    return DegradedStore(shared, MemoryCounters(clock, lease_s=lease_s), chosen.degraded_calls)


class Limiter:
    """Charges calls against one store. `lease_s` must equal the store's; leases are extended three times per lease."""

    def __init__(self, store: CounterStore, *, lease_s: float = LEASE_S) -> None:
        self.store = store
        self._beat_s = lease_s / 3
        self.held: dict[str, LimitPlan] = {}
        """The charged calls that have not ended, by decision id."""
        self.beat: asyncio.TimerHandle | None = None
        """Extends the leases of `held`, once `extend_later` was called."""

    def reserve(self, plan: LimitPlan, decision_id: str) -> Lease:
        """Charges a plan for one call; `decision_id` is the sidecar's own id of the call. If the lease is `pending`,
        the charge takes effect, or is refused, with `await lease.charge()`. `lease.end()` must be called at the end.
        `async with` does both."""
        lease = Lease(self, plan, decision_id)
        if charges := plan.charges:
            try:
                numbers = self.store.charge_now(charges, decision_id)
            except StoreUnavailable:
                numbers = None
            if numbers is None:
                lease.pending = True
            else:
                lease.numbers, lease.charged = numbers, 1
                lease.counted = None if plan.paid else (charges, tuple(numbers[::3]))
                self.held[decision_id] = plan
                if self.beat is None:
                    self.extend_later()
        return lease

    async def close(self) -> None:
        """Stops extending leases and closes the store."""
        if self.beat:
            self.beat.cancel()
        await self.store.close()

    def extend_later(self) -> None:
        """Extends the leases of charged calls periodically, until they end."""
        self.beat = asyncio.get_running_loop().call_later(self._beat_s, self._extend)

    def _extend(self) -> None:
        self.beat = None
        for decision_id, plan in self.held.items():
            self.store.extend(plan.slots, decision_id)
        if self.held:
            self.extend_later()


class Lease:
    """The slots of one call, and the states of its limits. Set `forwarded` immediately before writing to the upstream;
    from then on the call remains charged."""

    pending = False
    """Whether `charge` must still be awaited."""
    forwarded = False
    degraded = False
    """Whether this instance admitted the call locally because the store is unavailable."""
    numbers: Sequence[int] | None = None
    """A `Verdict`'s numbers, as of the charge."""
    charged = 0
    """1 if `states` are those of charged limits, otherwise 0."""
    counted: tuple[object, tuple[int, ...]] | None = None
    """The charges, the same object for the same plan, and the remaining amount of each limit. None if a limit counts
    costs, or nothing was charged."""
    _excused: LimitState | None = None
    _told: Mapping[str, int] | None = None
    _spent: Mapping[str, int] | None = None

    def __init__(self, limiter: Limiter, plan: LimitPlan, decision_id: str) -> None:
        self.plan, self._limiter, self._decision_id = plan, limiter, decision_id

    async def charge(self, excuse: Excuse | None = None) -> None:
        """Waits for the charge if it is pending. Raises Refusal: RATE_LIMITED, QUOTA_SPENT, BUDGET_SPENT or
        TOO_MANY_CONCURRENT, with the limit that takes longest to have room; or STORE_UNAVAILABLE. If `excuse` returns
        true for the refusal, the call continues uncharged."""
        if not self.pending:
            return
        self.pending = False
        limiter, plan, decision_id = self._limiter, self.plan, self._decision_id
        why: StoreUnavailable | None = None
        try:
            verdict = await limiter.store.reserve(plan.charges, decision_id)
        except StoreUnavailable as error:
            refusal, why = Refusal(Reason.STORE_UNAVAILABLE, retry_after_s=RETRY_OUTAGE_S), error
        else:
            if verdict.admitted:
                limiter.held[decision_id] = plan
                if limiter.beat is None:
                    limiter.extend_later()
                self.numbers, self.degraded, self.charged = verdict.numbers, verdict.degraded, 1
                self.counted = None if plan.paid else (plan.charges, verdict.numbers[::3])
                return
            refusal = _refusal(plan, verdict)
        try:
            if excuse is None or not excuse(refusal):
                raise refusal from why
            self._excused = refusal.limit
        finally:
            del refusal, why  # their tracebacks refer to this frame, and it to the request

    def end(self) -> None:
        """Frees the slots and returns the unspent part of the charges, or every charge if it was not `forwarded`. Does
        not await, so it cannot be cancelled."""
        limiter, decision_id, plan = self._limiter, self._decision_id, self.plan
        if limiter.held.pop(decision_id, None) is None:
            return
        if self.forwarded:
            limiter.store.release(plan.slots if self._spent is None else plan.unspent(self._spent), decision_id)
        else:
            limiter.store.give_back(plan.charges, decision_id)

    def __iter__(self) -> Iterator[LimitState]:
        return iter(self.states)

    @property
    def states(self) -> tuple[LimitState, ...]:
        """The state of every limit that was charged, less what was returned later; or the limit that was excused."""
        numbers, charges = self.numbers, self.plan.charges
        if numbers is None:
            return (self._excused,) if self._excused else ()
        states = map(_state, charges, numbers[::3], numbers[2::3])
        if (spent := self._spent) is None:
            return tuple(states)
        return tuple(_settled(state, charge, spent) for state, charge in zip(states, charges, strict=True))

    def heard(self, result: Mapping[str, Any]) -> None:
        """Takes the call's result, or one event of it, which may report the call's cost. The last report applies."""
        if self.plan.settles and self.plan.tells(result):
            self._told = self.plan.spent(result)

    def answered(self) -> bool:
        """Marks the response as complete. Returns whether this changes the state of its limits."""
        if not self.plan.settles or self.numbers is None or self._spent is not None:
            return False
        self._spent = self._told if self._told is not None else self.plan.spent(None)
        return True

    async def __aenter__(self) -> Lease:
        await self.charge()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _refusal(plan: LimitPlan, verdict: Verdict) -> Refusal:
    """Returns the refusal with the limit that has the longest wait, because an earlier retry would be refused again."""
    charge, standing = max(zip(plan.charges, verdict.standings, strict=True), key=lambda pair: pair[1].wait_us)
    state = _state(charge, standing.remaining, standing.reset_us)
    if verdict.degraded:  # the local allowance is used; the limit itself may have room
        return Refusal(Reason.STORE_UNAVAILABLE, limit=state, retry_after_s=RETRY_OUTAGE_S)
    reason = Reason.BUDGET_SPENT if charge.unit else _REASONS[charge.kind]
    return Refusal(reason, limit=state, retry_after_s=standing.wait_us / SECOND_US)


def _state(charge: LimitCharge, remaining: int, reset_us: int) -> LimitState:
    window_s = charge.window_s if charge.kind != "month" else _month_s(reset_us)
    reset_at = reset_us / SECOND_US if reset_us else None
    if not charge.unit:
        return LimitState(charge.limit, charge.most, remaining, window_s, reset_at, "", charge.amount)
    most, left, charged = in_units(charge.most), in_units(remaining), in_units(charge.amount)
    return LimitState(charge.limit, most, left, window_s, reset_at, charge.unit, charged)


def _month_s(end_us: int) -> float:
    """Returns the length of the month that ends at `end_us`, in seconds."""
    end = datetime.fromtimestamp(end_us // SECOND_US, UTC)
    begin = end.replace(year=end.year - 1, month=12) if end.month == 1 else end.replace(month=end.month - 1)
    return (end - begin).total_seconds()


def _settled(state: LimitState, charge: LimitCharge, spent: Mapping[str, int]) -> LimitState:
    if not charge.unit:
        return state
    kept = min(charge.amount, spent.get(charge.unit, 0))
    back = round(state.remaining * MILLION) + charge.amount - kept
    return state._replace(charged=in_units(kept), remaining=in_units(back))
