"""Orders runs when their schedules are due.

Each process takes the schedules that nobody else has on their hands, and holds them by saying so again and again. What
it does for one is in an order that survives its death at any point, so that whoever takes over goes on: first the task,
by an id that only this due time can have, then that the time is settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from sidecar.errors import Reason, Refusal
from sidecar.gateway.snapshot import Live
from sidecar.settings.schedules import MOST, ScheduleSettings, acts_as
from sidecar.settings.validation_errors import nothing_like
from sidecar.storage import AddedRecord as Taken
from sidecar.storage import RecordBounds, RecordPage, RecordShare, RecordStore, RecordStoreOut, UnreadableRecord
from sidecar.tasks.api import task_record as tasks
from sidecar.tasks.api.task_orders import TaskOrders
from sidecar.tasks.programs.stored_text import sanitized
from sidecar.tasks.schedules.due_times import OwedTime, owed, was_wrong
from sidecar.tasks.schedules.fit_checks import check_fits
from sidecar.tasks.schedules.schedule_state import OWNER, Added, ScheduledRun, ScheduleStanding
from sidecar.tasks.schedules.transitions import DueResult, ScheduleState
from sidecar.vocabulary import SCHEDULE, Caller, Credential, Principal

LOOK_EVERY_S: Final = 1.0
TAKE_EVERY_S: Final = 3.0
UNREADABLE: Final = "unreadable"
HELD_S: Final = 15.0
SWEEP_EVERY_S: Final = 3600.0
AT_ONCE: Final = 16  # schedules that are seen to
MOST_AT_ONCE: Final = 20  # runs of one schedule, with `overlap: allow`
MOST_CONFLICTS: Final = 10
FIRST_REST_S: Final = 1.0
LONGEST_REST_S: Final = 30.0
MOST_ADDED: Final = 100
SHARE: Final = RecordShare(MOST + MOST_ADDED, MOST + MOST_ADDED)
BOUNDS: Final = RecordBounds(2 * MOST, 2 * MOST)  # those that no settings name any more are kept for a while
BY_CLOCK, BY_HAND = "schedule", "operator"
# What may be otherwise in a moment, and is no answer to the schedule.
PASSING: Final = frozenset(
    {
        Reason.DRAINING,
        Reason.OVERLOADED,
        Reason.STORE_UNAVAILABLE,
        Reason.AUDIT_UNAVAILABLE,
        Reason.UPSTREAM_OPEN,
    }
)
ENDS: Final[Mapping[tasks.TaskState, DueResult]] = {
    tasks.TaskState.COMPLETED: DueResult.SUCCESS,
    tasks.TaskState.FAILED: DueResult.FAILURE,
    tasks.TaskState.CANCELLED: DueResult.CANCELLED,
}
AT_REST: Final = frozenset({ScheduleState.CREATED, ScheduleState.PAUSED})
FORGOTTEN: Final = "forgotten"  # the task is, before anybody saw its end

log = logging.getLogger("sidecar.tasks.schedules")

Verb = Callable[[ScheduleStanding], ScheduleStanding]


class ScheduleCounts(Protocol):
    """Whoever counts what became of due times; `sidecar.observability.metrics.Metrics` is one."""

    def schedule_ran(self, schedule: str, result: str, count: int = 1) -> None: ...
    def schedule_succeeded(self, schedule: str, at_s: float) -> None: ...
    def schedules_added(self, schedules: Collection[str]) -> None: ...


class ScheduleWitness(Protocol):
    """Whoever puts an operator's word on record. Raises Refusal(AUDIT_UNAVAILABLE)."""

    async def __call__(self, what: str, by: str, **facts: object) -> None: ...


class Conflict(Exception):
    """What an operator wants cannot be, as schedules are now. Its text may be shown."""


class _Changed(Exception):
    """A schedule that was added is not what it was: another replica removed it, or added it anew."""


