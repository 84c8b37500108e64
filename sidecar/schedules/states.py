"""Which way may a schedule go, and what becomes of a time at which it is due?"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The seed's states of a ScheduledTask."""

    CREATED = "created"  # defined, and not enabled, or not yet seen to be
    ACTIVE = "active"  # waits for its time
    EXECUTING = "executing"  # what it ordered goes on
    PAUSED = "paused"  # by an operator; what it ordered before may go on


MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.CREATED: frozenset({State.ACTIVE, State.EXECUTING, State.PAUSED}),
    State.ACTIVE: frozenset({State.EXECUTING, State.PAUSED, State.CREATED}),
    State.EXECUTING: frozenset({State.ACTIVE, State.PAUSED, State.CREATED}),
    State.PAUSED: frozenset({State.ACTIVE, State.EXECUTING}),
}


class Result(StrEnum):
    """What a due time came to."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # by policy, a limit, the kill switch: nothing was begun
    MISSED = "missed"  # nobody was there in time
    SKIPPED = "skipped"  # the run before went on still
