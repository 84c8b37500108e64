"""Carries one run from its order to its end.

    idle        waits for its turn here, and across replicas if it writes; or is cancelled, or waits too long
    starting    an attempt is about to begin; the store records this before the first one, and before a later one
                unless this process surely holds the run
    running     the program's output goes to subscribers, and at most once a second to the store
    failed      for good, or until the next attempt
    cleanup     the end is known; the rest of the program is ended
    idle        nothing is left of it, its slot is free and its end is stored; now subscribers get the end

Subscribers get an end only once the store has it, unless the store is unavailable. An end that was sent is final.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import (
    CANCELED,
    FAILED,
    AttemptEnd,
    Event,
    OutputChunk,
    ProgramOrder,
    ProgramRunner,
    Prompt,
    Started,
    rest_s,
)
from sidecar.tasks.programs.broadcast import Broadcast
from sidecar.tasks.programs.concurrency import RunSlot, RunSlots
from sidecar.tasks.programs.run_events import StreamResponse, Told, after, anew, stood
from sidecar.tasks.programs.run_record import Attempt, Category, Execution, Failure, RunState, RunStatus, Usage
from sidecar.tasks.programs.run_saver import RunSaver
from sidecar.tasks.programs.stored_text import KeptEnd, sanitized
from sidecar.tasks.programs.write_leases import WriteLease
from sidecar.tasks.worker import to_its_end

if TYPE_CHECKING:
    from sidecar.tasks.programs.executions import Executions

MAX_OUTPUT_CHARS: Final = 16 * 1024
OVERTIME_S: Final = 10.0  # an attempt ends at its deadline; if it does not, it is ended this much later
TOLD_WITHIN_S: Final = 2.0
UNSURE: Final = "the store did not confirm in time that this process still holds it"

log = logging.getLogger("sidecar.tasks.programs")


@dataclass(slots=True, eq=False)
class RunOffer:
    """An agent in force now, or when a run was ordered. `variables` is its program's environment, files included."""

    name: str
    definition: CliAgent
    runner: ProgramRunner
    turns: RunSlots
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True, eq=False)
class RunLifecycle:
    """One run. `record` is its current state."""

    means: Executions
    offer: RunOffer
    record: Execution
    prompt: Prompt
    place: RunSlot
    hearers: Broadcast = field(init=False)
    saving: RunSaver = field(init=False)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _body: asyncio.Task[None] | None = None
    _lease: WriteLease | None = None
    _last: tuple[StreamResponse, ...] = ()
    _said: KeptEnd = field(default_factory=partial(KeptEnd, MAX_OUTPUT_CHARS))

    def __post_init__(self) -> None:
        self.hearers = Broadcast(lambda: self.record.task)
        self.saving = RunSaver(self.means.held, self.means.bounds, self._newest, self._asked, self._lost)

    async def run(self) -> None:
        """Runs it to its end. Cancelling this call leaves the record like a crash would; use `give_up` to end the
        run."""
        saving = asyncio.create_task(self.saving.run(), name=f"keeps run {self.record.id}")
        try:
            if not self.is_ending:
                self._body = asyncio.create_task(self._to_its_end(), name=f"run {self.record.id}")
                await asyncio.wait({self._body})
                if not self._body.cancelled() and (error := self._body.exception()) is not None:
                    log.error("bug", extra={"run": self.record.id}, exc_info=error)
                if not self.is_ending:  # after a bug, which affects this run only
                    self._fails(RunState.FAILED, Failure(Category.SYSTEM, "internal error"))
            self.offer.turns.leave(self.place)
            if not self.saving.is_lost:
                self._move(RunState.IDLE)
            await self._settled()
            self.hearers.tell(self._last)
            self.end()
            await self.saving.settle()
        finally:
            saving.cancel()
            if self._body is not None and not self._body.done():
                self._body.cancel()
                await asyncio.wait({self._body})
            self.end()

    async def shown(self) -> Execution:
        """Returns the run for callers: with its end only once the store has it, unless the store is unavailable."""
        if self.is_ending:
            await self._settled()
        return self._newest()

    def give_up(self, state: RunState, why: str, category: Category | None = None) -> None:
        """Ends the run if it has not ended. The first reason is final; with a category it is a failure."""
        if self.is_ending:
            return
        if category is not None:
            self.record = self.record._replace(failure=Failure(category, why))
        self._ends(state, why, stood(self.record.task, _AS_TOLD[state], why, self._now()))
        if self._body is not None:
            self._body.cancel()

    def leave(self) -> None:
        """Leaves the run to another process, as stored. Only while it `waits` and no attempt has begun."""
        self._last = ({"task": self.record.task},)
        self.saving.leave()
        if self._body is not None:
            self._body.cancel()

    @property
    def waits(self) -> bool:
        return self.record.state in (RunState.IDLE, RunState.FAILED) and not self.is_ending

    @property
    def is_ending(self) -> bool:
        """Whether its end is known or another process has it."""
        return self.record.state is RunState.CLEANUP or self.record.is_done or self.saving.is_lost

    async def _to_its_end(self) -> None:
        definition, leases = self.offer.definition, self.means.leases
        keeping: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(definition.queue_timeout):
                await self.place.turn.wait()
                if definition.writes and leases is None:
                    await asyncio.sleep(max(0.0, self.means.writes_from_mono_s - time.monotonic()))
                elif definition.writes and leases is not None:
                    self._lease = leases.of(self.offer.name, self.record.id)
                    await self._lease.come()
                    keeping = asyncio.create_task(self._keep(self._lease))
        except TimeoutError:
            why = f"its turn did not come within {definition.queue_timeout:g} s"
            self._fails(RunState.TIMEOUT, Failure(Category.SYSTEM, why))
            return
        self.place.at_work = True
        try:
            attempt = 1
            while (pause_s := await self._try(attempt)) is not None:
                attempt += 1
                failure = self.record.failure.message if self.record.failure else ""
                told = f"{failure}; try {attempt} of {definition.tries} begins in {pause_s:.1f} s"
                self._tell(anew(self.record.task, told, self._now()))
                await asyncio.sleep(pause_s)
        finally:
            if keeping is not None and self._lease is not None:
                keeping.cancel()
                await self._lease.leave()

    async def _keep(self, lease: WriteLease) -> None:
        await lease.keep()
        self.give_up(RunState.FAILED, lease.why, Category.SYSTEM)

    async def _may_begin(self, attempt: int) -> bool:
        """Whether an attempt may begin. The store must record the first one, so that no other process takes the run,
        and a later one unless this process surely holds the run."""
        if attempt > 1 and self.means.held.is_sure:
            return True
        try:
            async with asyncio.timeout(self.offer.definition.queue_timeout):
                await self.saving.settle()
        except TimeoutError:
            self._fails(RunState.FAILED, Failure(Category.SYSTEM, UNSURE))
            return False
        return not self.saving.is_lost

    async def _try(self, attempt: int) -> float | None:
        """Makes one attempt, until no part of it is left. Returns the delay in seconds before the next, or None."""
        record, timeout_s = self.record, self.offer.definition.timeout
        self._move(
            RunState.STARTING,
            "its turn came" if attempt == 1 else f"try {attempt}",
            previous_tries=record.previous_tries if attempt == 1 else (*record.previous_tries, _last_try(record)),
            **_NOTHING_YET,
        )
        if not await self._may_begin(attempt):
            return None
        self._said = KeptEnd(MAX_OUTPUT_CHARS)
        whose = (record.id, record.id, record.context, record.owner, self.prompt, timeout_s, attempt, record.caller)
        told = self.offer.runner.run(ProgramOrder(*whose, None if self._lease is None else self._lease.term))
        ended = AttemptEnd(None, Usage(), Failure(Category.SYSTEM, "its end was not reported"))
        try:
            async with asyncio.timeout(timeout_s + OVERTIME_S):
                async for event in told:
                    if isinstance(event, AttemptEnd):
                        return self._ended(event, attempt)
                    self._hear(event)
        except TimeoutError:
            ended = AttemptEnd(None, Usage(), timed_out=True)
        finally:
            await to_its_end(told.aclose())
        return self._ended(ended, attempt)

    def _hear(self, event: Event) -> None:
        if self.is_ending:
            return
        if self.record.state is RunState.STARTING:
            resumed = isinstance(event, Started) and event.resumed
            self._move(RunState.RUNNING, "in the process of its conversation" if resumed else "")
        if isinstance(event, Started):
            self.record = self.record._replace(pid=event.pid)
        elif isinstance(event, OutputChunk):
            self._said.add(event.text)
            size = self.record.output_bytes + len(event.text.encode())
            self.record = self.record._replace(output_bytes=size)
        self._tell(after(self.record.task, event, self._now()))

    def _ended(self, event: AttemptEnd, attempt: int) -> float | None:
        """Records the end of an attempt. Returns the delay in seconds before the next, or None."""
        if self.saving.is_lost:
            return None
        if self._lease is not None and self._lease.is_over and not self.is_ending:
            # The warden may have ended the program, whose reaction then says nothing about the result.
            event = replace(event, failure=Failure(Category.SYSTEM, self._lease.why), timed_out=False, message=())
        if event.timed_out and event.failure is None:
            why = f"it did not end within {self.offer.definition.timeout:g} s"
            event = replace(event, failure=Failure(Category.AGENT, why))
        failure = event.failure
        if failure is None and event.state in _FAILURES:
            words = " ".join(part["text"] for part in event.message if isinstance(part.get("text"), str))
            failure = Failure(Category.AGENT, words or "it says so")
        if failure is not None:  # it may be the program's text, which is stored without secrets
            failure = failure._replace(message=sanitized(failure.message))
        code, number = (None, None) if event.exit is None else event.exit
        self.record = self.record._replace(exit_code=code, signal=number, usage=event.usage)
        if self.is_ending:
            return None
        self.record = self.record._replace(failure=failure)
        state, why = _state_of(event), "" if failure is None else failure.message
        if state is RunState.COMPLETED and self.record.state is RunState.STARTING:
            self._move(RunState.RUNNING)
        rest = None
        if not self.means.closing.is_set():
            rest = rest_s(self.offer.definition, event, attempt, self.means.random)
        if rest is None:
            self._ends(state, why, after(self.record.task, event, self._now()))
        else:
            self._move(state, why)
        return rest

    def _fails(self, state: RunState, failure: Failure) -> None:
        self.record = self.record._replace(failure=failure)
        timed_out = state is RunState.TIMEOUT
        told = stood(self.record.task, FAILED, failure.message, self._now(), timed_out=timed_out)
        self._ends(state, failure.message, told)

    def _ends(self, state: RunState, why: str, told: Told) -> None:
        task, self._last = told
        self.record = self.record._replace(task=task)
        if self.record.state is not state:  # a run that waited for its next attempt has already failed
            self._move(state, why)
        self._move(RunState.CLEANUP)
        if self.record.status is not None:
            self.means.metrics.agent_ran(self.offer.name, self.record.status)

    def _move(self, state: RunState, why: str = "", **facts: Any) -> None:
        if state is RunState.IDLE:
            facts["expires_at"] = self._now() + self.means.keep_s()
        self.record = self.record.moved(state, self._now(), why, **facts)
        self.saving.moved()
        about = {"run": self.record.id, "agent": self.offer.name, "state": state.value}
        if self.record.failure is not None:  # its message is not logged: it may be the program's or the caller's text
            about["category"] = self.record.failure.category.value
        log.info("a run changed its state", extra=about)

    def _tell(self, told: Told) -> None:
        task, events = told
        self.record = self.record._replace(task=task)
        self.saving.spoke()
        self.hearers.tell(events)

    def _newest(self) -> Execution:
        """Returns the run with the stored part of its output, which is expensive and therefore computed on demand."""
        if output := self._said.text():
            self.record = self.record._replace(output=output)
        return self.record

    def _asked(self) -> None:
        self.record = self.record._replace(cancel_requested=True)
        self.give_up(RunState.CANCELLED, "it was cancelled")

    def _lost(self, theirs: Execution | None) -> None:
        """Stops the run, because another process ended it. Its record replaces this one; None if there is none."""
        log.warning("another process ended a run of this process, which stops it", extra={"run": self.record.id})
        self._said = KeptEnd(MAX_OUTPUT_CHARS)
        if theirs is not None:
            self.record, self._last = theirs, ({"task": theirs.task},)
        else:
            self._last = stood(self.record.task, FAILED, "no record of it is stored any more", self._now())[1]
        if self._body is not None:
            self._body.cancel()

    async def _settled(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_WITHIN_S):
                await self.saving.settle()

    def end(self) -> None:
        self.offer.turns.leave(self.place)
        self.hearers.end()
        self.over.set()

    def _now(self) -> float:
        return self.means.held.clock()


# The values at the beginning of an attempt.
_NOTHING_YET: Final[Mapping[str, Any]] = {
    "pid": None, "exit_code": None, "signal": None, "failure": None, "usage": Usage(), "output": "", "output_bytes": 0,
}  # fmt: skip
_AS_TOLD: Final = {RunState.CANCELLED: CANCELED, RunState.FAILED: FAILED, RunState.TIMEOUT: FAILED}
_FAILURES: Final = (FAILED, "TASK_STATE_REJECTED")


def _state_of(event: AttemptEnd) -> RunState:
    if event.timed_out:
        return RunState.TIMEOUT
    if event.failure is not None or event.state in _FAILURES:
        return RunState.FAILED
    return RunState.CANCELLED if event.state == CANCELED else RunState.COMPLETED


def _last_try(record: Execution) -> Attempt:
    began = next(one.at for one in reversed(record.transitions) if one.state is RunState.STARTING)
    began, ended = record.started_at or began, record.ended_at or began
    status = record.status or RunStatus.FAILURE
    about = (record.pid, record.exit_code, record.signal, record.failure, record.usage)
    return Attempt(began, ended, status, *about)
