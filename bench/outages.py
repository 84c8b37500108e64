"""What do callers hear while the store of limits is in trouble, and what is admitted that should not be?

    python -m bench.outages [--case NAME] [--calls-per-second 300] [--limit 1500]

Three processes share one limit of real Valkey servers on loopback (`valkeys.py`), and call at a steady pace until the
limit is spent. In the midst of it the store is killed, frozen, cut off, slowed down, emptied, failed over, or rolled
back. The table goes to `bench/outages.json`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import click

from bench.counter import HOUR_KEY
from bench.process import ready
from bench.valkeys import Node, Proxy, clustered, follows, is_primary, one, wait_for, watched
from sidecar.limits.topology import PREFIX, SLOT

OUT = Path(__file__).parent / "outages.json"
PROCESSES = 3
CALM_S = 1.5
TROUBLE_S = 2.0
QUIET_S = 0.5
SPENT_S = 1.0  # nothing but "spent" for so long: all of it is
SPENT, OUT_OF_STORE = "rate-limited", "store-unavailable"


@dataclass(frozen=True)
class Scene:
    """A store in an outage. `trouble` breaks it, mends it, and answers when it was back, in seconds of the monotonic
    clock; `counts` is asked in the end how much of the limit was counted."""

    url: str
    trouble: Callable[[], Awaitable[float]]
    counts: Callable[[], Node]


@dataclass(frozen=True)
class Told:
    """One line of the table. `uncharged` were admitted and are not counted in the store; `early_429` heard of a limit
    while the store was out. `stall_ms` is how late a process came to a timer of its own: what the machine adds."""

    case: str
    attempts: int
    admitted: int
    refused_429: int
    refused_503: int
    errors: int
    slowest_ms: float
    p99_ms: float
    normal_after_s: float
    over_admitted: int
    uncharged: int
    early_429: int
    stall_ms: float = 0.0


@dataclass(frozen=True)
class Said:
    """What one process had to say. `attempts`: when, how long, why not."""

    attempts: list[tuple[float, float, str]]
    stall_ms: float


@asynccontextmanager
async def killed(folder: Path) -> AsyncIterator[Scene]:
    with one(folder) as node:

        async def trouble() -> float:
            node.kill()
            await asyncio.sleep(TROUBLE_S)
            await asyncio.to_thread(node.start)
            return time.monotonic()

        yield Scene(f"redis://{node.address}", trouble, lambda: node)


@asynccontextmanager
async def frozen(folder: Path) -> AsyncIterator[Scene]:
    with one(folder) as node:

        async def trouble() -> float:
            node.freeze()
            await asyncio.sleep(TROUBLE_S)
            node.thaw()
            return time.monotonic()

        yield Scene(f"redis://{node.address}", trouble, lambda: node)


@asynccontextmanager
async def held_up(folder: Path, *, mute: bool = False, delay_s: float = 0.0) -> AsyncIterator[Scene]:
    """The way to it swallows all, or takes its time."""
    with one(folder) as node:
        async with Proxy(node.port).listening() as proxy:

            async def trouble() -> float:
                proxy.mute, proxy.delay_s = mute, delay_s
                await asyncio.sleep(TROUBLE_S)
                proxy.mute, proxy.delay_s = False, 0.0
                return time.monotonic()

            yield Scene(f"redis://{proxy.address}", trouble, lambda: node)


@asynccontextmanager
async def flushed(folder: Path) -> AsyncIterator[Scene]:
    with one(folder) as node:

        async def trouble() -> float:
            await asyncio.to_thread(node.ask, "FLUSHALL")
            return time.monotonic()

        yield Scene(f"redis://{node.address}", trouble, lambda: node)


@asynccontextmanager
async def scripts_flushed(folder: Path) -> AsyncIterator[Scene]:
    with one(folder) as node:

        async def trouble() -> float:
            for _ in range(5):
                await asyncio.to_thread(node.ask, "SCRIPT", "FLUSH")
                await asyncio.sleep(0.1)
            return time.monotonic()

        yield Scene(f"redis://{node.address}", trouble, lambda: node)


@asynccontextmanager
async def failed_over(folder: Path) -> AsyncIterator[Scene]:
    with watched(folder) as servers:

        async def trouble() -> float:
            servers.primary.kill()
            await asyncio.to_thread(wait_for, lambda: is_primary(servers.replica), "a new primary", 20.0)
            return time.monotonic()

        yield Scene(servers.url, trouble, lambda: servers.replica)


@asynccontextmanager
async def failed_over_in_a_cluster(folder: Path) -> AsyncIterator[Scene]:
    with clustered(folder, SLOT) as servers:

        async def trouble() -> float:
            servers.owner.kill()
            await asyncio.to_thread(wait_for, lambda: is_primary(servers.replica), "a new primary", 20.0)
            return time.monotonic()

        yield Scene(servers.url, trouble, lambda: servers.replica)


@asynccontextmanager
async def rolled_back(folder: Path) -> AsyncIterator[Scene]:
    """A replica that had stopped listening 300 ms before takes over: the charges of that time are lost to it."""
    with one(folder / "a") as primary, one(folder / "b", "--replicaof", f"127.0.0.1 {primary.port}") as replica:
        await asyncio.to_thread(wait_for, lambda: follows(replica), "the replica's link")
        async with Proxy(primary.port).listening() as proxy:

            async def trouble() -> float:
                await asyncio.to_thread(replica.ask, "REPLICAOF", "NO", "ONE")
                await asyncio.sleep(0.3)
                proxy.lead_to(replica.port)
                return time.monotonic()

            yield Scene(f"redis://{proxy.address}", trouble, lambda: replica)


CASES: dict[str, Callable[[Path], AbstractAsyncContextManager[Scene]]] = {
    "killed": killed,
    "frozen": frozen,
    "black-holed": partial(held_up, mute=True),
    "delayed by 200 ms": partial(held_up, delay_s=0.2),
    "FLUSHALL": flushed,
    "SCRIPT FLUSH": scripts_flushed,
    "failed over (Sentinel)": failed_over,
    "failed over (Cluster)": failed_over_in_a_cluster,
    "rolled back by 300 ms": rolled_back,
}


async def run(case: str, per_s: float, limit: int) -> Told:
    """One line: calm, trouble, and calm again until the limit is spent."""
    with tempfile.TemporaryDirectory(prefix="outages") as name:
        async with (
            CASES[case](Path(name)) as scene,
            ready(PROCESSES, "bench.counter", scene.url, str(per_s / PROCESSES), str(limit)) as processes,
        ):
            await asyncio.sleep(CALM_S)
            broken_s = time.monotonic()
            back_s = await scene.trouble()
            await asyncio.sleep(max(0.0, limit / per_s * 1.3 - CALM_S) + SPENT_S + 2.0)
            said = [await _said(process) for process in processes]
            counted = int(str(scene.counts().ask("HGET", PREFIX + HOUR_KEY, "n") or 0))
    attempts = sorted([attempt for one in said for attempt in one.attempts])
    line = _line(case, attempts, limit, counted, broken_s, back_s)
    return replace(line, stall_ms=max(one.stall_ms for one in said))


def _line(
    case: str, attempts: list[tuple[float, float, str]], limit: int, counted: int, broken_s: float, back_s: float
) -> Told:
    reasons = [reason for _, _, reason in attempts]
    took_ms = sorted(took for _, took, _ in attempts)
    admitted, outage = reasons.count(""), reasons.count(OUT_OF_STORE)
    return Told(
        case=case,
        attempts=len(attempts),
        admitted=admitted,
        refused_429=reasons.count(SPENT),
        refused_503=outage,
        errors=len(reasons) - admitted - outage - reasons.count(SPENT),
        slowest_ms=round(took_ms[-1], 1),
        p99_ms=round(took_ms[int(len(took_ms) * 0.99)], 1),
        normal_after_s=round(_normal_after_s(attempts, back_s), 2),
        over_admitted=max(0, admitted - limit),
        uncharged=max(0, admitted - counted),
        early_429=sum(broken_s <= at <= back_s for at, _, reason in attempts if reason == SPENT),
    )


def _normal_after_s(attempts: list[tuple[float, float, str]], back_s: float) -> float:
    """From the store's return until no call hears of an outage any more, for half a second at least."""
    normal_s = back_s
    for at, _, reason in attempts:
        if reason == OUT_OF_STORE and normal_s - QUIET_S < at < normal_s + QUIET_S:
            normal_s = max(normal_s, at)
    return normal_s - back_s


