"""Does a fast lane ask the store less, and let nobody in whom the store would not?"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from sidecar.limits import LimitCharge, open_store
from sidecar.limits import fast_lane as lane_module
from sidecar.limits.fast_lane import SHARE, FastLane
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.store import Charges, CounterStore, StoreUnavailable, Verdict
from sidecar.settings.store import StoreSettings
from tests.unit.limits.stages import charge, opened
from tests.valkey import Valkey

HOUR = LimitCharge("row:r", "hour", "hour:r", 1000)
DAY = LimitCharge("user:*", "day", "day:u", 2000)
PLAN = (HOUR, DAY)
IDLE_S = 0.05


class Counted:
    """A store, and what it was asked."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked: list[int] = []
        self.given_back: list[int] = []
        self.late: Callable[[], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        self.asked.append(charges[0].amount)
        if self.late is not None and charges[0].amount > 1:
            late, self.late = self.late, None
            await late()
        verdict: Verdict = await self.inner.reserve(charges, decision_id)
        return verdict

    def give_back(self, charges: Charges, decision_id: str) -> None:
        self.given_back.append(charges[0].amount)
        self.inner.give_back(charges, decision_id)


def ids(prefix: str = "") -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"{prefix}{next(numbers)}"


@dataclass
class Clocks:
    """The store's and ours, which go together."""

    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def lane_before(store: Any, clock: Callable[[], float], **more: Any) -> FastLane:
    return FastLane(store, **{"most": 32, "idle_s": IDLE_S, "clock": clock, "new_id": ids("block"), **more})


async def hurried(lane: FastLane, clocks: Clocks, plan: Charges = PLAN, calls: int = 100) -> list[str]:
    """Calls that come one each millisecond; who was let in."""
    let_in, named = [], ids(f"call-{time.monotonic_ns()}-")
    for _ in range(calls):
        clocks.now_s += 0.001
        decision_id = named()
        if (await lane.reserve(plan, decision_id)).admitted:
            let_in.append(decision_id)
    return let_in


async def used(store: Any, limit: LimitCharge = HOUR) -> int:
    (standing,) = await store.look((limit,))
    return limit.most - int(standing.remaining)


async def idle(store: Any, clocks: Clocks, now_used: int) -> None:
    """Until what is left of blocks has gone back: not one call more is charged than were let in."""
    clocks.now_s += 20
    async with asyncio.timeout(30):
        while {await used(store), await used(store, DAY)} != {now_used}:
            await asyncio.sleep(IDLE_S)


@asynccontextmanager
async def in_a_hurry(**more: Any) -> AsyncIterator[tuple[FastLane, Counted, Clocks]]:
    clocks = Clocks()
    store = Counted(MemoryCounters(clocks))
    lane = lane_before(store, clocks, **more)
    for decision_id in await hurried(lane, clocks, calls=150):  # by now it knows how quickly they come
        lane.release((), decision_id)
    yield lane, store, clocks
    await lane.close()


async def test_rare_calls_ask_the_store_each() -> None:
    clocks = Clocks()
    store = Counted(MemoryCounters(clocks))
    lane = lane_before(store, clocks)
    for number in range(30):
        clocks.now_s += 1
        assert (await lane.reserve(PLAN, str(number))).admitted
    assert store.asked == [1] * 30 and await used(store) == 30
    await lane.close()


async def test_calls_in_a_hurry_ask_once_for_many_and_what_is_left_or_not_forwarded_goes_back() -> None:
    async with in_a_hurry() as (lane, store, clocks):
        before = len(store.asked)
        let_in = await hurried(lane, clocks, calls=200)
        assert len(let_in) == 200 and len(store.asked) - before < 20 and max(store.asked) == 32
        for decision_id in let_in[:10] * 2:
            lane.give_back(PLAN, decision_id)
        for decision_id in let_in[10:]:
            lane.release((), decision_id)
        await idle(store, clocks, 150 + 190)


async def test_a_caller_hears_how_much_is_left_of_the_limit_and_not_of_the_block() -> None:
    async with in_a_hurry() as (lane, _, clocks):
        remaining = []
        for number in range(40):
            clocks.now_s += 0.001
            remaining.append((await lane.reserve(PLAN, f"n{number}")).standings[0].remaining)
        assert remaining == list(range(remaining[0], remaining[0] - 40, -1))


async def test_many_rare_plans_push_no_hot_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "MAX_WAYS", 3)
    rare = [(LimitCharge("row:r", "hour", f"hour:{number}", 1000),) for number in range(10)]
    async with in_a_hurry() as (lane, store, clocks):
        before, calls = len(store.asked), 0
        for number, plan in enumerate(rare):
            calls += len(await hurried(lane, clocks, calls=10))
            await lane.reserve(plan, f"rare-{number}")
        assert calls == 100 and len(store.asked) - before < 20

        async def late(*_: object) -> None:
            for other in rare:
                lane._way(other)

        store.late = late
        let_in = len(await hurried(lane, clocks, calls=33))  # the block of before is used up, another is asked for
        assert store.late is None
        await idle(store, clocks, 150 + calls + let_in)


