"""Do both stores keep the promises of limits: all or nothing, nothing lost, nothing for ever?"""

from dataclasses import replace
from datetime import datetime
from uuid import uuid4

import pytest

from sidecar.limits.plan import Kind, LimitCharge
from sidecar.limits.store import StoreUnavailable, Verdict
from tests.unit.limits.stages import DAY_US, HOUR_US, LEASE_S, MINUTE_US, MONTH_US, START_US, Stage, charge

PERIODS_AND_SLOTS: tuple[Kind, ...] = ("hour", "day", "month", "concurrency")
HOUR, DAY, MONTH, SLOTS = (charge(kind, 3) for kind in PERIODS_AND_SLOTS)
RATE = charge("rate", 3, interval_us=1_000_000)
KINDS = [HOUR, DAY, MONTH, RATE, SLOTS]
EVERY_KIND = pytest.mark.parametrize("limit", KINDS, ids=lambda limit: limit.kind)
PERIOD = pytest.mark.parametrize("kind", ["hour", "day", "month"])
CENT = 10_000  # of a unit, in millionths


async def fill(stage: Stage, *charges: LimitCharge, times: int, prefix: str = "call") -> list[Verdict]:
    return [await stage.store.reserve(charges, f"{prefix}-{number}") for number in range(times)]


async def remaining(stage: Stage, limit: LimitCharge) -> int:
    """Read a limit without moving it: one reservation, given back."""
    probe = uuid4().hex
    verdict = await stage.store.reserve((limit,), probe)
    stage.store.give_back((limit,), probe)
    await stage.settled()
    return verdict.standings[0].remaining + verdict.admitted


@EVERY_KIND
async def test_as_many_are_admitted_as_the_limit_says_and_not_one_more(stage: Stage, limit: LimitCharge) -> None:
    verdicts = await fill(stage, limit, times=5)
    assert [verdict.admitted for verdict in verdicts] == [True] * 3 + [False] * 2
    assert [verdict.standings[0].remaining for verdict in verdicts] == [2, 1, 0, 0, 0]
    assert [verdict.standings[0].wait_us > 0 for verdict in verdicts] == [False] * 3 + [True] * 2


@EVERY_KIND
@pytest.mark.parametrize("other", KINDS, ids=lambda limit: limit.kind)
async def test_a_call_refused_by_one_limit_moves_no_other(stage: Stage, limit: LimitCharge, other: LimitCharge) -> None:
    full = charge(limit.kind, 1, "full", limit.interval_us)
    await stage.store.reserve((full,), "first")
    for order in ((full, other), (other, full)):
        verdict = await stage.store.reserve(order, f"refused-{order[0].limit}")
        assert not verdict.admitted
        assert [standing.wait_us > 0 for standing in verdict.standings] == [item is full for item in order]
    assert [verdict.admitted for verdict in await fill(stage, other, times=4)] == [True] * 3 + [False]


@EVERY_KIND
async def test_a_call_that_was_not_forwarded_gives_every_charge_back_once(stage: Stage, limit: LimitCharge) -> None:
    await fill(stage, limit, times=3)
    for _ in range(3):
        stage.store.give_back((limit,), "call-1")
    assert [verdict.admitted for verdict in await fill(stage, limit, times=2, prefix="next")] == [True, False]


@EVERY_KIND
async def test_one_decision_is_charged_once_however_often_it_is_asked(stage: Stage, limit: LimitCharge) -> None:
    for _ in range(5):
        assert (await stage.store.reserve((limit,), "same")).admitted
    assert [verdict.admitted for verdict in await fill(stage, limit, times=3)] == [True, True, False]


@EVERY_KIND
async def test_a_charge_that_arrives_after_it_was_given_back_does_nothing(stage: Stage, limit: LimitCharge) -> None:
    stage.store.give_back((limit,), "late")
    with pytest.raises(StoreUnavailable):
        await stage.store.reserve((limit,), "late")
    assert [verdict.admitted for verdict in await fill(stage, limit, times=4)] == [True] * 3 + [False]


@EVERY_KIND
async def test_a_call_charges_an_emptied_counter_and_a_new_one(stage: Stage, limit: LimitCharge) -> None:
    new = charge(limit.kind, 3, "new", limit.interval_us)
    await fill(stage, limit, times=3)
    stage.wait(MONTH_US)
    await fill(stage, limit, new, times=2, prefix="later")
    assert [await remaining(stage, limit), await remaining(stage, new)] == [1, 1]


@EVERY_KIND
async def test_a_counter_that_is_reset_is_unused_and_others_and_slots_stay(stage: Stage, limit: LimitCharge) -> None:
    other = charge(limit.kind, 3, "other", limit.interval_us)
    await fill(stage, limit, other, times=3)
    for _ in range(2):
        await stage.store.reset((limit,))
    assert [await remaining(stage, limit), await remaining(stage, other)] == [0 if limit is SLOTS else 3, 0]
    stage.store.give_back((limit, other), "call-1")
    stage.store.release((SLOTS,), "call-2")
    await stage.settled()
    assert await remaining(stage, limit) == (2 if limit is SLOTS else 3), "what was given up before counts no more"


