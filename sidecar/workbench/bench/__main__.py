"""One size, one engine, in this process: prints what was measured as one line of JSON. `running` starts it."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from sidecar.policy.aside import load_policy_aside
from sidecar.settings.shipped import shipped
from sidecar.workbench.bench import ladder, rivals, rungs


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("engine")
    options.add_argument("rows", type=int)
    options.add_argument("wild", type=float)
    options.add_argument("questions", type=int)
    options.add_argument("budget_s", type=float)
    chosen = options.parse_args()
    policy = ladder.drawn(chosen.rows, wild=chosen.wild)
    asked = list(islice(ladder.questions(policy, chosen.questions), chosen.questions))
    if chosen.engine == "sidecar":
        told = _ours(policy, asked)._asdict()
    else:
        told = _rival(chosen.engine, policy, asked, chosen.budget_s)
    sys.stdout.write(json.dumps({"engine": chosen.engine, "wild": chosen.wild, **told}) + "\n")


def _ours(policy: ladder.Drawn, asked: list[ladder.Asked]) -> rungs.Rung:
    with tempfile.TemporaryDirectory() as folder:
        ladder.write(policy, Path(folder))
        del policy
        began = time.perf_counter()
        source = load_policy_aside(shipped("models"), Path(folder))
        took_s = time.perf_counter() - began
    return rungs.measured(source, asked, took_s, now_s=time.time())


def _rival(name: str, policy: ladder.Drawn, asked: list[ladder.Asked], budget_s: float) -> dict[str, object]:
    """Until the questions or the time are over; at least one is answered, or whoever started this ends it."""
    with tempfile.TemporaryDirectory() as folder:
        ladder.write(policy, Path(folder))
        ours = rungs.Reference.of(load_policy_aside(shipped("models"), Path(folder)), time.time())
    began = time.perf_counter()
    allows = rivals.rival(name, policy, asked)
    load_s = time.perf_counter() - began
    took_ns, agreed = [], 0
    for one in asked:
        start = time.perf_counter_ns()
        answer = allows(one)
        took_ns.append(time.perf_counter_ns() - start)
        agreed += answer is ours.allows(one)
        if time.perf_counter() - began > budget_s * 0.9:
            break
    took_ns.sort()
    count = len(took_ns)
    return {
        "rows": len(policy.rows),
        "p50_us": took_ns[count // 2] / 1000,
        "p99_us": took_ns[count * 99 // 100] / 1000,
        "load_s": round(load_s, 3),
        "rss_mb": round(rungs.resident_mb(), 1),
        "questions": count,
        "agrees": round(agreed / count, 3),
    }


if __name__ == "__main__":
    main()
