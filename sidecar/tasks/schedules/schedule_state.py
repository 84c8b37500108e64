"""The stored state of a schedule, its state table, and the due times to make up for.

Each change returns the schedule after it, or the same one if there is nothing to change: if the holder dies in the
middle of a step, another process repeats it.

Of all due times since the last settled one, only the latest is made up for, if it is not too long ago. If the clock is
set back, no due time is run twice. If it is set back by more than three hours, the time before that is considered
wrong, as in cron.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from sidecar.settings.cron import CronSchedule
from sidecar.settings.schedules import ScheduleSettings
from sidecar.storage.record_kind import RecordKind, record_codec

OWNER: Final = "schedules"  # one owner for all schedules
KEPT_S: Final = 30 * 86_400.0  # for a schedule that the settings do not name any more
SEEN_EVERY_S: Final = 86_400.0
WRONG_S: Final = 3 * 3600.0  # cron(8): a smaller change is not a correction
MOST_COUNTED: Final = 1_000


class ScheduleState(StrEnum):
    """The states of a ScheduledTask of the original data models."""

    CREATED = "created"  # defined, and disabled or not yet seen to be enabled
    ACTIVE = "active"  # waits for its next due time
    EXECUTING = "executing"  # a run is in progress
    WAITING = "waiting"  # each run in progress waits for a person's approval
    PAUSED = "paused"  # by an operator; earlier runs may continue


MOVES: Final[Mapping[ScheduleState, frozenset[ScheduleState]]] = {
    ScheduleState.CREATED: frozenset({ScheduleState.ACTIVE, ScheduleState.EXECUTING, ScheduleState.PAUSED}),
    ScheduleState.ACTIVE: frozenset({ScheduleState.EXECUTING, ScheduleState.PAUSED, ScheduleState.CREATED}),
    ScheduleState.EXECUTING: frozenset(
        {ScheduleState.ACTIVE, ScheduleState.WAITING, ScheduleState.PAUSED, ScheduleState.CREATED}
    ),
    ScheduleState.WAITING: frozenset(
        {ScheduleState.ACTIVE, ScheduleState.EXECUTING, ScheduleState.PAUSED, ScheduleState.CREATED}
    ),
    ScheduleState.PAUSED: frozenset({ScheduleState.ACTIVE, ScheduleState.EXECUTING}),
}


class DueResult(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # by policy, a limit, the kill switch or a person: nothing was started
    MISSED = "missed"  # no sidecar was running in time, or no person approved it in time
    SKIPPED = "skipped"  # the previous run was still in progress


class ScheduledRun(NamedTuple):
    """A task that a schedule ordered: for the due time `due_s`, or, if that is None, on an operator's request."""

    task: str
    due_s: float | None


class Added(NamedTuple):
    """The definition of a schedule that an operator added, its key, who added it, and when."""

    key: str
    schedule: ScheduleSettings
    by: str
    at_s: float


