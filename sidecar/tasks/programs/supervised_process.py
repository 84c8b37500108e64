"""Feeds, reads, measures and ends one running program.

Used by one-shot runs and conversations. Both output streams are read as long as the answer is, so that the program
never blocks on the other; the answer is read no faster than it is consumed, so that nothing piles up.

    process = await SupervisedProcess.start(processes, program, cleaning)     raises StartFailed
    process.tell(b"prompt"); process.tell_no_more()
    while said := await process.read(): …                            b"" at its end, or when its time is over
    await process.end()                                              nothing of it is left; `usage` is exact
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from sidecar.tasks.programs.attempt import TimeLimit
from sidecar.tasks.programs.output_cleaner import CleaningRules, OutputCleaner
from sidecar.tasks.programs.resource_usage import UsageMeter
from sidecar.tasks.programs.run_record import Usage
from sidecar.upstreams.processes import Exit, Process, Processes, Program, StartFailed

READ_BYTES: Final = 64 * 1024
GATHER_S: Final = 0.05  # collects more of an answer that has just begun, instead of one event per line
SILENCE_S: Final = 0.2  # after the program's end, while its descendants may hold its pipes open
GRACE_S: Final = 2.0  # between asking it to end and killing it
_KEPT_CHARS: Final = 8 * 1024
_TOLD_LINES: Final = 5


class StderrTail:
    """Keeps the end of a program's standard error, safe to show: without control sequences and secrets."""

    def __init__(self, cleaner: OutputCleaner) -> None:
        self._cleaner, self._text = cleaner, ""

    def add(self, said: bytes) -> None:
        self._text = (self._text + self._cleaner.feed(said))[-_KEPT_CHARS:]

    def over(self) -> None:
        self._text = (self._text + self._cleaner.end())[-_KEPT_CHARS:]

    def lines(self, count: int = _TOLD_LINES) -> list[str]:
        """Returns the newest lines that are not blank, oldest first."""
        return [line.strip() for line in self._text.splitlines() if line.strip()][-count:]

    @property
    def last(self) -> str:
        return "".join(self.lines(1))


