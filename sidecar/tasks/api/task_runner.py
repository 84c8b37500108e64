"""Runs the tasks that this sidecar holds.

Every task that is not over is somebody's: this process takes what is its own and what nobody holds any more, and each
has its course (`task_lifecycle.py`). What it holds, it says so again and again; if it dies, another takes over, or it
does itself when it is started again.
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

FILE: Final = "file"  # who holds what is in a file: nobody else is there to take it up
HELD_S: Final = 15.0
LOOK_EVERY_S: Final = 3.0
SWEEP_EVERY_S: Final = 60.0
SHARE: Final = RecordShare()
MAX_UNTAKEN: Final = 1_000

log = logging.getLogger("sidecar.tasks.api")


@dataclass(slots=True)
class TaskRunner:
    """All tasks on our hands. `holder` is by whose name we hold them."""

    means: TaskServices
    metrics: Metrics
    holder: str
    bounds: Callable[[], RecordBounds]
    _courses: dict[str, tuple[TaskLifecycle, asyncio.Task[None]]] = field(default_factory=dict)
    _untaken: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _swept_s: float = float("-inf")
    _closing: bool = False

    async def add(self, record: Task, *, once_more: bool = False) -> bool:
        """Keep a new task; it is ours. False where there is one of this id, which stays as it is. `once_more` says that
        who does not hear of it orders it again. Raises Refusal: TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
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
        """Carry a task out that is ours; one too many, of all or of its owner, waits for the next look."""
        if self._closing or record.id in self._courses or len(self._courses) >= SHARE.total:
            return
        if sum(other.record.owner == record.owner for other, _ in self._courses.values()) >= SHARE.per_owner:
            return
        course = TaskLifecycle(self.means, record, caller)
        task = asyncio.create_task(self._see_to(course), name=f"task {record.id}")
        self._courses[record.id] = course, task
        task.add_done_callback(lambda _: self._courses.pop(record.id, None))

    def wake(self, record: Task) -> None:
        """Something became of it: whoever follows it looks at once."""
        if record.id in self._courses:
            self._courses[record.id][0].awake.set()
        else:
            self.begin(record, record.caller)

    async def end(self, record: Task, state: TaskState) -> Task | None:
        """Its end, on disk. None where somebody else was faster. Raises Refusal(STORE_UNAVAILABLE)."""
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
        """Take up what is to be done. Runs as long as the process."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Take up what is to be done now."""
        with suppress(RecordStoreOut):  # `up` says so, and the next look is soon
            now_s = self.means.live.clock()
            for record in await self.means.store.take(self.holder, now_s, now_s + HELD_S, SHARE):
                if record.id in self._untaken:
                    await self._take_back(record, now_s)
                else:
                    self.begin(record, record.caller)
            self.metrics.tasks(await self.means.store.counts())
            if asyncio.get_running_loop().time() - self._swept_s >= SWEEP_EVERY_S:  # however the clock was set
                self._swept_s = asyncio.get_running_loop().time()
                await self.means.store.sweep(now_s)

    def _take_back_later(self, record: Task) -> None:
        """It may be there all the same, and its caller hears that it is not."""
        self._untaken[record.id] = None
        while len(self._untaken) > MAX_UNTAKEN:
            self._untaken.popitem(last=False)

    async def _take_back(self, record: Task, now_s: float) -> None:
        """What its caller heard that it was not taken is over, and nobody is told."""
        untold = record._replace(callback_url="", revision=record.revision + 1)
        await self.means.store.replace(untold.ended(TaskState.CANCELLED, now_s))
        del self._untaken[record.id]

    async def stop(self, grace_s: float) -> None:
        """Begin nothing more; what is just being sent has a while for its answer, the rest goes on after the next
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
        except RecordStoreOut as out:  # it is still ours, and begun anew with the next look
            log.warning("the store of tasks is out", extra={"error": str(out)})
        except Exception:  # a bug in one task is no other task's trouble
            log.exception("bug", extra={"task": course.record.id})
            with suppress(Exception):
                await course.broken()


def unavailable(out: RecordStoreOut) -> Refusal:
    """A store that is out, as its caller hears it."""
    if isinstance(out, UnreadableRecord):
        return Refusal(Reason.STORE_UNAVAILABLE, str(out))
    return Refusal(Reason.STORE_UNAVAILABLE)