class ScheduleStanding(NamedTuple):
    """The state of a schedule. Times are seconds since the epoch; "" and None mean not known yet. `calendar` is the
    cron schedule seen last. Every due time up to `settled_s` is run, refused, missed or skipped, for good. `salt` makes
    the ids of its tasks unique. `running` are the tasks in progress, `last_due_s` is the last settled due time,
    `last_result` and `last_why` are the latest result and its reason. `added` defines a schedule that is not in the
    settings."""

    id: str
    created_at: float
    salt: str
    seen_s: float
    calendar: str = ""
    settled_s: float = 0.0
    state: ScheduleState = ScheduleState.CREATED
    paused_by: str = ""
    paused_s: float | None = None
    running: tuple[ScheduledRun, ...] = ()
    last_due_s: float | None = None
    last_task: str = ""
    last_result: DueResult | None = None
    last_why: str = ""
    last_success_s: float | None = None
    is_done: bool = False
    added: Added | None = None
    revision: int = 0

    @property
    def owner(self) -> str:
        return OWNER

    @property
    def target(self) -> str:
        return OWNER

    @property
    def standing(self) -> str:
        return self.state

    @property
    def expires_at(self) -> float:
        return self.seen_s + KEPT_S

    def task_for(self, due_s: float) -> str:
        """Returns the id of the task for a due time; the same time always gives the same id."""
        return str(uuid5(UUID(self.salt), f"{due_s:.0f}"))

    def seen(self, calendar: str, *, enabled: bool, now_s: float) -> ScheduleStanding:
        """Applies the current settings. Due times before the settings were seen are not made up for."""
        if self.is_done:  # it was removed and added again
            return self._replace(is_done=False, seen_s=now_s, calendar="").seen(calendar, enabled=enabled, now_s=now_s)
        if now_s - self.seen_s >= SEEN_EVERY_S:
            return self._replace(seen_s=now_s).seen(calendar, enabled=enabled, now_s=now_s)
        if not enabled:
            rests = self.state in (ScheduleState.CREATED, ScheduleState.PAUSED)
            return self if rests else self._moved(ScheduleState.CREATED)
        if self.state is ScheduleState.CREATED or calendar != self.calendar:
            begun = self._replace(calendar=calendar, settled_s=now_s)
            return begun._moved(begun._at_work) if self.state is ScheduleState.CREATED else begun
        return self

    def paused(self, by: str, now_s: float) -> ScheduleStanding:
        if self.state is ScheduleState.PAUSED:
            return self
        return self._moved(ScheduleState.PAUSED)._replace(paused_by=by, paused_s=now_s)

    def resumed(self, now_s: float) -> ScheduleStanding:
        """Resumes the schedule; missed due times are not made up for."""
        if self.state is not ScheduleState.PAUSED:
            return self
        return self._moved(self._at_work)._replace(paused_by="", paused_s=None, settled_s=now_s)

    def ordered(self, run: ScheduledRun) -> ScheduleStanding:
        if run in self.running or (run.due_s is not None and run.due_s <= self.settled_s):
            return self
        ordered = self._replace(running=(*self.running, run), last_task=run.task)
        if run.due_s is not None:
            ordered = ordered._replace(settled_s=run.due_s, last_due_s=run.due_s)
        return ordered._moved(ScheduleState.EXECUTING) if self.state is ScheduleState.ACTIVE else ordered

    def settled(self, due_s: float, result: DueResult, why: str = "") -> ScheduleStanding:
        if due_s <= self.settled_s:
            return self
        return self._replace(settled_s=due_s, last_due_s=due_s, last_result=result, last_why=why)

    def ended(self, run: ScheduledRun, result: DueResult, why: str, at_s: float | None) -> ScheduleStanding:
        if run not in self.running:
            return self
        running = tuple(other for other in self.running if other != run)
        ended = self._replace(running=running, last_result=result, last_why=why)
        if result is DueResult.SUCCESS:
            ended = ended._replace(last_success_s=at_s)
        is_idle = not running and self.state in (ScheduleState.EXECUTING, ScheduleState.WAITING)
        return ended._moved(ScheduleState.ACTIVE) if is_idle else ended

    def waits(self, *, waits: bool) -> ScheduleStanding:
        """Returns the schedule with its runs in progress waiting for approvals, or continuing."""
        before, after = ScheduleState.WAITING, ScheduleState.EXECUTING
        if waits:
            before, after = after, before
        return self._moved(after) if self.state is before else self

    def defined(self, added: Added) -> ScheduleStanding:
        """Adds a definition under a free name. The salt of an earlier definition remains, so that no due time is
        ordered twice."""
        fresh = ScheduleStanding(self.id, self.created_at, self.salt, added.at_s, added=added, revision=self.revision)
        calendar = added.schedule.calendar_words
        return fresh.seen(calendar, enabled=added.schedule.enabled, now_s=added.at_s)

    def removed(self) -> ScheduleStanding:
        """Ends a schedule whose definition was removed, or that the settings have not named for a long time."""
        return self._replace(is_done=True, added=None)

    @property
    def _at_work(self) -> ScheduleState:
        return ScheduleState.EXECUTING if self.running else ScheduleState.ACTIVE

    def _moved(self, state: ScheduleState) -> ScheduleStanding:
        if state not in MOVES[self.state]:
            raise ValueError(f"a schedule that is {self.state} cannot be {state}")
        return self._replace(state=state)


class OwedTime(NamedTuple):
    """The latest due time, whether it may still begin, and how many earlier ones were missed, up to a bound."""

    due_s: float
    in_time: bool
    missed: int


def owed(calendar: CronSchedule, settled_s: float, now_s: float, late_s: float) -> OwedTime | None:
    due_s = calendar.last_within(settled_s, now_s)
    if due_s is None:
        return None
    missed = calendar.count_within(settled_s, due_s, MOST_COUNTED + 1) - 1
    return OwedTime(due_s, now_s - due_s <= late_s, missed)


def was_wrong(settled_s: float, now_s: float) -> bool:
    """Whether the settled time is so far ahead of now that the clock must have been wrong."""
    return settled_s - now_s > WRONG_S


SCHEDULES: Final = RecordKind("the state of a schedule", record_codec(ScheduleStanding), key="schedules")
