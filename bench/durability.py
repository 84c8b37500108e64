"""What does evidence cost that survives a crash, or a power failure?

    python -m bench.durability

Three sidecars that differ in `audit.durability` alone, under the same calls, turn by turn. What the disk itself takes
is measured beside them: one append of 2 kB and its `fdatasync`, on the same file system.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click

from bench import subjects
from bench.load import burst, load_from_path
from bench.process import BenchFailed
from bench.report import FEW, MANY
from bench.subjects import Subject

OUT = Path(__file__).parent / "durability.json"
LEVELS = ("best_effort", "strict", "disk")
YARDSTICK = LEVELS[0]
Turns = dict[str, list[tuple[float, float, float]]]
"""By level: requests a second, p50 in ms, CPU in µs per call."""


def sync_ms(folder: Path, times: int = 200) -> float:
    """The median of an append and its way to the disk."""
    descriptor = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        os.write(descriptor, b"x" * 2_000)
        os.fdatasync(descriptor)
        took.append((time.perf_counter() - begun) * 1e3)
    os.close(descriptor)
    return median(took)


def _numbers(ours: list[tuple[float, float, float]], theirs: list[tuple[float, float, float]]) -> dict[str, float]:
    rps, p50_ms, cpu_us = (median(column) for column in zip(*ours, strict=True))
    ratio = median(one[0] / other[0] for one, other in zip(ours, theirs, strict=True))
    return {"rps": round(rps, 1), "p50_ms": round(p50_ms, 3), "cpu_us": round(cpu_us, 1), "ratio": round(ratio, 3)}


def _measured(folder: Path, seconds: int, rounds: int) -> dict[int, dict[str, dict[str, float]]]:
    _, load = load_from_path(folder)
    with ExitStack() as stack:
        upstream = stack.enter_context(subjects.upstream(folder))
        found: dict[str, Subject] = {}
        for level in LEVELS:
            made = subjects.sidecar(level, folder, upstream, "memory://", durability=level)
            found[level], _ = stack.enter_context(made)
            burst(load, found[level].post, MANY, 1)
        measured = {}
        for connections in (MANY, FEW):
            turns: Turns = {level: [] for level in LEVELS}
            for _ in range(rounds):
                for level, subject in found.items():
                    before_s = subject.process.cpu_s()
                    heard = burst(load, subject.post, connections, seconds)
                    cpu_us = (subject.process.cpu_s() - before_s) * 1e6 / heard.requests
                    turns[level].append((heard.rps, heard.p50_ms, cpu_us))
            measured[connections] = {level: _numbers(turns[level], turns[YARDSTICK]) for level in LEVELS}
    return measured


@click.command()
@click.option("--seconds", type=click.IntRange(1, 60), default=2, show_default=True, help="Of one burst of load.")
@click.option("--rounds", type=click.IntRange(1, 50), default=6, show_default=True, help="Turns of each level.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(seconds: int, rounds: int, out: Path) -> None:
    """Compare what waiting for the system, and for the disk, costs on this machine."""
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as name:
            disk_ms = sync_ms(Path(name))
            measured = _measured(Path(name), seconds, rounds)
    except BenchFailed as failed:
        click.echo(f"the benchmark failed: {failed}", err=True)
        raise SystemExit(1) from None
    found = {"sync_ms": round(disk_ms, 3), **{str(connections): levels for connections, levels in measured.items()}}
    out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    click.echo(f"one append and its fdatasync: {disk_ms:.2f} ms")
    for connections, levels in measured.items():
        click.echo(f"{connections} connections")
        for level, n in levels.items():
            told = f"{n['rps']:>8.0f} req/s {n['p50_ms']:>7.2f} ms p50 {n['cpu_us']:>6.0f} µs"
            click.echo(f"  {level:12}{told}   ratio {n['ratio']:.2f}")


if __name__ == "__main__":
    main()
