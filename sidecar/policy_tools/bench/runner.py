"""Starts measuring processes and ends them in time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sidecar.policy_tools.bench.__main__ import DRAW
from sidecar.policy_tools.bench.ladder import SIZES, WILD
from sidecar.policy_tools.bench.measurement import OURS, QUESTIONS
from sidecar.policy_tools.bench.rivals import NAMES, is_installed

OURS_BUDGET_S = 300.0  # a million rows are generated, written, read and queried
RIVAL_BUDGET_S = 60.0  # from the moment the rival gets the policy, loading included


def climbed(
    sizes: Sequence[int] = SIZES,
    *,
    wild: Sequence[float] = (WILD,),
    rivals: Sequence[str] = (),
    questions: int = QUESTIONS,
    budget_s: float = RIVAL_BUDGET_S,
) -> Iterator[dict[str, Any]]:
    """Yield the measurements: for each size and share of wildcards ours, then each rival's.

    A rival that did not finish in time, or is not installed, has an `error` and no figures.
    """
    for share in wild:
        for rows in sizes:
            with tempfile.TemporaryDirectory() as folder:
                drawn = partial(_step, folder=folder, rows=rows, wild=share, questions=questions)
                drawn(DRAW, budget_s=OURS_BUDGET_S)
                yield _measured(OURS, drawn, OURS_BUDGET_S, rows, share)
                for name in rivals:
                    yield _measured(name, drawn, budget_s, rows, share)


def _measured(engine: str, step: Callable[..., str], budget_s: float, rows: int, wild: float) -> dict[str, Any]:
    failed = {"engine": engine, "wild": wild, "rows": rows}
    if engine in NAMES and not is_installed(engine):
        return {**failed, "error": "not installed"}
    try:
        told: dict[str, Any] = json.loads(step(engine, budget_s=budget_s))
    except subprocess.TimeoutExpired:
        return {**failed, "error": f"no answer within {budget_s:.0f} s"}
    except (subprocess.CalledProcessError, ValueError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return {**failed, "error": said.strip().rpartition("\n")[2][:200]}
    return told


def _step(name: str, *, folder: str, rows: int, wild: float, questions: int, budget_s: float) -> str:
    """Return the output of one step. Raises TimeoutExpired: generating, some 40 µs a row, precedes the rival's
    clock.
    """
    order = [sys.executable, "-m", "sidecar.policy_tools.bench", name, folder, str(rows), str(wild), str(questions)]
    patience_s = budget_s + 10 + rows * 40e-6
    done = subprocess.run([*order, str(budget_s)], capture_output=True, text=True, timeout=patience_s, check=True)
    return done.stdout