class SupervisedProcess:
    """A program from its start until nothing of it is left. One caller reads at a time."""

    def __init__(
        self, process: Process, cleaning: CleaningRules, clock_mono: Callable[[], float] = time.monotonic
    ) -> None:
        self.last_words = StderrTail(cleaning.cleaner(plain=True))
        self.timed_out = False
        self._process, self._meter = process, UsageMeter(process, clock_mono)
        self.pid, self.answer, self.aside, self.measure_anew = (
            process.pid,
            process.answer,
            process.aside,
            self._meter.begin,
        )
        self._gathered = b""
        self._reading: asyncio.Task[bytes] | None = None
        self._ended_early: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._term: TimeLimit | None = None
        self._exited = asyncio.create_task(process.wait(), name=f"awaits the end of process {process.pid}")
        self._errors = asyncio.create_task(self._keep_errors(), name=f"reads the errors of process {process.pid}")
        self._measuring = asyncio.create_task(self._meter.run(), name=f"measures process {process.pid}")

    @classmethod
    async def start(
        cls, processes: Processes, program: Program, cleaning: CleaningRules, term: TimeLimit | None = None
    ) -> SupervisedProcess:
        """Starts a program, bounded by `term`. Raises StartFailed. If cancelled, raises CancelledError once nothing of
        the program is left."""
        until = None if term is None else term.until
        starting = asyncio.ensure_future(processes.start(replace(program, until=until)))
        try:
            attended = cls(await asyncio.shield(starting), cleaning)
        except asyncio.CancelledError:
            await to_its_end(_undo(starting))
            raise
        attended.lives(term)
        return attended

    @property
    def exit(self) -> Exit | None:
        """How the program ended, or None while it runs."""
        return self._process.exit

    async def exits(self, within_s: float) -> Exit | None:
        """Waits up to `within_s` for the program's end; returns it or None."""
        await asyncio.wait({self._exited}, timeout=within_s)
        return self.exit

    @property
    def listens(self) -> bool:
        return self.exit is None and not self._process.stdin.is_closing()

    @property
    def usage(self) -> Usage:
        """What it used in all, or since `measure_anew`; exact once it has ended."""
        if self.exit is None:
            self._meter.look()
        return self._meter.usage()

    def end_in(self, deadline_s: float | None) -> None:
        """Ends it after this many seconds, whether its output is read or not; None cancels that."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if deadline_s is not None:
            self._deadline = asyncio.get_running_loop().call_later(max(deadline_s, 0), self._time_is_over)

    def lives(self, term: TimeLimit | None) -> None:
        """Bounds its life by `term` from now on; None removes the bound."""
        if self._term is not None:
            self._term.release(self._process.may_live)
        self._term = term
        if term is not None:
            term.bind(self._process.may_live)

    def tell(self, data: bytes) -> None:
        """Writes to its standard input without waiting; `unread_bytes` counts what it has not read."""
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def tell_no_more(self) -> None:
        self._process.stdin.close()

    @property
    def unread_bytes(self) -> int:
        return self._process.stdin.transport.get_write_buffer_size()

    async def read(self, *, gather_s: float = GATHER_S) -> bytes:
        """Reads more of its standard output: what arrives at once or within `gather_s` after that, up to about 64 KiB;
        b"" at the end. Cancelling a read loses no output."""
        loop = asyncio.get_running_loop()
        self._gathered += await self._chunk()
        until = loop.time() + gather_s
        while 0 < len(self._gathered) < READ_BYTES and (left_s := until - loop.time()) > 0:
            more = await self._chunk(left_s)
            if not more:
                break
            self._gathered += more
        said, self._gathered = self._gathered, b""
        return said

    async def wait(self) -> Exit:
        """Waits for the program itself to end, which may take long if its output is not read."""
        await asyncio.wait({self._exited})
        return self._process.exit or Exit()

    async def end(self, *, patience_s: float = 0.0, grace_s: float = GRACE_S) -> Exit:
        """Asks it to end, then kills it and all its descendants; `patience_s` is the time to end by itself once its
        input is closed. Ending twice is allowed. If cancelled, raises CancelledError once nothing of it is left."""
        return await to_its_end(self._end(patience_s, grace_s))

    async def _end(self, patience_s: float, grace_s: float) -> Exit:
        self.end_in(None)
        try:
            if self.exit is not None:
                await asyncio.wait({self._errors}, timeout=SILENCE_S)
            await self._process.end(patience_s=patience_s, grace_s=grace_s)
        finally:
            for task in (self._exited, self._errors, self._measuring, self._reading, self._ended_early):
                if task is not None:
                    task.cancel()
            self._process.abandon()
            self.lives(None)
        return self._process.exit or Exit()

    async def _chunk(self, wait_s: float | None = None) -> bytes:
        """Returns the next chunk within `wait_s`, or b"" if none comes."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._process.stdout.read(READ_BYTES), name=f"reads process {self.pid}")
        reading = self._reading
        if wait_s is not None:
            await asyncio.wait({reading}, timeout=wait_s)
        else:
            await asyncio.wait({reading, self._exited}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await asyncio.wait({reading}, timeout=SILENCE_S)
        if not reading.done():
            return b""
        self._reading = None
        with suppress(OSError):
            return reading.result()
        return b""

    async def _keep_errors(self) -> None:
        with suppress(OSError):
            while said := await self._process.stderr.read(READ_BYTES):
                async with self._process.aside():
                    self.last_words.add(said)
        self.last_words.over()

    def _time_is_over(self) -> None:
        self.timed_out = self.exit is None
        self._ended_early = asyncio.create_task(
            self._process.end(patience_s=0.0, grace_s=GRACE_S), name=f"ends process {self.pid}"
        )


async def _undo(starting: asyncio.Future[Process]) -> None:
    with suppress(StartFailed):
        await (await starting).end(patience_s=0.0, grace_s=SILENCE_S)  # it has just started and was sent nothing


T = TypeVar("T")


async def to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the coroutine's result. If the caller is cancelled, raises CancelledError once the coroutine is done;
    otherwise raises what it raised. The slot of a run whose program is being ended must not be given away before."""
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
