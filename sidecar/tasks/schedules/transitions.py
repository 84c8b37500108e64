"""The state table of schedules and their due times."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class ScheduleState(StrEnum):
    """The seed's states of a ScheduledTask."""

    CREATED = "created"  # defined, and disabled or not yet seen to be enabled
    ACTIVE = "active"  # waits for its next due time
    EXECUTING = "executing"  # a run is under way
    PAUSED = "paused"  # by an operator; runs ordered before may continue


MOVES: Final[Mapping[ScheduleState, frozenset[ScheduleState]]] = {
    ScheduleState.CREATED: frozenset({ScheduleState.ACTIVE, ScheduleState.EXECUTING, ScheduleState.PAUSED}),
    ScheduleState.ACTIVE: frozenset({ScheduleState.EXECUTING, ScheduleState.PAUSED, ScheduleState.CREATED}),
    ScheduleState.EXECUTING: frozenset({ScheduleState.ACTIVE, ScheduleState.PAUSED, ScheduleState.CREATED}),
    ScheduleState.PAUSED: frozenset({ScheduleState.ACTIVE, ScheduleState.EXECUTING}),
}


class DueResult(StrEnum):
    """The result of a due time."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # by policy, a limit or the kill switch: nothing was started
    MISSED = "missed"  # no sidecar was running in time
    SKIPPED = "skipped"  # the previous run was still under way
