"""One step of a measurement, in this process: generate a policy, measure our engine, or measure a rival. `runner`
starts it.

A measurement prints one line of JSON. Generating is a separate step, so that its memory is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import islice
from pathlib import Path

from sidecar.policy.worker_process import load_policy_aside
from sidecar.policy_tools.bench import ladder, measurement, rivals
from sidecar.settings.shipped_files import shipped

DRAW = "draw"
QUESTIONS_FILE = "questions.json"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("step")
    options.add_argument("folder", type=Path)
    options.add_argument("rows", type=int)
    options.add_argument("wild", type=float)
    options.add_argument("questions", type=int)
    options.add_argument("budget_s", type=float)
    chosen = options.parse_args()
    folder: Path = chosen.folder
    if chosen.step == DRAW:
        policy = ladder.drawn(chosen.rows, wild=chosen.wild)
        (folder / "policies").mkdir()
        ladder.write(policy, folder / "policies")
        asked = list(islice(ladder.questions(policy, chosen.questions), chosen.questions))
        (folder / QUESTIONS_FILE).write_text(json.dumps(asked))
        return
    asked = [ladder.DrawnQuestion(*one) for one in json.loads((folder / QUESTIONS_FILE).read_text())]
    if chosen.step == measurement.OURS:
        told = _ours(folder, asked)._asdict()
    else:
        told = _rival(chosen.step, ladder.drawn(chosen.rows, wild=chosen.wild), folder, asked, chosen.budget_s)
    sys.stdout.write(json.dumps({"engine": chosen.step, "wild": chosen.wild, **told}) + "\n")


def _ours(folder: Path, asked: list[ladder.DrawnQuestion]) -> measurement.Rung:
    began = time.perf_counter()
    source = load_policy_aside(shipped("models"), folder / "policies")
    return measurement.measured(source, asked, time.perf_counter() - began, now_s=time.time())


def _rival(
    name: str, policy: ladder.DrawnPolicy, folder: Path, asked: list[ladder.DrawnQuestion], budget_s: float
) -> dict[str, object]:
    """Answer questions until they or the time run out; at least one is answered, unless the parent process ends
    this one.
    """
    ours = measurement.Reference.of(load_policy_aside(shipped("models"), folder / "policies"), time.time())
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
        "rss_mb": round(measurement.resident_mb(), 1),
        "questions": count,
        "agrees": round(agreed / count, 3),
    }


if __name__ == "__main__":
    main()
