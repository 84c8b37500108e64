"""The state table of schedules and their due times."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class ScheduleState(StrEnum):
    """The seed's states of a ScheduledTask."""

    CREATED = "created"  # defined, and not enabled, or not yet seen to be
    ACTIVE = "active"  # waits for its time
    EXECUTING = "executing"  # what it ordered goes on
    PAUSED = "paused"  # by an operator; what it ordered before may go on


MOVES: Final[Mapping[ScheduleState, frozenset[ScheduleState]]] = {
    ScheduleState.CREATED: frozenset({ScheduleState.ACTIVE, ScheduleState.EXECUTING, ScheduleState.PAUSED}),
    ScheduleState.ACTIVE: frozenset({ScheduleState.EXECUTING, ScheduleState.PAUSED, ScheduleState.CREATED}),
    ScheduleState.EXECUTING: frozenset({ScheduleState.ACTIVE, ScheduleState.PAUSED, ScheduleState.CREATED}),
    ScheduleState.PAUSED: frozenset({ScheduleState.ACTIVE, ScheduleState.EXECUTING}),
}


class DueResult(StrEnum):
    """What a due time came to."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # by policy, a limit, the kill switch: nothing was begun
    MISSED = "missed"  # nobody was there in time
    SKIPPED = "skipped"  # the run before went on still