class ShownSchedule(NamedTuple):
    """A schedule as people see it. `next_s` is when it is due next, None where it is not. Of one that is not `is_read`
    nobody knows how it stands. `added` says that it is not one of the settings."""

    key: str
    schedule: ScheduleSettings
    standing: ScheduleStanding
    next_s: float | None
    is_read: bool = True
    added: Added | None = None

    @property
    def source(self) -> str:
        """Whence its definition is, in a word."""
        return "configured" if self.added is None else "added"

    @property
    def state(self) -> str:
        """How it stands, in a word."""
        return self.standing.state if self.is_read else UNREADABLE


class NamedAgents(NamedTuple):
    """A schedule of the settings, or one that was added."""

    key: str
    schedule: ScheduleSettings
    added: Added | None = None

    @property
    def id(self) -> str:
        """By what it is known wherever it is kept."""
        return self.schedule.id or self.key

    @property
    def calendar(self) -> str:
        """When it is due, in words that change with it."""
        return self.schedule.calendar_words

    @property
    def caller(self) -> Caller:
        """On whose behalf it orders: an NHI of its own."""
        principal = Principal(acts_as(self.key, self.schedule), SCHEDULE)
        return Caller((principal,), (Credential(SCHEDULE, SCHEDULE, self.key),))


@dataclass(slots=True)
class _Rest:
    """Until when an order that was refused for what passes is not tried again, and how long the rest after that is."""

    due_s: float
    until_s: float = 0.0
    next_s: float = FIRST_REST_S
    why: str = ""


