"""One process of several that try to spend a limit: `python -m bench.spender URL ATTEMPTS LIMIT`.

Says `ready`, waits for a line, makes its attempts 64 at a time, and prints how many were admitted, refused by the
limit, and anything else. It waits as long as it takes: what an outage may cost is asked by
`observability/outage_log.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from uuid import uuid4

import uvloop

from sidecar.errors import Refusal
from sidecar.limits import Limiter, LimitPlan
from sidecar.limits.plan import LimitCharge
from sidecar.limits.redis_store import RedisCounters

TASKS = 64
PATIENT_S = 10.0
COST = 2_000  # millionths of a dollar
DAY_KEY, HOUR_KEY, MONTH_KEY = "day:exactness", "hour:exactness", "month:exactness"


def plan(limit: int) -> LimitPlan:
    """The hour is the limit; what stands before and after it must not move when it refuses."""
    day = LimitCharge("exactness:day", "day", DAY_KEY, 10 * limit)
    hour = LimitCharge("exactness:hour", "hour", HOUR_KEY, limit)
    money = LimitCharge("exactness:month", "month", MONTH_KEY, 10**15, amount=COST, unit="usd")
    return LimitPlan((day, hour, money))


async def main(url: str, attempts: int, limit: int) -> None:
    limiter = Limiter(RedisCounters.at(url, deadline_s=PATIENT_S))
    await limiter.store.ping()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    heard: Counter[str] = Counter()
    limits, left = plan(limit), iter(range(attempts))

    async def caller() -> None:
        for _ in left:
            try:
                async with limiter.reserve(limits, uuid4().hex) as lease:
                    lease.forwarded = True
                heard["admitted"] += 1
            except Refusal as refusal:
                heard[refusal.reason.value] += 1

    await asyncio.gather(*(caller() for _ in range(TASKS)))
    await limiter.close()
    print(json.dumps(heard), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
