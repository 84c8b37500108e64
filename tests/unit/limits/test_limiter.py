"""What does one call hold, what does a refused one hear, and what comes back?"""

import asyncio
from contextlib import nullcontext

import pytest
from hypothesis import given, strategies as st

from sidecar.errors import Reason, Refusal
from sidecar.limits import NOTHING, LimitCharge, Limiter, LimitPlan
from sidecar.limits.plan import Kind
from sidecar.limits.store import StoreUnavailable
from tests.flow.world import until
from tests.unit.limits.stages import DAY_US, HOUR_US, MINUTE_US, START_US, charge, memory_stage, opened

HOUR, DAY, RATE, SLOTS = (
    charge("hour", 2),
    charge("day", 2),
    charge("rate", 2, interval_us=1_000_000),
    charge("concurrency", 2),
)
ALL = LimitPlan((HOUR, DAY, RATE, SLOTS))


async def take(limiter: Limiter, *charges: LimitCharge, call: str, forwarded: bool = True) -> list[float]:
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


@pytest.mark.parametrize("error", [None, ValueError, asyncio.CancelledError, Refusal])
@pytest.mark.parametrize("forwarded", [True, False])
async def test_however_a_call_ends_its_slot_is_free_and_its_charges_are_kept_only_if_forwarded(
    error: type[BaseException] | None, forwarded: bool
) -> None:
    """BL-059."""
    limiter = Limiter(memory_stage().store)
    with pytest.raises(error) if error else nullcontext():
        async with limiter.reserve(ALL, "call") as lease:
            lease.forwarded = forwarded
            if error:
                raise error(Reason.UPSTREAM_FAILED)
    assert await take(limiter, *ALL.charges, call="next") == [0 if forwarded else 1] * 3 + [1]


@pytest.mark.parametrize(
    ("limit", "reason"), [(HOUR, Reason.RATE_LIMITED), (RATE, Reason.RATE_LIMITED), (DAY, Reason.QUOTA_SPENT)]
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


async def test_a_store_that_is_out_is_no_limit_that_is_reached_and_is_not_asked_without_need() -> None:
    async with opened("unix:///nowhere/at/all", 0.1) as store:
        async with Limiter(store).reserve(NOTHING, "call") as lease:
            assert lease.states == ()
        refusal = await refusal_of(Limiter(store), HOUR)
        assert (refusal.reason, refusal.retry_after_s) == (Reason.STORE_UNAVAILABLE, 1.0)


async def test_what_runs_long_keeps_its_slot_and_nothing_beats_once_nothing_is_held() -> None:
    stage = memory_stage()
    limiter = Limiter(stage.store, lease_s=0.003)
    async with limiter.reserve(LimitPlan((SLOTS,)), "long"):
        for _ in range(3):
            stage.wait(50_000_000)  # most of the store's lease
            await asyncio.sleep(0.05)  # a beat of the limiter's, and many more
        assert await take(limiter, SLOTS, call="other") == [0]
    await until(lambda: limiter.beat is None)
    await limiter.close()


async def test_more_counters_than_the_bound_are_refused_and_never_forgotten() -> None:
    stage = memory_stage(max_counters=2)
    limiter = Limiter(stage.store)
    for name in ("a", "b"):
        await take(limiter, charge("hour", 2, name), call=name)
    assert (await refusal_of(limiter, charge("hour", 2, "c"))).reason is Reason.STORE_UNAVAILABLE
    stage.wait(DAY_US)
    await take(limiter, charge("hour", 2, "c"), call="c")


KINDS: tuple[tuple[Kind, ...], ...] = (("hour",), ("rate", "concurrency"), ("day", "hour"))
PLANS = [
    tuple([charge(kind, 3, name, 1_000_000) for kind in kinds for name in names])
    for kinds in KINDS
    for names in ("a", "ab", "c", "de")
]
PAUSES = st.sampled_from([0, 1_000, 700_000, MINUTE_US, HOUR_US, DAY_US])
STEPS = st.tuples(st.sampled_from(PLANS), PAUSES, st.booleans())


@given(st.lists(STEPS, max_size=60), st.integers(4, 7))
def test_a_plan_that_was_charged_before_counts_as_a_new_one_does(
    steps: list[tuple[tuple[LimitCharge, ...], int, bool]], max_counters: int
) -> None:
    """Though counters were dropped meanwhile because they were idle, or reset."""

    async def play(*, anew: bool) -> list[object]:
        stage, told = memory_stage(max_counters=max_counters), list[object]()
        for number, (plan, pause_us, resets) in enumerate(steps):
            stage.wait(pause_us)
            if resets:
                await stage.store.reset(plan)
            charges = (*plan,) if anew else plan
            try:
                told.append(await stage.store.reserve(charges, str(number)))
            except StoreUnavailable as error:
                told.append(str(error))
            stage.store.release(charges[-1:], str(number - 2))
        return told

    assert asyncio.run(play(anew=False)) == asyncio.run(play(anew=True))
