"""The state table of runs.

The seed's state machine. `idle` is both ends of it: a run that waits for its turn, and one that is over and has left
nothing behind; what it came to is its status.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RunState(StrEnum):
    """The seed's AgentState, with the two ends that its transitions name."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    CLEANUP = "cleanup"


# The seed's, and beside it: what is given up before it ran ends too (cancelled, or its turn did not come in time).
MOVES: Final[Mapping[RunState, frozenset[RunState]]] = {
    RunState.IDLE: frozenset({RunState.STARTING, RunState.CANCELLED, RunState.TIMEOUT, RunState.FAILED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.FAILED, RunState.CANCELLED, RunState.TIMEOUT}),
    RunState.RUNNING: frozenset({RunState.COMPLETED, RunState.FAILED, RunState.TIMEOUT, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset({RunState.CLEANUP}),
    RunState.FAILED: frozenset(
        {RunState.STARTING, RunState.CANCELLED, RunState.CLEANUP}
    ),  # once more, unless it is given up
    RunState.TIMEOUT: frozenset({RunState.CLEANUP}),
    RunState.CANCELLED: frozenset({RunState.CLEANUP}),
    RunState.CLEANUP: frozenset({RunState.IDLE}),
}


class RunStatus(StrEnum):
    """The seed's ExecutionStatus: what a run came to."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


ENDS: Final[Mapping[RunState, RunStatus]] = {
    RunState.COMPLETED: RunStatus.SUCCESS,
    RunState.FAILED: RunStatus.FAILURE,
    RunState.TIMEOUT: RunStatus.TIMEOUT,
    RunState.CANCELLED: RunStatus.CANCELLED,
}


class Category(StrEnum):
    """The seed's ErrorCategory: whose fault it was."""

    TRANSIENT = "transient"  # may be gone the next time
    PERMANENT = "permanent"  # will be the same the next time: no such program, a prompt that cannot be told
    AGENT = "agent"  # the program's own
    SYSTEM = "system"  # ours
