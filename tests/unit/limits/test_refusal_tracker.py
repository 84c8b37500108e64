"""Does an operator hear that a store which answers does not count, and what it was never told?"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest
import redis
from redis import Redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from sidecar.limits import StoreUnavailable, redis_store as module
from sidecar.limits.degraded import DegradedStore
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import LimitCharge
from sidecar.limits.redis_store import RedisCounters, eviction_warning
from sidecar.limits.refusal_tracker import HOLDS_S, RefusalTracker
from sidecar.limits.store import CounterUnreadable
from sidecar.limits.topology import finder_of
from sidecar.settings.store import StoreSettings
from tests.flow.world import until
from tests.unit.limits.stages import Listening, charge, opened
from tests.valkey import Valkey

HOUR, RATE, SLOTS = charge("hour", 1000), charge("rate", 1000, interval_us=1000), charge("concurrency", 1000)
FORBIDDEN = ResponseError("ERR The user executing the script can't run this command or subcommand")  # Redis 6


@contextmanager
def full(client: redis.Redis, policy: str = "noeviction") -> Iterator[None]:
    """A server whose memory is full."""
    client.config_set("maxmemory-policy", policy)
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


@asynccontextmanager
async def denied(valkey: Valkey, right: str) -> AsyncIterator[tuple[RedisCounters, Callable[[], object]]]:
    """The store of a user who lacks a right, and how it is given."""
    with valkey.client() as client:
        rights = ("ACL", "SETUSER", "limits", "reset", "on", ">open", "~{sidecar}:*", "+@all")
        client.execute_command(*rights, right)
        async with opened(f"unix://limits:open@{valkey.path}") as store:
            yield store, partial(client.execute_command, *rights)
        client.execute_command("ACL", "DELUSER", "limits")


async def test_a_store_without_memory_is_no_store_that_is_up(store: RedisCounters, client: Redis) -> None:
    await store.ping()
    with full(client):
        with pytest.raises(StoreUnavailable):
            await store.reserve((HOUR,), "one")
        assert not store.up and "OutOfMemory" in store.trouble
        alone = DegradedStore(store, MemoryCounters(lambda: 0.0), 1)
        assert (await alone.reserve((HOUR,), "two")).degraded and alone.degraded
    assert not store.up, "nobody has asked since"
    await store.reserve((SLOTS,), "three")
    assert store.up and not store.trouble


@pytest.mark.parametrize(("right", "asks"), [("-hset", HOUR), ("-zadd", SLOTS)])
async def test_a_missing_right_is_an_outage_until_it_is_given(
    fresh_valkey: Valkey, right: str, asks: LimitCharge
) -> None:
    async with denied(fresh_valkey, right) as (store, give):
        with pytest.raises(StoreUnavailable) as no:
            await store.reserve((asks,), "denied")
        assert not isinstance(no.value, CounterUnreadable), "with on_failure: degraded somebody else counts"
        assert not store.up and "no permissions to run" in store.trouble
        await store.ping()
        assert not store.up, "that it answers is not enough"
        give()
        await store.reserve((asks,), "given")
        assert store.up and not store.trouble


async def test_how_calls_ended_is_owed_to_a_store_that_refuses_to_hear_it(fresh_valkey: Valkey) -> None:
    async with denied(fresh_valkey, "-hincrby") as (store, give):
        await store.reserve((HOUR,), "one")
        store.give_back((HOUR,), "one")
        await until(lambda: bool(store.trouble))
        assert store.up and "(give_back)" in store.trouble, "it charges, so that nobody is refused"
        give()
        await until(lambda: not store.trouble)
        assert (await store.reserve((HOUR,), "two")).standings[0].remaining == HOUR.most - 1


def test_a_no_is_over_when_the_same_is_done_or_nobody_asked_for_a_minute() -> None:
    refusing = RefusalTracker()
    assert not refusing.current and not refusing.why(0.0)
    for error, still in ((OutOfMemoryError("OOM"), ""), (NoPermissionError("NOPERM"), "yes"), (FORBIDDEN, "yes")):
        refusing.refused("charge", error, (HOUR, SLOTS), 0.0)
        refusing.done("give_back", (HOUR, SLOTS))
        assert refusing.why(HOLDS_S, "charge") and not refusing.why(1.0, "give_back")
        refusing.done("charge", (HOUR, RATE))
        assert bool(refusing.why(1.0)) is bool(still), "a right may be missing for one kind"
        refusing.done("charge", (RATE, SLOTS, HOUR))
        assert not refusing.why(1.0)
        refusing.refused("charge", error, (HOUR,), 0.0)
        assert not refusing.why(HOLDS_S + 1) and not refusing.current
    for error in (ReadOnlyError("READONLY"), ResponseError("EPOCH another"), ResponseError("WRONGTYPE")):
        refusing.refused("charge", error, (HOUR,), 0.0)
        assert not refusing.current, "another counts, or this one counter makes no sense"


@pytest.mark.parametrize("policy", ["volatile-ttl", "allkeys-lru", "noeviction"])
async def test_a_store_that_may_evict_counters_is_told_of(
    fresh_valkey: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("sidecar.limits.store_connection.BEAT_S", 0.01)
    with full(client, policy):
        client.config_set("maxmemory", "1gb")
        async with opened(fresh_valkey.url) as store:
            await store.ping()
            await until(lambda: store._looked_s > 0)
            await store.ping()
            assert (policy in store.warning) is (policy != "noeviction")
        async with denied(fresh_valkey, "-info") as (store, _):
            await store.ping()
            await until(lambda: store._looked_s > 0)
            await store.ping()
            assert store.up and not store.warning


@pytest.mark.parametrize(
    ("said", "warns"),
    [
        (b"maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n", True),
        (b"maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", False),
        (b"maxmemory:100\r\nmaxmemory_policy:noeviction\r\n", False),
        (b"maxmemory:100\r\nmaxmemory_policy:\x1b[31m\r\n", False),
        (b"\xff:\r\n", False),
        (7, False),
    ],
)
def test_only_what_a_server_says_clearly_is_believed(said: object, warns: bool) -> None:
    assert bool(eviction_warning(said)) is warns


async def test_what_is_owed_too_long_or_too_much_is_told_as_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OWED", 5)
    monkeypatch.setattr(module, "REMEMBER_S", 0.05)
    listening = Listening()
    store = RedisCounters(
        finder_of(StoreSettings(url="unix:///nowhere/at/all")), deadline_s=0.05, lease_s=0.05, observer=listening
    )
    for number in range(8):
        store.give_back((HOUR,), str(number))
    await asyncio.sleep(0.06)
    store.release((SLOTS,), "lapsed")
    await asyncio.sleep(0.06)
    store._settle_some(10)
    assert not store._owed
    await store.close()
    assert listening.missed == {"give_back": 8}, "three were too many, five too late, and a slot lapsed by itself"
