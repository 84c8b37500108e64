"""Do several processes together admit exactly what one limit says, however many attempts they make?

    python -m bench.exactness [--attempts 1000000] [--processes 4] [--limit 100000] [--over-http]

Every attempt asks an hour that is the limit, a day, and a budget of money, of one real Valkey on loopback. The hour
refuses; day and budget must then have moved exactly as often. The processes are the limits alone (`spender`), or with
`--over-http` whole sidecars that are called (`crowd`), which takes some ten minutes a million. Both tables are in
`bench/exactness.json`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from bench import crowd, valkeys
from bench.spender import COST, DAY_KEY, HOUR_KEY, MONTH_KEY
from sidecar.limits.topology import PREFIX

OUT = Path(__file__).parent / "exactness.json"
REPOSITORY = Path(__file__).parents[1]
LIMITS, HTTP = "limits alone", "http"
COMMAND = (sys.executable, "-m", "bench.spender")


@dataclass(frozen=True)
class Told:
    """What came of it. `partial` are counters that moved for a call which another limit refused; `reached` is what the
    server counted, where there is one; `other` were refused for another reason than the limit."""

    over: str
    attempts: int
    processes: int
    limit: int
    admitted: int
    reached: int | None
    refused_429: int
    other: int
    over_admitted: int
    partial: int
    attempts_per_s: int


def run_over_http(attempts: int, processes: int, limit: int) -> Told:
    met = crowd.met(attempts, processes, limit)
    admitted, refused = met.answers["admitted"], met.answers["429 rate-limited"]
    should = {"hour": admitted, "day": admitted, "month": admitted * crowd.COST}
    return Told(
        over=HTTP,
        attempts=met.answers.total(),
        processes=processes,
        limit=limit,
        admitted=admitted,
        reached=met.reached,
        refused_429=refused,
        other=met.answers.total() - admitted - refused,
        over_admitted=max(0, admitted - limit, met.reached - limit),
        partial=sum(met.counted.get(kind) != count for kind, count in should.items()),
        attempts_per_s=round(attempts / met.took_s),
    )


async def run(attempts: int, processes: int, limit: int) -> Told:
    with tempfile.TemporaryDirectory(prefix="exactness") as folder, valkeys.one(Path(folder)) as node:
        about = (f"redis://{node.address}", str(attempts // processes), str(limit))
        children = [
            await asyncio.create_subprocess_exec(*COMMAND, *about, stdin=PIPE, stdout=PIPE, cwd=REPOSITORY)
            for _ in range(processes)
        ]
        try:
            for child in children:
                if await _line(child) != "ready":
                    raise click.ClickException("a process did not begin")
            began_s = time.monotonic()
            for child in children:
                assert child.stdin
                child.stdin.write(b"\n")
            heard: Counter[str] = Counter()
            for child in children:
                heard.update(json.loads(await _line(child)))
            took_s = time.monotonic() - began_s
        finally:
            for child in children:
                if child.returncode is None:
                    child.kill()
                await child.wait()
        counted = {key: _counted(node, key) for key in (HOUR_KEY, DAY_KEY, MONTH_KEY)}
    made, admitted = heard.total(), heard["admitted"]
    should = {HOUR_KEY: admitted, DAY_KEY: admitted, MONTH_KEY: admitted * COST}
    return Told(
        over=LIMITS,
        attempts=made,
        processes=processes,
        limit=limit,
        admitted=admitted,
        reached=None,
        refused_429=heard["rate-limited"],
        other=made - admitted - heard["rate-limited"],
        over_admitted=max(0, admitted - limit),
        partial=sum(counted[key] != should[key] for key in should),
        attempts_per_s=round(made / took_s),
    )


async def _line(child: Process) -> str:
    assert child.stdout
    return (await child.stdout.readline()).decode().strip()


def _counted(node: valkeys.Node, key: str) -> int:
    return int(str(node.ask("HGET", PREFIX + key, "n") or 0))


@click.command()
@click.option("--attempts", type=click.IntRange(1, 100_000_000), default=1_000_000, show_default=True)
@click.option("--processes", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--limit", type=click.IntRange(1, 10_000_000), default=100_000, show_default=True)
@click.option("--over-http", is_flag=True, help="Call sidecars, instead of asking limits.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(attempts: int, processes: int, limit: int, over_http: bool, out: Path) -> None:
    """Try to spend more than there is."""
    ran = run_over_http(attempts, processes, limit) if over_http else asyncio.run(run(attempts, processes, limit))
    told = asdict(ran)
    others = json.loads(out.read_text()) if out.exists() else []
    kept = [one for one in others if one["over"] != told["over"]]
    out.write_text(json.dumps(sorted([*kept, told], key=lambda one: one["over"], reverse=True), indent=1) + "\n")
    for name, value in told.items():
        click.echo(f"{name.replace('_', ' '):<16}{value if value is not None else '':>14}")
    if _is_wrong(told):
        raise click.ClickException("not exact")


def _is_wrong(one: Mapping[str, Any]) -> bool:
    """Whether it is anything but exact."""
    at_most = min(one["limit"], one["attempts"])
    return one["admitted"] != at_most or one["reached"] not in (None, at_most) or bool(one["partial"])


if __name__ == "__main__":
    main()
