"""What is admitted while the shared store is out, where the operator chose that something is?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest
from redis import Redis

from sidecar.errors import Reason, Refusal
from sidecar.limits import Limiter, LimitPlan, StoreUnavailable
from sidecar.limits.degraded import DegradedStore
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import LimitCharge
from sidecar.limits.redis_store import RedisCounters
from sidecar.limits.topology import PREFIX, finder_of
from sidecar.settings.store import StoreSettings
from tests.unit.limits.stages import charge
from tests.valkey import Valkey

HOUR, DAY, SLOTS = charge("hour", 100), charge("day", 100), charge("concurrency", 100)
MOST = 3


@asynccontextmanager
async def degraded(valkey: Valkey, most: int = MOST) -> AsyncIterator[DegradedStore]:
    shared = RedisCounters(finder_of(StoreSettings(url=valkey.url)), deadline_s=0.15, hold_s=0.0)
    store = DegradedStore(shared, MemoryCounters(time.time), most)
    try:
        await store.ping()
        yield store
    finally:
        await store.close()


@contextmanager
def out(valkey: Valkey) -> Iterator[None]:
    """Dead, and back as it was: nothing was asked of it in between."""
    with valkey.frozen():
        yield


async def lost(store: DegradedStore) -> None:
    with pytest.raises(StoreUnavailable):
        await store.ping()
    assert store.degraded


async def back(store: DegradedStore) -> None:
    async with asyncio.timeout(5):
        while store.degraded:
            await asyncio.sleep(0.005)
    await store.ping()


async def admitted(store: DegradedStore, *charges: LimitCharge, times: int, name: str) -> int:
    verdicts = [await store.reserve(charges, f"{name}-{number}") for number in range(times)]
    assert all(verdict.degraded for verdict in verdicts)
    return sum(verdict.admitted for verdict in verdicts)


def counted(valkey: Valkey, limit: LimitCharge) -> int:
    with valkey.client() as client:
        return int(client.hget(PREFIX + limit.key, "n") or 0)


async def test_so_many_are_admitted_in_an_outage_and_charged_when_it_is_over_and_no_new_ones_in_the_next(
    fresh_valkey: Valkey,
) -> None:
    async with degraded(fresh_valkey) as store:
        await store.reserve((HOUR, DAY, SLOTS), "before")
        with out(fresh_valkey):
            await lost(store)
            assert await admitted(store, HOUR, DAY, SLOTS, times=5, name="first") == MOST
            store.give_back((HOUR, DAY, SLOTS), "first-0")
            store.release((SLOTS,), "first-1")
        await back(store)
        assert (counted(fresh_valkey, HOUR), counted(fresh_valkey, DAY)) == (MOST, MOST), "one before, two in it"
        with out(fresh_valkey):
            await lost(store)
            assert await admitted(store, HOUR, times=5, name="second") == 1, "only what was given back"
        await back(store)
        assert counted(fresh_valkey, HOUR) == 1 + MOST


async def test_a_limit_below_the_number_is_the_number(fresh_valkey: Valkey) -> None:
    low, rate = charge("day", 2, "low"), charge("rate", 20, "rate", interval_us=60_000_000)
    async with degraded(fresh_valkey) as store:
        with out(fresh_valkey):
            await lost(store)
            assert await admitted(store, low, times=5, name="low") == 2
            assert await admitted(store, rate, times=5, name="rate") == MOST


async def test_slots_that_were_lent_come_back_and_are_never_the_stores(fresh_valkey: Valkey, client: Redis) -> None:
    async with degraded(fresh_valkey) as store:
        with out(fresh_valkey):
            await lost(store)
            assert await admitted(store, SLOTS, times=5, name="a") == MOST
            store.extend((SLOTS,), "a-0")
            store.release((SLOTS,), "a-0")
            assert await admitted(store, SLOTS, times=2, name="b") == 1
        await back(store)
        assert client.zcard(PREFIX + SLOTS.key) == 0
        store.release((SLOTS,), "a-1")


async def test_money_is_never_lent(fresh_valkey: Valkey) -> None:
    money = replace(HOUR, key="hour:money", unit="usd")
    async with degraded(fresh_valkey) as store:
        with out(fresh_valkey):
            await lost(store)
            with pytest.raises(StoreUnavailable):
                await store.reserve((HOUR, money), "call")
            assert await admitted(store, HOUR, times=5, name="calls") == MOST, "and moved no counter of ours"


async def test_one_counter_that_makes_no_sense_is_no_outage(fresh_valkey: Valkey, client: Redis) -> None:
    async with degraded(fresh_valkey) as store:
        client.set(PREFIX + HOUR.key, "garbage")
        with pytest.raises(StoreUnavailable):
            await store.reserve((HOUR,), "call")
        assert (await store.reserve((DAY,), "other")).degraded is False


async def test_who_finds_the_number_spent_hears_of_the_outage_and_not_of_a_limit(fresh_valkey: Valkey) -> None:
    async with degraded(fresh_valkey, most=1) as store:
        limiter = Limiter(store)
        with out(fresh_valkey):
            await lost(store)
            async with limiter.reserve(LimitPlan((HOUR,)), "first") as lease:
                lease.forwarded = True
                assert lease.degraded
            with pytest.raises(Refusal) as refused:
                async with limiter.reserve(LimitPlan((HOUR,)), "second"):
                    raise AssertionError
        refusal = refused.value
        assert (refusal.reason, refusal.retry_after_s) == (Reason.STORE_UNAVAILABLE, 1.0)
        assert refusal.limit and (refusal.limit.name, refusal.limit.remaining) == (HOUR.limit, 0)