@dataclass(slots=True)
class Scheduler:
    """All schedules of a deployment, as far as they are on our hands. `holder` is by whose name we hold them."""

    live: Live
    store: RecordStore[ScheduleStanding]
    orders: TaskOrders
    witness: ScheduleWitness
    metrics: ScheduleCounts
    holder: str
    new_id: Callable[[], str]
    _hands: dict[str, ScheduleStanding] = field(default_factory=dict)
    _known: dict[str, ScheduleStanding] = field(default_factory=dict)
    _unread: frozenset[str] = frozenset()  # it may be paused, so it does not run
    _reckoned: dict[str, tuple[tuple[str, float], float | None]] = field(default_factory=dict)
    _rests: dict[str, _Rest] = field(default_factory=dict)
    _taken_s: float | None = None
    _swept_s: float | None = None
    _is_out: bool = False
    _adding: asyncio.Lock = field(default_factory=asyncio.Lock)  # so that the bound holds
    _at_once: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, AT_ONCE))

    # --- by the clock -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Order what is due. Runs as long as the process."""
        while True:
            await self.look()
            await asyncio.sleep(self._pause_s())

    async def look(self) -> None:
        """Order what is due now."""
        named, now_s = self._named, self._now_s
        anew = (
            self._taken_s is None
            or not 0 <= now_s - self._taken_s < TAKE_EVERY_S
            or not named.keys() <= self._known.keys() | self._unread
        )
        try:
            if anew:
                await self._take(named, now_s)
        except RecordStoreOut as out:
            if named and not self._is_out:  # each look would say so
                log.warning("the store of schedules is out: nothing runs by the clock", extra={"error": str(out)})
            self._is_out = True
            return
        self._is_out = False
        named = self._named  # another replica may have added one
        self._tell_of_added()
        await asyncio.gather(*(self._see_to(named.get(one), one, anew=anew) for one in list(self._hands)))

    async def close(self) -> None:
        """Nothing is on our hands any more."""
        with suppress(RecordStoreOut):
            if self._known:
                await self.store.let_go(self.holder)
        await self.store.close()

    async def _take(self, named: Mapping[str, NamedAgents], now_s: float) -> None:
        """What is ours, and what is nobody's any more; and how all stand."""
        for one in named.values():
            if one.id not in self._known:
                await self._begin(one, now_s)
        taken = await self.store.take(self.holder, now_s, now_s + HELD_S, SHARE)
        self._hands = {one.id: one for one in taken}
        await self._read()
        named = self._named
        await self._look_for_unread(named)
        self._taken_s = now_s
        self._rests = {known: rest for known, rest in self._rests.items() if known in named}
        self._reckoned = {known: reckoned for known, reckoned in self._reckoned.items() if known in named}
        for one in named.values():
            standing = self._known.get(one.id)
            if standing is not None and standing.is_done:
                await self._change(one, self._seen(one))
            elif standing is not None and standing.last_success_s is not None:
                self.metrics.schedule_succeeded(one.key, standing.last_success_s)
        if self._swept_s is None or abs(now_s - self._swept_s) >= SWEEP_EVERY_S:
            self._swept_s = now_s
            await self.store.sweep(now_s)

    async def _read(self) -> None:
        """How all stand, and which were added. Raises StoreOut."""
        everything, _ = await self.store.page(OWNER, RecordPage((OWNER,), limit=2 * MOST))
        self._known = {one.id: one for one in everything}
        self._tell_of_added()

    def _tell_of_added(self) -> None:
        """Which added schedules there are, to whoever asks whether a caller is still believed, and to the metrics."""
        added = [one for one in self._named.values() if one.added is not None]
        acting = {one.key: acts_as(one.key, one.schedule) for one in added if one.schedule.enabled}
        self.live.current.identity.believe_schedules(acting)
        self.metrics.schedules_added([one.key for one in added])

    async def _look_for_unread(self, named: Mapping[str, NamedAgents]) -> None:
        unread = set()
        for one in named.keys() - self._known.keys():
            try:
                await self.store.get(one)
            except UnreadableRecord as unreadable:
                unread.add(one)
                if one not in self._unread:
                    log.error("a schedule does not run", extra={**_about(named[one]), "why": str(unreadable)})
        self._unread = frozenset(unread)

    async def _begin(self, one: NamedAgents, now_s: float) -> None:
        fresh = ScheduleStanding(one.id, now_s, self.new_id(), now_s)
        if await self.store.add(fresh, self.holder, now_s + HELD_S, BOUNDS) is Taken.FULL:
            log.error("there are too many schedules: this one does not run", extra={"schedule": one.key})

    async def _see_to(self, one: NamedAgents | None, known_as: str, *, anew: bool) -> None:
        try:
            async with self._at_once:  # callers have their turns in between
                if one is None:
                    await self._part_with(known_as)
                else:
                    await self._keep_up(one, anew=anew)
        except _Changed:  # with the next look it is what it has become
            self._hands.pop(known_as, None)
        except RecordStoreOut as out:  # it is still ours, and seen to with the next look
            log.warning("the store is out", extra={"schedule": known_as, "error": str(out)})
        except Exception:  # a bug in one schedule is no other's trouble
            log.exception("bug", extra={"schedule": known_as})

    async def _part_with(self, known_as: str) -> None:
        """No settings of ours name it; those of another replica may."""
        standing = self._hands[known_as]
        if self._now_s < standing.expires_at:
            return
        gone = standing.gone()
        await self.store.replace(gone._replace(revision=gone.revision + 1))
        del self._hands[known_as]

    async def _keep_up(self, one: NamedAgents, *, anew: bool) -> None:
        standing = self._hands[one.id]
        if self._seen(one)(standing) is not standing:
            standing = await self._change(one, self._seen(one))
        if anew:
            standing = await self._follow(one, standing)
        if self._is_due(one, standing):
            await self._settle_up(one)

    def _is_due(self, one: NamedAgents, standing: ScheduleStanding) -> bool:
        """Asked often, and of what is in memory alone."""
        if standing.state in AT_REST:
            return False
        next_s = self._due_next(one, standing)
        return (next_s is not None and next_s <= self._now_s) or was_wrong(standing.settled_s, self._now_s)

    async def _settle_up(self, one: NamedAgents) -> None:
        """Something is due, as far as we know: another may know more, or an operator have stopped it."""
        standing = await self._change(one, self._seen(one))
        standing = await self._follow(one, standing)
        now_s, schedule = self._now_s, one.schedule
        if not self._is_due(one, standing):
            return
        if was_wrong(standing.settled_s, now_s):
            log.warning("the clock was set back: what it did not come to is not made up for", extra=_about(one))
            await self._change(one, lambda was: was.corrected(now_s))
            return
        owes = owed(schedule.calendar, standing.settled_s, now_s, schedule.late_s)
        if owes is None:
            return
        if not owes.in_time:
            await self._settle(one, owes, DueResult.MISSED, self._rest_of(one, owes).why)
        elif len(standing.running) >= (1 if schedule.overlap == "skip" else MOST_AT_ONCE):
            await self._settle(one, owes, DueResult.SKIPPED, "the run before goes on")
        else:
            await self._order(one, standing, owes)

    async def _order(self, one: NamedAgents, standing: ScheduleStanding, owes: OwedTime) -> None:
        task, rest = standing.task_for(owes.due_s), self._rest_of(one, owes)
        if self._now_s < rest.until_s <= self._now_s + LONGEST_REST_S:
            return
        try:
            if await self.orders.runner.means.store.get(task) is None:  # else whoever ordered it died, or was slow
                await self._place(one, task, BY_CLOCK)
        except Refusal as refusal:
            if refusal.reason in PASSING:
                self._again_later(one, rest, refusal)
            else:
                await self._settle(one, owes, DueResult.REFUSED, refusal.reason)
            return
        if await self._changes(one, lambda was: was.ordered(ScheduledRun(task, owes.due_s))):
            self._count(one, DueResult.MISSED, owes.missed)

    def _again_later(self, one: NamedAgents, rest: _Rest, refusal: Refusal) -> None:
        rest.until_s, rest.why = self._now_s + rest.next_s, refusal.reason
        rest.next_s = min(2 * rest.next_s, LONGEST_REST_S)
        self._rests[one.id] = rest
        log.warning("a scheduled run cannot begin yet", extra={**_about(one), "reason": refusal.reason.value})

    def _rest_of(self, one: NamedAgents, owes: OwedTime) -> _Rest:
        rest = self._rests.get(one.id)
        return rest if rest is not None and rest.due_s == owes.due_s else _Rest(owes.due_s)

    async def _settle(self, one: NamedAgents, owes: OwedTime, result: DueResult, why: str) -> None:
        if await self._changes(one, lambda was: was.settled(owes.due_s, result, why)):
            log.warning("a scheduled run did not begin", extra={**_about(one), "result": result.value, "why": str(why)})
            self._count(one, result, 1)
            self._count(one, DueResult.MISSED, owes.missed)

    async def _follow(self, one: NamedAgents, standing: ScheduleStanding) -> ScheduleStanding:
        """What became of what it ordered."""
        for run in standing.running:
            record = await self.orders.runner.means.store.get(run.task)
            if record is not None and not record.is_over:
                continue
            result, why = _end_of(record)
            at_s = record.completed_at if record is not None else None
            if await self._changes(one, partial(ScheduleStanding.ended, run=run, result=result, why=why, at_s=at_s)):
                level = logging.INFO if result is DueResult.SUCCESS else logging.WARNING
                about = {**_about(one), "task": run.task, "result": result.value}  # why may be its agent's words
                log.log(level, "a scheduled run ended", extra=about)
                self._count(one, result, 1)
                if result is DueResult.SUCCESS and at_s is not None:
                    self.metrics.schedule_succeeded(one.key, at_s)
        return self._known.get(one.id, standing)

    # --- what operators see and order ---------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether what runs by the clock can run."""
        return self.store.up or not self._named

    def seen(self) -> Sequence[ShownSchedule]:
        """All of them, as they stood at the last look."""
        known, unread = self._known, self._unread
        return [
            self._shown(one, known[one.id]) if one.id in known else self._not_read(one)
            for one in self._named.values()
            if one.id in known or one.id in unread
        ]

    @property
    def unreadable(self) -> Sequence[str]:
        """Those that do not run because nobody knows how they stand, by their keys."""
        return sorted(one.key for one in self._named.values() if one.id in self._unread)

    async def recall(self) -> None:
        """Know what was added, before anything goes on that it ordered. A store that is out is asked again later."""
        with suppress(RecordStoreOut):
            await self._read()

    async def list(self) -> Sequence[ShownSchedule]:
        """All of them, as they stand now. Raises Refusal(STORE_UNAVAILABLE)."""
        with _answered():
            await self._read()
            shown = [await self._as_it_stands(one) for one in self._named.values()]
            return [one for one in shown if one is not None]

    async def add(self, key: str, schedule: ScheduleSettings, by: str) -> ShownSchedule:
        """Keep a schedule that no settings have, for all replicas. Raises Refusal for a definition that would not do in
        the settings either, and Conflict where the name is taken or there are too many."""
        async with self._adding:
            with _answered():
                await self._read()
                self._check_free(key)
                now, now_s = self.live.current, self._now_s
                others = {one.key: one.schedule for one in self._named.values()}
                check_fits(key, schedule, others, now.settings, now.engine, now_s)
                one = NamedAgents(key, schedule, Added(key, schedule, by, now_s))
                await self.witness("schedule-add", by, schedule=key, **_defined(one))
                shown = self._shown(one, await self._keep(one, now_s))
            self._tell_of_added()
            return shown

    async def remove(self, key: str, by: str) -> ShownSchedule:
        """Take back that it was added; what it ordered and goes on ends. Raises Refusal, and Conflict for one of the
        settings."""
        if key in self.live.current.settings.schedules:
            raise Conflict(f"{key} is a schedule of sidecar.yaml: remove it there, or set enabled: false")
        with _answered():
            one = await self._of(key)
            await self.witness("schedule-remove", by, schedule=key, **_defined(one))
            standing = await self._change(one, ScheduleStanding.removed)
            self._hands.pop(one.id, None)
            self._tell_of_added()
            return ShownSchedule(key, one.schedule, standing, None, added=one.added)

    async def run_now(self, key: str, by: str) -> tasks.Task:
        """A run that is not due, on behalf of the schedule; when it is due stays as it is. Raises Refusal, as for any
        order; TOO_MANY_CONCURRENT where the run before goes on."""
        with _answered():
            one = await self._of(key)
            if not one.schedule.enabled:
                raise Refusal(Reason.ROUTE_UNKNOWN, "the schedule is not enabled")
            standing = await self._follow(one, await self._change(one, _as_it_is))
            if len(standing.running) >= (1 if one.schedule.overlap == "skip" else MOST_AT_ONCE):
                raise Refusal(Reason.TOO_MANY_CONCURRENT, "the run before goes on")
            task = self.new_id()
            await self.witness("schedule-run", by, schedule=key, task=task)
            record = await self._place(one, task, BY_HAND)
            await self._change(one, lambda was: was.ordered(ScheduledRun(task, None)))
            return record

    async def pause(self, key: str, by: str) -> ShownSchedule:
        """Order nothing more for it, at every replica; what runs goes on. Raises Refusal."""
        return await self._word_of(key, "schedule-pause", by, lambda was: was.paused(by, self._now_s))

    async def resume(self, key: str, by: str) -> ShownSchedule:
        """Go on with it; what was due meanwhile is not made up for. Raises Refusal."""
        return await self._word_of(key, "schedule-resume", by, lambda was: was.resumed(self._now_s))

    async def _word_of(self, key: str, what: str, by: str, verb: Verb) -> ShownSchedule:
        with _answered():
            one = await self._of(key)
            await self.witness(what, by, schedule=key)
            return self._shown(one, await self._change(one, verb))

    # --- one step -----------------------------------------------------------------------------------------------------

    def _check_free(self, key: str) -> None:
        """Raises Conflict where no schedule of this name can be added."""
        taken = next((one for one in self._named.values() if key in (one.key, one.id)), None)
        if taken is not None:
            whose = "sidecar.yaml has" if taken.added is None else "there is"
            raise Conflict(f"{whose} a schedule {key} already: choose another name, or remove that one")
        if sum(one.added is not None for one in self._known.values()) >= MOST_ADDED:
            raise Conflict(f"{MOST_ADDED} schedules were added, and no more can be: remove one")

    async def _keep(self, one: NamedAgents, now_s: float) -> ScheduleStanding:
        """Its record, new or in place of one that no schedule has any more. Raises StoreOut, Conflict."""
        assert one.added is not None
        for _ in range(MOST_CONFLICTS):
            was = await self.store.get(one.id)
            if was is None:
                fresh = ScheduleStanding(one.id, now_s, self.new_id(), now_s).defined(one.added)
                kept = await self.store.add(fresh, self.holder, now_s + HELD_S, BOUNDS)
                if kept is Taken.FULL:
                    raise Conflict("the store has no room for another schedule")
                if kept is Taken.KEPT:
                    return self._remember(fresh)
                continue
            if was.added == one.added:  # the reply to what we wrote was lost
                return self._remember(was)
            if was.added is not None:
                raise Conflict(f"another replica has just added a schedule {one.key}")
            if await self._put(was, was.defined(one.added)):
                return self._known[one.id]
        raise RecordStoreOut("it is changed by others all the time")

    async def _place(self, one: NamedAgents, task: str, peer: str) -> tasks.Task:
        schedule = one.schedule
        who, settings = acts_as(one.key, schedule), self.live.current.settings
        behind_us = {*settings.upstreams, *settings.agents} if one.added is not None else frozenset[str]()
        if who.removeprefix("nhi:") in behind_us:  # those of the settings are checked with them
            raise Refusal(Reason.BAD_CREDENTIAL, f"{who} stands behind us, and would call as itself")
        return await self.orders.place(
            one.caller, schedule.agent, schedule.task_type, schedule.input_parameters, task, peer=peer
        )

    async def _changes(self, one: NamedAgents, verb: Verb) -> bool:
        """Whether that changed it, here and not at another replica before. Raises StoreOut."""
        return (await self._changed(one, verb))[1]

    async def _change(self, one: NamedAgents, verb: Verb) -> ScheduleStanding:
        """The schedule as it stands after this. Raises StoreOut."""
        return (await self._changed(one, verb))[0]

    async def _changed(self, one: NamedAgents, verb: Verb) -> tuple[ScheduleStanding, bool]:
        for _ in range(MOST_CONFLICTS):
            now_s = self._now_s
            was = await self.store.get(one.id)
            if one.added is not None and (was is None or was.added != one.added):
                self._forget(one.id, was)
                raise _Changed
            if was is None:
                await self._begin(one, now_s)
                continue
            then = verb(was)
            if then is was:
                return self._remember(was), False
            if await self._put(was, then):
                return self._known[one.id], True
        raise RecordStoreOut("it is changed by others all the time")

    async def _put(self, was: ScheduleStanding, then: ScheduleStanding) -> bool:
        """Keep this in place of what was. False where that is not what is there."""
        then = then._replace(revision=was.revision + 1)
        reopens = was.is_done and not then.is_done
        until_s = self._now_s + HELD_S
        if not await (self.store.reopen(then, self.holder, until_s) if reopens else self.store.replace(then)):
            return False
        self._remember(then)
        return True

    def _forget(self, known_as: str, found: ScheduleStanding | None) -> None:
        if found is None:
            self._known.pop(known_as, None)
        else:
            self._known[known_as] = found
        self._tell_of_added()

    def _remember(self, standing: ScheduleStanding) -> ScheduleStanding:
        self._known[standing.id] = standing
        if standing.id in self._hands:
            self._hands[standing.id] = standing
        return standing

    def _seen(self, one: NamedAgents) -> Verb:
        """As the settings have it now, which only who has it on their hands says: replicas may differ for a while."""
        return partial(ScheduleStanding.seen, calendar=one.calendar, enabled=one.schedule.enabled, now_s=self._now_s)

    def _count(self, one: NamedAgents, result: DueResult, count: int) -> None:
        if count:
            self.metrics.schedule_ran(one.key, result, count)

    async def _of(self, key: str) -> NamedAgents:
        """The schedule of this name. Raises Refusal, and StoreOut where only the store can say."""
        schedule = self.live.current.settings.schedules.get(key)
        if schedule is not None:
            return NamedAgents(key, schedule)
        await self._read()
        named = {one.key: one for one in self._named.values()}
        if key not in named:
            raise Refusal(Reason.ROUTE_UNKNOWN, nothing_like("there is no such schedule", key, named))
        return named[key]

    def _shown(self, one: NamedAgents, standing: ScheduleStanding) -> ShownSchedule:
        waits = one.schedule.enabled and standing.state is not ScheduleState.PAUSED
        next_s = one.schedule.calendar.next_after(self._now_s) if waits else None
        return ShownSchedule(one.key, one.schedule, standing, next_s, added=one.added)

    async def _as_it_stands(self, one: NamedAgents) -> ShownSchedule | None:
        """None for one that was removed meanwhile."""
        try:
            return self._shown(one, await self._change(one, _as_it_is))
        except UnreadableRecord:
            return self._not_read(one)
        except _Changed:
            return None

    def _not_read(self, one: NamedAgents) -> ShownSchedule:
        return ShownSchedule(
            one.key, one.schedule, ScheduleStanding(one.id, self._now_s, "", self._now_s), None, is_read=False
        )

    def _due_next(self, one: NamedAgents, standing: ScheduleStanding) -> float | None:
        """When it is due next; reckoned once for each time that is settled."""
        about = (one.calendar, standing.settled_s)
        known = self._reckoned.get(one.id)
        if known is None or known[0] != about:
            known = self._reckoned[one.id] = (about, one.schedule.calendar.next_after(standing.settled_s))
        return known[1]

    def _pause_s(self) -> float:
        """Until something is due, or to the next look."""
        now_s, named = self._now_s, self._named
        waits = [
            next_s - now_s
            for one in named.values()
            if (standing := self._hands.get(one.id)) is not None
            and standing.state not in AT_REST
            and (next_s := self._due_next(one, standing)) is not None
            and next_s > now_s
        ]
        return min([LOOK_EVERY_S, *waits])

    @property
    def _named(self) -> Mapping[str, NamedAgents]:
        configured = self.live.current.settings.schedules
        named = [NamedAgents(key, schedule) for key, schedule in configured.items()]
        kept = (one.added for one in self._known.values() if one.added is not None)
        added = (NamedAgents(one.key, one.schedule, one) for one in kept if one.key not in configured)
        return {one.id: one for one in (*added, *named)}  # where ids are the same, that of the settings holds

    @property
    def _now_s(self) -> float:
        return self.live.clock()


