"""How does a schedule stand?

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

from sidecar.records import Codec, Kind
from sidecar.schedules.states import MOVES, Result, State
from sidecar.settings.schedules import Schedule

OWNER: Final = "schedules"  # nobody's in particular
KEPT_S: Final = 30 * 86_400.0  # one that no settings name any more
SEEN_EVERY_S: Final = 86_400.0


class Run(NamedTuple):
    """A task that a schedule ordered: for the time `due_s`, or, where that is None, because an operator wanted it."""

    task: str
    due_s: float | None


class Added(NamedTuple):
    """The definition of a schedule that an operator added, by its key; who did it, and when."""

    key: str
    schedule: Schedule
    by: str
    at_s: float


class Standing(NamedTuple):
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
    state: State = State.CREATED
    paused_by: str = ""
    paused_s: float | None = None
    running: tuple[Run, ...] = ()
    last_due_s: float | None = None
    last_task: str = ""
    last_result: Result | None = None
    last_why: str = ""
    last_success_s: float | None = None
    is_done: bool = False
    added: Added | None = None
    revision: int = 0

    # --- what a store knows of it -------------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """As `Kept.owner`."""
        return OWNER

    @property
    def target(self) -> str:
        """As `Kept.target`."""
        return OWNER

    @property
    def standing(self) -> str:
        """As `Kept.standing`."""
        return self.state

    @property
    def expires_at(self) -> float:
        """When it may be forgotten."""
        return self.seen_s + KEPT_S

    # --- what may become of it ----------------------------------------------------------------------------------------

    def task_for(self, due_s: float) -> str:
        """The id of the task that a due time becomes. The same time is the same task."""
        return str(uuid5(UUID(self.salt), f"{due_s:.0f}"))

    def seen(self, calendar: str, *, enabled: bool, now_s: float) -> Standing:
        """As the settings have it now. What was due before they said so is nothing to make up for."""
        if self.is_done:  # it was given up, and is there again
            return self._replace(is_done=False, seen_s=now_s, calendar="").seen(calendar, enabled=enabled, now_s=now_s)
        if now_s - self.seen_s >= SEEN_EVERY_S:
            return self._replace(seen_s=now_s).seen(calendar, enabled=enabled, now_s=now_s)
        if not enabled:
            return self if self.state in (State.CREATED, State.PAUSED) else self._moved(State.CREATED)
        if self.state is State.CREATED or calendar != self.calendar:
            begun = self._replace(calendar=calendar, settled_s=now_s)
            return begun._moved(begun._at_work) if self.state is State.CREATED else begun
        return self

    def paused(self, by: str, now_s: float) -> Standing:
        """Stopped by an operator."""
        if self.state is State.PAUSED:
            return self
        return self._moved(State.PAUSED)._replace(paused_by=by, paused_s=now_s)

    def resumed(self, now_s: float) -> Standing:
        """It goes on, and makes up for nothing."""
        if self.state is not State.PAUSED:
            return self
        return self._moved(self._at_work)._replace(paused_by="", paused_s=None, settled_s=now_s)

    def corrected(self, now_s: float) -> Standing:
        """The clock by which it was settled was wrong."""
        return self._replace(settled_s=now_s)

    def ordered(self, run: Run) -> Standing:
        """A task of it is there."""
        if run in self.running or (run.due_s is not None and run.due_s <= self.settled_s):
            return self
        ordered = self._replace(running=(*self.running, run), last_task=run.task)
        if run.due_s is not None:
            ordered = ordered._replace(settled_s=run.due_s, last_due_s=run.due_s)
        return ordered._moved(State.EXECUTING) if self.state is State.ACTIVE else ordered

    def settled(self, due_s: float, result: Result, why: str = "") -> Standing:
        """Nothing was ordered for this time, and nothing will be."""
        if due_s <= self.settled_s:
            return self
        return self._replace(settled_s=due_s, last_due_s=due_s, last_result=result, last_why=why)

    def ended(self, run: Run, result: Result, why: str, at_s: float | None) -> Standing:
        """A task of it is over."""
        if run not in self.running:
            return self
        running = tuple(other for other in self.running if other != run)
        ended = self._replace(running=running, last_result=result, last_why=why)
        if result is Result.SUCCESS:
            ended = ended._replace(last_success_s=at_s)
        return ended._moved(State.ACTIVE) if self.state is State.EXECUTING and not running else ended

    def gone(self) -> Standing:
        """No settings have named it for long."""
        return self._replace(is_done=True)

    def defined(self, added: Added) -> Standing:
        """Added by an operator, under a name that is free; what was known of an earlier schedule of that name does not
        count. The salt stays, so that no due time is ordered twice."""
        fresh = Standing(self.id, self.created_at, self.salt, added.at_s, added=added, revision=self.revision)
        calendar = added.schedule.calendar_words
        return fresh.seen(calendar, enabled=added.schedule.enabled, now_s=added.at_s)

    def removed(self) -> Standing:
        """An operator took back that it was added."""
        return self._replace(is_done=True, added=None)

    @property
    def _at_work(self) -> State:
        return State.EXECUTING if self.running else State.ACTIVE

    def _moved(self, state: State) -> Standing:
        if state not in MOVES[self.state]:
            raise ValueError(f"a schedule that is {self.state} cannot be {state}")
        return self._replace(state=state)


def _encoded(standing: Standing) -> bytes:
    return orjson.dumps(standing._asdict(), default=_named)


def _named(part: Any) -> Any:
    if isinstance(part, Schedule):
        return part.model_dump(mode="json", exclude_unset=True)
    return dict(part._asdict())


def _decoded(raw: bytes | str) -> Standing:
    plain = orjson.loads(raw)
    known = {name: plain[name] for name in Standing._fields if name in plain}  # a newer version may know more
    return _WHOLE.validate_python(known)


_WHOLE: Final = TypeAdapter(Standing)
SCHEDULES: Final = Kind(
    "how a schedule stands",
    Codec(_encoded, _decoded),
    table="schedules",
    key="schedules",
    broken="T107",
    newer="T108",
    lost="who is paused runs again, what was due meanwhile is nothing to make up for, and what was added is gone",
)
