"""Who starts the measuring, and ends it in time?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from sidecar.workbench.bench.ladder import SIZES, WILD
from sidecar.workbench.bench.rivals import NAMES, is_installed
from sidecar.workbench.bench.rungs import QUESTIONS

OURS = "sidecar"
OURS_BUDGET_S = 300.0  # a million rows are drawn, written, read and asked about
RIVAL_BUDGET_S = 60.0  # from the moment the policy is handed over: loading included


def climbed(
    sizes: Sequence[int] = SIZES,
    *,
    wild: Sequence[float] = (WILD,),
    rivals: Sequence[str] = (),
    questions: int = QUESTIONS,
    budget_s: float = RIVAL_BUDGET_S,
) -> Iterator[dict[str, Any]]:
    """One measurement after the other: for each size and share of wildcards ours, then each rival's.

    A rival that did not come to an answer in time, or is not installed, has an `error` and no figures.
    """
    for share in wild:
        for rows in sizes:
            yield _measured(OURS, rows, share, questions, OURS_BUDGET_S)
            for name in rivals:
                yield _measured(name, rows, share, questions, budget_s)


def _measured(engine: str, rows: int, wild: float, questions: int, budget_s: float) -> dict[str, Any]:
    failed = {"engine": engine, "wild": wild, "rows": rows}
    if engine in NAMES and not is_installed(engine):
        return {**failed, "error": "not installed"}
    order = [
        sys.executable,
        "-m",
        "sidecar.workbench.bench",
        engine,
        str(rows),
        str(wild),
        str(questions),
        str(budget_s),
    ]
    # What is drawn and written before the clock starts takes some twenty microseconds a row.
    patience_s = budget_s + 10 + rows * 40e-6
    try:
        done = subprocess.run(order, capture_output=True, text=True, timeout=patience_s, check=True)
        told: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {**failed, "error": f"no answer within {budget_s:.0f} s"}
    except (subprocess.CalledProcessError, ValueError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return {**failed, "error": said.strip().rpartition("\n")[2][:200]}
    return told
