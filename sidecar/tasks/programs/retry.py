"""Decides whether and when a failed run is tried again.

Only failures that may pass are retried (`Category.TRANSIENT`), never timeouts or cancellations, and never an agent that
writes, unless its definition allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd
from sidecar.tasks.programs.run_states import Category

SPREAD: Final = 0.2  # 20% more or less, so that runs that failed together are not retried together


def rest_s(agent: CliAgent, ended: AttemptEnd, tries: int, random: Callable[[], float]) -> float | None:
    """Returns the delay before the next attempt, after `tries` attempts, or None if there is none. `random` gives
    numbers from 0 to 1."""
    may_pass = ended.failure is not None and ended.failure.category is Category.TRANSIENT
    if ended.timed_out or not may_pass or tries >= agent.tries:
        return None
    rest = min(agent.retries.backoff_s * 2.0 ** (tries - 1), agent.retries.max_backoff_s)
    return rest * (1 - SPREAD + 2 * SPREAD * random())
