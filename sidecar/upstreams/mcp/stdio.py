"""Runs programs as MCP servers on pipes.

One message per line, UTF-8, in both directions (MCP, transports). The program comes from configuration alone, without a
shell. All its output is bounded and always read. When it ends unexpectedly, its calls fail at once, and its caller's
next program is started, from the second time on after a pause that doubles. Other callers' programs are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from sidecar.errors import Reason, Refusal, Unsent, visible
from sidecar.upstreams.mcp.duplex_transport import DuplexWire
from sidecar.upstreams.mcp.line_sessions import LineTransport
from sidecar.upstreams.processes.launcher import Process, Processes, Program, StartFailed
from sidecar.vocabulary import Caller

# Input for a program that does not read is buffered up to here, and then refused.
MAX_UNREAD_BYTES: Final = 8 * 2**20
ENVELOPE_BYTES: Final = 64 * 1024  # the size around an answer's body in its line
MAX_TAIL_LINES, MAX_TAIL_CHARS = 100, 400
TOLD_LINES: Final = 5  # the lines of its last error output in the log
LAST_WORDS_S: Final = 0.2  # after its end, for output written earlier
STEADY_S: Final = 60.0  # the early end of a program that ran this long is not due to its start
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
MAX_STREAKS: Final = 1024
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("sidecar.stdio")


class StderrLines:
    """The last lines of the error output of an upstream's programs, made safe: control characters are escaped."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_TAIL_LINES)

    def add(self, line: bytes) -> None:
        text = line[: 4 * MAX_TAIL_CHARS].decode("utf-8", "backslashreplace").rstrip("\r\n")
        shown = visible(text)
        if shown:
            self._lines.append(shown[:MAX_TAIL_CHARS])

    def lines(self, count: int = MAX_TAIL_LINES) -> list[str]:
        return list(self._lines)[-count:]


class ProgramWire(DuplexWire):
    """A line to a running program. `ended` is called with the reason of an unexpected end."""

    def __init__(self, process: Process, tail: StderrLines, max_line_bytes: int, ended: Callable[[str], None]) -> None:
        self._process, self._tail, self._max_line_bytes, self._ended = process, tail, max_line_bytes, ended
        self._asked_to = False
        self._beside = [
            asyncio.create_task(self._keep_errors(), name=f"reads the errors of process {process.pid}"),
            asyncio.create_task(self._cut_off(), name=f"awaits the end of process {process.pid}"),
        ]

    async def send(self, message: bytes, caller: Caller | None) -> None:
        """See `DuplexWire.send`. A program receives no credential of its caller."""
        stdin = self._process.stdin
        if stdin.is_closing():
            raise Refusal(Reason.UPSTREAM_FAILED, "its program has closed its input")
        if stdin.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            raise Refusal(Reason.UPSTREAM_FAILED, "its program does not read what it is sent")
        stdin.write(message + b"\n")
        try:
            await stdin.drain()
        except OSError:
            raise Refusal(Reason.UPSTREAM_FAILED, "its program has closed its input") from None

    async def messages(self) -> AsyncGenerator[bytes, None]:
        how = "nothing reads its output any more"
        try:
            rest = bytearray()
            while chunk := await self._process.stdout.read(_READ_BYTES):
                *lines, begun = chunk.split(b"\n")
                for line in lines:
                    whole = bytes(rest) + line if rest else line
                    rest.clear()
                    self._bound(len(whole))
                    if whole.strip():
                        yield whole
                rest += begun
                self._bound(len(rest))
            how = await self._how_it_ended()
            raise Refusal(Reason.UPSTREAM_FAILED, f"its program ended: {how}")
        except Refusal as refusal:
            how = refusal.detail
            raise
        finally:
            if not self._asked_to:
                self._asked_to = True
                self._ended(how)

    async def close(self) -> None:
        self._asked_to = True
        await self._process.end()
        await asyncio.wait({self._beside[0]}, timeout=LAST_WORDS_S)
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    def _bound(self, size: int) -> None:
        if size > self._max_line_bytes:
            raise Refusal(Reason.RESPONSE_REFUSED, "it sent a line beyond the size bound")

    async def _how_it_ended(self) -> str:
        """Returns how it ended, after its last error output was read, so that the log can include it."""
        how = "it closed its output"
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                how = str(await self._process.wait())
                await asyncio.wait({self._beside[0]})
        except TimeoutError:
            pass  # its descendants may hold its pipes open
        return how

    async def _keep_errors(self) -> None:
        rest = b""
        while chunk := await self._process.stderr.read(_READ_BYTES):
            async with self._process.aside():
                *lines, begun = (rest + chunk).split(b"\n")
                for line in lines[-MAX_TAIL_LINES:]:
                    self._tail.add(line)
                rest = begun[: 4 * MAX_TAIL_CHARS]
        self._tail.add(rest)

    async def _cut_off(self) -> None:
        """Stops reading soon after its end, because its descendants may hold its pipes open."""
        await self._process.wait()
        await asyncio.sleep(LAST_WORDS_S)
        self._process.stop_reading()


class _Streak(NamedTuple):
    """The number of one caller's programs that ended unexpectedly in a row, and when the next may begin."""

    times: int
    until_mono_s: float
    how: str


class ProgramUpstream(LineTransport):
    """An upstream that is a program, started for its callers."""

    def __init__(self, name: str, program: Program, processes: Processes, **how: Any) -> None:
        """`how` is for `LineTransport`."""
        super().__init__(name, secrets=program.env, apart=True, **how)
        self.tail = StderrLines()
        self._program, self._processes = program, processes
        self._streaks: OrderedDict[str, _Streak] = OrderedDict()

    async def open_wire(self, owner: str, caller: Caller | None) -> ProgramWire:
        began = self._clock()
        streak = self._streaks.get(owner)
        if streak is not None and began < streak.until_mono_s:
            left_s = streak.until_mono_s - began
            # Nothing was tried, so this is no fault of the server: a caller that retries does not open the breaker.
            raise Unsent(
                Reason.UPSTREAM_FAILED,
                f"its program keeps ending: {streak.how}; it is not started again for {left_s:.0f} s",
                retry_after_s=left_s,
            )
        try:
            process = await self._processes.start(self._program)
        except StartFailed as failure:
            log.error("an MCP server cannot be started", extra={"upstream": self.name, "why": str(failure)})
            self._count(owner, began, "it cannot be started")
            raise Refusal(Reason.UPSTREAM_FAILED, "its program cannot be started") from None
        ended = partial(self._ended, owner, began)
        return ProgramWire(process, self.tail, self.max_response_bytes + ENVELOPE_BYTES, ended)

    def _ended(self, owner: str, began: float, how: str) -> None:
        said = self.tail.lines(TOLD_LINES)
        log.warning("an MCP server ended unexpectedly", extra={"upstream": self.name, "how": how, "said": said})
        self._count(owner, began, how)

    def _count(self, owner: str, began: float, how: str) -> None:
        now, before = self._clock(), self._streaks.pop(owner, None)
        count = 1 if before is None or now - began >= STEADY_S else before.times + 1
        # The first unexpected end causes no pause: the next call starts it at once.
        pause_s = 0.0 if count == 1 else min(FIRST_PAUSE_S * 2.0 ** min(count - 2, 16), MAX_PAUSE_S)
        self._streaks[owner] = _Streak(count, now + pause_s, how)
        if len(self._streaks) > MAX_STREAKS:
            self._streaks.popitem(last=False)
