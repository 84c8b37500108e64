"""Does a store of records stay fast where it keeps as many as it may?

    python -m bench.records [--records 100000] [--under-way 100]

Runs of twenty agents, of a hundred owners, in each of the three stores; then each verb, several times: the median and
the slowest, in milliseconds. The server is a Valkey of its own, the file one in a folder that is gone afterwards.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from sidecar.limits import open_store
from sidecar.settings.store import StoreSettings
from sidecar.storage import (
    MemoryRecordStore,
    RecordBounds,
    RecordPage,
    RecordShare,
    RecordStore,
    RecordStoreOut,
    RedisRecordStore,
    SqliteFile,
    SqliteRecordStore,
)
from sidecar.tasks.programs.run_record import RUNS, Execution, RunState, RunStatus
from tests.unit.tasks.programs.runs import run
from tests.valkey import running_valkey

AGENTS = [f"agent-{number}" for number in range(20)]
ROOM, TIMES, AT_ONCE = RecordBounds(1_000_000, 1_000_000), 7, 100
Verbs = Mapping[str, Callable[[], Awaitable[object]]]


@asynccontextmanager
async def opened(how: str, folder: Path, url: str) -> AsyncIterator[RecordStore[Execution]]:
    if how != "redis":
        file = SqliteFile(folder / "records.sqlite")
        yield MemoryRecordStore(RUNS.is_work) if how == "memory" else SqliteRecordStore(file, RUNS)
        return
    shared = open_store(StoreSettings(url=url), time.time)
    try:
        yield RedisRecordStore(shared.run, RUNS)
    finally:
        await shared.close()


def made(number: int, **more: Any) -> Execution:
    when = {"created_at": float(number), "expires_at": 1e9}
    whose = {"owner": f"owner-{number % 100}", "target": AGENTS[number % len(AGENTS)]}
    return run(id=f"run-{number}", output="x" * 1000, **{**when, **whose, **more})


async def fill(store: RecordStore[Execution], records: int, under_way: int) -> None:
    """As runs come and go: so many are still under way."""

    async def one(number: int) -> None:
        status = RunStatus.SUCCESS if number % 7 else RunStatus.FAILURE
        state = {"state": RunState.RUNNING} if number % (records // under_way) == 0 else {"status": status}
        await surely(lambda: store.add(made(number), "me", 1e9, ROOM))
        await surely(lambda: store.replace(made(number, revision=1, **state)))

    for first in range(0, records, AT_ONCE):
        await asyncio.gather(*map(one, range(first, min(records, first + AT_ONCE))))


async def surely(verb: Callable[[], Awaitable[object]]) -> None:
    for _ in range(50):
        with suppress(RecordStoreOut):  # so many at once are more than any deadline allows for
            await verb()
            return
        await asyncio.sleep(0.05)
    raise click.ClickException("the store stays out")


def verbs_of(store: RecordStore[Execution], records: int) -> Verbs:
    numbers = count(records)

    def added(bounds: RecordBounds) -> Awaitable[object]:
        return store.add(made(next(numbers), owner="owner-1", target="agent-1"), "me", 1e9, bounds)

    return {
        "everybody's, newest": lambda: store.page(None, RecordPage(AGENTS)),
        "everybody's that failed": lambda: store.page(None, RecordPage(AGENTS, RunStatus.FAILURE)),
        "everybody's of one agent": lambda: store.page(None, RecordPage(AGENTS[:1])),
        "everybody's, half-way back": lambda: store.page(None, RecordPage(AGENTS, offset=records // 2)),
        "an owner's": lambda: store.page("owner-7", RecordPage(AGENTS)),
        "add": lambda: added(ROOM),
        "add, a hundred give way": lambda: added(ROOM._replace(done_per_target=records // 50)),
        "get": lambda: store.get(f"run-{records // 2 + 1}"),
        "take": lambda: store.take("me", 10.0, 25.0, RecordShare()),
        "counts": store.counts,
        "sweep, none over": lambda: store.sweep(10.0),
    }


async def measured(how: str, records: int, under_way: int, url: str) -> Mapping[str, list[float]]:
    with TemporaryDirectory() as folder:
        async with opened(how, Path(folder), url) as store:
            await fill(store, records, under_way)
            took: dict[str, list[float]] = {}
            for name, verb in verbs_of(store, records).items():
                for _ in range(TIMES):
                    began = time.perf_counter()
                    await verb()
                    took.setdefault(name, []).append((time.perf_counter() - began) * 1000)
            return took


@click.command()
@click.option("--records", default=100_000, show_default=True)
@click.option("--under-way", default=100, show_default=True)
def main(records: int, under_way: int) -> None:
    with running_valkey() as server:
        told = {how: asyncio.run(measured(how, records, under_way, server.url)) for how in ("memory", "file", "redis")}
    click.echo(f"{records} records; median and slowest of {TIMES}, ms" + "".join(f"{how:>20}" for how in told))
    for name in told["memory"]:
        figures = (f"{statistics.median(one[name]):10.2f} {max(one[name]):9.2f}" for one in told.values())
        click.echo(f"{name:<39}" + "".join(figures))


if __name__ == "__main__":
    main()
