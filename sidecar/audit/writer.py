"""Writes audit records: in the event loop while that is quick, otherwise in a thread, so that a slow disk blocks no
event loop.

Records are written in groups, so that all waiting callers share one append (group commit). The group is

    what one turn of the loop brings   if there is a `quick_append`: of a local file whose lines stay in the page cache.
                                       The loop does it; a record that is `alone` is appended in its caller's turn
    what came while the thread worked  for all other sinks and all other work

After its disk has stalled, a page cache accepts lines for a while, and then only the write itself shows it: that one
append blocks the loop, for as long as the system holds it. This is bounded in two ways. After an append of `SLOW_S` or
longer, the thread appends for `CALM_FACTOR` times as long as it took, so a disk that is repeatedly slow blocks the loop
for at most five per cent of the time. And the first append after `IDLE_S` without one is the thread's, so a disk that
stalled in the meantime delays only the calls whose records wait.

    waiting     records queued for the next append
    at work     records that the thread is writing
    stalled     the thread is late by `deadline_s`: waiting and new callers are refused until it returns. Its records
                may still be written: the log may contain more than callers know, never less

A sink is settled `SETTLE_S` after its last append, when no other has followed.

A record is not dropped while a caller waits for it. With `best_effort`, callers do not wait; a record that finds
`MAX_WAITING` queued records is dropped and counted. Before `start`, records are written synchronously.
"""

import asyncio
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol

from sidecar.audit.chain import Append, UnfitHead, Unsealed

DEADLINE_S: Final = 2.0
MAX_AT_ONCE: Final = 256
MAX_WAITING: Final = 20_000  # about 40 MB of records; each belongs to a running call, or to `best_effort`
CLOSE_S: Final = 5.0
SLOW_S: Final = 0.05  # a usual append takes 0.00002; on a busy machine this process may not run for some hundredths
CALM_FACTOR: Final = 20
IDLE_S: Final = 1.0
SETTLE_S: Final = 0.05  # after the last append

log = logging.getLogger("sidecar.audit")


class RecordSink(Protocol):
    """Accepts records. All methods may block, and are called by one thread at a time."""

    def append(self, records: Sequence[Unsealed]) -> int:
        """Places the first records in the chain and writes them, all or none. Returns how many, at least one. Raises
        OSError if none was written; with UnfitHead, fewer may fit."""

    def quick_append(self, count: int) -> Append | None:
        """The `append` of this number of records, if it does not wait for a device, a network or a reader."""

    def settle(self) -> None:
        """Finishes or undoes the last append, so that the next record follows the existing ones, and the existing ones
        can be proved. Raises OSError."""

    def abandon(self) -> None:
        """Abandons the running append if possible. Called from another thread."""

    def close(self) -> None:
        """Closes the sink. Later appends fail."""


Counts = Sequence[list[float]]
"""Counts a record, whether or not a caller waited: the number of written records, and of lost ones."""


class WriteJob(Unsealed):
    """A record or other work. Awaiting it returns its result; the loop may use the wait to append the record."""

    work: Callable[[], Any] | None = None
    waits = True
    is_done = False
    result: Any = None
    """None, the value that the work returned, or the exception."""
    value: Any = None
    """The caller's answer: the result, or that it is late."""
    future: asyncio.Future[None] | None = None

    def __init__(self, start: str, rest: str, counts: Counts) -> None:
        self.start, self.rest, self.counts = start, rest, counts

    def __await__(self) -> Generator[Any, None, Any]:
        yield  # the loop appends the record before the caller runs again
        if not self.is_done:
            self.future = asyncio.get_running_loop().create_future()
            yield from self.future
        return self.value

    def answer(self, value: Any) -> None:
        if not self.is_done:
            self.value, self.is_done = value, True
            if self.future is not None and not self.future.done():
                self.future.set_result(None)


_WORK = attrgetter("work")


