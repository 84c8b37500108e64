"""Measures one policy size.

Each size is measured in a separate process, so that its memory is separate too. Decisions are uncached: every question
is asked once, and the engine's caches are cleared before each. The times are those of `Engine.decide` as the server
calls it, from question to decision, with links and rules.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sidecar.policy import Engine, PolicySource
from sidecar.policy_tools.bench.ladder import DrawnQuestion

OURS = "sidecar"
QUESTIONS = 20_000
WARM_UP = 500


class Rung(NamedTuple):
    """`p50_us` and `p99_us` are the decision times in microseconds, `load_s` the load time in seconds, `rss_mb` the
    memory of the process in MiB. `allowed` is the share of questions that were allowed.
    """

    rows: int
    p50_us: float
    p99_us: float
    load_s: float
    rss_mb: float
    allowed: float


def measured(source: PolicySource, asked: Iterable[DrawnQuestion], load_s: float, *, now_s: float) -> Rung:
    """Measure an engine over the policy, one question after the other."""
    began = time.perf_counter()
    engine = Engine(source)
    load_s += time.perf_counter() - began
    memory_mb = resident_mb()
    asking = [(one.chain, one.question) for one in asked]
    took_ns, allowed = [], 0
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
    took_ns.sort()
    count = len(took_ns)
    return Rung(
        len(source.rules),
        took_ns[count // 2] / 1000,
        took_ns[count * 99 // 100] / 1000,
        round(load_s, 3),
        round(memory_mb, 1),
        round(allowed / count, 3),
    )


class Reference:
    """Our own answers, with which the answers of other engines are compared."""

    def __init__(self, engine: Engine, now_s: float) -> None:
        self._engine, self._now_s = engine, now_s

    @classmethod
    def of(cls, source: PolicySource, now_s: float) -> Reference:
        return cls(Engine(source), now_s)

    def allows(self, asked: DrawnQuestion) -> bool:
        return self._engine.decide(asked.chain, asked.question, self._now_s).allowed


def resident_mb() -> float:
    """Return the resident memory in MiB now if the system reports it, else its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 2**10)
