"""One process of several that share a limit: `python -m bench.counter URL CALLS_PER_S LIMIT [DEGRADED_CALLS]`.

Says `ready`, calls at its pace until its input ends, and prints what every attempt came to: when, how long it took in
milliseconds, and the reason of a refusal; and how long its event loop stood still at most. The pace is kept whatever
the store does: a call that waits delays no other.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from uuid import uuid4

from sidecar.errors import Refusal
from sidecar.limits import Limiter, LimitPlan, StoreUnavailable, open_store
from sidecar.limits.plan import LimitCharge
from sidecar.settings.store import StoreSettings

LOOK_S = 0.005
HOUR_KEY = "hour:bench"


def plan(limit: int) -> LimitPlan:
    """An hour that is spent in the end, and slots that never are."""
    return LimitPlan(
        (
            LimitCharge("bench:hour", "hour", HOUR_KEY, limit),
            LimitCharge("bench:slots", "concurrency", "slots:bench", 999),
        )
    )


async def call(limiter: Limiter, limits: LimitPlan, told: list[tuple[float, float, str]]) -> None:
    began_s, reason = time.monotonic(), ""
    try:
        async with limiter.reserve(limits, uuid4().hex) as lease:
            lease.forwarded = True
            took_s = time.monotonic() - began_s
    except Refusal as refusal:
        took_s, reason = time.monotonic() - began_s, refusal.reason.value
    except Exception as error:  # whatever it is, it is counted as an error of ours
        took_s, reason = time.monotonic() - began_s, f"error: {type(error).__name__}"
    told.append((round(began_s, 4), round(took_s * 1e3, 2), reason))


async def watch(late_ms: list[float]) -> None:
    """How late this machine comes to a timer of this process: no decision can be quicker than that."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        late_ms.append((loop.time() - due_s) * 1e3)


async def main(url: str, per_s: float, limit: int, degraded_calls: int) -> None:
    further = {"on_failure": "degraded", "degraded_calls": degraded_calls} if degraded_calls else {}
    limiter = Limiter(open_store(StoreSettings.model_validate({"url": url, **further}), time.time))
    with suppress(StoreUnavailable):
        await limiter.store.ping()
    print("ready", flush=True)
    told: list[tuple[float, float, str]] = []
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    late_ms: list[float] = []
    watching = asyncio.create_task(watch(late_ms))
    limits, due_s = plan(limit), time.monotonic()
    async with asyncio.TaskGroup() as calls:
        while not over.done():
            due_s += 1 / per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            calls.create_task(call(limiter, limits, told))
    watching.cancel()
    await limiter.close()
    print(json.dumps({"attempts": told, "stall_ms": round(max(late_ms), 1)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int((*sys.argv, "0")[4])))