async def test_the_same_call_is_charged_once() -> None:
    async with in_a_hurry() as (lane, store, clocks):
        for _ in range(5):
            await lane.reserve(PLAN, "the same")
        lane.release((), "the same")
        await idle(store, clocks, 151)


async def test_a_block_ends_with_its_minute() -> None:
    """What was charged in one minute and used in the next would be missed by an hour that slides."""
    async with in_a_hurry() as (lane, store, clocks):
        clocks.now_s += 60 - clocks.now_s % 60 - 0.01
        let_in = await hurried(lane, clocks, calls=5)
        for decision_id in let_in:
            lane.release((), decision_id)
        asked = len(store.asked)
        clocks.now_s += 0.02
        await lane.reserve(PLAN, "next minute")
        assert len(store.asked) == asked + 1 and store.given_back


async def test_little_that_is_left_is_not_taken_from_others() -> None:
    async with in_a_hurry() as (lane, store, clocks):
        scarce = (LimitCharge("row:s", "hour", "hour:s", 100),)
        let_in = await hurried(lane, clocks, scarce, calls=400)
        assert len(let_in) == 100, "exactly as many as there are"
        assert max(store.asked[-300:]) <= 100 // SHARE


async def test_what_cannot_be_charged_ahead_asks_the_store_each_time() -> None:
    usd = charge("day", 10**9, amount=2_000, unit="usd")
    async with in_a_hurry() as (lane, store, clocks):
        for each in (charge("rate", 1000, interval_us=1000), charge("concurrency", 1000), usd):
            before = len(store.asked)
            await hurried(lane, clocks, (HOUR, each), calls=100)
            assert len(store.asked) - before == 100


async def test_a_store_that_is_out_is_out_for_everybody_who_waits_for_a_block() -> None:
    async with in_a_hurry() as (lane, store, clocks), opened("unix:///nowhere/at/all", 0.1) as out:
        await hurried(lane, clocks, calls=1)
        for way in lane._ways.values():
            lane._end(way)
        inner, store.inner = store.inner, out
        ends = await asyncio.gather(*(lane.reserve(PLAN, f"w{n}") for n in range(20)), return_exceptions=True)
        assert {type(end) for end in ends} == {StoreUnavailable} and len(store.asked[-20:]) <= 20
        store.inner = inner
        assert (await lane.reserve(PLAN, "again")).admitted


# --- several replicas, a real store -----------------------------------------------------------------------------------


async def crowd(lane: CounterStore, let_in: list[str], name: str) -> None:
    """Calls until the limit is spent, and some more."""
    named, more = ids(name), 20
    while more:
        decision_id = named()
        more -= len(let_in) >= HOUR.most
        with suppress(StoreUnavailable):  # a busy machine is later than the deadline: nobody is let in, nothing is lost
            if (await lane.reserve(PLAN, decision_id)).admitted:
                let_in.append(decision_id)
                lane.release((), decision_id)
            else:
                await asyncio.sleep(0.002)


async def test_four_replicas_let_in_exactly_as_many_as_the_limit_says(fresh_valkey: Valkey) -> None:
    settings = StoreSettings.model_validate({"url": fresh_valkey.url, "fast_lane": {"idle_s": 0.05}})
    lanes = [open_store(settings, time.time) for _ in range(4)]
    let_in: list[str] = []
    async with asyncio.timeout(60):
        await asyncio.gather(*(crowd(lane, let_in, f"r{n}-{k}-") for n, lane in enumerate(lanes) for k in range(16)))
    assert len(let_in) == len(set(let_in)) == HOUR.most
    for lane in lanes:
        await lane.close()
    async with opened(fresh_valkey.url) as again:
        assert (await used(again), await used(again, DAY)) == (HOUR.most, HOUR.most)


async def test_what_is_charged_ahead_of_a_counter_that_is_reset_is_not_given_back_to_it() -> None:
    clocks = Clocks()
    lane = lane_before(MemoryCounters(clocks), clocks)
    let_in = await hurried(lane, clocks, calls=400)
    assert any(way.block and way.block.left for way in lane._ways.values()), "a block is in use"
    day_before = (await lane.look((DAY,)))[0].remaining
    await lane.reset((HOUR,))
    assert (await lane.look((HOUR,)))[0].remaining == HOUR.most
    assert (await lane.reserve((HOUR,), "after")).admitted
    for decision_id in let_in:
        lane.release((), decision_id)
    await lane.close()
    assert (await lane.look((HOUR,)))[0].remaining == HOUR.most - 1
    assert (await lane.look((DAY,)))[0].remaining > day_before, "what was not used of the other comes back"
