"""Which way may a run go, and when is it tried again?

The seed's state machine. `idle` is both ends of it: a run that waits for its turn, and one that is over and has left
nothing behind; what it came to is its status.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
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
MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.IDLE: frozenset({State.STARTING, State.CANCELLED, State.TIMEOUT, State.FAILED}),
    State.STARTING: frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.TIMEOUT}),
    State.RUNNING: frozenset({State.COMPLETED, State.FAILED, State.TIMEOUT, State.CANCELLED}),
    State.COMPLETED: frozenset({State.CLEANUP}),
    State.FAILED: frozenset({State.STARTING, State.CANCELLED, State.CLEANUP}),  # once more, unless it is given up
    State.TIMEOUT: frozenset({State.CLEANUP}),
    State.CANCELLED: frozenset({State.CLEANUP}),
    State.CLEANUP: frozenset({State.IDLE}),
}


class Status(StrEnum):
    """The seed's ExecutionStatus: what a run came to."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


ENDS: Final[Mapping[State, Status]] = {
    State.COMPLETED: Status.SUCCESS,
    State.FAILED: Status.FAILURE,
    State.TIMEOUT: Status.TIMEOUT,
    State.CANCELLED: Status.CANCELLED,
}


class Category(StrEnum):
    """The seed's ErrorCategory: whose fault it was."""

    TRANSIENT = "transient"  # may be gone the next time
    PERMANENT = "permanent"  # will be the same the next time: no such program, a prompt that cannot be told
    AGENT = "agent"  # the program's own
    SYSTEM = "system"  # ours
