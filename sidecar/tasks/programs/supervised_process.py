"""Feeds, reads, measures and ends one running program, for one-shot runs and conversations.

Both output streams are read as long as the answer is read, so that the program never blocks on the other stream. The
answer is read no faster than it is consumed, so that nothing accumulates.

    process = await SupervisedProcess.start(processes, program, cleaning)     raises StartFailed
    process.tell(b"prompt"); process.tell_no_more()
    while said := await process.read(): …                            b"" at its end, or when its time has ended
    await process.end()                                              no part of it is left; `usage` is exact
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from sidecar.tasks.programs.attempt import TimeLimit
from sidecar.tasks.programs.output_cleaner import CleaningRules, OutputCleaner
from sidecar.tasks.programs.run_record import Usage
from sidecar.tasks.worker import to_its_end
from sidecar.upstreams.processes.launcher import Exit, Process, Processes, ProcessUsage, Program, StartFailed

READ_BYTES: Final = 64 * 1024
GATHER_S: Final = 0.05  # collects more of an answer that has just begun, instead of one event per line
LEFT_S: Final = 2.0  # after the program's end, until its keeper has ended the descendants that hold its pipes open
GRACE_S: Final = 2.0  # between asking it to end and killing it
UNDONE_GRACE_S: Final = 0.2  # the same, if it has just started and was sent nothing
MEASURED_EVERY_S: Final = 0.5
_KEPT_CHARS: Final = 8 * 1024
_UNUSED: Final = ProcessUsage(0.0, 0, 0, 0)


class StderrTail:
    """Stores the end of a program's standard error, safe to show: without control sequences and secrets."""

    def __init__(self, cleaner: OutputCleaner) -> None:
        self._cleaner, self._text = cleaner, ""

    def add(self, said: bytes) -> None:
        self._text = (self._text + self._cleaner.feed(said))[-_KEPT_CHARS:]

    def over(self) -> None:
        self._text = (self._text + self._cleaner.end())[-_KEPT_CHARS:]

    @property
    def last(self) -> str:
        return self._text.rstrip().rpartition("\n")[2].strip()


class SupervisedProcess:
    """A program from its start until no part of it is left. One caller reads at a time."""

    def __init__(self, process: Process, cleaning: CleaningRules) -> None:
        self.last_words = StderrTail(cleaning.cleaner(plain=True))
        self.timed_out = False
        self._process = process
        self.pid, self.answer, self.aside = process.pid, process.answer, process.aside
        self._used = self._used_before = _UNUSED
        self._began_s, self._peak_bytes = time.monotonic(), 0
        self._gathered = b""
        self._reading: asyncio.Task[bytes] | None = None
        self._ended_early: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._term: TimeLimit | None = None
        self._exited = asyncio.create_task(process.wait(), name=f"awaits the end of process {process.pid}")
        self._errors = asyncio.create_task(self._keep_errors(), name=f"reads the errors of process {process.pid}")
        self._measuring = asyncio.create_task(self._measure(), name=f"measures process {process.pid}")

    @classmethod
    async def start(
        cls, processes: Processes, program: Program, cleaning: CleaningRules, term: TimeLimit | None = None
    ) -> Self:
        """Starts a program, bounded by `term`. Raises StartFailed; if cancelled, no part of it is left."""
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
        return self._process.exit

    async def exits(self, within_s: float | None = None) -> Exit | None:
        """Waits for the program itself to end; None if it does not end in time."""
        await asyncio.wait({self._exited}, timeout=within_s)
        return self.exit

    @property
    def listens(self) -> bool:
        return self.exit is None and not self._process.stdin.is_closing()

    def end_in(self, deadline_s: float | None) -> None:
        """Ends it after this many seconds, whether its output is read or not; None cancels that."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if deadline_s is not None:
            self._deadline = asyncio.get_running_loop().call_later(max(deadline_s, 0), self._time_is_over)

    def lives(self, term: TimeLimit | None) -> None:
        if self._term is not None:
            self._term.release(self._process.may_live)
        self._term = term
        if term is not None:
            term.bind(self._process.may_live)

    def tell(self, data: bytes) -> None:
        """Writes to its standard input without waiting."""
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def tell_no_more(self) -> None:
        self._process.stdin.close()

    async def read(self, *, gather_s: float = GATHER_S) -> bytes:
        """Reads the next output and what follows within `gather_s`, up to 64 KiB; b"" at the end. Cancelling loses
        nothing."""
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

    async def end(self, *, patience_s: float = 0.0, grace_s: float = GRACE_S) -> Exit:
        """Gives it `patience_s` to end, asks it to end, and after `grace_s` kills it with all descendants; also if this
        call is cancelled."""
        return await to_its_end(self._end(patience_s, grace_s))

    async def _end(self, patience_s: float, grace_s: float) -> Exit:
        self.end_in(None)
        try:
            if self.exit is not None:
                await asyncio.wait({self._errors}, timeout=LEFT_S)
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
                await asyncio.wait({reading}, timeout=LEFT_S)
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
        ending = self._process.end(patience_s=0.0, grace_s=GRACE_S)
        self._ended_early = asyncio.create_task(ending, name=f"ends process {self.pid}")

    def measure_anew(self) -> None:
        self._look()
        self._used_before, self._began_s, self._peak_bytes = self._used, time.monotonic(), 0

    @property
    def usage(self) -> Usage:
        """The resources that it used, or those since `measure_anew`. Exact and including all descendants once no part
        of it is left."""
        self._look()
        used, before = self._process.used or self._used, self._used_before
        cpu_s = max(used.cpu_s - before.cpu_s, 0.0)
        is_whole = before is _UNUSED  # otherwise its largest process may have peaked in an earlier turn
        return Usage(
            cpu_s,
            100 * cpu_s / max(time.monotonic() - self._began_s, 0.001),
            self._used.peak_memory_bytes,
            max(self._peak_bytes, used.peak_memory_bytes if is_whole else 0),
            max(used.disk_read_bytes - before.disk_read_bytes, 0),
            max(used.disk_write_bytes - before.disk_write_bytes, 0),
        )

    async def _measure(self) -> None:
        while self.exit is None:
            self._look()
            await asyncio.wait({self._exited}, timeout=MEASURED_EVERY_S)

    def _look(self) -> None:
        """Samples the program and its ended children. In a sample, `peak_memory_bytes` is the memory in use now."""
        if self.exit is not None:
            return
        import psutil  # not before a program runs

        with suppress(psutil.Error):  # it ended meanwhile
            process = psutil.Process(self.pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info().rss
                disk = process.io_counters() if hasattr(process, "io_counters") else None
            read, written = (disk.read_bytes, disk.write_bytes) if disk else (0, 0)
            self._used = ProcessUsage(sum(times[:4]), memory, read, written)
            self._peak_bytes = max(self._peak_bytes, memory)


async def _undo(starting: asyncio.Future[Process]) -> None:
    with suppress(StartFailed):
        await (await starting).end(patience_s=0.0, grace_s=UNDONE_GRACE_S)
