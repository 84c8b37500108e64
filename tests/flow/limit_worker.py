"""One process of several that share their limits: `python -m tests.flow.limit_worker VERB URL`.

Says `ready`, waits for a line, and then

    spend   tries to call until the hour is spent, 64 tasks at a time, and says how many calls got through
    hold    takes 4 slots, says `holding`, and never lets go
"""

from __future__ import annotations

import asyncio
import os
import sys

from sidecar.errors import Reason, Refusal
from sidecar.limits import Limiter, LimitPlan
from sidecar.limits.redis_store import RedisCounters
from tests.unit.limits.stages import charge

LIMIT, TASKS = 1000, 64
HOUR, DAY, SLOTS = charge("hour", LIMIT), charge("day", 10 * LIMIT), charge("concurrency", 4)
LEASE_S = 0.6


async def spend(limiter: Limiter) -> int:
    async def caller(number: int) -> int:
        through = 0
        while True:
            try:
                async with limiter.reserve(LimitPlan((DAY, HOUR)), f"{os.getpid()}-{number}-{through}") as lease:
                    lease.forwarded = True
                    through += 1
            except Refusal as refusal:
                assert refusal.reason is Reason.RATE_LIMITED, refusal
                return through

    return sum(await asyncio.gather(*(caller(number) for number in range(TASKS))))


async def hold(limiter: Limiter) -> None:
    async def caller(number: int) -> None:
        async with limiter.reserve(LimitPlan((SLOTS,)), f"{os.getpid()}-{number}"):
            await asyncio.sleep(3600)

    callers = [asyncio.create_task(caller(number)) for number in range(SLOTS.most)]
    while len(limiter._held) < SLOTS.most:
        await asyncio.sleep(0.01)
    print("holding", flush=True)
    await asyncio.gather(*callers)


async def main(verb: str, url: str) -> None:
    store = RedisCounters.at(url, lease_s=LEASE_S, deadline_s=5.0)
    limiter = Limiter(store, lease_s=LEASE_S)
    await store.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    if verb == "hold":
        await hold(limiter)
    print(await spend(limiter), flush=True)
    await limiter.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
