"""Writes audit records in a thread of its own, so that a slow disk never blocks the event loop.

The thread takes all records queued since its last turn and writes them in one append, so that all waiting callers share
one disk write (group commit).

    waiting     records queued while the thread is busy; the next append
    at work     records that the thread is writing
    stalled     the thread is late by `deadline_s`: waiting and new callers are refused until it returns. Its records
                may still be written: the log may contain more than the caller was told, never less

A record is not dropped while a caller waits for it. With `best_effort` callers do not wait; then a record that finds
`MAX_WAITING` records queued is dropped and counted. Before `start`, records are written synchronously.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

from sidecar.audit.chain import UnfitHead

DEADLINE_S: Final = 2.0
MAX_AT_ONCE: Final = 256
MAX_WAITING: Final = 20_000  # about 40 MB of records; each belongs to a running call, or to `best_effort`
CLOSE_S: Final = 5.0

log = logging.getLogger("sidecar.audit")


def _ignored(_: OSError | None) -> None:
    """Ignores the result."""


class RecordSink(Protocol):
    """Takes records. All methods may block, and are called by one thread at a time."""

    def append(self, records: Sequence[dict[str, Any]]) -> int:
        """Place the first records in the chain and write them, all or none. Returns how many, at least one. Raises
        OSError if none was written; with UnfitHead, fewer may fit."""

    def abandon(self) -> None:
        """Give up the running append if possible. Called from another thread."""

    def close(self) -> None:
        """Close the sink. Later appends fail."""


Told = Callable[[OSError | None], object]
"""Called once with the result of a record, whether or not a caller waited: None, or the error that lost it."""


class _WriteJob(NamedTuple):
    """A record or other work, and the future of the waiting caller, if any."""

    record: dict[str, Any] | None
    work: Callable[[], Any] | None
    told: Told
    end: asyncio.Future[Any] | None = None

    def answer(self, value: Any) -> None:
        if self.end is not None and not self.end.done():
            self.end.set_result(value)

    def close(self, value: Any) -> None:
        self.told(value if isinstance(value, OSError) else None)
        self.answer(value)


Ends = list[tuple[_WriteJob, Any]]  # each job with its result: a value or an exception


class RecordWriter:
    """Serializes all access to a sink. `stalled`: the thread is past its deadline."""

    def __init__(self, sink: RecordSink, *, deadline_s: float = DEADLINE_S, max_waiting: int = MAX_WAITING) -> None:
        self.sink, self._deadline_s, self._max_waiting = sink, deadline_s, max_waiting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: SimpleQueue[Sequence[_WriteJob] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: deque[_WriteJob] = deque()
        self._at_work: Sequence[_WriteJob] = ()
        self._late: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._begins = self.stalled = self._failed = self._closed = False

    @property
    def depth(self) -> int:
        return len(self._waiting) + len(self._at_work)

    @property
    def up(self) -> bool:
        return not (self.stalled or self._failed)

    def start(self) -> None:
        """Start the writing thread, for the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    async def append(self, record: dict[str, Any], told: Told = _ignored) -> None:
        """Write a record. Raises OSError. Cancelling the wait does not undo the write."""
        await self._done(record, None, told)

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run other blocking work before all later records. Raises OSError."""
        return await self._done(None, work, _ignored)

    def post(self, record: dict[str, Any], told: Told) -> None:
        self._put(_WriteJob(record, None, told))

    async def close(self) -> None:
        if self._thread is not None and not self._closed and self.depth:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=CLOSE_S)
        self._closed = True
        if self._thread is None:
            self.sink.close()
        elif not self._at_work:
            self._jobs.put(None)
            self._thread.join(CLOSE_S)
            self.sink.close()
        else:  # the daemon thread hangs in a write; unwritten records were refused
            self.sink.abandon()

    # --- in the loop --------------------------------------------------------------------------------------------------

    async def _done(self, record: dict[str, Any] | None, work: Callable[[], Any] | None, told: Told) -> Any:
        if self._loop is None:
            return _value(self._put(_WriteJob(record, work, told)))
        end: asyncio.Future[Any] = self._loop.create_future()
        self._put(_WriteJob(record, work, told, end))
        return _value(await end)

    def _put(self, job: _WriteJob) -> Any:
        if self._loop is None:
            ((_, value),) = self._ended([job])
            job.close(value)
            return value
        is_late = self.stalled and job.end is not None
        if self._closed or is_late or len(self._waiting) >= self._max_waiting:
            job.close(_cannot())
        else:
            self._waiting.append(job)
            if not self._begins and not self._at_work:
                self._begins = True
                self._loop.call_soon(self._begin)
        return None

    def _begin(self) -> None:
        self._begins = False
        if self._at_work or not self._waiting or self._loop is None:
            return
        waiting = self._waiting
        self._at_work = [waiting.popleft() for _ in range(min(len(waiting), MAX_AT_ONCE))]
        self._late = self._loop.call_later(self._deadline_s, self._stall)
        self._jobs.put(self._at_work)

    def _end(self, ends: Ends) -> None:
        if self._late is not None:
            self._late.cancel()
        was_up, last = self.up, [value for _, value in ends if not isinstance(value, UnfitHead)][-1:]
        self.stalled, self._at_work = False, ()
        if last:  # a record that fits nowhere says nothing about the sink
            self._failed = isinstance(last[0], OSError)
        if self.up and not was_up:
            log.warning("audit records can be written again")
        elif was_up and not self.up:
            log.error(
                "audit records cannot be written; calls that need them are refused", extra={"error": str(*last)[:200]}
            )
        for job, value in ends:
            job.close(value)
        self._begin()
        if self._idle is not None and not self.depth and not self._idle.done():
            self._idle.set_result(None)

    def _stall(self) -> None:
        """Fail waiting callers now; later results of the thread's records are ignored."""
        self.stalled = True
        log.error(
            "audit records cannot be written: the sink does not answer in time", extra={"deadline_s": self._deadline_s}
        )
        for job in self._at_work:
            job.answer(OSError(errno.ETIMEDOUT, "it was not written in time, and may be written later"))
        awaited = [job for job in self._waiting if job.end is not None]
        self._waiting = deque(job for job in self._waiting if job.end is None)
        for job in awaited:
            job.close(_cannot())

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        loop = self._loop
        while loop is not None and (jobs := self._jobs.get()) is not None:
            ends = self._ended(jobs)
            try:
                loop.call_soon_threadsafe(self._end, ends)
            except RuntimeError:  # the loop is gone, with all waiting callers
                return

    def _ended(self, jobs: Sequence[_WriteJob]) -> Ends:
        """Do each job in order; adjacent records share one append."""
        ends: Ends = []
        while len(ends) < len(jobs):
            rest = jobs[len(ends) :]
            if rest[0].work is not None:
                ends.append((rest[0], _tried(rest[0].work)))
                continue
            records = []
            for job in rest:
                if job.record is None:
                    break
                records.append(job.record)
            count, value = _first_of(records, self.sink)
            ends += [(job, value) for job in rest[:count]]
        return ends


def _first_of(records: Sequence[dict[str, Any]], sink: RecordSink) -> tuple[int, Exception | None]:
    """Append the first records. Returns how many, and their error. A record that fits nowhere fails alone."""
    while isinstance(written := _tried(partial(sink.append, records)), UnfitHead) and len(records) > 1:
        records = records[: len(records) // 2]
    if isinstance(written, UnfitHead):
        extra = {"record": str(records[0].get("id")), "error": str(written)[:200]}
        log.error("an audit record cannot be written anywhere and is lost", extra=extra)
    elif isinstance(written, Exception) and not isinstance(written, OSError):
        log.error("an audit sink failed unexpectedly", exc_info=written)
        written = OSError(errno.EIO, f"{type(written).__name__}: {written}"[:200])
    return (len(records), written) if isinstance(written, Exception) else (int(written), None)


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


def _value(end: Any) -> Any:
    if isinstance(end, OSError):  # one exception per waiting caller: an exception keeps the frames that raised it
        raise OSError(*end.args)
    if isinstance(end, BaseException):
        raise end
    return end


def _cannot() -> OSError:
    return OSError(errno.EBUSY, "it cannot be written now")
