"""Measures decisions under a policy.

Each generated size is measured in a separate process, so that its memory is separate too. Decisions are uncached: every
question is asked once, and the engine's caches are cleared before each. The times are those of `Engine.decide` as the
server calls it, from question to decision, with links and rules.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sidecar.policy import Engine, PolicySource
from sidecar.policy.worker_process import load_policy_aside
from sidecar.policy_tools.bench import ladder
from sidecar.policy_tools.bench.ladder import SIZES, WILD, DrawnQuestion
from sidecar.settings.shipped_files import shipped

OURS = "sidecar"
QUESTIONS = 20_000
WARM_UP = 500
QUESTIONS_FILE = "questions.json"
STEP_S = 310.0  # a million rows are read and queried


def measured(source: PolicySource, asked: Iterable[DrawnQuestion], load_s: float, *, now_s: float) -> dict[str, Any]:
    """Measure an engine, one question after the other. Returns `figures`, and the share of questions allowed."""
    began = time.perf_counter()
    engine = Engine(source)
    load_s += time.perf_counter() - began
    memory_mb = resident_mb()
    asking = [(one.chain, one.question) for one in asked]
    took_ns, allowed = list[int](), 0
    gc.collect()
    gc.freeze()  # as the server does after its start
    for chain, question in asking[:WARM_UP]:
        engine.decide(chain, question, now_s)
    for chain, question in asking:
        engine.forget()
        start = time.perf_counter_ns()
        decision = engine.decide(chain, question, now_s)
        took_ns.append(time.perf_counter_ns() - start)
        allowed += decision.allowed
    told = figures(took_ns, load_s, memory_mb)
    rows = sum(map(len, source.tables.values()))
    return {"engine": OURS, "rows": rows, **told, "allowed": round(allowed / len(took_ns), 3)}


def figures(took_ns: list[int], load_s: float, memory_mb: float) -> dict[str, Any]:
    """Return the decision times `p50_us` and `p99_us`, `load_s`, and the memory of the process `rss_mb` in MiB."""
    took_ns.sort()
    p50, p99 = (took_ns[len(took_ns) * share // 100] / 1000 for share in (50, 99))
    return {"p50_us": p50, "p99_us": p99, "load_s": round(load_s, 3), "rss_mb": round(memory_mb, 1)}


def resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 2**10)


def climbed(
    sizes: Sequence[int] = SIZES, *, wild: Sequence[float] = (WILD,), questions: int = QUESTIONS
) -> Iterator[dict[str, Any]]:
    """Yield the measurement of each size and share of wildcards; one that failed has an `error` and no figures."""
    for share, rows in product(wild, sizes):
        with TemporaryDirectory() as folder:
            _draw(Path(folder), rows, share, questions)
            order = [sys.executable, "-m", "sidecar.policy_tools.bench.measurement", folder]
            told: dict[str, Any] = {"engine": OURS, "wild": share, "rows": rows}
            try:
                done = subprocess.run(order, capture_output=True, text=True, check=True, timeout=STEP_S + rows * 40e-6)
                told |= json.loads(done.stdout)
            except subprocess.TimeoutExpired as late:
                told["error"] = f"no answer within {late.timeout:.0f} s"
            except (subprocess.CalledProcessError, ValueError) as error:
                said = getattr(error, "stderr", "") or str(error)
                told["error"] = said.strip().rpartition("\n")[2][:200]
            yield told


def _draw(folder: Path, rows: int, wild: float, questions: int) -> None:
    policy = ladder.drawn(rows, wild=wild)
    (folder / "policies").mkdir()
    ladder.write(policy, folder / "policies")
    (folder / QUESTIONS_FILE).write_text(json.dumps(list(ladder.questions(policy, questions))))


def main(folder: Path) -> None:
    """Measure a drawn policy in this process, whose memory holds nothing else."""
    asked = [DrawnQuestion(*one) for one in json.loads((folder / QUESTIONS_FILE).read_text())]
    began = time.perf_counter()
    source = load_policy_aside(shipped("models"), folder / "policies")
    sys.stdout.write(json.dumps(measured(source, asked, time.perf_counter() - began, now_s=time.time())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
