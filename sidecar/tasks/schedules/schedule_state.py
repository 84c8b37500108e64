"""The stored state of a schedule.

What its operator wrote is in the settings; here is what changes by itself, and by an operator's word, and the
definition of a schedule that was added over the admin API. A store of
records keeps it (`records/`), for all replicas. Each verb gives the schedule as it stands afterwards, and the same one
where there is nothing to change: who had it on their hands may have died halfway, and another does it anew.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

import orjson
from pydantic import TypeAdapter

from sidecar.settings.schedules import ScheduleSettings
from sidecar.storage import RecordCodec, RecordKind
from sidecar.tasks.schedules.transitions import MOVES, DueResult, ScheduleState

OWNER: Final = "schedules"  # nobody's in particular
KEPT_S: Final = 30 * 86_400.0  # one that no settings name any more
SEEN_EVERY_S: Final = 86_400.0


class ScheduledRun(NamedTuple):
    """A task that a schedule ordered: for the time `due_s`, or, where that is None, because an operator wanted it."""

    task: str
    due_s: float | None


class Added(NamedTuple):
    """The definition of a schedule that an operator added, by its key; who did it, and when."""

    key: str
    schedule: ScheduleSettings
    by: str
    at_s: float


class ScheduleStanding(NamedTuple):
    """A schedule. Times are seconds since the epoch; "" and None are what is not there, or not known yet.

    `calendar` is when it was due by the settings that were seen last, and `settled_s` the last moment of which all is
    settled: what was due by then is run, refused or missed, for good. `salt` makes its tasks' ids this deployment's.
    `running` are the tasks that go on. `last_due_s` is the last time that was settled as due, `last_task` what was
    ordered last, `last_result` with `last_why` what came last of either, `last_success_s` when a run ended well.
    `added` is its definition where no settings have it.
    """

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

    # --- what a store knows of it -------------------------------------------------------------------------------------

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
        """When it may be forgotten."""
        return self.seen_s + KEPT_S

    # --- what may become of it ----------------------------------------------------------------------------------------

    def task_for(self, due_s: float) -> str:
        """The id of the task that a due time becomes. The same time is the same task."""
        return str(uuid5(UUID(self.salt), f"{due_s:.0f}"))

    def seen(self, calendar: str, *, enabled: bool, now_s: float) -> ScheduleStanding:
        """As the settings have it now. What was due before they said so is nothing to make up for."""
        if self.is_done:  # it was given up, and is there again
            return self._replace(is_done=False, seen_s=now_s, calendar="").seen(calendar, enabled=enabled, now_s=now_s)
        if now_s - self.seen_s >= SEEN_EVERY_S:
            return self._replace(seen_s=now_s).seen(calendar, enabled=enabled, now_s=now_s)
        if not enabled:
            return (
                self
                if self.state in (ScheduleState.CREATED, ScheduleState.PAUSED)
                else self._moved(ScheduleState.CREATED)
            )
        if self.state is ScheduleState.CREATED or calendar != self.calendar:
            begun = self._replace(calendar=calendar, settled_s=now_s)
            return begun._moved(begun._at_work) if self.state is ScheduleState.CREATED else begun
        return self

    def paused(self, by: str, now_s: float) -> ScheduleStanding:
        """Stopped by an operator."""
        if self.state is ScheduleState.PAUSED:
            return self
        return self._moved(ScheduleState.PAUSED)._replace(paused_by=by, paused_s=now_s)

    def resumed(self, now_s: float) -> ScheduleStanding:
        """It goes on, and makes up for nothing."""
        if self.state is not ScheduleState.PAUSED:
            return self
        return self._moved(self._at_work)._replace(paused_by="", paused_s=None, settled_s=now_s)

    def corrected(self, now_s: float) -> ScheduleStanding:
        """The clock by which it was settled was wrong."""
        return self._replace(settled_s=now_s)

    def ordered(self, run: ScheduledRun) -> ScheduleStanding:
        """A task of it is there."""
        if run in self.running or (run.due_s is not None and run.due_s <= self.settled_s):
            return self
        ordered = self._replace(running=(*self.running, run), last_task=run.task)
        if run.due_s is not None:
            ordered = ordered._replace(settled_s=run.due_s, last_due_s=run.due_s)
        return ordered._moved(ScheduleState.EXECUTING) if self.state is ScheduleState.ACTIVE else ordered

    def settled(self, due_s: float, result: DueResult, why: str = "") -> ScheduleStanding:
        """Nothing was ordered for this time, and nothing will be."""
        if due_s <= self.settled_s:
            return self
        return self._replace(settled_s=due_s, last_due_s=due_s, last_result=result, last_why=why)

    def ended(self, run: ScheduledRun, result: DueResult, why: str, at_s: float | None) -> ScheduleStanding:
        """A task of it is over."""
        if run not in self.running:
            return self
        running = tuple(other for other in self.running if other != run)
        ended = self._replace(running=running, last_result=result, last_why=why)
        if result is DueResult.SUCCESS:
            ended = ended._replace(last_success_s=at_s)
        return ended._moved(ScheduleState.ACTIVE) if self.state is ScheduleState.EXECUTING and not running else ended

    def gone(self) -> ScheduleStanding:
        """No settings have named it for long."""
        return self._replace(is_done=True)

    def defined(self, added: Added) -> ScheduleStanding:
        """Added by an operator, under a name that is free; what was known of an earlier schedule of that name does not
        count. The salt stays, so that no due time is ordered twice."""
        fresh = ScheduleStanding(self.id, self.created_at, self.salt, added.at_s, added=added, revision=self.revision)
        calendar = added.schedule.calendar_words
        return fresh.seen(calendar, enabled=added.schedule.enabled, now_s=added.at_s)

    def removed(self) -> ScheduleStanding:
        """An operator took back that it was added."""
        return self._replace(is_done=True, added=None)

    @property
    def _at_work(self) -> ScheduleState:
        return ScheduleState.EXECUTING if self.running else ScheduleState.ACTIVE

    def _moved(self, state: ScheduleState) -> ScheduleStanding:
        if state not in MOVES[self.state]:
            raise ValueError(f"a schedule that is {self.state} cannot be {state}")
        return self._replace(state=state)


def _encoded(standing: ScheduleStanding) -> bytes:
    return orjson.dumps(standing._asdict(), default=_named)


def _named(part: Any) -> Any:
    if isinstance(part, ScheduleSettings):
        return part.model_dump(mode="json", exclude_unset=True)
    return dict(part._asdict())


def _decoded(raw: bytes | str) -> ScheduleStanding:
    plain = orjson.loads(raw)
    known = {name: plain[name] for name in ScheduleStanding._fields if name in plain}  # a newer version may know more
    return _WHOLE.validate_python(known)


_WHOLE: Final = TypeAdapter(ScheduleStanding)
SCHEDULES: Final = RecordKind(
    "how a schedule stands",
    RecordCodec(_encoded, _decoded),
    table="schedules",
    key="schedules",
    broken="T107",
    newer="T108",
    lost="who is paused runs again, what was due meanwhile is nothing to make up for, and what was added is gone",
)
