"""Runs durable jobs: takes due work, holds it, runs it, retries it, and cleans up.

    kind of job                    record             holder              a look takes
    task of the task API           Task               one replica         tasks that no live process holds
    run of a CLI program           Execution          one replica         runs left by a process that ended
    schedule                       ScheduleStanding   one replica         schedules that no live process holds
    delivery of a webhook          Delivery           this data folder    deliveries left by an earlier process

`Worker` is the loop and the jobs in progress. `HeldRecords` is the lease: a process extends its hold on its records
with each look, and another process may take records whose hold has lapsed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from sidecar.storage import AddedRecord, RecordBounds, RecordShare, RecordStore, RecordStoreOut
from sidecar.storage.record_store import NOTHING, R

HELD_S: Final = 15.0
SWEEP_EVERY_S: Final = 60.0
STORE_REST_S: Final = 1.0  # between two looks at an unavailable store
MAX_REFUSED: Final = 1_000

J = TypeVar("J")
T = TypeVar("T")

log = logging.getLogger("sidecar.tasks")


@dataclass(slots=True, eq=False)
class Worker(Generic[J]):
    """Looks for work of one kind, and runs its jobs. `name` is the plural for logs. `look` begins due work, and `sweep`
    deletes expired records; both may raise RecordStoreOut. `wake` ends the pause between looks."""

    name: str
    look: Callable[[], Awaitable[object]]
    sweep: Callable[[], Awaitable[object]]
    pause_s: Callable[[], float]
    ended: Callable[[], object] = lambda: None
    sweep_every_s: float = SWEEP_EVERY_S
    jobs: dict[str, J] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _awake: asyncio.Event = field(default_factory=asyncio.Event)
    _swept_s: float = float("-inf")
    _is_out: bool = False

    async def run(self) -> None:
        """Begins work until cancelled. Jobs in progress are not cancelled with it."""
        while True:
            self._awake.clear()
            pause_s = self.pause_s() if await self.turn() else min(STORE_REST_S, self.pause_s())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause_s)):
                    await self._awake.wait()

    async def turn(self) -> bool:
        """Looks once, and sweeps if it is time. Returns whether the store answered."""
        try:
            await self.look()
            now_s = time.monotonic()  # independent of the clock
            if now_s - self._swept_s >= self.sweep_every_s:
                self._swept_s = now_s
                await self.sweep()
        except RecordStoreOut as out:
            if not self._is_out:  # once, not with each look
                log.warning(f"the store of {self.name} is unavailable", extra={"error": str(out)})
            self._is_out = True
            return False
        self._is_out = False
        return True

    def wake(self) -> None:
        self._awake.set()

    def begin(self, job_id: str, job: J, doing: Callable[[], Awaitable[None]]) -> None:
        self.jobs[job_id] = job
        task = self.tasks[job_id] = asyncio.create_task(self._see_to(job_id, doing), name=f"{self.name}: {job_id}")
        task.add_done_callback(lambda _: self._over(job_id, task))

    async def wait(self, limit_s: float | None = None, *, only: Collection[str] | None = None) -> None:
        if tasks := [task for job_id, task in self.tasks.items() if only is None or job_id in only]:
            await asyncio.wait(tasks, timeout=limit_s)

    async def cancel(self) -> None:
        for task in list(self.tasks.values()):
            task.cancel()
        await self.wait()

    async def _see_to(self, job_id: str, doing: Callable[[], Awaitable[None]]) -> None:
        try:
            await doing()
        except RecordStoreOut as out:  # still held: a later look begins it again
            log.warning(f"the store of {self.name} is unavailable", extra={"job": job_id, "error": str(out)})
        except Exception:  # a bug in one job must not stop the others
            log.exception("bug", extra={"job": job_id})

    def _over(self, job_id: str, task: asyncio.Task[None]) -> None:
        if self.tasks.get(job_id) is task:  # otherwise it has begun again
            del self.jobs[job_id], self.tasks[job_id]
        self.ended()


@dataclass(slots=True, eq=False)
class HeldRecords(Generic[R]):
    """The records of one kind that this process holds as `holder`. Unless the store `is_shared`, no other process can
    take them. `refused` are records that may be stored although their callers received a refusal."""

    store: RecordStore[R]
    holder: str
    clock: Callable[[], float]
    share: RecordShare = RecordShare()  # noqa: RUF009 - immutable
    is_shared: bool = True
    refused: dict[str, None] = field(default_factory=dict)
    lapsed: bool = False
    _held_s: float = float("-inf")
    _regular_since_s: float = float("-inf")

    @property
    def until_s(self) -> float:
        return self.clock() + HELD_S

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have taken the records of this process."""
        return not self.is_shared or time.monotonic() - self._held_s < HELD_S

    async def add(self, record: R, bounds: RecordBounds) -> AddedRecord:
        return await self.store.add(record, self.holder, self.until_s, bounds)

    async def take(self, known: Mapping[str, int] = NOTHING, *, own_first: bool = False) -> list[R]:
        """Extends this process's holds, takes what no process holds, and returns both except for revisions in `known`.
        `lapsed` then is whether others may have taken its records. After an outage every hold has lapsed; with
        `own_first`, each process extends its own for `HELD_S` before it takes others'. Raises RecordStoreOut."""
        now_s, mono_s = self.clock(), time.monotonic()
        if mono_s - self._held_s > HELD_S / 3:
            self._regular_since_s = mono_s
        free_by_s = 0.0 if own_first and mono_s - self._regular_since_s < HELD_S else now_s
        taken = await self.store.take(self.holder, free_by_s, now_s + HELD_S, self.share, known)
        self.lapsed, self._held_s = mono_s - self._held_s > HELD_S, mono_s
        return taken

    async def sweep(self) -> None:
        await self.store.sweep(self.clock())

    def refuse(self, record_id: str) -> None:
        """Notes a record whose caller received a refusal."""
        self.refused[record_id] = None
        while len(self.refused) > MAX_REFUSED:
            del self.refused[next(iter(self.refused))]

    async def close(self) -> None:
        with suppress(RecordStoreOut):
            await self.store.let_go(self.holder)


async def no_sweep() -> None:
    """Sweeps a store in which nothing expires."""


def backoff_s(first_s: float, most_s: float, failed: int, spread: tuple[float, float], chance: float) -> float:
    """Returns the delay in seconds after `failed` failed attempts: `first_s`, doubled with each further one, at most
    `most_s`, times a factor within `spread` that `chance` (0 to 1) chooses, so that simultaneous failures are not
    retried simultaneously."""
    low, high = spread
    return min(most_s, first_s * 2.0 ** min(failed - 1, 40)) * (low + (high - low) * chance)


async def to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the coroutine's result. If this call is cancelled, it raises CancelledError once the coroutine is done,
    for work that must not be left half done."""
    ending = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.wait({ending})
        except asyncio.CancelledError as now:
            cancelled = now
    if cancelled is not None:
        raise cancelled
    return ending.result()
