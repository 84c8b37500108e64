"""Runs the tasks that this sidecar holds: a kind of job (`tasks/worker.py`) that another process may continue."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.observability.metrics import Metrics
from sidecar.storage import AddedRecord, RecordBounds, RecordShare, RecordStoreOut
from sidecar.tasks.api.task_lifecycle import TaskLifecycle, TaskServices
from sidecar.tasks.api.task_record import Task, TaskState, TaskStep
from sidecar.tasks.worker import HeldRecords, Worker
from sidecar.vocabulary import Caller

FILE: Final = "file"  # the holder for records in a file, which no other process takes
LOOK_EVERY_S: Final = 3.0
RESERVED_S: Final = 12.0  # more than two intervals between the progress notifications of a held call
SHARE: Final = RecordShare()  # of tasks in progress; those that wait for approval have room of their own
HELD: Final = RecordShare(SHARE.total + 10_000, SHARE.per_owner + 1_000)


@dataclass(slots=True)
class TaskRunner:
    means: TaskServices
    metrics: Metrics
    holder: str
    held: HeldRecords[Task] = field(init=False)
    worker: Worker[TaskLifecycle] = field(init=False)
    _reserved: dict[str, float] = field(default_factory=dict)
    _closing: bool = False

    def __post_init__(self) -> None:
        self.held = HeldRecords(self.means.store, self.holder, self.means.live.clock, HELD)
        self.worker = Worker("tasks", self._take_up, self.held.sweep, lambda: LOOK_EVERY_S)

    async def add(self, record: Task, *, once_more: bool = False) -> bool:
        """Stores a new task; False if its id exists. If the store does not answer, or this call is cancelled, a task
        that may be stored is cancelled later, unless the same task is ordered `once_more`. Raises Refusal:
        TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
        try:
            rules = self.means.rules
            added = await self.held.add(record, RecordBounds(rules.max_per_principal, rules.max))
        except (RecordStoreOut, asyncio.CancelledError):
            if not once_more:
                self.held.refuse(record.id)
            raise
        if added is AddedRecord.FULL:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many tasks")
        self.held.refused.pop(record.id, None)  # it was ordered again
        return added is AddedRecord.KEPT

    def begin(self, record: Task, caller: Caller) -> None:
        """Begins a task that this process holds, unless it is in progress or reserved. Beyond the bounds it waits for a
        later look."""
        jobs = self.worker.jobs
        if self._reserved.get(record.id, 0.0) > asyncio.get_running_loop().time():
            return
        if self._closing or record.id in jobs or len(jobs) >= HELD.total or not self._has_room(record):
            return
        course = TaskLifecycle(self.means, record, caller)
        self.worker.begin(record.id, course, course.run)

    def _has_room(self, record: Task) -> bool:
        if record.state is TaskState.WAITING:
            return True
        owners = [one.record.owner for one in self.worker.jobs.values() if one.record.state is not TaskState.WAITING]
        return len(owners) < SHARE.total and owners.count(record.owner) < SHARE.per_owner

    def reserve(self, task_id: str, for_s: float = RESERVED_S) -> None:
        """Leaves a task to the request that stores it, or waits with it: that request begins it, reserves it again in
        time, or sends it."""
        now_s = asyncio.get_running_loop().time()
        self._reserved = {known: until_s for known, until_s in self._reserved.items() if until_s > now_s}
        self._reserved[task_id] = now_s + for_s

    def release(self, record: Task) -> None:
        """Begins a task that was reserved."""
        self.unreserve(record.id)
        self.begin(record, record.caller)

    def unreserve(self, task_id: str) -> None:
        self._reserved.pop(task_id, None)

    def wake(self, record: Task) -> None:
        if (course := self.worker.jobs.get(record.id)) is not None:
            course.awake.set()
        else:
            self.begin(record, record.caller)

    def go_on(self, record: Task, caller: Caller) -> None:
        """Sends an approved task whose agent receives its caller's own token, which is not stored, with that token."""
        if (course := self.worker.jobs.get(record.id)) is not None:
            course.caller = caller
            course.awake.set()
        else:
            self.begin(record, caller)

    async def end(self, record: Task, state: TaskState) -> Task | None:
        """Stores a task's end. Returns None if the stored task has changed in the meantime. Raises
        Refusal(STORE_UNAVAILABLE)."""
        ended = record.ended(state, self.means.live.clock())._replace(revision=record.revision + 1)
        if not await self.means.store.replace(ended):
            return None
        self.wake(ended)
        return ended

    async def revoke(self, record: Task) -> None:
        """Ends a stored task whose caller receives a refusal, before it begins and without a callback. If the store
        does not answer, a later look ends it."""
        self.held.refuse(record.id)
        with suppress(RecordStoreOut):
            await self.end(record._replace(callback_url=""), TaskState.CANCELLED)
            self.held.refused.pop(record.id, None)

    async def stop(self, grace_s: float) -> None:
        """Begins nothing more, and waits up to `grace_s` for messages being sent; the next start continues the rest."""
        self._closing = True
        # The outcome of a send that is interrupted is never known.
        sending = [task_id for task_id, one in self.worker.jobs.items() if one.record.step is TaskStep.SENDING]
        for task_id in self.worker.tasks.keys() - set(sending):
            self.worker.tasks[task_id].cancel()
        await self.worker.wait(grace_s, only=sending)
        await self.worker.cancel()
        await self.held.close()

    async def _take_up(self) -> None:
        known = {task_id: course.record.revision for task_id, course in self.worker.jobs.items()}
        for record in await self.held.take(known):
            if record.id in self.held.refused:
                # Its caller received a refusal, or is gone: it ends, without a callback.
                untold = record._replace(callback_url="", revision=record.revision + 1)
                await self.means.store.replace(untold.ended(TaskState.CANCELLED, self.means.live.clock()))
                self.held.refused.pop(record.id, None)
            else:
                self.begin(record, record.caller)
        self.metrics.tasks(await self.means.store.counts())
