"""Decides whether and when a failed run is tried again.

Only for what may be gone the next time, which whoever saw the failure says (`Category.TRANSIENT`). Never because its
time was over or somebody gave it up, and never an agent that writes, unless its definition says that it may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd
from sidecar.tasks.programs.run_states import Category

SPREAD: Final = 0.2  # a fifth more or less, so that what failed together does not come back together


def rest_s(agent: CliAgent, ended: AttemptEnd, tries: int, random: Callable[[], float]) -> float | None:
    """How long to rest before the next try, after so many; None where there is none. `random` gives numbers from 0
    to 1."""
    may_pass = ended.failure is not None and ended.failure.category is Category.TRANSIENT
    if ended.timed_out or not may_pass or tries >= agent.tries:
        return None
    rest = min(agent.retries.backoff_s * 2.0 ** (tries - 1), agent.retries.max_backoff_s)
    return rest * (1 - SPREAD + 2 * SPREAD * random())
