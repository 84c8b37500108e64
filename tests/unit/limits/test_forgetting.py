"""What does a store that came back with less than it had been told hear from us, and what is admitted meanwhile?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis
from redis import Redis

import sidecar.limits.store_connection
from sidecar.limits import StoreUnavailable
from sidecar.limits.counter_memory import CounterMemory, SeenUsage
from sidecar.limits.plan import LimitCharge
from sidecar.limits.redis_store import EPOCH, RedisCounters
from sidecar.limits.store import Forgot, StoreObserver, Verdict
from sidecar.limits.topology import PREFIX, finder_of
from sidecar.settings.store import StoreSettings
from tests.flow.world import until
from tests.unit.limits.stages import CLOCK, DAY_US, HOUR_US, MINUTE_US, ON_TEST_CLOCK, START_US, charge
from tests.valkey import Valkey

HOUR, DAY, RATE, SLOTS = (
    charge("hour", 10),
    charge("day", 10),
    charge("rate", 10, interval_us=60_000_000),
    charge("concurrency", 10),
)
ALL = (HOUR, DAY, RATE, SLOTS)
HOLD_S = 0.15


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is asked who it is more often than it needs."""
    monkeypatch.setattr(sidecar.limits.store_connection, "BEAT_S", 0.1)


class Told(StoreObserver):
    """What a store told of itself."""

    def __init__(self) -> None:
        self.losses: list[tuple[Forgot, int]] = []

    async def forgot(self, how: Forgot, count: int) -> None:
        self.losses.append((how, count))


@dataclass
class Instance:
    """A sidecar's store, and what it told."""

    store: RedisCounters
    told: Told
    calls: int = 0
    first: object = None

    async def charge(self, *charges: LimitCharge, times: int = 1) -> list[Verdict]:
        """Calls that were made, and go on."""
        verdicts = []
        for _ in range(times):
            self.calls += 1
            verdicts.append(await self.store.reserve(charges, f"{id(self)}-{self.calls}"))
        return verdicts

    async def reconnected(self) -> None:
        """Until what held the connection is another."""
        await until(lambda: self.store.up and self.store._link.wire is not self.first)
        self.first = self.store._link.wire

    async def noticed(self) -> None:
        """Until it heard that the store forgot, and serves again."""
        await until(lambda: bool(self.told.losses) and self.store.up)
        self.first = self.store._link.wire


@asynccontextmanager
async def instances(valkey: Valkey, count: int = 1, hold_s: float = HOLD_S) -> AsyncIterator[list[Any]]:
    """A client of the server itself, and so many instances."""
    async with AsyncExitStack() as ends:
        made: list[Any] = [ends.enter_context(valkey.client())]
        for _ in range(count):
            told, finder = Told(), finder_of(StoreSettings(url=valkey.url))
            store = RedisCounters(finder, deadline_s=2.0, hold_s=hold_s, observer=told)
            ends.push_async_callback(store.close)
            await store.ping()
            made.append(Instance(store, told, first=store._link.wire))
        yield made


def counted(client: Redis, limit: LimitCharge) -> int:
    return int(client.hget(PREFIX + limit.key, "n") or 0)


async def used(client: redis.Redis, store: RedisCounters, limit: LimitCharge) -> int:
    probe = f"probe-{limit.key}"
    verdict = await store.reserve((limit,), probe)
    store.give_back((limit,), probe)
    await store.ping()
    return limit.most - verdict.standings[0].remaining - verdict.admitted


async def test_an_emptied_store_knows_what_was_used_before_it_is_charged(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey) as (client, ours):
        await ours.charge(*ALL, times=4)
        ours.store.release((SLOTS,), f"{id(ours)}-1")
        await ours.store.ping()
        client.flushall()
        with pytest.raises(StoreUnavailable):
            await ours.charge(*ALL)
        assert not client.exists(PREFIX + HOUR.key), "refused before anything was written"
        await ours.noticed()
        assert ours.told.losses == [("emptied", 3)], "hour, day and rate; slots are held, not seen"
        assert [await used(client, ours.store, limit) for limit in ALL] == [4, 4, 4, 3]


