"""Orders runs when they are due, under an id that is unique to the due time, and records each after its order, so that
a crash loses none."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.snapshot import Live
from sidecar.observability.metrics import Metrics
from sidecar.settings.schedules import MOST, ScheduleSettings, acts_as
from sidecar.settings.validation_errors import nothing_like
from sidecar.storage import (
    AddedRecord,
    RecordBounds,
    RecordPage,
    RecordShare,
    RecordStore,
    RecordStoreOut,
    UnreadableRecord as Unreadable,
)
from sidecar.tasks.api.task_orders import TaskOrders
from sidecar.tasks.api.task_record import Task, TaskState
from sidecar.tasks.programs.stored_text import sanitized
from sidecar.tasks.schedules.fit_checks import check_fits
from sidecar.tasks.schedules.schedule_state import (
    OWNER,
    Added,
    DueResult,
    OwedTime,
    ScheduledRun,
    ScheduleStanding,
    ScheduleState,
    owed,
    was_wrong,
)
from sidecar.tasks.worker import HeldRecords, Worker, backoff_s
from sidecar.vocabulary import SCHEDULE, Caller, Credential, Principal, Witness

LOOK_EVERY_S: Final = 1.0
TAKE_EVERY_S: Final = 3.0
SWEEP_EVERY_S: Final = 3600.0
AT_ONCE: Final = 16  # schedules worked on at once, so that requests get their turn
MOST_AT_ONCE: Final = 20  # runs of one schedule, with `overlap: allow`
MOST_CONFLICTS: Final = 10
FIRST_REST_S: Final = 1.0
LONGEST_REST_S: Final = 30.0
MOST_ADDED: Final = 100
SHARE: Final = RecordShare(MOST + MOST_ADDED, MOST + MOST_ADDED)
BOUNDS: Final = RecordBounds(2 * MOST, 2 * MOST)  # schedules that no settings name any more remain for a while
BY_CLOCK, BY_HAND = "schedule", "operator"
# Refusals that may pass in a moment, and do not settle a due time.
PASSING: Final = {
    Reason.DRAINING,
    Reason.OVERLOADED,
    Reason.STORE_UNAVAILABLE,
    Reason.AUDIT_UNAVAILABLE,
    Reason.UPSTREAM_OPEN,
}
ENDS: Final[Mapping[TaskState, DueResult]] = {
    TaskState.COMPLETED: DueResult.SUCCESS,
    TaskState.FAILED: DueResult.FAILURE,
    TaskState.CANCELLED: DueResult.CANCELLED,
}
UNAPPROVED: Final[Mapping[Reason | None, DueResult]] = {
    Reason.APPROVAL_REFUSED: DueResult.REFUSED,
    Reason.APPROVAL_EXPIRED: DueResult.MISSED,
}
AT_REST: Final = frozenset({ScheduleState.CREATED, ScheduleState.PAUSED})
FORGOTTEN: Final = "forgotten"  # the task was deleted before its end was seen

log = logging.getLogger("sidecar.tasks.schedules")

Verb = Callable[[ScheduleStanding], ScheduleStanding]


class Conflict(Exception):
    """An operator's request conflicts with the present schedules. The message may be shown."""


class _Changed(Exception):
    """An added schedule changed in the meantime: another replica removed it, or added it again."""


class ShownSchedule(NamedTuple):
    """A schedule in the view of operators, and when it is due next. Unless `is_read`, its state was unreadable."""

    key: str
    schedule: ScheduleSettings
    standing: ScheduleStanding
    next_s: float | None
    is_read: bool = True
    added: Added | None = None

    @property
    def source(self) -> str:
        return "configured" if self.added is None else "added"

    @property
    def state(self) -> str:
        return self.standing.state if self.is_read else "unreadable"


class NamedSchedule(NamedTuple):
    key: str
    schedule: ScheduleSettings
    added: Added | None = None

    @property
    def id(self) -> str:
        return self.schedule.id or self.key

    @property
    def acts_as(self) -> str:
        return acts_as(self.key, self.schedule)

    @property
    def caller(self) -> Caller:
        return Caller((Principal(self.acts_as, SCHEDULE),), (Credential(SCHEDULE, SCHEDULE, self.key),))

    @property
    def most_at_once(self) -> int:
        return 1 if self.schedule.overlap == "skip" else MOST_AT_ONCE

    @property
    def about(self) -> Mapping[str, str]:
        return {"schedule": self.key, "agent": self.schedule.agent}

    @property
    def defined(self) -> Mapping[str, object]:
        """Returns its content for audit records, without its input, which not every reader may see."""
        about = self.schedule
        return {
            "agent": about.agent,
            "principal": self.acts_as,
            "cron": about.cron,
            "timezone": about.timezone,
            "enabled": about.enabled,
        }


