"""Runs the benchmark: `make bench`, or `python -m bench --quick`."""

from __future__ import annotations

import compileall
import json
import os
import platform
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from unittest.mock import patch

import aiohttp
import click

from bench import subjects
from bench.call import post_to
from bench.load import WARM_UP_S, Load, burst, load_from_path
from bench.process import REPOSITORY, BenchFailed
from bench.report import FEW, MANY, Turn, ladder_from, ladder_table, profile_from, results_from, table_from
from bench.subjects import Subject, Upstream
from sidecar import __version__

OUT = Path(__file__).parent / "results.json"
LADDER = Path(__file__).parent / "ladder.json"
Measured = dict[str, dict[int, list[Turn]]]


@click.command(epilog="Decisions for other enforcement points: python -m bench.decisions")
@click.option("--seconds", type=click.IntRange(1, 60), default=2, show_default=True, help="Of one burst of load.")
@click.option("--rounds", type=click.IntRange(1, 50), default=6, show_default=True, help="Turns of each subject.")
@click.option("--quick", is_flag=True, help="A second and one round: whether it works, not how fast.")
@click.option("--profile", is_flag=True, help="Show where the sidecar spends its time , measure nothing.")
@click.option("--ladder", is_flag=True, help="Show what each stage of a call costs, and which grew.")
@click.option("--traces", is_flag=True, help="Show what OpenTelemetry costs: off, on without a sample, and on.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(seconds: int, rounds: int, quick: bool, profile: bool, ladder: bool, traces: bool, out: Path) -> None:
    """Compare the sidecar with a bare proxy and with no proxy at all, on this machine."""
    if quick:
        seconds, rounds = 1, 1
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as name:
            folder = Path(name)
            tool, load = load_from_path(folder)
            if profile:
                _profile(folder, load, seconds * rounds)
            elif ladder:
                _ladder(folder, load, seconds, rounds)
            elif traces:
                _traces(folder, load, seconds, rounds)
            else:
                _measure(folder, tool, load, seconds, rounds, out)
    except BenchFailed as failed:
        click.echo(f"the benchmark failed: {failed}", err=True)
        raise SystemExit(1) from None


def _measure(folder: Path, tool: str, load: Load, seconds: int, rounds: int, out: Path) -> None:
    with _everything(folder) as (upstream, measured, ready_s, idle_mb):
        turns = _rounds(measured, load, seconds, rounds)
        about = {
            "connections": [FEW, MANY],
            "rounds": rounds,
            "seconds": seconds,
            "load": tool,
            "upstream": upstream.kind,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "aiohttp": aiohttp.__version__,
            "sidecar": __version__,
            "idle_mb": idle_mb,
        }
    results = results_from(turns, ready_s, about)
    out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    click.echo(f"{tool} → … → {upstream.kind}, {rounds} rounds of {seconds} s, {os.cpu_count()} cores\n")
    click.echo(f"{table_from(results, list(turns))}\nwritten to {out}")


@contextmanager
def _everything(folder: Path) -> Iterator[tuple[Upstream, Sequence[Subject], dict[str, float], dict[str, float]]]:
    """All subjects; after how many seconds each sidecar was ready, and its memory then, before any call."""
    compileall.compile_dir(REPOSITORY / "sidecar", quiet=2)  # as an installed sidecar is
    with ExitStack() as stack:
        upstream = stack.enter_context(subjects.upstream(folder))
        direct = Subject("direct", post_to(upstream.url), upstream.process)
        bare = stack.enter_context(subjects.passthrough("passthrough", folder, upstream, "bare"))
        quick = stack.enter_context(subjects.passthrough("passthrough_tuned", folder, upstream, "tuned"))
        store_url = stack.enter_context(subjects.valkey(folder))
        ready_s, idle_mb = {}, {}
        found = [direct, bare, quick]
        for name, url in (("sidecar_memory", "memory://"), ("sidecar_valkey", store_url)):
            subject, ready_s[name] = stack.enter_context(subjects.sidecar(name, folder, upstream, url))
            idle_mb[name] = subject.process.rss_mb()
            found.append(subject)
        yield upstream, found, ready_s, idle_mb


def _rounds(measured: Sequence[Subject], load: Load, seconds: int, rounds: int) -> Measured:
    """Turn by turn, so that whatever drifts on this machine drifts for all alike."""
    for subject in measured:
        subjects.answer_of(subject)
        burst(load, subject.post, MANY, WARM_UP_S)
    turns: Measured = {subject.name: {FEW: [], MANY: []} for subject in measured}
    for number in range(rounds):
        click.echo(f"round {number + 1} of {rounds}", err=True)
        for connections in (FEW, MANY):
            for subject in measured:
                turns[subject.name][connections].append(_turn(subject, load, connections, seconds))
    return turns


def _turn(subject: Subject, load: Load, connections: int, seconds: int) -> Turn:
    before_s = subject.process.cpu_s()
    heard = burst(load, subject.post, connections, seconds)
    spent_s = subject.process.cpu_s() - before_s
    return Turn(heard, spent_s * 1e6 / heard.requests, subject.process.rss_mb())


def _profile(folder: Path, load: Load, seconds: int) -> None:
    """Both stores, one after the other."""
    with subjects.upstream(folder) as upstream, subjects.valkey(folder) as store_url:
        for name, url in (("sidecar_memory", "memory://"), ("sidecar_valkey", store_url)):
            out = folder / f"{name}.json"
            with subjects.sidecar(name, folder, upstream, url, ("-m", "bench.sampling", str(out))) as (subject, _):
                subjects.answer_of(subject)
                burst(load, subject.post, MANY, WARM_UP_S)
                subject.process.child.send_signal(signal.SIGUSR1)
                turn = _turn(subject, load, MANY, seconds)
            click.echo(f"\n{name}: {turn.cpu_us:.0f} µs of CPU per call\n")
            click.echo(profile_from(json.loads(out.read_text("utf-8")), turn.cpu_us))


def _ladder(folder: Path, load: Load, seconds: int, rounds: int) -> None:
    """The bare proxy and the sidecar in memory, turn by turn, the sidecar sampled all the time."""
    with subjects.upstream(folder) as upstream, ExitStack() as stack:
        sampled = folder / "ladder.json"
        under = ("-m", "bench.sampling", str(sampled))
        bare = stack.enter_context(subjects.passthrough("passthrough", folder, upstream, "bare"))
        with subjects.sidecar("sidecar_memory", folder, upstream, "memory://", under) as (ours, _):
            for subject in (bare, ours):
                subjects.answer_of(subject)
                burst(load, subject.post, MANY, WARM_UP_S)
            ours.process.child.send_signal(signal.SIGUSR1)
            turns = [[_turn(subject, load, MANY, seconds) for subject in (bare, ours)] for _ in range(rounds)]
        bare_us, ours_us = (median(turn.cpu_us for turn in of_one) for of_one in zip(*turns, strict=True))
    last = json.loads(LADDER.read_text("utf-8")) if LADDER.is_file() else {}
    found = ladder_from(json.loads(sampled.read_text("utf-8"))["stages"], ours_us, bare_us)
    LADDER.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    click.echo(f"{ladder_table(found, last)}\n\nbare {bare_us:.0f} µs; written to {LADDER}")


def _traces(folder: Path, load: Load, seconds: int, rounds: int) -> None:
    """The sidecar in memory, turn by turn: twice without OpenTelemetry, which shows what is chance, then with it."""
    with subjects.upstream(folder) as upstream, ExitStack() as stack:
        on, measured = {"OTEL_EXPORTER_OTLP_ENDPOINT": upstream.url.removesuffix("/mcp")}, []
        unsampled = {**on, "OTEL_TRACES_SAMPLER": "always_off"}
        for name, environ in (("off", {}), ("off_again", {}), ("unsampled", unsampled), ("sampled", on)):
            with patch.dict(os.environ, environ):
                subject, _ = stack.enter_context(subjects.sidecar(name, folder, upstream, "memory://"))
            measured.append(subject)
        turns = _rounds(measured, load, seconds, rounds)
    for connections in (FEW, MANY):
        for name, found in turns.items():
            cpu_us = median(turn.cpu_us for turn in found[connections])
            click.echo(f"{connections:3} connections, {name:9} {cpu_us:4.0f} µs of CPU per call")


if __name__ == "__main__":
    main()