async def test_what_was_used_before_a_reset_is_not_told_to_a_store_that_was_emptied(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey) as (client, ours):
        await ours.charge(HOUR, DAY, times=4)
        await ours.store.reset((HOUR,))
        client.flushall()
        await ours.noticed()
        assert [await used(client, ours.store, limit) for limit in (HOUR, DAY)] == [0, 4]


async def test_an_emptied_store_is_left_alone_while_others_tell_what_they_saw(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey, count=2, hold_s=0.3) as (client, ours, theirs):
        await ours.charge(HOUR, times=3)
        await theirs.charge(HOUR, times=4)
        client.flushall()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailable):
            await ours.charge(HOUR)
        await asyncio.gather(ours.noticed(), theirs.noticed())
        assert asyncio.get_running_loop().time() - began_s >= 0.3
        assert counted(client, HOUR) == 7, "the last of them saw what both had used"
        assert [verdict.admitted for verdict in await ours.charge(HOUR, times=4)] == [True] * 3 + [False]


async def test_another_store_in_its_place_is_raised_and_never_lowered(fresh_valkey: Valkey) -> None:
    other = charge("day", 10, "other")
    async with instances(fresh_valkey) as (client, ours):
        await ours.charge(HOUR, other, times=3)
        client.hset(PREFIX + other.key, "n", 9)
        client.set(EPOCH, "somebody else's")
        with pytest.raises(StoreUnavailable):
            await ours.charge(HOUR)
        await ours.noticed()
        assert client.get(EPOCH) == "somebody else's"
        assert (counted(client, HOUR), counted(client, other)) == (3, 9)
        assert ours.told.losses == [("emptied", 0)]


async def test_who_meets_a_store_for_the_first_time_takes_it_as_it_is(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey, hold_s=60.0) as (_, first):
        await first.charge(HOUR, times=2)
        async with instances(fresh_valkey, hold_s=60.0) as (_, second):
            assert (await second.charge(HOUR))[0].standings[0].remaining == 7
            assert not second.told.losses


def rolled_back(client: redis.Redis, to: dict[str, tuple[bytes, int]]) -> None:
    """As a replica that had not yet heard of the last writes, and was promoted: everybody is cut off and comes back."""
    with client.pipeline(transaction=True) as step:
        step.flushall()
        for key, (value, life_ms) in to.items():
            step.restore(key, max(0, life_ms), value)
        step.execute()
    client.client_kill_filter(_type="normal", skipme=True)


def state_of(valkey: Valkey) -> dict[str, tuple[bytes, int]]:
    with redis.Redis(unix_socket_path=str(valkey.path)) as raw:
        return {key.decode(): (raw.dump(key), raw.pttl(key)) for key in raw.scan_iter()}


async def test_what_a_promoted_replica_never_heard_of_is_charged_again_and_nothing_twice(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey) as (client, ours):
        await ours.charge(*ALL, times=2)
        before = state_of(fresh_valkey)
        await ours.charge(*ALL, times=3)
        ours.store.give_back(ALL, f"{id(ours)}-3")
        ours.store.release((SLOTS,), f"{id(ours)}-4")
        await ours.store.ping()
        rolled_back(client, before)
        await ours.noticed()
        assert ours.told.losses == [("rolled_back", 2)]
        assert [await used(client, ours.store, limit) for limit in ALL] == [4, 4, 4, 3]


async def test_money_is_charged_again_as_it_was_spent(fresh_valkey: Valkey) -> None:
    budget = charge("month", 10_000_000, amount=500_000, unit="usd")
    async with instances(fresh_valkey) as (client, ours):
        await ours.charge(budget, times=2)
        before = state_of(fresh_valkey)
        await ours.charge(budget, times=2)
        ours.store.release((replace(budget, amount=400_000),), f"{id(ours)}-3")
        await ours.store.ping()
        rolled_back(client, before)
        await ours.noticed()
        assert counted(client, budget) == 1600000
        client.flushall()
        with pytest.raises(StoreUnavailable):
            await ours.charge(budget)
        await ours.reconnected()
        assert counted(client, budget) == 1600000


