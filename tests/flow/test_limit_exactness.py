"""Do several sidecars together admit exactly what one limit says?"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process

from bench import crowd
from bench.costs import MOST, spend
from bench.process import ready
from sidecar.limits.redis_store import RedisCounters
from sidecar.limits.topology import PREFIX
from tests.flow.limit_worker import DAY, HOUR, LEASE_S, LIMIT, SLOTS
from tests.valkey import Valkey

WORKER = "tests.flow.limit_worker"


async def said(worker: Process) -> str:
    assert worker.stdout
    async with asyncio.timeout(60):
        return (await worker.stdout.readline()).decode().strip()


def go(worker: Process) -> None:
    assert worker.stdin
    worker.stdin.write(b"\n")


async def test_four_processes_of_64_tasks_admit_exactly_1000(valkey: Valkey) -> None:
    """BL-063."""
    async with ready(4, WORKER, "spend", valkey.url) as started:
        for worker in started:
            go(worker)
        through = [int(await said(worker)) for worker in started]
    assert sum(through) == LIMIT
    assert all(through)
    with valkey.client() as client:
        counted = {limit.key: int(client.hget(PREFIX + limit.key, "n") or 0) for limit in (HOUR, DAY)}
    assert counted == {HOUR.key: LIMIT, DAY.key: LIMIT}, "a call refused by the hour moved the day"


def test_two_sidecars_let_through_what_one_limit_says_and_no_call_that_it_refuses_moves_another() -> None:
    """`python -m bench.exactness --over-http` asks four of them a million times, and with the fast lane."""
    met = crowd.met(attempts=300, processes=2, limit=100, lane=0)
    assert met.answers == {"admitted": 100, "429 rate-limited": 200}
    assert met.reached == 100
    assert met.counted == {"hour": 100, "day": 100, "month": 100 * crowd.COST}


async def test_two_processes_spend_a_budget_of_money_to_the_last_call_that_fits_and_pay_what_is_counted(
    valkey: Valkey,
) -> None:
    spent = await spend(valkey.url, str(valkey.path), 2, 40_000_000)
    assert (spent.errors, spent.over, spent.lost) == (0, 0, 0), spent
    assert spent.limit - spent.counted < MOST, spent
    assert spent.admitted > 80, "settled calls make room"


async def test_after_kill_9_every_slot_returns_within_twice_its_lease(valkey: Valkey) -> None:
    """BL-059, a call that is killed."""
    store = RedisCounters.at(valkey.url, lease_s=LEASE_S, deadline_s=5.0)

    async def free_slots() -> int:
        verdict = await store.reserve((SLOTS,), f"probe-{os.urandom(8).hex()}")
        return verdict.standings[0].remaining + verdict.admitted

    async with ready(1, WORKER, "hold", valkey.url) as (worker,):
        go(worker)
        assert await said(worker) == "holding"
        await asyncio.sleep(1.5 * LEASE_S)
        assert await free_slots() == 0, "a living owner keeps its slots"
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    await asyncio.sleep(2 * LEASE_S)
    assert await free_slots() == SLOTS.most
    await store.close()