class _Rest(NamedTuple):
    """The order for a due time was refused for now, `failed` times, and is not retried before `until_s`."""

    due_s: float
    failed: int = 0
    until_s: float = 0.0
    why: str = ""


@dataclass(slots=True)
class Scheduler:
    """Runs the schedules that this process holds as `holder`."""

    live: Live
    store: RecordStore[ScheduleStanding]
    orders: TaskOrders
    witness: Witness
    metrics: Metrics
    holder: str
    new_id: Callable[[], str]
    worker: Worker[NamedSchedule | None] = field(init=False)
    holds: set[str] = field(default_factory=set)
    held: HeldRecords[ScheduleStanding] = field(init=False)
    _known: dict[str, ScheduleStanding] = field(default_factory=dict)
    _unread: frozenset[str] = frozenset()  # unreadable, so it may be paused and does not run
    _due: dict[str, tuple[tuple[str, float], float | None]] = field(default_factory=dict)
    _rests: dict[str, _Rest] = field(default_factory=dict)
    _taken_s: float = float("-inf")
    _adding: asyncio.Lock = field(default_factory=asyncio.Lock)  # so that the maximum number holds
    _at_once: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, AT_ONCE))

    def __post_init__(self) -> None:
        self.held = HeldRecords(self.store, self.holder, self.live.clock, SHARE)
        self.worker = Worker("schedules", self._look, self.held.sweep, self._pause_s, sweep_every_s=SWEEP_EVERY_S)

    # --- scheduled runs -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        await self.worker.cancel()
        await self.held.close()

    async def _look(self) -> None:
        named = self._named
        anew = not 0 <= self._now_s - self._taken_s < TAKE_EVERY_S
        if anew := anew or not named.keys() <= self._known.keys() | self._unread:
            await self._take(named)
            named = self._named  # another replica may have added one
        self._tell_of_added()
        for schedule_id in self.holds - self.worker.jobs.keys():
            one = named.get(schedule_id)
            self.worker.begin(schedule_id, one, partial(self._see_to, one, schedule_id, anew=anew))
        await self.worker.wait()

    async def _take(self, named: Mapping[str, NamedSchedule]) -> None:
        now_s = self._now_s
        for one in named.values():
            if one.id not in self._known:
                await self._begin(one)
        taken = await self.held.take()
        await self._read()
        self._known = {one.id: one for one in taken} | self._known
        self.holds = {one.id for one in taken}
        named = self._named
        await self._look_for_unread(named)
        self._taken_s = now_s
        self._rests = {known: rest for known, rest in self._rests.items() if known in named}
        self._due = {known: due for known, due in self._due.items() if known in named}
        for one in named.values():
            standing = self._known.get(one.id)
            if standing is not None and standing.is_done:
                await self._change(one, self._seen(one))
            elif standing is not None and standing.last_success_s is not None:
                self.metrics.schedule_succeeded(one.key, standing.last_success_s)

    async def _read(self) -> None:
        everything, _ = await self.store.page(OWNER, RecordPage((OWNER,), limit=2 * MOST))
        self._known = {one.id: one for one in everything}
        self._tell_of_added()

    def _tell_of_added(self) -> None:
        added = [one for one in self._named.values() if one.added is not None]
        acting = {one.key: one.acts_as for one in added if one.schedule.enabled}
        self.live.current.identity.believe_schedules(acting)
        self.metrics.schedules_added([one.key for one in added])

    async def _look_for_unread(self, named: Mapping[str, NamedSchedule]) -> None:
        unread = set()
        for one in named.keys() - self._known.keys():
            try:
                await self.store.get(one)
            except Unreadable as unreadable:
                unread.add(one)
                if one not in self._unread:
                    log.error(
                        "a schedule does not run until its state is readable",
                        extra={**named[one].about, "why": str(unreadable)},
                    )
        self._unread = frozenset(unread)

    async def _begin(self, one: NamedSchedule) -> None:
        if await self.held.add(self._fresh(one), BOUNDS) is AddedRecord.FULL:
            log.error("there are too many schedules: this one does not run", extra={"schedule": one.key})

    def _fresh(self, one: NamedSchedule) -> ScheduleStanding:
        return ScheduleStanding(one.id, self._now_s, self.new_id(), self._now_s)

    async def _see_to(self, one: NamedSchedule | None, schedule_id: str, *, anew: bool) -> None:
        try:
            async with self._at_once:
                if one is None:
                    await self._part_with(schedule_id)
                else:
                    await self._keep_up(one, anew=anew)
        except _Changed:  # the next look finds the change
            self.holds.discard(schedule_id)

    async def _part_with(self, schedule_id: str) -> None:
        """Deletes a schedule that no replica's settings have named for long (`ScheduleStanding.expires_at`)."""
        standing = self._known.get(schedule_id)
        if standing is not None and self._now_s >= standing.expires_at:
            gone = standing.removed()
            await self.store.replace(gone._replace(revision=gone.revision + 1))
            self.holds.discard(schedule_id)

    async def _keep_up(self, one: NamedSchedule, *, anew: bool) -> None:
        if (standing := self._known.get(one.id)) is None:  # it is not readable any more
            return
        if self._seen(one)(standing) is not standing:
            standing, _ = await self._change(one, self._seen(one))
        if anew:
            standing = await self._follow(one, standing)
        if self._is_due(one, standing):
            await self._settle_up(one)

    def _is_due(self, one: NamedSchedule, standing: ScheduleStanding) -> bool:
        """Whether something is due. Called often, so it uses only what is in memory."""
        if standing.state in AT_REST:
            return False
        next_s = self._due_next(one, standing)
        return (next_s is not None and next_s <= self._now_s) or was_wrong(standing.settled_s, self._now_s)

    async def _settle_up(self, one: NamedSchedule) -> None:
        """Settles the due times by the stored state: another process may have settled them, or an operator paused the
        schedule."""
        standing, _ = await self._change(one, self._seen(one))
        standing = await self._follow(one, standing)
        now_s, schedule = self._now_s, one.schedule
        if not self._is_due(one, standing):
            return
        if was_wrong(standing.settled_s, now_s):
            log.warning("the clock was set back: due times until then are not made up for", extra=one.about)
            await self._change(one, lambda was: was._replace(settled_s=now_s))
            return
        owes = owed(schedule.calendar, standing.settled_s, now_s, schedule.late_s)
        if owes is None:
            return
        if not owes.in_time:
            await self._settle(one, owes, DueResult.MISSED, self._rest_of(one, owes).why)
        elif len(standing.running) >= one.most_at_once:
            await self._settle(one, owes, DueResult.SKIPPED, "the previous run continues")
        else:
            await self._order(one, standing, owes)

    async def _order(self, one: NamedSchedule, standing: ScheduleStanding, owes: OwedTime) -> None:
        task, rest = standing.task_for(owes.due_s), self._rest_of(one, owes)
        if self._now_s < rest.until_s <= self._now_s + LONGEST_REST_S:
            return
        try:
            record = await self.orders.runner.means.store.get(task)  # if there is one, its process died or was slow
            record = record or await self._place(one, task, BY_CLOCK)
        except Refusal as refusal:
            if refusal.reason not in PASSING:
                await self._settle(one, owes, DueResult.REFUSED, refusal.reason)
                return
            pause_s = backoff_s(FIRST_REST_S, LONGEST_REST_S, rest.failed + 1, (1.0, 1.0), 0.0)
            self._rests[one.id] = _Rest(owes.due_s, rest.failed + 1, self._now_s + pause_s, refusal.reason)
            log.warning("a scheduled run cannot begin yet", extra={**one.about, "reason": refusal.reason.value})
            return
        _, is_ours = await self._change(one, _ordered(ScheduledRun(task, owes.due_s), record, standing))
        if is_ours:
            self._count(one, DueResult.MISSED, owes.missed)

    def _rest_of(self, one: NamedSchedule, owes: OwedTime) -> _Rest:
        rest = self._rests.get(one.id)
        return rest if rest is not None and rest.due_s == owes.due_s else _Rest(owes.due_s)

    async def _settle(self, one: NamedSchedule, owes: OwedTime, result: DueResult, why: str) -> None:
        _, is_ours = await self._change(one, lambda was: was.settled(owes.due_s, result, why))
        if is_ours:
            log.warning("a scheduled run did not begin", extra={**one.about, "result": result.value, "why": str(why)})
            self._count(one, result, 1)
            self._count(one, DueResult.MISSED, owes.missed)

    async def _follow(self, one: NamedSchedule, standing: ScheduleStanding) -> ScheduleStanding:
        """Settles runs that have ended, and determines whether runs in progress wait for approvals."""
        waits = True
        for run in standing.running:
            record = await self.orders.runner.means.store.get(run.task)
            if record is not None and not record.is_over:
                waits = waits and record.state is TaskState.WAITING
                continue
            result, why = _end_of(record)
            at_s = record.completed_at if record is not None else None
            ended = partial(ScheduleStanding.ended, run=run, result=result, why=why, at_s=at_s)
            standing, is_ours = await self._change(one, ended)
            if is_ours:
                level = logging.INFO if result is DueResult.SUCCESS else logging.WARNING
                about = {**one.about, "task": run.task, "result": result.value}  # `why` may be agent text
                log.log(level, "a scheduled run ended", extra=about)
                self._count(one, result, 1)
                if result is DueResult.SUCCESS and at_s is not None:
                    self.metrics.schedule_succeeded(one.key, at_s)
        waiting = partial(ScheduleStanding.waits, waits=waits)
        if waiting(standing) is not standing:
            standing, _ = await self._change(one, waiting)
        return standing

    # --- operators ----------------------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.store.up or not self._named

    def seen(self) -> Sequence[ShownSchedule]:
        return [
            self._shown(one, self._known.get(one.id))
            for one in self._named.values()
            if one.id in self._known or one.id in self._unread
        ]

    @property
    def unreadable(self) -> Sequence[str]:
        return sorted(one.key for one in self._named.values() if one.id in self._unread)

    async def recall(self) -> None:
        """Reads the added schedules, before tasks that they ordered continue."""
        with suppress(RecordStoreOut):
            await self._read()

    async def list(self) -> Sequence[ShownSchedule]:
        shown = []
        await self._read()
        for one in self._named.values():
            with suppress(_Changed):  # removed in the meantime
                try:
                    standing, _ = await self._change(one, _as_it_is)
                    shown.append(self._shown(one, standing))
                except Unreadable:
                    shown.append(self._shown(one, None))
        return shown

    async def add(self, key: str, schedule: ScheduleSettings, by: str) -> ShownSchedule:
        """Adds a schedule for all replicas. Raises Refusal, and Conflict if its name is taken or there are too many."""
        async with self._adding:
            with _answered():
                await self._read()
                self._check_free(key)
                now, now_s = self.live.current, self._now_s
                others = {one.key: one.schedule for one in self._named.values()}
                check_fits(key, schedule, others, now.settings, now.engine, now_s)
                added = Added(key, schedule, by, now_s)
                one = NamedSchedule(key, schedule, added)
                await self.witness("schedule-add", by, schedule=key, **one.defined)
                shown = self._shown(one, await self._keep(one, added))
            self._tell_of_added()
            return shown

    async def remove(self, key: str, by: str) -> ShownSchedule:
        """Removes an added schedule. Raises Refusal, and Conflict for a schedule of the settings."""
        if key in self.live.current.settings.schedules:
            raise Conflict(f"{key} is a schedule of sidecar.yaml: remove it there, or set enabled: false")
        with _answered():
            one = await self._of(key)
            await self.witness("schedule-remove", by, schedule=key, **one.defined)
            standing, _ = await self._change(one, ScheduleStanding.removed)
            self.holds.discard(one.id)
            self._tell_of_added()
            return ShownSchedule(key, one.schedule, standing, None, added=one.added)

    async def run_now(self, key: str, by: str) -> Task:
        """Orders a run now; due times do not change. Raises Refusal: ROUTE_UNKNOWN if there is no such schedule or it
        is disabled, TOO_MANY_CONCURRENT if no more runs may be in progress at once."""
        with _answered():
            one = await self._of(key)
            if not one.schedule.enabled:
                raise Refusal(Reason.ROUTE_UNKNOWN, "the schedule is not enabled")
            standing, _ = await self._change(one, _as_it_is)
            standing = await self._follow(one, standing)
            if len(standing.running) >= one.most_at_once:
                raise Refusal(Reason.TOO_MANY_CONCURRENT, "the previous run continues")
            task = self.new_id()
            await self.witness("schedule-run", by, schedule=key, task=task)
            record = await self._place(one, task, BY_HAND)
            await self._change(one, _ordered(ScheduledRun(task, None), record, standing))
            return record

    async def pause(self, key: str, by: str) -> ShownSchedule:
        """Stops further orders of the schedule, at every replica; runs in progress continue. Raises Refusal."""
        return await self._ordered(key, "schedule-pause", by, lambda was: was.paused(by, self._now_s))

    async def resume(self, key: str, by: str) -> ShownSchedule:
        return await self._ordered(key, "schedule-resume", by, lambda was: was.resumed(self._now_s))

    async def _ordered(self, key: str, what: str, by: str, verb: Verb) -> ShownSchedule:
        with _answered():
            one = await self._of(key)
            await self.witness(what, by, schedule=key)
            standing, _ = await self._change(one, verb)
            return self._shown(one, standing)

    # --- single steps -------------------------------------------------------------------------------------------------

    def _check_free(self, key: str) -> None:
        taken = next((one for one in self._named.values() if key in (one.key, one.id)), None)
        if taken is not None:
            whose = "sidecar.yaml has" if taken.added is None else "there is"
            raise Conflict(f"{whose} a schedule {key} already: choose another name, or remove that one")
        if sum(one.added is not None for one in self._known.values()) >= MOST_ADDED:
            raise Conflict(f"{MOST_ADDED} schedules were added, and no more can be: remove one")

    async def _keep(self, one: NamedSchedule, added: Added) -> ScheduleStanding:
        for _ in range(MOST_CONFLICTS):
            was = await self.store.get(one.id)
            if was is None:
                fresh = self._fresh(one).defined(added)
                match await self.held.add(fresh, BOUNDS):
                    case AddedRecord.FULL:
                        raise Conflict("the store has no room for another schedule")
                    case AddedRecord.KEPT:
                        return self._remember(fresh)
                continue
            if was.added == added:  # the reply to this process's own write was lost
                return self._remember(was)
            if was.added is not None:
                raise Conflict(f"another replica has just added a schedule {one.key}")
            if await self._put(was, was.defined(added)):
                return self._known[one.id]
        raise RecordStoreOut("it is changed by others all the time")

    async def _place(self, one: NamedSchedule, task: str, peer: str) -> Task:
        schedule, settings = one.schedule, self.live.current.settings
        behind_us = {*settings.upstreams, *settings.agents} if one.added is not None else frozenset[str]()
        if one.acts_as.removeprefix("nhi:") in behind_us:  # schedules of the settings are checked at load
            raise Refusal(Reason.BAD_CREDENTIAL, f"{one.acts_as} is served by this sidecar, and would call as itself")
        return await self.orders.place(
            one.caller, schedule.agent, schedule.task_type, schedule.input_parameters, task, peer=peer
        )

    async def _change(self, one: NamedSchedule, verb: Verb) -> tuple[ScheduleStanding, bool]:
        """Applies a change. Returns the schedule after it, and whether this process made it. Raises RecordStoreOut, and
        _Changed for an added schedule that was removed or added again."""
        for _ in range(MOST_CONFLICTS):
            was = await self.store.get(one.id)
            if one.added is not None and (was is None or was.added != one.added):
                self._known.pop(one.id, None)
                if was is not None:
                    self._known[one.id] = was
                self._tell_of_added()
                raise _Changed
            if was is None:
                await self._begin(one)
                continue
            then = verb(was)
            if then is was:
                return self._remember(was), False
            if await self._put(was, then):
                return self._known[one.id], True
        raise RecordStoreOut("it is changed by others all the time")

    async def _put(self, was: ScheduleStanding, then: ScheduleStanding) -> bool:
        """Replaces the previous state with the new one; returns False if the stored state has changed."""
        then = then._replace(revision=was.revision + 1)
        if was.is_done and not then.is_done:
            put = await self.store.reopen(then, self.holder, self.held.until_s)
        else:
            put = await self.store.replace(then)
        if put:
            self._remember(then)
        return put

    def _remember(self, standing: ScheduleStanding) -> ScheduleStanding:
        self._known[standing.id] = standing
        return standing

    def _seen(self, one: NamedSchedule) -> Verb:
        """Returns the change that applies this process's settings; those of replicas may differ for a while."""
        calendar, enabled = one.schedule.calendar_words, one.schedule.enabled
        return partial(ScheduleStanding.seen, calendar=calendar, enabled=enabled, now_s=self._now_s)

    def _count(self, one: NamedSchedule, result: DueResult, count: int) -> None:
        if count:
            self.metrics.schedule_ran(one.key, result, count)

    async def _of(self, key: str) -> NamedSchedule:
        """Returns the schedule of this name. Raises Refusal, and RecordStoreOut if the store is needed and
        unavailable."""
        schedule = self.live.current.settings.schedules.get(key)
        if schedule is not None:
            return NamedSchedule(key, schedule)
        await self._read()
        named = {one.key: one for one in self._named.values()}
        if key not in named:
            raise Refusal(Reason.ROUTE_UNKNOWN, nothing_like("there is no such schedule", key, named))
        return named[key]

    def _shown(self, one: NamedSchedule, standing: ScheduleStanding | None) -> ShownSchedule:
        if standing is None:
            nothing = ScheduleStanding(one.id, self._now_s, "", self._now_s)
            return ShownSchedule(one.key, one.schedule, nothing, None, is_read=False)
        waits = one.schedule.enabled and standing.state is not ScheduleState.PAUSED
        next_s = one.schedule.calendar.next_after(self._now_s) if waits else None
        return ShownSchedule(one.key, one.schedule, standing, next_s, added=one.added)

    def _due_next(self, one: NamedSchedule, standing: ScheduleStanding) -> float | None:
        """Returns the next due time, computed once for each settled time."""
        about = (one.schedule.calendar_words, standing.settled_s)
        known = self._due.get(one.id)
        if known is None or known[0] != about:
            known = self._due[one.id] = (about, one.schedule.calendar.next_after(standing.settled_s))
        return known[1]

    def _pause_s(self) -> float:
        now_s = self._now_s
        waits = [
            next_s - now_s
            for one in self._named.values()
            if one.id in self.holds
            and (standing := self._known.get(one.id)) is not None
            and standing.state not in AT_REST
            and (next_s := self._due_next(one, standing)) is not None
            and next_s > now_s
        ]
        return min([LOOK_EVERY_S, *waits])

    @property
    def _named(self) -> Mapping[str, NamedSchedule]:
        configured = self.live.current.settings.schedules
        named = [NamedSchedule(key, schedule) for key, schedule in configured.items()]
        kept = (one.added for one in self._known.values() if one.added is not None)
        added = (NamedSchedule(one.key, one.schedule, one) for one in kept if one.key not in configured)
        return {one.id: one for one in (*added, *named)}  # settings win over an added schedule of the same id

    @property
    def _now_s(self) -> float:
        return self.live.clock()


def _end_of(record: Task | None) -> tuple[DueResult, str]:
    """Returns the result of a finished task, and the reason, which may be its agent's text, without secrets."""
    if record is None:
        return DueResult.FAILURE, FORGOTTEN
    if record.refused in UNAPPROVED:
        return UNAPPROVED[record.refused], str(record.refused)
    result = DueResult.TIMEOUT if record.error_code == "Timeout" else ENDS[record.state]
    return result, sanitized(record.error_message)


def _ordered(run: ScheduledRun, record: Task, standing: ScheduleStanding) -> Verb:
    """Returns the change of a schedule that has ordered a run, which may wait for approval."""
    waits = record.state is TaskState.WAITING and not standing.running
    return lambda was: was.ordered(run).waits(waits=True) if waits else was.ordered(run)


def _as_it_is(standing: ScheduleStanding) -> ScheduleStanding:
    return standing


@contextmanager
def _answered() -> Iterator[None]:
    """Converts an error of an operator's order into the Refusal that the operator receives."""
    try:
        yield
    except _Changed:
        raise Refusal(Reason.ROUTE_UNKNOWN, "there is no such schedule any more: it was removed meanwhile") from None
