"""Runs the tasks that this sidecar holds.

Each unfinished task is held by one process. This process takes its own tasks and those whose hold has lapsed, runs each
(`task_lifecycle.py`), and keeps extending its holds. If it dies, another process takes over, or it continues after a
restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.observability.metrics import Metrics
from sidecar.storage import AddedRecord, RecordBounds, RecordShare, RecordStoreOut, UnreadableRecord
from sidecar.tasks.api.task_lifecycle import TaskLifecycle, TaskServices
from sidecar.tasks.api.task_record import Task, TaskState
from sidecar.vocabulary import Caller

FILE: Final = "file"  # the holder for records in a file, which no other process takes
HELD_S: Final = 15.0
LOOK_EVERY_S: Final = 3.0
SWEEP_EVERY_S: Final = 60.0
SHARE: Final = RecordShare()
MAX_UNTAKEN: Final = 1_000

log = logging.getLogger("sidecar.tasks.api")


@dataclass(slots=True)
class TaskRunner:
    """Runs the tasks held as `holder`."""

    means: TaskServices
    metrics: Metrics
    holder: str
    bounds: Callable[[], RecordBounds]
    _courses: dict[str, tuple[TaskLifecycle, asyncio.Task[None]]] = field(default_factory=dict)
    _untaken: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _swept_s: float = float("-inf")
    _closing: bool = False

    async def add(self, record: Task, *, once_more: bool = False) -> bool:
        """Stores a new task, held by this process. Returns False if a task with this id exists, which stays unchanged.
        `once_more` means that the caller repeats an order whose answer is lost. Raises Refusal: TOO_MANY_CONCURRENT,
        STORE_UNAVAILABLE."""
        until_s = self.means.live.clock() + HELD_S
        try:
            added = await self.means.store.add(record, self.holder, until_s, self.bounds())
        except RecordStoreOut as out:
            if not once_more:
                self._take_back_later(record)
            raise unavailable(out) from None
        if added is AddedRecord.FULL:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many tasks")
        return added is AddedRecord.KEPT

    def begin(self, record: Task, caller: Caller) -> None:
        """Begins a task that this process holds; beyond the bounds in total or per owner, it waits for the next
        look."""
        if self._closing or record.id in self._courses or len(self._courses) >= SHARE.total:
            return
        if sum(other.record.owner == record.owner for other, _ in self._courses.values()) >= SHARE.per_owner:
            return
        course = TaskLifecycle(self.means, record, caller)
        task = asyncio.create_task(self._see_to(course), name=f"task {record.id}")
        self._courses[record.id] = course, task
        task.add_done_callback(lambda _: self._courses.pop(record.id, None))

    def wake(self, record: Task) -> None:
        """Makes the task's course look at once, because something changed."""
        if record.id in self._courses:
            self._courses[record.id][0].awake.set()
        else:
            self.begin(record, record.caller)

    async def end(self, record: Task, state: TaskState) -> Task | None:
        """Stores a task's end. Returns None if another process was faster. Raises Refusal(STORE_UNAVAILABLE)."""
        ended = record.ended(state, self.means.live.clock())
        ended = ended._replace(revision=record.revision + 1)
        try:
            if not await self.means.store.replace(ended):
                return None
        except RecordStoreOut as out:
            raise unavailable(out) from None
        self.wake(ended)
        return ended

    async def run(self) -> None:
        """Takes up tasks until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Takes up tasks now."""
        with suppress(RecordStoreOut):  # `up` reports it, and the next look is soon
            now_s = self.means.live.clock()
            for record in await self.means.store.take(self.holder, now_s, now_s + HELD_S, SHARE):
                if record.id in self._untaken:
                    await self._take_back(record, now_s)
                else:
                    self.begin(record, record.caller)
            self.metrics.tasks(await self.means.store.counts())
            if asyncio.get_running_loop().time() - self._swept_s >= SWEEP_EVERY_S:  # whatever the clock says
                self._swept_s = asyncio.get_running_loop().time()
                await self.means.store.sweep(now_s)

    def _take_back_later(self, record: Task) -> None:
        """Notes a task that may be stored although its caller was told that it was not."""
        self._untaken[record.id] = None
        while len(self._untaken) > MAX_UNTAKEN:
            self._untaken.popitem(last=False)

    async def _take_back(self, record: Task, now_s: float) -> None:
        """Ends a task that its caller was told was not accepted, without a callback."""
        untold = record._replace(callback_url="", revision=record.revision + 1)
        await self.means.store.replace(untold.ended(TaskState.CANCELLED, now_s))
        del self._untaken[record.id]

    async def stop(self, grace_s: float) -> None:
        """Begins nothing more, and waits up to `grace_s` for messages being sent; other tasks continue after the next
        start."""
        self._closing = True
        sending = [task for course, task in self._courses.values() if course.is_sending]
        for course, task in list(self._courses.values()):
            if not course.is_sending:
                task.cancel()
        if sending:
            await asyncio.wait(sending, timeout=grace_s)
        tasks = [task for _, task in self._courses.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(RecordStoreOut):
            await self.means.store.let_go(self.holder)
        await self.means.store.close()

    async def _see_to(self, course: TaskLifecycle) -> None:
        try:
            await course.run()
        except RecordStoreOut as out:  # still held: the next look begins it again
            log.warning("the store of tasks is out", extra={"error": str(out)})
        except Exception:  # a bug in one task must not stop the others
            log.exception("bug", extra={"task": course.record.id})
            with suppress(Exception):
                await course.broken()


def unavailable(out: RecordStoreOut) -> Refusal:
    """Returns the Refusal for a store that is out."""
    if isinstance(out, UnreadableRecord):
        return Refusal(Reason.STORE_UNAVAILABLE, str(out))
    return Refusal(Reason.STORE_UNAVAILABLE)
