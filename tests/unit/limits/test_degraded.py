"""What is admitted while the shared store is out, where the operator chose that something is?

What callers hear of it: flow/test_store_in_a_sidecar.py.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from redis import Redis

from sidecar.limits import StoreUnavailable
from sidecar.limits.degraded import DegradedStore
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import LimitCharge
from sidecar.limits.topology import PREFIX
from tests.flow.world import until
from tests.unit.limits.stages import charge, opened
from tests.valkey import Valkey

HOUR, DAY, SLOTS = charge("hour", 100), charge("day", 100), charge("concurrency", 100)
MOST = 3


@pytest.fixture
async def store(fresh_valkey: Valkey) -> AsyncIterator[DegradedStore]:
    async with opened(fresh_valkey.url, 0.4) as shared:
        store = DegradedStore(shared, MemoryCounters(time.time), MOST)
        await store.ping()
        yield store
        await store.close()


@asynccontextmanager
async def outage(valkey: Valkey, store: DegradedStore) -> AsyncIterator[None]:
    """The store is dead, and back as it was: nothing was asked of it in between."""
    with valkey.frozen():
        with pytest.raises(StoreUnavailable):
            await store.ping()
        assert store.degraded
        yield
    await until(lambda: not store.degraded)
    await store.ping()


async def admitted(store: DegradedStore, *charges: LimitCharge, times: int, name: str) -> int:
    verdicts = [await store.reserve(charges, f"{name}-{number}") for number in range(times)]
    assert all(verdict.degraded for verdict in verdicts)
    return sum(verdict.admitted for verdict in verdicts)


async def test_so_many_are_admitted_in_an_outage_and_charged_after_it(
    fresh_valkey: Valkey, client: Redis, store: DegradedStore
) -> None:
    await store.reserve((HOUR, DAY, SLOTS), "before")
    async with outage(fresh_valkey, store):
        assert await admitted(store, HOUR, DAY, SLOTS, times=5, name="first") == MOST
        store.give_back((HOUR, DAY, SLOTS), "first-0")
        store.release((SLOTS,), "first-1")
    counted = [client.hget(PREFIX + limit.key, "n") for limit in (HOUR, DAY)]
    assert counted == [str(MOST)] * 2, "one before, two in it"
    async with outage(fresh_valkey, store):
        assert await admitted(store, HOUR, times=5, name="second") == 1, "only what was given back"
    assert client.hget(PREFIX + HOUR.key, "n") == str(1 + MOST)


async def test_a_lower_limit_is_the_number_and_money_is_never_lent(fresh_valkey: Valkey, store: DegradedStore) -> None:
    low, rate = charge("day", 2, "low"), charge("rate", 20, "rate", interval_us=60_000_000)
    money = replace(HOUR, key="hour:money", unit="usd")
    async with outage(fresh_valkey, store):
        assert await admitted(store, low, times=5, name="low") == 2
        assert await admitted(store, rate, times=5, name="rate") == MOST
        with pytest.raises(StoreUnavailable):
            await store.reserve((HOUR, money), "call")
        assert await admitted(store, HOUR, times=5, name="calls") == MOST, "and moved no counter of ours"


async def test_slots_that_were_lent_come_back_and_are_never_the_stores(
    fresh_valkey: Valkey, client: Redis, store: DegradedStore
) -> None:
    async with outage(fresh_valkey, store):
        assert await admitted(store, SLOTS, times=5, name="a") == MOST
        store.extend((SLOTS,), "a-0")
        store.release((SLOTS,), "a-0")
        assert await admitted(store, SLOTS, times=2, name="b") == 1
    assert client.zcard(PREFIX + SLOTS.key) == 0
    store.release((SLOTS,), "a-1")


async def test_one_counter_that_makes_no_sense_is_no_outage(client: Redis, store: DegradedStore) -> None:
    client.set(PREFIX + HOUR.key, "garbage")
    with pytest.raises(StoreUnavailable):
        await store.reserve((HOUR,), "call")
    assert (await store.reserve((DAY,), "other")).degraded is False