async def test_releasing_frees_the_slot_and_keeps_the_other_charges(stage: Stage) -> None:
    await stage.store.reserve((HOUR, SLOTS), "call")
    for _ in range(2):
        stage.store.release((SLOTS,), "call")
    assert await remaining(stage, SLOTS) == 3
    stage.store.give_back((HOUR, SLOTS), "call")
    assert await remaining(stage, HOUR) == 2, "nothing comes back after a release"


async def test_a_slot_whose_owner_died_returns_after_its_lease_and_an_extended_one_later(stage: Stage) -> None:
    await fill(stage, SLOTS, times=3)
    stage.wait(int(LEASE_S * 1e6) // 2)
    stage.store.extend((SLOTS,), "call-0")
    await stage.settled()
    stage.wait(int(LEASE_S * 1e6) // 2 - 1)
    assert not (await stage.store.reserve((SLOTS,), "early")).admitted
    stage.wait(1)
    assert await remaining(stage, SLOTS) == 2
    stage.store.extend((SLOTS,), "call-1")
    assert await remaining(stage, SLOTS) == 2, "an ended one stays ended"


async def test_the_wait_that_an_hour_tells_is_the_wait_that_it_keeps(stage: Stage) -> None:
    await stage.store.reserve((HOUR,), "first")
    stage.wait(10 * MINUTE_US)
    await fill(stage, HOUR, times=2)
    refused = (await stage.store.reserve((HOUR,), "refused")).standings[0]
    assert refused.wait_us == 51 * MINUTE_US
    assert refused.reset_us == START_US + 71 * MINUTE_US
    stage.wait(refused.wait_us - 1)
    assert not (await stage.store.reserve((HOUR,), "too early")).admitted
    stage.wait(1)
    assert (await stage.store.reserve((HOUR,), "in time")).admitted


@pytest.mark.parametrize(("limit", "after_us"), [(DAY, DAY_US), (MONTH, 3 * DAY_US)], ids=["day", "month"])
async def test_a_period_that_is_over_takes_nothing_back(stage: Stage, limit: LimitCharge, after_us: int) -> None:
    """It begins on the 28th of November."""
    await fill(stage, limit, times=3)
    stage.wait(after_us)
    await fill(stage, limit, times=2, prefix="later")
    stage.store.give_back((limit,), "call-0")
    assert await remaining(stage, limit) == 1


MONTHS_END = ("2026-12-01", "2027-01-01", "2027-03-01", "2028-03-01", "2100-03-01")


@pytest.mark.parametrize(("limit", "ends"), [(DAY, "2026-11-29"), *((MONTH, ends) for ends in MONTHS_END)])
async def test_a_day_and_a_month_end_at_midnight_utc(stage: Stage, limit: LimitCharge, ends: str) -> None:
    end_us = int(datetime.fromisoformat(f"{ends}T00:00:00Z").timestamp()) * 1_000_000
    for before_s in (86_400 + 1, 1) if limit is MONTH else (1,):
        stage.to(end_us - before_s * 1_000_000)
        verdicts = await fill(stage, limit, times=4, prefix=f"{before_s} before")
        assert verdicts[-1].standings[0] == (0, end_us - stage.now_us, end_us)
    stage.to(end_us - 1)
    assert not (await stage.store.reserve((limit,), "too early")).admitted
    stage.wait(1)
    assert await remaining(stage, limit) == 3


@PERIOD
async def test_what_a_call_may_cost_is_reserved_and_what_it_did_not_cost_comes_back(stage: Stage, kind: Kind) -> None:
    most = charge(kind, 100 * CENT, amount=50 * CENT, unit="usd")
    verdicts = await fill(stage, most, times=3)
    assert [verdict.admitted for verdict in verdicts] == [True, True, False]
    assert [verdict.standings[0].remaining for verdict in verdicts] == [50 * CENT, 0, 0]
    for _ in range(3):  # however often it is said
        stage.store.release((replace(most, amount=49 * CENT),), "call-0")
    verdicts = await fill(stage, replace(most, amount=49 * CENT), times=2, prefix="next")
    assert [verdict.admitted for verdict in verdicts] == [True, False]


@PERIOD
async def test_what_was_given_back_is_not_settled_again(stage: Stage, kind: Kind) -> None:
    most = charge(kind, 100, amount=60)
    await stage.store.reserve((most,), "call")
    stage.store.give_back((most,), "call")
    stage.store.release((replace(most, amount=60),), "call")
    await stage.store.reserve((most,), "other")
    assert [standing.remaining for standing in await stage.store.look((most,))] == [40]


@PERIOD
async def test_the_largest_budgets_are_counted_to_the_last_millionth(stage: Stage, kind: Kind) -> None:
    most = 999_999_999_999_999
    whole, last = charge(kind, most, amount=most - 1), charge(kind, most)
    assert (await stage.store.reserve((whole,), "all but one")).standings[0].remaining == 1
    assert (await stage.store.reserve((last,), "last")).admitted
    assert not (await stage.store.reserve((last,), "one too many")).admitted
    stage.store.release((replace(whole, amount=most - 2),), "all but one")
    assert [standing.remaining for standing in await stage.store.look((last,))] == [most - 2]


@EVERY_KIND
async def test_looking_charges_nothing(stage: Stage, limit: LimitCharge) -> None:
    assert [standing.remaining for standing in await stage.store.look((limit,))] == [3]
    await fill(stage, limit, times=2)
    for _ in range(3):
        assert [standing.remaining for standing in await stage.store.look((limit,))] == [1]
    assert (await stage.store.reserve((limit,), "last")).admitted
    standing = (await stage.store.look((limit,)))[0]
    assert (standing.remaining, standing.wait_us > 0) == (0, True)


async def test_a_rate_lets_a_burst_through_and_then_one_call_per_interval(stage: Stage) -> None:
    verdicts = await fill(stage, RATE, times=4)
    assert verdicts[-1].standings[0] == (0, 1_000_000, START_US + 3_000_000)
    for _ in range(3):
        stage.wait(999_999)
        assert not (await stage.store.reserve((RATE,), "too early")).admitted
        stage.wait(1)
        assert (await stage.store.reserve((RATE,), f"at {stage.now_us}")).admitted


@pytest.mark.parametrize(
    ("pauses_us", "reset_us"),
    [((0, 1_000), 2_001_000), ((0, 1_000_000), 3_000_000), ((0, 100_000, 1_400_000), 4_000_000)],
    ids=["not yet paid back", "paid back by time", "of two low tides ago"],
)
async def test_a_rate_gives_back_what_time_has_not(stage: Stage, pauses_us: tuple[int, ...], reset_us: int) -> None:
    for number, pause_us in enumerate(pauses_us):
        stage.wait(pause_us)
        await stage.store.reserve((RATE,), str(number))
    stage.store.give_back((RATE,), "0")
    assert (await stage.store.reserve((RATE,), "next")).standings[0].reset_us == START_US + reset_us


@EVERY_KIND
async def test_a_clock_that_steps_back_lifts_and_blocks_nothing(stage: Stage, limit: LimitCharge) -> None:
    await fill(stage, limit, times=3)
    stage.wait(-HOUR_US)
    assert not (await stage.store.reserve((limit,), "earlier")).admitted
    stage.wait(MONTH_US + 2 * HOUR_US)
    assert await remaining(stage, limit) == 3


@pytest.mark.parametrize(
    ("kind", "again_after_us"),
    [("hour", 61 * MINUTE_US), ("day", DAY_US), ("month", 3 * DAY_US), ("concurrency", 60_000_000)],
)
async def test_a_clock_a_year_ahead_stops_no_longer_than_the_limit(
    stage: Stage, kind: Kind, again_after_us: int
) -> None:
    """It begins on the 28th of November, at midnight."""
    limit = charge(kind, 2)
    stage.to(START_US + 400 * DAY_US)
    for call in ("one", "two"):
        assert (await stage.store.reserve((limit,), call)).admitted
    for at_us in (START_US, START_US + again_after_us - 1):
        stage.to(at_us)
        assert not (await stage.store.reserve((limit,), f"within-{at_us}")).admitted, "what was counted counts"
    stage.to(START_US + again_after_us)
    assert [(await stage.store.reserve((limit,), f"then-{n}")).admitted for n in range(3)] == [True, True, False]


async def test_a_rate_goes_on_at_its_pace_after_a_clock_that_stepped_back(stage: Stage) -> None:
    await fill(stage, RATE, times=3)
    stage.wait(-HOUR_US)
    assert (await stage.store.reserve((RATE,), "at once")).standings[0].wait_us == 1_000_000
    stage.wait(1_000_000)
    assert (await stage.store.reserve((RATE,), "a second later")).admitted
    assert not (await stage.store.reserve((RATE,), "and another")).admitted


@EVERY_KIND
async def test_a_limit_that_was_lowered_counts_what_was_used(stage: Stage, limit: LimitCharge) -> None:
    await fill(stage, limit, times=3)
    lower = LimitCharge(limit.limit, limit.kind, limit.key, 1, interval_us=limit.interval_us)
    verdict = await stage.store.reserve((lower,), "after the reload")
    assert (verdict.admitted, verdict.standings[0].remaining) == (False, 0)
    assert verdict.standings[0].wait_us > 0
