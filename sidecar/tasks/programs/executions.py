"""Accepts, resumes and limits the runs of all programs: a kind of job of the worker (`tasks/worker.py`)."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.observability.metrics import Metrics
from sidecar.settings.agents import CliAgent
from sidecar.storage import AddedRecord, RecordBounds, RecordPage, RecordShare, RecordStore
from sidecar.storage.redis_script import Run
from sidecar.tasks.programs import run_events, working_folders
from sidecar.tasks.programs.attempt import CANCELED, Objection, ProgramRunner, Prompt, no_objection
from sidecar.tasks.programs.concurrency import RunSlots
from sidecar.tasks.programs.prompts import prompt_from
from sidecar.tasks.programs.run_lifecycle import RunLifecycle, RunOffer
from sidecar.tasks.programs.run_record import MAX_TRANSITIONS, Category, Execution, RunState, RunStatus, Transition
from sidecar.tasks.programs.stored_text import kept_beginning
from sidecar.tasks.programs.write_leases import LEASE_S, WriteLeases
from sidecar.tasks.worker import HeldRecords, Worker
from sidecar.vocabulary import Caller

LOOK_EVERY_S: Final = 1.0
LOOK_ALONE_EVERY_S: Final = 5.0  # if no other process uses the store
CANCEL_S: Final = 10.0  # how long a caller who cancels waits for the end
ENDING_S: Final = 15.0  # how long a program may take to end
STRAYS_S: Final = 2.0  # how long the programs of a killed sidecar take to end (`upstreams/processes/warden.py`)
FOLLOW_EVERY_S: Final = 1.0
OUT_S: Final = 15.0  # how long a subscriber to another replica's run waits for an unavailable store
MAX_INPUT_CHARS: Final = 16 * 1024
MAX_TASK_BYTES: Final = 8 * 2**20  # of a task that is continued many times
SHARE: Final = RecordShare(100_000, 100_000)  # no bound in practice: the queues bound the runs
STOPPED: Final = "the sidecar stopped"
UNKEPT: Final = "it was refused, because the store did not answer,"

MakeRunner = Callable[[str, CliAgent], ProgramRunner]
"""Makes the runner of an agent. Raises SettingsError."""

log = logging.getLogger("sidecar.tasks.programs")


class RunPool(NamedTuple):
    """The number of runs of one agent that are at work here, that wait for their turn, and that may be at work at
    once."""

    running: int
    waiting: int
    places: int


@dataclass(slots=True)
class Executions:
    """Every run of every CLI-program agent, held as `holder`. `run_shared` runs scripts in the store that replicas
    share; without one, no run that writes begins for `strays_s`: a program of a killed sidecar may still be at work.
    `random` returns numbers from 0 to 1; `objection` returns why a caller may run nothing any more."""

    store: RecordStore[Execution]
    make_runner: MakeRunner
    metrics: Metrics
    clock: Callable[[], float]
    new_id: Callable[[], str]
    holder: str
    random: Callable[[], float]
    bounds: Callable[[], RecordBounds]
    keep_s: Callable[[], float]
    run_shared: Run | None = None
    lease_s: float = LEASE_S
    strays_s: float = STRAYS_S
    objection: Objection = no_objection
    leases: WriteLeases | None = field(init=False)
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # once set, no attempt begins
    writes_from_mono_s: float = field(init=False)
    _offers: dict[str, RunOffer] = field(default_factory=dict)
    _retired: set[RunOffer] = field(default_factory=set)
    _turns: dict[str, RunSlots] = field(default_factory=dict)
    _courses: dict[str, RunLifecycle] = field(init=False)
    worker: Worker[RunLifecycle] = field(init=False)
    held: HeldRecords[Execution] = field(init=False)
    _ending: set[asyncio.Task[None]] = field(default_factory=set)
    _looked_s: float = float("-inf")

    def __post_init__(self) -> None:
        is_shared = self.run_shared is not None
        self.held = HeldRecords(self.store, self.holder, self.clock, SHARE, is_shared)
        self.worker = Worker("runs", self._look, self._sweep, lambda: LOOK_EVERY_S, self._let_go_of_retired)
        self._courses = self.worker.jobs
        self.leases = None if self.run_shared is None else WriteLeases(self.run_shared, self.holder, self.lease_s)
        self.writes_from_mono_s = time.monotonic() + self.strays_s

    # --- agents -------------------------------------------------------------------------------------------------------

    def offer(self, definitions: Mapping[str, CliAgent]) -> None:
        """Puts these agents in force. An unchanged agent retains its conversations, and a run the definition under
        which it was ordered; a waiting run whose agent was removed fails. Raises SettingsError, changing nothing."""
        offers = {name: self._offered(name, one) for name, one in definitions.items() if one.enabled}
        self._retired |= set(self._offers.values()) - set(offers.values())
        self._offers = offers
        for name, offer in offers.items():
            self._turns[name].resized(offer.definition.places, offer.definition.max_queue)
        for course in list(self._courses.values()):
            if course.offer.name not in offers and course.waits:
                why = "the agent is not offered any more"
                course.give_up(RunState.FAILED, why, Category.PERMANENT)
        self._turns = {name: one for name, one in self._turns.items() if name in offers or one.running or one.waiting}
        self.metrics.agents_offered(offers)
        self._let_go_of_retired()

    def standing(self, name: str) -> RunPool:
        turns = self._offer_of(name).turns
        return RunPool(turns.running, turns.waiting, turns.places)

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def begin(self, name: str, prompt: Prompt, caller: Caller, context: str) -> Execution:
        """Stores a new run and queues it. Raises Refusal: TOO_MANY_CONCURRENT, UPSTREAM_UNKNOWN, STORE_UNAVAILABLE,
        DRAINING."""
        offer, now_s, run_id = self._offer_of(name), self.clock(), self.new_id()
        task = run_events.begun(run_id, context, prompt.message, now_s)
        times = now_s, now_s + self.keep_s()
        record = Execution(run_id, caller.binding, caller, name, context, *times, "", task, caller.schedule)
        record = _waits(record, offer.definition, prompt, Transition(RunState.IDLE, now_s, "it was ordered"))
        bounds = self.bounds()._replace(done_per_target=offer.definition.keep_runs)

        async def keep() -> None:
            # KNOWN means that the reply to this process's own write was lost: no other run has this id.
            if await self.held.add(record, bounds) is AddedRecord.FULL:
                raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many runs are stored")

        return await self._enter(offer, record, prompt, keep)

    async def goes_on(self, run_id: str, prompt: Prompt, caller: Caller) -> Execution:
        """Queues a further turn of a run that waits for its caller. Raises Refusal: see `begin`, and TASK_UNKNOWN,
        MALFORMED_CALL if it does not wait, TOO_LARGE."""
        record = await self._kept(run_id)
        if record.owner != caller.binding:
            raise Refusal(Reason.TASK_UNKNOWN)
        if record.is_done and await self._has_left(run_id):
            record = await self._kept(run_id)
        does_not_wait = Refusal(Reason.MALFORMED_CALL, "this task does not wait for a message")
        if not record.is_done or record.task["status"]["state"] not in run_events.WAITS or run_id in self._courses:
            raise does_not_wait
        offer, now_s = self._offer_of(record.target), self.clock()
        task, _ = run_events.went_on(record.task, prompt.message, now_s)
        if len(orjson.dumps(task)) > MAX_TASK_BYTES:
            raise Refusal(Reason.TOO_LARGE, "this task has become too large: begin another")
        kept = (record.created_at, record.expires_at, "", task, record.schedule)
        anew = Execution(record.id, record.owner, caller, record.target, record.context, *kept)
        anew = anew._replace(
            transitions=record.transitions[-MAX_TRANSITIONS:],
            output=record.output,
            output_bytes=record.output_bytes,
            revision=record.revision + 1,
        )
        anew = _waits(anew, offer.definition, prompt, Transition(RunState.IDLE, now_s, "it continues"))

        async def keep() -> None:
            if not await self.store.reopen(anew, self.holder, self.held.until_s):
                raise does_not_wait

        return await self._enter(offer, anew, prompt, keep)

    async def follow(self, run_id: str) -> AsyncGenerator[run_events.StreamResponse | None]:
        """Yields the run's StreamResponses to its end: the Task, then its changes (or whole Tasks, for slow subscribers
        and for another replica's run); None is a heartbeat. Raises Refusal: TASK_UNKNOWN, STORE_UNAVAILABLE."""
        course = self._courses.get(run_id)
        if course is not None:
            await course.shown()
            async with aclosing(course.hearers.hear()) as told:
                async for event in told:
                    yield event
            if course.record.is_done or not course.saving.is_lost or self.closing.is_set():
                return
        record = await self._kept(run_id)
        yield {"task": record.task}
        heard_s = time.monotonic()
        while not record.is_done:
            await asyncio.sleep(FOLLOW_EVERY_S)
            try:
                found = await self._kept(run_id)
            except Refusal as refusal:
                if refusal.reason is not Reason.STORE_UNAVAILABLE or time.monotonic() - heard_s > OUT_S:
                    raise
                continue
            heard_s = time.monotonic()
            yield {"task": found.task} if found.task != record.task else None
            record = found

    async def get(self, run_id: str) -> Execution | None:
        """Returns the run with this id, of any owner, or None. Raises Refusal(STORE_UNAVAILABLE)."""
        course = self._courses.get(run_id)
        return await (self.store.get(run_id) if course is None else course.shown())

    async def page(
        self, owner: str | None, targets: Collection[str], standing: str | None, limit: int, offset: int
    ) -> tuple[list[Execution], int]:
        """Returns a page of an owner's runs (None: all owners'), newest first, and the total count."""
        kept, count = await self.store.page(owner, RecordPage(targets, standing, limit, offset))
        here = self._courses
        newest = [here[one.id].record if one.id in here and not here[one.id].is_ending else one for one in kept]
        return newest, count

    async def cancel(self, run_id: str, why: str) -> Execution:
        """Cancels a run and waits up to `CANCEL_S`. Raises Refusal: TASK_UNKNOWN, NOT_CANCELABLE, STORE_UNAVAILABLE."""
        course = self._courses.get(run_id)
        if course is None or (course.record.is_done and await self._has_left(run_id)):
            return await self._cancel_kept(run_id, why)
        course.give_up(RunState.CANCELLED, why)
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await course.over.wait()
        if course.record.status is not RunStatus.CANCELLED:
            raise Refusal(Reason.NOT_CANCELABLE)
        return course.record

    def review(self) -> None:
        for course in list(self._courses.values()):
            if (why := self.withdrawn(course.record, course.prompt.skill)) is not None:
                course.give_up(RunState.CANCELLED, why)

    def withdrawn(self, record: Execution, skill: str) -> str | None:
        """Returns why the caller has lost the permission for this run, in a sentence, or None."""
        reason = self.objection(record.caller, record.target, skill)
        return None if reason is None else f"its caller may not have it any more: {reason}"

    # --- background work ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        if self.leases is not None:
            with suppress(ConnectionError):
                await self.leases.greet()
        await self.worker.run()

    def measure(self) -> None:
        states = {name: Counter[str]() for name in self._offers}
        for course in self._courses.values():
            if course.offer.name in states:
                states[course.offer.name][course.record.state] += 1
        for name in self._offers:
            self.metrics.agent_stands(name, *self.standing(name), states[name])

    def drain(self) -> None:
        """Begins no more runs. Waiting runs are left to another process if the store outlives this one; otherwise they
        fail."""
        self.closing.set()
        waiting = [course for course in self._courses.values() if course.waits]
        left = [course for course in waiting if self.store.is_durable and not run_events.has_begun(course.record)]
        for course in left:
            course.leave()
        if left:
            log.info("runs that had not begun are left to the next sidecar", extra={"runs": len(left)})
        self._stop([course for course in waiting if course not in left], "before it could run")

    async def close(self, grace_s: float) -> None:
        """Begins no more runs, waits up to `grace_s` for runs in progress, then ends them and stores their end."""
        self.drain()
        if self._courses:  # reports what the shutdown waits for
            log.info("runs are under way", extra={"runs": len(self._courses), "grace_s": round(grace_s, 1)})
        await self.worker.wait(grace_s)
        if self._courses:
            log.warning("runs did not end in time, and are ended", extra={"runs": len(self._courses)})
        self._stop(list(self._courses.values()), "while it ran")
        await self.worker.wait(ENDING_S)
        await self.worker.cancel()
        offers, self._offers = {*self._offers.values(), *self._retired}, {}
        await asyncio.gather(*(offer.runner.close(STOPPED) for offer in offers), *self._ending, return_exceptions=True)
        await self.held.close()

    # --- agents, internal ---------------------------------------------------------------------------------------------

    def _offered(self, name: str, definition: CliAgent) -> RunOffer:
        known, variables = self._offers.get(name), definition.all_env()
        if known is not None and known.definition == definition and known.variables == variables:
            return known
        turns = self._turns.setdefault(name, RunSlots(definition.places, definition.max_queue))
        return RunOffer(name, definition, self.make_runner(name, definition), turns, variables)

    def _offer_of(self, name: str) -> RunOffer:
        if name not in self._offers:
            raise Refusal(Reason.DRAINING if self.closing.is_set() else Reason.UPSTREAM_UNKNOWN)
        return self._offers[name]

    def _let_go_of_retired(self) -> None:
        if self.closing.is_set():
            return
        used = {course.offer for course in self._courses.values()}
        for offer in self._retired - used:
            self._retired.discard(offer)
            closing = asyncio.create_task(offer.runner.close(), name=f"ends agent {offer.name}")
            self._ending.add(closing)
            closing.add_done_callback(self._ending.discard)

    # --- runs, internal -----------------------------------------------------------------------------------------------

    async def _enter(
        self, offer: RunOffer, record: Execution, prompt: Prompt, keep: Callable[[], Awaitable[None]]
    ) -> Execution:
        """Takes a place in the queue, stores the run, and starts it, in this order, so that a run for which there is no
        place is never stored."""
        if self.closing.is_set():
            raise Refusal(Reason.DRAINING)
        place = offer.turns.enter(record.owner)
        course = self._courses[record.id] = RunLifecycle(self, offer, record, prompt, place)
        try:
            await keep()
        except BaseException:
            del self._courses[record.id]
            course.end()
            self.held.refuse(record.id)  # it may nevertheless be stored, and must not run
            raise
        self.worker.begin(record.id, course, course.run)
        return course.record

    async def _kept(self, run_id: str) -> Execution:
        record = await self.get(run_id)
        if record is None:
            raise Refusal(Reason.TASK_UNKNOWN)
        return record

    async def _has_left(self, run_id: str) -> bool:
        """Waits for a finished run that is still cleaning up here: a caller may answer or cancel it at once."""
        await self.worker.wait(ENDING_S, only=(run_id,))
        return run_id not in self._courses

    async def _cancel_kept(self, run_id: str, why: str) -> Execution:
        until_s, asked = time.monotonic() + CANCEL_S, False
        while True:
            record = await self._kept(run_id)
            if record.is_done and not (asked and record.status is RunStatus.CANCELLED):
                if record.task["status"]["state"] not in run_events.WAITS:
                    raise Refusal(Reason.NOT_CANCELABLE)
                await self.store.replace(_lapsed(record, why, self.clock()))
                asked = True
                continue
            if record.is_done or time.monotonic() >= until_s:
                return record
            if not record.cancel_requested:
                await self.store.replace(record._replace(cancel_requested=True, revision=record.revision + 1))
            asked = True
            await asyncio.sleep(FOLLOW_EVERY_S / 4)

    # --- ownership of runs --------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        self.review()
        self.measure()
        now_s = time.monotonic()
        if now_s - self._looked_s >= (LOOK_EVERY_S if self.held.is_shared else LOOK_ALONE_EVERY_S):
            self._looked_s = now_s
            await self._take()

    async def _take(self) -> None:
        known = {one: course.saving.revision for one, course in self._courses.items()}
        for record in await self.held.take(known, own_first=True):
            if (course := self._courses.get(record.id)) is not None:
                course.saving.look(record)
            elif not self.closing.is_set():
                await self._orphaned(record)
        if self.held.lapsed:  # others may have taken this process's runs for orphaned: the next write shows it
            for course in self._courses.values():
                course.saving.doubted = True
                course.saving.moved()

    async def _sweep(self) -> None:
        await asyncio.to_thread(working_folders.sweep)
        await self.store.sweep(self.clock())

    async def _orphaned(self, record: Execution) -> None:
        """Takes up or ends a run that no process held; a write fails if it has changed since. Raises RecordStoreOut."""
        offer = self._offers.get(record.target)
        if record.id in self.held.refused:
            await self._left_behind(record, UNKEPT)
        elif record.cancel_requested or run_events.has_begun(record) or offer is None:
            await self._left_behind(record, STOPPED)
        elif (why := self.withdrawn(record, run_events.skill_of(record.task))) is not None:
            await self._left_behind(record, why)
        elif isinstance(prompt := prompt_from(run_events.message_of(record.task), offer.definition), Prompt):
            await self._take_up(offer, record, prompt)
        else:
            await self._left_behind(record, STOPPED)

    async def _take_up(self, offer: RunOffer, record: Execution, prompt: Prompt) -> None:
        """Queues the run here; if there is no room, the next look tries again."""
        anew = run_events.taken_up(record, self.clock())

        async def keep() -> None:
            if not await self.store.replace(anew):
                raise Refusal(Reason.TASK_UNKNOWN)

        try:
            await self._enter(offer, anew, prompt, keep)
        except Refusal:
            self.held.refused.pop(record.id, None)
        else:
            log.info("a run that had not begun is taken up", extra={"run": record.id, "agent": record.target})

    async def _left_behind(self, record: Execution, why: str) -> None:
        ended = run_events.left_behind(record, why, self.clock(), self.keep_s())
        if await self.store.replace(ended) and ended.status is not None and record.status is None:
            self.metrics.agent_ran(record.target, ended.status)
            log.warning(
                "a run was left by a process that is gone, and has failed",
                extra={"run": record.id, "agent": record.target},
            )
        self.held.refused.pop(record.id, None)

    def _stop(self, courses: list[RunLifecycle], when: str) -> None:
        why = f"{STOPPED} {when}"
        for course in courses:
            course.give_up(RunState.FAILED, why, Category.SYSTEM)


def _lapsed(record: Execution, why: str, now_s: float) -> Execution:
    task, _ = run_events.stood(record.task, CANCELED, why, now_s)
    open_ = record._replace(status=None, task=task, revision=record.revision + 1)
    return open_.moved(RunState.CANCELLED, now_s, why).moved(RunState.CLEANUP, now_s).moved(RunState.IDLE, now_s)


def _waits(record: Execution, definition: CliAgent, prompt: Prompt, why: Transition) -> Execution:
    return record._replace(
        input=kept_beginning(prompt.text, MAX_INPUT_CHARS),
        transitions=(*record.transitions, why),
        max_retries=definition.tries - 1,
        timeout_s=definition.timeout,
    )