async def _said(child: Process) -> Said:
    assert child.stdin and child.stdout
    child.stdin.close()
    told = json.loads(await child.stdout.readline())
    return Said([(float(at), float(took), str(reason)) for at, took, reason in told["attempts"]], told["stall_ms"])


COLUMNS = {
    "case": "case",
    "attempts": "attempts",
    "admitted": "admitted",
    "429": "refused_429",
    "503": "refused_503",
    "errors": "errors",
    "slowest ms": "slowest_ms",
    "stall ms": "stall_ms",
    "normal after s": "normal_after_s",
    "over-admitted": "over_admitted",
    "uncharged": "uncharged",
}


def table(lines: list[Told]) -> str:
    """As it is printed."""
    rows = [list(COLUMNS), *([str(getattr(one, name)) for name in COLUMNS.values()] for one in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


@click.command()
@click.option("--case", "cases", type=click.Choice(tuple(CASES)), multiple=True, help="Only these; all without it.")
@click.option("--calls-per-second", "per_s", type=click.FloatRange(1, 5000), default=300.0, show_default=True)
@click.option("--limit", type=click.IntRange(10, 100_000), default=1500, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(cases: tuple[str, ...], per_s: float, limit: int, out: Path) -> None:
    """Break the store of limits in every way we know, under load, and count."""
    lines = []
    for case in cases or tuple(CASES):
        lines.append(asyncio.run(run(case, per_s, limit)))
        click.echo(f"{case}: done", err=True)
    click.echo(table(lines))
    told = {
        "calls_per_second": per_s,
        "limit": limit,
        "processes": PROCESSES,
        "cases": [asdict(line) for line in lines],
    }
    out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
