"""Does anything grow, in hours of everything at once?

    python -m bench.soak [--minutes 120] [--pause 0.05]

A sidecar, a server and a Valkey in processes of their own; callers in this one, as `mixed` has them, and a reload every
ten seconds. Every few seconds the sidecar's memory, descriptors and tasks are read. What counts is the slope after the
first quarter, when caches are full. Everything goes to `bench/soak.json`, the picture to `docs/pictures/soak.svg`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import click
import uvloop

from bench.mixed import RULES, Callers, write_folder
from bench.process import BenchFailed, Running, free_port, running, wait_for_200, wait_for_port
from bench.subjects import valkey

HERE = Path(__file__).parent
OUT, PICTURE = HERE / "soak.json", HERE.parent / "docs" / "pictures" / "soak.svg"
LOOKS, RELOAD_EVERY_S, SETTLE_S = 240, 10.0, 8.0
CALLS, SLOW, SESSIONS, TASKS = 6, 3, 3, 2
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 320, 60, 150, 40, 40


class Look(NamedTuple):
    """What a sidecar holds, `at_s` after the start."""

    at_s: float
    rss_mb: float
    descriptors: int
    tasks: int


@click.command()
@click.option("--minutes", type=click.FloatRange(0.2, 1440), default=120.0, show_default=True)
@click.option(
    "--pause", "pause_s", type=click.FloatRange(0.01, 10), default=0.05, show_default=True, help="Between calls."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
@click.option("--picture", "drawn", type=click.Path(dir_okay=False, path_type=Path), default=PICTURE, show_default=True)
def main(minutes: float, pause_s: float, out: Path, drawn: Path) -> None:
    """Everything at once, for as long as you have."""
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        told = uvloop.run(measured(Path(folder), minutes * 60, pause_s))
    looks = told.pop("looks")
    rows = ",\n  ".join(json.dumps(look) for look in looks)  # one look a line
    out.write_text(json.dumps(told, indent=1)[:-2] + f',\n "looks": [\n  {rows}\n ]\n}}\n')
    drawn.write_text(picture(told, [Look(*look) for look in looks]))
    for name, value in told.items():
        click.echo(f"{name:24} {value}")


async def measured(folder: Path, seconds: float, pause_s: float) -> dict[str, Any]:
    """Run it, and say what was seen."""
    ports = {name: free_port() for name in ("port", "other", "admin", "upstream")}
    with valkey(folder) as store:
        write_folder(folder / "s", store=store, **ports)
        behind = (sys.executable, "-m", "bench.mixed", str(ports["upstream"]))
        inside = (sys.executable, "-m", "bench.inside", str(folder / "inside.json"))
        serving = (*inside, "serve", "-c", str(folder / "s" / "sidecar.yaml"))
        with running(behind, folder / "upstream.log") as server, running(serving, folder / "sidecar.log") as process:
            wait_for_port(ports["upstream"], server)
            wait_for_200(f"http://127.0.0.1:{ports['admin']}/readyz", process)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), connector=connector) as http:
                callers = Callers(ports["port"], ports["other"], http, keep_answers=False, pause_s=pause_s)
                working = asyncio.create_task(callers.work(CALLS, SLOW, SESSIONS, TASKS))
                reloading = asyncio.create_task(_reload(folder / "s", process, callers.stop))
                looks = await _look(folder, process, seconds)
                callers.stop.set()
                await asyncio.gather(working, reloading)
            await asyncio.sleep(SETTLE_S)
            after = await _seen(folder, process, seconds)
            return _told(looks, after, callers, await reloading, seconds)


async def _reload(folder: Path, process: Running, stop: asyncio.Event) -> int:
    """Another rule each time; how many reloads were asked for."""
    count = 0
    while not stop.is_set():
        (folder / "policies" / "agent_to_tool.csv").write_text(
            RULES + f"p, nhi:somebody-{count}, tool:mixed/quick, use, -, -, -, allow\n"
        )
        process.child.send_signal(signal.SIGHUP)
        count += 1
        try:
            await asyncio.wait_for(stop.wait(), RELOAD_EVERY_S)
        except TimeoutError:
            continue
    return count


async def _look(folder: Path, process: Running, seconds: float) -> list[Look]:
    began, looks = time.monotonic(), []
    every_s = max(2.0, seconds / LOOKS)
    while (at_s := time.monotonic() - began) < seconds:
        looks.append(await _seen(folder, process, at_s))
        if process.child.poll() is not None:
            raise BenchFailed(process.log.read_text()[-2000:])
        await asyncio.sleep(every_s)
    return looks


async def _seen(folder: Path, process: Running, at_s: float) -> Look:
    told = folder / "inside.json"
    told.unlink(missing_ok=True)
    process.child.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(30):
        while not (told.exists() and told.stat().st_size):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.02)
    tasks = json.loads(told.read_text())["tasks"]
    return Look(round(at_s, 1), round(process.rss_mb(), 2), process.descriptors(), tasks)


def _told(looks: Sequence[Look], after: Look, callers: Callers, reloads: int, seconds: float) -> dict[str, Any]:
    settled = [look for look in looks if look.at_s >= seconds / 4]
    return {
        "minutes": round(seconds / 60, 1),
        "requests": callers.journal.attempts,
        "done": dict(callers.journal.kinds),
        "wrong": dict(callers.journal.wrong),
        "lost": callers.journal.lost,
        "reloads": reloads,
        "rss_mb_first": looks[0].rss_mb,
        "rss_mb_last": looks[-1].rss_mb,
        "rss_slope_mb_h": round(_slope([(look.at_s, look.rss_mb) for look in settled]) * 3600, 2),
        "descriptors_slope_h": round(_slope([(look.at_s, look.descriptors) for look in settled]) * 3600, 2),
        "tasks_slope_h": round(_slope([(look.at_s, look.tasks) for look in settled]) * 3600, 2),
        "after": after._asdict(),
        "looks": [list(look) for look in looks],
    }


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's: the median of the slopes of all pairs. One odd look bends nothing."""
    thin = points[:: max(1, len(points) // 120)]
    slopes = [(y2 - y1) / (x2 - x1) for n, (x1, y1) in enumerate(thin) for x2, y2 in thin[n + 1 :]]
    return statistics.median(slopes) if slopes else 0.0


# --- the picture ------------------------------------------------------------------------------------------------------


def picture(told: dict[str, Any], looks: Sequence[Look]) -> str:
    """Memory, descriptors and tasks over time, each as a share of its greatest."""
    lines = (
        ("memory", "MB", "#1f77b4", [look.rss_mb for look in looks]),
        ("descriptors", "", "#d62728", [float(look.descriptors) for look in looks]),
        ("tasks", "", "#2ca02c", [float(look.tasks) for look in looks]),
    )
    title = f"{told['requests']:,} requests and {told['reloads']} reloads in {told['minutes']:g} minutes"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="13">{title}; 100 % is the greatest that was seen of each</text>',
        *_grid(told["minutes"]),
    ]
    for place, (name, unit, colour, values) in enumerate(lines):
        parts += _line(looks, values, colour)
        y = TOP + 20 + 40 * place
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y}" fill="{colour}">{name}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y + 15}" fill="{colour}">to {max(values):g} {unit}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(minutes: float) -> Iterable[str]:
    for share in (0, 25, 50, 75, 100):
        y = HEIGHT - BOTTOM - share / 100 * (HEIGHT - TOP - BOTTOM)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share} %</text>'
    for quarter in range(5):
        x = LEFT + quarter / 4 * (WIDTH - LEFT - RIGHT)
        text = f"{minutes * quarter / 4:g} min"
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>'


def _line(looks: Sequence[Look], values: Sequence[float], colour: str) -> Iterable[str]:
    end_s, most = max(looks[-1].at_s, 1.0), max(values) or 1.0
    points = " ".join(
        f"{LEFT + look.at_s / end_s * (WIDTH - LEFT - RIGHT):.1f},"
        f"{HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM):.1f}"
        for look, value in zip(looks, values, strict=True)
    )
    yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


if __name__ == "__main__":
    main()
