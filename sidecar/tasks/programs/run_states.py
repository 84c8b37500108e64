"""The state table of runs.

This is the seed's state machine. `idle` is its first and its last state: a run that waits for its turn, and one that is
over and has left nothing behind; its status says how it ended.
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


# The seed's, plus: a run that ends before it ran (cancelled, or its turn did not come in time).
MOVES: Final[Mapping[RunState, frozenset[RunState]]] = {
    RunState.IDLE: frozenset({RunState.STARTING, RunState.CANCELLED, RunState.TIMEOUT, RunState.FAILED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.FAILED, RunState.CANCELLED, RunState.TIMEOUT}),
    RunState.RUNNING: frozenset({RunState.COMPLETED, RunState.FAILED, RunState.TIMEOUT, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset({RunState.CLEANUP}),
    RunState.FAILED: frozenset(
        {RunState.STARTING, RunState.CANCELLED, RunState.CLEANUP}
    ),  # another attempt, unless it is cancelled
    RunState.TIMEOUT: frozenset({RunState.CLEANUP}),
    RunState.CANCELLED: frozenset({RunState.CLEANUP}),
    RunState.CLEANUP: frozenset({RunState.IDLE}),
}


class RunStatus(StrEnum):
    """The seed's ExecutionStatus: how a run ended."""

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
    """The seed's ErrorCategory: where a failure comes from."""

    TRANSIENT = "transient"  # may succeed the next time
    PERMANENT = "permanent"  # will fail again: no such program, a prompt that cannot be sent
    AGENT = "agent"  # the program's own
    SYSTEM = "system"  # the sidecar's
