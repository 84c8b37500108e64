"""One process of several that share their limits: `python -m tests.flow.limit_worker URL`.

Says `ready`, waits for a line, tries to call until the hour is spent, 64 tasks at a time, and says how many calls got
through.
"""

import asyncio
import os
import sys

from sidecar.errors import Reason, Refusal
from sidecar.limits import Limiter, LimitPlan
from sidecar.limits.redis_store import RedisCounters
from tests.unit.limits.stages import charge

LIMIT, TASKS = 1000, 64
HOUR, DAY = charge("hour", LIMIT), charge("day", 10 * LIMIT)


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


async def main(url: str) -> None:
    limiter = Limiter(RedisCounters.at(url, deadline_s=10.0))
    await limiter.store.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    print(await spend(limiter), flush=True)
    await limiter.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
