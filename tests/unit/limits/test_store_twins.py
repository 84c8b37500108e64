"""Do the two stores answer the same to the same history, word for word?

The counters are judged by naive models in test_costs.py and test_counters.py; here the Lua is judged by the
counters, over histories of several calls, several limits, undoing and waiting.
"""

import asyncio
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings, strategies as st

from sidecar.limits.plan import LimitCharge
from sidecar.limits.store import Verdict
from tests.unit.limits.stages import DAY_US, HOUR_US, MINUTE_US, MONTH_US, Stage, charge, memory_stage, redis_stage
from tests.valkey import Valkey

LIMITS = (
    charge("hour", 3),
    charge("hour", 5, "b"),
    charge("day", 4),
    charge("month", 4),
    charge("hour", 40, "cost", amount=10, unit="usd"),
    charge("day", 50, "cost", amount=7, unit="usd"),
    charge("month", 60, "cost", amount=9, unit="token"),
    charge("rate", 2, interval_us=1_500_000),
    charge("rate", 3, "b", interval_us=333_334),
    charge("concurrency", 2),
)
RECENT_US = 100_000_000  # a reservation can be given back for two minutes


@dataclass(frozen=True)
class Step:
    verb: str
    limits: tuple[LimitCharge, ...]
    number: int
    pause_us: int


STEPS = st.builds(
    Step,
    st.sampled_from(["reserve", "reserve", "reserve", "give_back", "release", "extend"]),
    st.lists(st.sampled_from(LIMITS), min_size=1, max_size=4, unique=True).map(tuple),
    st.integers(0, 5),
    st.one_of(
        st.just(0),
        st.integers(0, 2_000_000),
        st.sampled_from(
            [MINUTE_US - 1, MINUTE_US, 20 * MINUTE_US, HOUR_US, HOUR_US + MINUTE_US, DAY_US, 3 * DAY_US, MONTH_US]
        ),
    ),
)


def unspent(limits: tuple[LimitCharge, ...]) -> tuple[LimitCharge, ...]:
    """What comes back when a call is over: its slots, and of what it might have cost all but 3."""
    slots = (limit for limit in limits if limit.kind == "concurrency")
    return (*slots, *(replace(limit, amount=limit.amount - 3) for limit in limits if limit.unit))


async def told(stage: Stage, steps: list[Step]) -> list[Verdict]:
    """Play a history; what did the store say?"""
    verdicts: list[Verdict] = []
    calls: list[tuple[str, tuple[LimitCharge, ...], int]] = []
    for number, step in enumerate(steps):
        await stage.settled()
        stage.wait(step.pause_us)
        recent = [call for call in calls if stage.now_us - call[2] < RECENT_US]
        if step.verb == "reserve":
            verdicts.append(await stage.store.reserve(step.limits, str(number)))
            if verdicts[-1].admitted:
                calls.append((str(number), step.limits, stage.now_us))
        elif recent:
            name, limits, _ = recent[-1 - step.number % len(recent)]
            getattr(stage.store, step.verb)(unspent(limits) if step.verb == "release" else limits, name)
            if step.verb == "release":
                calls = [call for call in calls if call[0] != name]  # it is over
    return verdicts


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=40))
def test_redis_says_what_memory_says(fresh_valkey: Valkey, steps: list[Step]) -> None:
    """BL-068: the Lua counts as the counters do, at every edge of a window."""

    async def play() -> None:
        with fresh_valkey.client() as client:
            client.flushall()
        ours, theirs = memory_stage(), redis_stage(fresh_valkey)
        try:
            assert await told(ours, steps) == await told(theirs, steps)
        finally:
            await theirs.store.close()

    asyncio.run(play())