async def test_an_end_that_was_not_heard_either_is_said_again_after_its_charge(fresh_valkey: Valkey) -> None:
    budget = charge("day", 10_000_000, amount=500_000, unit="usd")
    async with instances(fresh_valkey) as (client, ours):
        await ours.charge(HOUR)
        before = state_of(fresh_valkey)
        await ours.charge(budget, SLOTS)
        rolled_back(client, before)
        ours.store.release((replace(budget, amount=400_000), SLOTS), f"{id(ours)}-2")  # nobody hears it
        await ours.noticed()
        await ours.store.ping()
        assert counted(client, budget) == 100000
        assert client.zcard(PREFIX + SLOTS.key) == 0
        assert not ours.store._recall.held and not ours.store._owed


async def test_charges_of_before_are_charged_again_even_where_the_limit_is_spent(fresh_valkey: Valkey) -> None:
    """Who lost more than there is room for owes it: the bound of what a failover admits too much is what it lost."""
    async with instances(fresh_valkey, count=2) as (client, ours, theirs):
        before = state_of(fresh_valkey)
        await ours.charge(HOUR, times=6)
        rolled_back(client, before)
        await theirs.reconnected()
        assert all(verdict.admitted for verdict in await theirs.charge(HOUR, times=3))
        await ours.noticed()
        assert counted(client, HOUR) == 9


async def test_a_connection_that_broke_and_a_store_that_forgot_nothing_is_no_loss(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey, count=2) as (client, ours, theirs):
        await ours.charge(*ALL, times=2)
        theirs.store.give_back(ALL, "never")
        client.client_kill_filter(_type="normal", skipme=True)
        await asyncio.gather(ours.reconnected(), theirs.reconnected())
        await ours.charge(*ALL)
        assert not ours.told.losses and not theirs.told.losses


async def test_a_counter_that_makes_no_sense_stops_no_restoring(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey) as (client, ours):
        await ours.charge(HOUR, DAY, times=2)
        client.delete(PREFIX + HOUR.key)
        client.set(PREFIX + HOUR.key, "garbage")
        client.delete(PREFIX + DAY.key)
        client.set(EPOCH, "another")
        with pytest.raises(StoreUnavailable):
            await ours.charge(DAY)
        await ours.noticed()
        assert counted(client, DAY) == 2


async def test_an_epoch_that_is_none_is_no_store_of_ours(fresh_valkey: Valkey) -> None:
    async with instances(fresh_valkey) as (client, ours):
        client.delete(EPOCH)
        client.rpush(EPOCH, "x")
        with pytest.raises(StoreUnavailable):
            await ours.charge(HOUR)
        client.delete(EPOCH)
        await ours.noticed()
        await ours.charge(HOUR)


# --- how a counter is raised ----------------------------------------------------------------------------------------


