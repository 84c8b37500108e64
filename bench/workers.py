"""What do more workers behind one address serve, and what does a further one take?

    python -m bench.workers [--workers 2] [--rounds 8]

One process and several workers, alike in all else, under the same calls, turn by turn, with one real Valkey: calls as
they are, and calls whose answers are searched for nine kinds of secrets. The load, the upstream and Valkey share the
cores of the machine with them, and take a third of the time of a plain call: with two workers on two cores nobody has a
core for itself, and the ratio is less than where the others run elsewhere. Memory is each process's proportional share.
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
from bench.call import SERVER
from bench.load import WARM_UP_S, burst, load_from_path
from bench.process import READY_WITHIN_S, BenchFailed, Running
from bench.subjects import Subject

OUT = Path(__file__).parent / "workers.json"
CONNECTIONS = 32
SEARCHES = "[{classes: [email, card, bearer, jwt, api_key, private_key, iban, ssn, ipv4]}]"
KINDS = {"plain": "[]", "searched": SEARCHES}
VARIABLE = f"SIDECAR_UPSTREAMS__{SERVER.upper()}__RESPONSES__REDACT"


def pss_mb(pid: int) -> float:
    """The proportional share of memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def workers_of(process: Running) -> list[int]:
    """The children of a supervisor, by their pids."""
    pid = process.child.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def cpu_s(process: Running) -> float:
    """User and system time of a process and of its children, so far."""
    found = process.cpu_s()
    for pid in workers_of(process):
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _until_all_serve(process: Running) -> None:
    end = time.monotonic() + READY_WITHIN_S
    while '"all workers serve"' not in process.log.read_text("utf-8"):
        if time.monotonic() > end or process.child.poll() is not None:
            raise BenchFailed(f"not all workers serve: {process.log.read_text('utf-8')[-2000:]}")
        time.sleep(0.02)


def _measured(folder: Path, count: int, seconds: int, rounds: int) -> dict[str, float | str]:
    _, load = load_from_path(folder)
    with ExitStack() as stack:
        upstream = stack.enter_context(subjects.upstream(folder))
        store_url = stack.enter_context(subjects.valkey(folder))
        found: dict[tuple[str, int], Subject] = {}
        for kind, redacts in KINDS.items():
            os.environ[VARIABLE] = redacts
            for workers in (1, count):
                made = subjects.sidecar(f"{kind}{workers}", folder, upstream, store_url, workers=workers)
                found[kind, workers], _ = stack.enter_context(made)
            _until_all_serve(found[kind, count].process)
        del os.environ[VARIABLE]
        turns: dict[tuple[str, int], list[float]] = {key: [] for key in found}
        spent_s, served = dict.fromkeys(found, 0.0), dict.fromkeys(found, 0)
        for subject in found.values():
            subjects.answer_of(subject)
            burst(load, subject.post, CONNECTIONS, WARM_UP_S)
        for _ in range(rounds):
            for key, subject in found.items():
                before_s = cpu_s(subject.process)
                heard = burst(load, subject.post, CONNECTIONS, seconds)
                turns[key].append(heard.rps)
                spent_s[key] += cpu_s(subject.process) - before_s
                served[key] += heard.requests
        said: dict[str, float | str] = {"workers": count, "cores": os.cpu_count() or 0, "connections": CONNECTIONS}
        for kind in KINDS:
            one, all_ = turns[kind, 1], turns[kind, count]
            said[f"{kind} one rps"], said[f"{kind} all rps"] = round(median(one)), round(median(all_))
            for name, key in (("one", (kind, 1)), ("all", (kind, count))):
                said[f"{kind} {name} CPU µs"] = round(spent_s[key] * 1e6 / served[key], 1)
            said[f"{kind} ratio"] = round(median(more / few for few, more in zip(one, all_, strict=True)), 2)
        supervisor = found["plain", count].process
        said["one process MB"] = round(pss_mb(found["plain", 1].process.child.pid), 1)
        said["supervisor MB"] = round(pss_mb(supervisor.child.pid), 1)
        said["worker MB"] = round(median(map(pss_mb, workers_of(supervisor))), 1)
        return said


@click.command()
@click.option("--workers", "count", type=click.IntRange(2, 64), default=2, show_default=True)
@click.option("--seconds", type=click.IntRange(1, 60), default=2, show_default=True, help="Of one burst of load.")
@click.option("--rounds", type=click.IntRange(1, 50), default=8, show_default=True, help="Turns of each.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(count: int, seconds: int, rounds: int, out: Path) -> None:
    """Compare one process with several workers."""
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as name:
            found = _measured(Path(name), count, seconds, rounds)
    except BenchFailed as failed:
        click.echo(f"the benchmark failed: {failed}", err=True)
        raise SystemExit(1) from None
    out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    for key, value in found.items():
        click.echo(f"{key:<20}{value:>10}")


if __name__ == "__main__":
    main()
