"""What does one call hold, what does a refused one hear, and what comes back?"""

from __future__ import annotations

import asyncio

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.limits import NOTHING, LimitCharge, Limiter, LimitPlan, StoreUnavailable
from sidecar.limits.store import Charges, Verdict
from tests.unit.limits.stages import DAY_US, HOUR_US, START_US, charge, memory_stage

HOUR, DAY, RATE, SLOTS = (
    charge("hour", 2),
    charge("day", 2),
    charge("rate", 2, interval_us=1_000_000),
    charge("concurrency", 2),
)
ALL = LimitPlan((HOUR, DAY, RATE, SLOTS))


class DeadStore:
    """A store that is out, and remembers what it was asked."""

    kind, up = "dead", False

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        self.asked.append(decision_id)
        raise StoreUnavailable("out")

    def give_back(self, charges: Charges, decision_id: str) -> None:
        self.asked.append(decision_id)

    release = extend = give_back

    async def ping(self) -> None:
        raise StoreUnavailable("out")

    async def close(self) -> None:
        """It is closed already."""


async def take(limiter: Limiter, *charges: LimitCharge, call: str, forwarded: bool = True) -> list[int]:
    async with limiter.reserve(LimitPlan(charges), call) as lease:
        lease.forwarded = forwarded
        return [state.remaining for state in lease.states]


async def refusal_of(limiter: Limiter, *charges: LimitCharge) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await take(limiter, *charges, call="refused")
    return refused.value


async def test_a_lease_says_where_every_limit_stands_after_charging() -> None:
    limiter = Limiter(memory_stage().store)
    async with limiter.reserve(ALL, "call") as lease:
        assert [(state.name, state.limit, state.remaining, state.window_s) for state in lease.states] == [
            ("test:a:hour", 2, 1, 3600.0),
            ("test:a:day", 2, 1, 86400.0),
            ("test:a:rate", 2, 1, 2.0),
            ("test:a:concurrency", 2, 1, 0.0),
        ]
        assert lease.states[1].reset_at == (START_US + DAY_US) / 1e6
        assert lease.states[3].reset_at is None


async def test_a_forwarded_call_keeps_its_charges_and_frees_its_slot() -> None:
    limiter = Limiter(memory_stage().store)
    await take(limiter, *ALL.charges, call="first")
    assert await take(limiter, *ALL.charges, call="second") == [0, 0, 0, 1]


async def test_a_call_that_was_not_forwarded_gives_everything_back() -> None:
    limiter = Limiter(memory_stage().store)
    for number in range(5):
        assert await take(limiter, *ALL.charges, call=f"call-{number}", forwarded=False) == [1, 1, 1, 1]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, Refusal])
@pytest.mark.parametrize("forwarded", [True, False])
async def test_however_a_call_ends_its_slot_is_free_and_its_charges_are_kept_only_if_forwarded(
    error: type[BaseException], forwarded: bool
) -> None:
    """BL-059."""
    limiter = Limiter(memory_stage().store)
    with pytest.raises(error):
        async with limiter.reserve(ALL, "call") as lease:
            lease.forwarded = forwarded
            raise error(Reason.UPSTREAM_FAILED)
    assert await take(limiter, *ALL.charges, call="next") == [0 if forwarded else 1] * 3 + [1]


async def test_the_bounds_hold_for_calls_in_flight_together() -> None:
    limiter = Limiter(memory_stage().store)
    go = asyncio.Event()

    async def one(number: int) -> Reason | None:
        try:
            async with limiter.reserve(LimitPlan((SLOTS,)), f"call-{number}"):
                await go.wait()
        except Refusal as refusal:
            return refusal.reason
        return None

    calls = [asyncio.create_task(one(number)) for number in range(5)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*calls) == [None, None] + [Reason.TOO_MANY_CONCURRENT] * 3


@pytest.mark.parametrize(
    ("limit", "reason"),
    [(HOUR, Reason.RATE_LIMITED), (RATE, Reason.RATE_LIMITED), (DAY, Reason.QUOTA_SPENT)],
)
async def test_a_refusal_names_the_limit_and_when_to_come_back(limit: LimitCharge, reason: Reason) -> None:
    stage = memory_stage()
    limiter = Limiter(stage.store)
    for call in ("first", "second"):
        await take(limiter, limit, call=call)
    refusal = await refusal_of(limiter, limit)
    assert refusal.reason is reason
    assert refusal.limit is not None
    assert (refusal.limit.name, refusal.limit.remaining) == (limit.limit, 0)
    assert refusal.retry_after_s is not None
    stage.wait(round(refusal.retry_after_s * 1e6))
    assert await take(limiter, limit, call="third")


async def test_of_several_limits_that_refuse_the_longest_wait_is_told() -> None:
    limiter = Limiter(memory_stage().store)
    for call in ("first", "second"):
        await take(limiter, *ALL.charges, call=call)
    refusal = await refusal_of(limiter, HOUR, DAY, RATE)
    assert (refusal.reason, refusal.retry_after_s) == (Reason.QUOTA_SPENT, 86400.0)


async def test_a_plan_without_charges_asks_nobody() -> None:
    store = DeadStore()
    async with Limiter(store).reserve(NOTHING, "call") as lease:
        assert lease.states == ()
    assert store.asked == []


async def test_a_store_that_is_out_is_no_limit_that_is_reached() -> None:
    refusal = await refusal_of(Limiter(DeadStore()), HOUR)
    assert refusal.reason is Reason.STORE_UNAVAILABLE
    assert refusal.retry_after_s == 1.0


async def test_what_runs_long_keeps_its_slot() -> None:
    stage = memory_stage()
    limiter = Limiter(stage.store, lease_s=0.03)
    async with limiter.reserve(LimitPlan((SLOTS,)), "long"):
        for _ in range(3):
            stage.wait(50_000_000)  # most of the store's lease
            await asyncio.sleep(0.02)  # a beat or two of the limiter's
        assert await take(limiter, SLOTS, call="other") == [0]
    await limiter.close()


async def test_nothing_beats_once_nothing_is_held() -> None:
    limiter = Limiter(memory_stage().store, lease_s=0.003)
    await take(limiter, SLOTS, call="call")
    await asyncio.sleep(0.01)
    assert limiter._beat is None


async def test_more_counters_than_the_bound_are_refused_and_never_forgotten() -> None:
    stage = memory_stage(max_counters=2)
    limiter = Limiter(stage.store)
    for name in ("a", "b"):
        await take(limiter, charge("hour", 2, name), call=name)
    assert (await refusal_of(limiter, charge("hour", 2, "c"))).reason is Reason.STORE_UNAVAILABLE
    stage.wait(DAY_US)
    await take(limiter, charge("hour", 2, "c"), call="c")


async def test_counters_that_time_has_emptied_make_room_as_new_ones_come() -> None:
    stage = memory_stage(max_counters=10)
    limiter = Limiter(stage.store)
    for number in range(100):
        await take(limiter, charge("hour", 2, str(number)), call=str(number))
        stage.wait(HOUR_US // 8)