class RecordWriter:
    """Serializes all access to a sink. `stalled`: the thread is past its deadline."""

    def __init__(self, sink: RecordSink, *, deadline_s: float = DEADLINE_S, max_waiting: int = MAX_WAITING) -> None:
        self.sink, self._deadline_s, self._max_waiting = sink, deadline_s, max_waiting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: SimpleQueue[Sequence[WriteJob] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: deque[WriteJob] = deque()
        self._at_work: Sequence[WriteJob] = ()
        self._late: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._finished: Sequence[WriteJob] | None = None  # by the thread; the loop has not been notified yet
        self._begins = self.stalled = self._failed = self._closed = self._unsettled = False
        self._work_waits = False
        self._quick_from_mono_s = 0.0
        self._quick_until_mono_s = 0.0  # if no append follows; 0 while the thread works, and at the end

    @property
    def depth(self) -> int:
        return len(self._waiting) + len(self._at_work)

    @property
    def up(self) -> bool:
        return not (self.stalled or self._failed)

    def start(self) -> None:
        """Starts the writing thread, for the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def put(self, job: WriteJob, *, alone: bool = False) -> WriteJob | None:
        """Begins to write a record. `alone`: no other is expected in this turn of the loop. Returns None if it is
        written, otherwise the job, whose result is None or an exception. Raises OSError if it cannot be written."""
        began_s, append = monotonic(), None
        if alone and not self._waiting:
            append = self._quick_append(began_s, 1)
        if append is not None or self._loop is None:
            _, error = self._append((job,), append or self.sink.append)
            self._quick_until_mono_s = (ended_s := monotonic()) + IDLE_S
            if error is not None or self._failed or self._settling is None or ended_s - began_s >= SLOW_S:
                self._judge(error, began_s, ended_s)
            job.counts[error is not None][0] += 1.0
            if error is not None:
                raise OSError(*error.args)
            return None
        if self._closed or len(self._waiting) >= self._max_waiting or (self.stalled and job.waits):
            job.result = _cannot()
            _close((job,))
            return job
        self._waiting.append(job)
        if not self._begins and not self._at_work:
            self._begins = True
            self._loop.call_soon(self._begin)
        return job

    async def run(self, work: Callable[[], Any]) -> Any:
        """Runs other blocking work before all later records. Raises OSError."""
        if self._loop is None:
            return _value(_tried(work))
        return _value(await self._do_later(work))

    def post(self, job: WriteJob) -> None:
        """Writes a record that no caller waits for."""
        job.waits = False
        with suppress(OSError):
            self.put(job)

    def _do_later(self, work: Callable[[], Any]) -> WriteJob:
        self._work_waits = True
        job = WriteJob("", "", ([0.0], [0.0]))
        job.work = work
        self.put(job)
        return job

    async def close(self) -> None:
        """Writes queued records, for up to `CLOSE_S`, and closes the sink. Later records fail."""
        if self._thread is not None and not self._closed and self.depth:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=CLOSE_S)
        self._closed, self._quick_until_mono_s = True, 0.0
        if self._settling is not None:
            self._settling.cancel()
        if self._thread is None:
            self.sink.close()
        elif not self._at_work:
            self._jobs.put(None)
            self._thread.join(CLOSE_S)
            self.sink.close()
        else:  # the daemon thread hangs in a write; unwritten records were refused
            self.sink.abandon()

    def _begin(self) -> None:
        self._begins = False
        if self._at_work or not self._waiting or self._loop is None:
            return
        waiting = self._waiting
        jobs = [waiting.popleft() for _ in range(MAX_AT_ONCE)] if len(waiting) > MAX_AT_ONCE else [*waiting]
        if len(jobs) == len(waiting):
            waiting.clear()
        began = monotonic()
        if not self._work_waits and (append := self._quick_append(began, len(jobs))) is not None:
            self._do(jobs, append)
            self._end(jobs, began, monotonic())
            return
        self._quick_until_mono_s = 0.0
        self._at_work, self._work_waits = jobs, any(job.work for job in waiting)
        self._late = self._loop.call_later(self._deadline_s, self._stall)
        self._jobs.put(jobs)

    def _quick_append(self, now_s: float, count: int) -> Append | None:
        """The append that the loop may use: none for a while after a slow append, nor after a pause."""
        is_calm = self._quick_from_mono_s <= now_s < self._quick_until_mono_s
        return self.sink.quick_append(count) if is_calm else None

    def _end(self, jobs: Sequence[WriteJob], began_s: float, ended_s: float) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._quick_until_mono_s = 0.0 if self._closed else ended_s + IDLE_S
        self._judge(jobs[-1].result, began_s, ended_s)
        self._at_work, self._finished = (), None
        _close(jobs)
        if self._waiting:
            self._begin()
        if self._idle is not None and not self.depth and not self._idle.done():
            self._idle.set_result(None)

    def _judge(self, last: Any, began_s: float, ended_s: float) -> None:
        """Notes whether records can be written, by the result of the last one. Leaves the next ones to the thread if it
        was slow, and schedules the sink's settling."""
        if ended_s - began_s >= SLOW_S:
            self._quick_from_mono_s = ended_s + CALM_FACTOR * (ended_s - began_s)
        if self._unsettled and self._settling is None:
            self._settle_later()
        if last is None and not self._failed and not self.stalled:
            return
        was_up, self.stalled = self.up, False
        if not isinstance(last, UnfitHead):  # a record that fits nowhere says nothing about the sink
            self._failed = isinstance(last, OSError)
        if self.up and not was_up:
            log.warning("audit records can be written again")
        elif was_up and not self.up:
            log.error(
                "audit records cannot be written; calls that need them are refused", extra={"error": str(last)[:200]}
            )

    def _settle_if_idle(self) -> None:
        """Settles the sink if no append has followed; one that failed is settled by the next append."""
        self._settling, began_s = None, monotonic()
        if self._failed or self.stalled or self._closed:
            return
        if self.depth or began_s < self._quick_until_mono_s - IDLE_S + SETTLE_S:
            self._settle_later()
        elif self._quick_append(began_s, 1) is not None:
            self._settle()
            ended_s = monotonic()
            self._quick_until_mono_s = ended_s + IDLE_S
            self._judge(None, began_s, ended_s)
        else:
            self._do_later(self._settle)

    def _settle_later(self) -> None:
        if self._loop is None:
            self._settle()
        else:
            self._settling = self._loop.call_later(SETTLE_S, self._settle_if_idle)

    def _settle(self) -> None:
        with suppress(OSError):  # the next append fails in the same way and reports it to its callers
            self.sink.settle()
            self._unsettled = False

    def _stall(self) -> None:
        """Fails waiting callers now; later results of the thread's records are ignored."""
        if self._finished is self._at_work:  # it finished in time, but the loop did not run until now
            return
        self.stalled = True
        log.error(
            "audit records cannot be written: the sink does not answer in time", extra={"deadline_s": self._deadline_s}
        )
        for job in self._at_work:
            job.answer(OSError(errno.ETIMEDOUT, "it was not written in time, and may be written later"))
        awaited = [job for job in self._waiting if job.waits]
        self._waiting = deque(job for job in self._waiting if not job.waits)
        for job in awaited:
            job.result = _cannot()
        _close(awaited)

    def _work(self) -> None:
        loop = self._loop
        while loop is not None and (jobs := self._jobs.get()) is not None:
            began = monotonic()
            self._do(jobs, self.sink.append)
            self._finished = jobs
            try:
                loop.call_soon_threadsafe(self._end, jobs, began, monotonic())
            except RuntimeError:  # the loop has ended, with all waiting callers
                return

    def _do(self, jobs: Sequence[WriteJob], append: Append) -> None:
        """Does each job in order; adjacent records share one append."""
        done = 0
        while rest := jobs[done:]:
            if rest[0].work is not None:
                rest[0].result = _tried(rest[0].work)
                done += 1
                continue
            other = next(filter(_WORK, rest), None)
            count, error = self._append(rest if other is None else rest[: rest.index(other)], append)
            for job in rest[:count]:
                job.result = error
            done += count

    def _append(self, records: Sequence[Unsealed], append: Append) -> tuple[int, OSError | None]:
        """Appends the first records. Returns how many, and their error. A record that fits nowhere fails alone."""
        self._unsettled = True
        while True:
            try:
                return append(records), None
            except Exception as failure:
                if not isinstance(failure, UnfitHead) or len(records) == 1:
                    return len(records), _failed(failure, records)
                records = records[: len(records) // 2]


def _close(jobs: Iterable[WriteJob]) -> None:
    """Counts the results and reports them to all waiting callers."""
    for job in jobs:
        result = job.result
        job.counts[isinstance(result, OSError)][0] += 1.0
        if job.future is None and not job.is_done:
            job.value, job.is_done = result, True
        else:
            job.answer(result)


def _failed(failure: Exception, records: Sequence[Unsealed]) -> OSError:
    """Returns the error for the waiting callers of these records, without the frames that raised it, which hold the
    records."""
    if not isinstance(failure, OSError):
        log.error("an audit sink failed unexpectedly", exc_info=failure)
        return OSError(errno.EIO, f"{type(failure).__name__}: {failure}"[:200])
    if isinstance(failure, UnfitHead):
        extra = {"record": records[0].rest[:64], "error": str(failure)[:200]}
        log.error("an audit record cannot be written anywhere and is lost", extra=extra)
    failure.__traceback__ = failure.__context__ = failure.__cause__ = None
    return failure


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


def _value(end: Any) -> Any:
    if isinstance(end, OSError):  # one exception for each waiting caller: an exception holds the frames that raised it
        raise OSError(*end.args)
    if isinstance(end, BaseException):
        raise end
    return end


def _cannot() -> OSError:
    return OSError(errno.EBUSY, "it cannot be written now")