def _end_of(record: tasks.Task | None) -> tuple[DueResult, str]:
    """What a task that is over came to, and why: in its agent's words, without secrets."""
    if record is None:
        return DueResult.FAILURE, FORGOTTEN
    result = DueResult.TIMEOUT if record.error_code == "Timeout" else ENDS[record.state]
    return result, sanitized(record.error_message)


def _as_it_is(standing: ScheduleStanding) -> ScheduleStanding:
    return standing


def _defined(one: NamedAgents) -> Mapping[str, object]:
    """What evidence has of a definition; what the agent is told is not for every reader."""
    about = one.schedule
    return {
        "agent": about.agent,
        "principal": acts_as(one.key, about),
        "cron": about.cron,
        "timezone": about.timezone,
        "enabled": about.enabled,
    }


def _about(one: NamedAgents) -> Mapping[str, str]:
    return {"schedule": one.key, "agent": one.schedule.agent}


@contextmanager
def _answered() -> Iterator[None]:
    """A store that is out, as an operator hears it."""
    try:
        yield
    except _Changed:
        raise Refusal(Reason.ROUTE_UNKNOWN, "there is no such schedule any more: it was removed meanwhile") from None
    except RecordStoreOut as out:
        raise Refusal(Reason.STORE_UNAVAILABLE, str(out) if isinstance(out, UnreadableRecord) else "") from None