Fields = dict[str | int, int]
M = START_US // MINUTE_US
D = START_US // DAY_US
ENDS_US = START_US + 3 * DAY_US
HOUR_5 = SeenUsage("hour", "k", START_US, 5, 0)
DAY_5 = HOUR_5._replace(kind="day")
MONTH_5 = SeenUsage("month", "k", START_US, 5, ENDS_US)
RATE_0 = SeenUsage("rate", "k", START_US, 0, START_US + 500)
LONG_AGO_US = START_US - HOUR_US - MINUTE_US
RAISED: list[tuple[str, SeenUsage, Fields, Fields]] = [
    ("an hour that was lost", HOUR_5, {}, {"m": M, "n": 5, M: 5}),
    ("an hour that knows less", HOUR_5, {"m": M, "n": 3, M: 1, M - 1: 2}, {"m": M, "n": 5, M: 3, M - 1: 2}),
    ("an hour that knows more", HOUR_5, {"m": M, "n": 7, M: 7}, {"m": M, "n": 7, M: 7}),
    ("its oldest left", HOUR_5, {"m": M - 60, "n": 4, M - 60: 1, M - 61: 3}, {"m": M, "n": 5, M - 60: 1, M: 4}),
    ("moved on by others", HOUR_5, {"m": M + 1, "n": 1, M + 1: 1}, {"m": M + 1, "n": 1, M + 1: 1}),
    ("an hour that is over", HOUR_5._replace(at_us=LONG_AGO_US), {}, {}),
    ("a day that was lost", DAY_5, {}, {"d": D, "n": 5}),
    ("a day after another", DAY_5, {"d": D - 1, "n": 9}, {"d": D, "n": 5}),
    ("a day that is over", DAY_5._replace(at_us=START_US - DAY_US), {}, {}),
    ("a month that was lost", MONTH_5, {}, {"b": START_US, "e": ENDS_US, "n": 5}),
    ("a month that knows less", MONTH_5, {"b": 7, "e": ENDS_US, "n": 3}, {"b": 7, "e": ENDS_US, "n": 5}),
    ("a month that knows more", MONTH_5, {"b": 7, "e": ENDS_US, "n": 8}, {"b": 7, "e": ENDS_US, "n": 8}),
    ("a month that is over", MONTH_5._replace(at_us=START_US - 1, full_us=START_US), {}, {}),
    ("a rate that was lost", RATE_0, {}, {"t": START_US + 500}),
    ("a rate that is whole again", RATE_0._replace(full_us=START_US), {}, {}),
]


def test_a_counter_is_raised_to_what_was_seen(client: Redis) -> None:
    client.rpush(CLOCK, START_US // 1_000_000, START_US % 1_000_000)
    for name, seen, stored, then in RAISED:
        for number, said in stored.items():
            client.hset(PREFIX + seen.key, str(number), said)
        for _ in range(2):  # telling it twice changes nothing
            about = (seen.kind, seen.at_us, seen.used, seen.full_us)
            client.eval(ON_TEST_CLOCK.restore.text, 1, PREFIX + seen.key, *map(str, about))
            told = client.hgetall(PREFIX + seen.key)
            assert told == {str(field): str(value) for field, value in then.items()}, name
        client.delete(PREFIX + seen.key)


# --- what is remembered ---------------------------------------------------------------------------------------------


def remembered(recall: CounterMemory) -> dict[str, int]:
    return {seen.key: seen.used for page in recall.pages(2) for seen in page}


def admit(
    recall: CounterMemory, limit: LimitCharge, used: int, number: int, now_us: int = START_US, now_s: float = 0.0
) -> None:
    verdict = Verdict(True, now_us, (limit.most - used, 0, now_us + 1))
    recall.admitted((limit,), verdict, f"call-{number}", number, now_s)


def test_memory_is_bounded_and_what_time_has_emptied_goes_first() -> None:
    recall = CounterMemory(max_seen=3, max_charged=2)
    for number in range(4):
        admit(recall, charge("hour", 10, f"{number}"), 1, number)
    assert set(remembered(recall)) == {"hour:1", "hour:2", "hour:3"}
    assert [call for call, _ in recall.after(-1, 0.0)] == ["call-2", "call-3"]
    admit(recall, charge("hour", 10, "new"), 1, 9, now_us=START_US + 2 * HOUR_US)
    assert set(remembered(recall)) == {"hour:new"}


def test_only_what_came_after_the_tide_and_not_long_ago_is_charged_again() -> None:
    recall = CounterMemory()
    for number in range(1, 5):
        admit(recall, HOUR, number, number, now_s=float(number))
    assert [call for call, _ in recall.after(2, 10.0)] == ["call-3", "call-4"]
    assert recall.after(-1, 3700.0) == ()
    recall.forget_charged()
    assert recall.after(-1, 10.0) == ()
