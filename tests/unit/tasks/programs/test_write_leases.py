"""Do replicas agree that only one run of an agent that writes is at work? On a real Valkey."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from sidecar.limits import open_store
from sidecar.limits.redis_store import PREFIX
from sidecar.settings.store import StoreSettings
from sidecar.storage.redis_script import Run
from sidecar.tasks.programs.write_leases import ANOTHERS, ASKS, KEY, STOOD_STILL, UNHEARD, WriteLease, WriteLeases
from sidecar.upstreams.processes.launcher import WaitLimit
from tests.flow.world import PATIENCE_S
from tests.valkey import Valkey

LEASE_S = 0.2
KEPT_S = 1.0  # where it must be kept on a machine that is busy
LONG_S = 60.0  # where it must not end meanwhile
DEAD = 50


@pytest.fixture
async def shared(valkey: Valkey) -> AsyncIterator[Run]:
    """A store that has been asked before: whoever begins with an empty one waits a while."""
    with valkey.client() as client:
        client.flushall()
        client.set(f"{PREFIX}{KEY}:since", 1)
    store = open_store(StoreSettings(url=valkey.url, timeout=0.1), time.time)
    yield store.run
    await store.close()


def lease_of(shared: Run, me: str, lease_s: float = LEASE_S, agent: str = "writer") -> WriteLease:
    return WriteLeases(shared, me, lease_s).of(agent, "run")


async def is_kept_waiting(lease: WriteLease, for_s: float = 0.1) -> bool:
    try:
        async with asyncio.timeout(for_s):
            await lease.come()
    except TimeoutError:
        return True
    return False


async def is_next(lease: WriteLease) -> bool:
    """Whether it is had at the first question: whoever is in nobody's way is asked about once."""
    return await lease._comes()


async def test_one_at_a_time_in_the_order_in_which_they_came_and_each_agent_has_its_own_turns(shared: Run) -> None:
    leases = [lease_of(shared, me, LONG_S) for me in ("one", "two", "three")]
    await leases[0].come()
    await lease_of(shared, "two", LONG_S, "painter").come()
    for lease in leases[1:]:
        assert not await is_next(lease)
    for lease, after in pairwise(leases):
        await lease.leave()
        await after.come()


async def test_who_gives_up_waiting_is_in_nobodys_way(shared: Run) -> None:
    first, second, third = (lease_of(shared, me, LONG_S) for me in ("one", "two", "three"))
    await first.come()
    assert await is_kept_waiting(second, 0.03)
    await first.leave()
    assert await is_next(third)


async def test_who_died_waiting_is_passed_over_and_who_died_at_work_too(shared: Run) -> None:
    first, third = (lease_of(shared, me, KEPT_S) for me in ("one", "three"))
    began_s = time.monotonic()
    await first.come()
    for number in range(DEAD):
        assert not await is_next(lease_of(shared, f"dead-{number}", KEPT_S))
    await third.come()
    assert KEPT_S <= time.monotonic() - began_s < KEPT_S * DEAD / 2, "all of them are passed over at once"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept many times per lease, so that a machine that is busy now and then does not lose it."""
    monkeypatch.setattr("sidecar.tasks.programs.write_leases.KEPT_TIMES", 40)


async def test_it_is_kept_for_as_long_as_somebody_keeps_it(shared: Run, often: None) -> None:
    first, second = (lease_of(shared, me, KEPT_S) for me in ("one", "two"))
    await first.come()
    keeping = asyncio.create_task(first.keep())
    assert await is_kept_waiting(second, 1.2 * KEPT_S)
    assert not keeping.done()
    keeping.cancel()


async def test_who_is_not_heard_has_lost_it_while_nobody_else_can_have_it(shared: Run, valkey: Valkey) -> None:
    first = lease_of(shared, "one", 2 * KEPT_S)
    await first.come()
    with valkey.frozen():
        await first.keep()
        assert first.is_over and first.why == UNHEARD
    assert not await is_next(lease_of(shared, "two", 2 * KEPT_S))


async def test_who_hears_that_another_has_it_has_lost_it(shared: Run, valkey: Valkey) -> None:
    first = lease_of(shared, "one")
    await first.come()
    with valkey.client() as client:
        client.set(f"{PREFIX}{KEY}:holder:writer", "two/run")
    await first.keep()
    assert first.is_over and first.why == ANOTHERS


async def test_who_stood_still_has_lost_it_and_says_so(shared: Run) -> None:
    first = lease_of(shared, "one")
    await first.come()
    keeping = asyncio.create_task(first.keep())
    await asyncio.sleep(0)
    time.sleep(LEASE_S)
    assert first.is_over
    await keeping
    assert first.why == STOOD_STILL


async def test_what_runs_under_it_is_told_how_long_it_may_live_with_every_heartbeat(
    shared: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.write_leases.KEPT_TIMES", 3_000)
    first = lease_of(shared, "one", LONG_S)
    assert first.term.until is None
    asked_s = time.monotonic()
    await first.come()
    told: list[WaitLimit | None] = []
    first.term.bind(told.append)
    keeping = asyncio.create_task(first.keep())
    async with asyncio.timeout(PATIENCE_S):
        while len(told) < 3:
            await asyncio.sleep(0.005)
    keeping.cancel()
    asks = [until.asks_mono_s for until in told if until is not None]
    assert asks == sorted(set(asks)) and asks[0] >= asked_s + ASKS * LONG_S
    assert all(until is None or 0 < until.kills_mono_s - until.asks_mono_s < LONG_S / 2 for until in told)
    first.term.release(told.append)
    assert told[-1] is None


async def test_a_store_that_came_back_empty_gives_none_until_whoever_had_it_has_said_so(
    shared: Run, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.write_leases.KEPT_TIMES", 3_000)
    first, second = (lease_of(shared, me, LONG_S) for me in ("one", "two"))
    await first.come()
    with valkey.client() as client:
        client.flushall()
        assert not await second._comes()
        keeping = asyncio.create_task(first.keep())
        async with asyncio.timeout(PATIENCE_S):
            while not client.exists(f"{PREFIX}{KEY}:holder:writer"):
                await asyncio.sleep(0.01)
        client.set(f"{PREFIX}{KEY}:since", 1)  # as if a lease had passed since
    assert not await second._comes() and not keeping.done()
    keeping.cancel()


async def test_the_first_of_all_waits_no_longer_than_a_lease(shared: Run, valkey: Valkey) -> None:
    with valkey.client() as client:
        client.flushall()
    leases = WriteLeases(shared, "one", LEASE_S)
    await leases.greet()
    await asyncio.sleep(LEASE_S * 1.1)
    assert await is_next(leases.of("writer", "run"))


async def test_where_nobody_shares_the_store_it_is_had_at_once() -> None:
    store = open_store(StoreSettings(), time.time)
    lease = lease_of(store.run, "one")
    await lease.come()
    keeping = asyncio.create_task(lease.keep())
    await asyncio.sleep(0.02)
    assert not keeping.done()
    keeping.cancel()
    await lease.leave()
