"""Starts programs through the warden (`warden.py`), and communicates with them.

Each program has a line to its keeper. Closing the line ends everything, so a start that is cancelled, or a sidecar that
is killed, leaves nothing behind. If the warden dies, the next start starts another.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple

from sidecar.upstreams.processes import warden

MAX_SHEBANG_BYTES: Final = 256  # the length that Linux reads
START_S: Final = 10.0  # the maximum time for fork and exec on a busy machine
READ_SIZE: Final = 64 * 1024
ANSWERS_SHARE, ASIDES_SHARE = 0.25, 0.1  # of the event loop
# After its input is closed, a program may end; then it is signalled to end; then it is killed.
PATIENCE_S: Final = 0.5
GRACE_S: Final = 2.0
_LAST_S: Final = 5.0  # for processes that the kernel is slow to end
CREDIT_S: Final = 1.0  # the time whose share may be saved
PIECE_S: Final = 0.0001  # the time to read one piece from a pipe
_WARDEN: Final = Path(warden.__file__)


class StartFailed(Exception):
    """The program cannot be started; the text gives the reason. `number` is the operating system's errno, if any."""

    def __init__(self, why: str, number: int | None = None) -> None:
        super().__init__(why)
        self.number = number


class WaitLimit(NamedTuple):
    """The times at which a program's keeper signals it to end and kills it, by `time.monotonic`, even if the sidecar
    hangs."""

    asks_mono_s: float
    kills_mono_s: float


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start. `path` is the absolute path of the executable, `env` the whole environment. `cwd` is absolute
    too; without it, the program gets an empty folder of its own, which is removed with it. `limits` are setrlimit's, by
    the end of their names: {"CPU": 60}. `until` is how long it may live unless extended."""

    path: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    until: WaitLimit | None = None

    def __post_init__(self) -> None:
        for path in (self.path, self.cwd):
            if path is not None and not path.startswith("/"):
                raise ValueError(f"a program is started by absolute paths, and {path} is none")


class Exit(NamedTuple):
    """How a program ended: its exit code, or the signal that ended it; neither if its end was not observed."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            named = self.signal in signal.Signals.__members__.values()
            return f"signal {self.signal}" + (f" ({signal.Signals(self.signal).name})" if named else "")
        return "an unknown status" if self.code is None else f"exit code {self.code}"


class ProcessUsage(NamedTuple):
    """The resources used by a program and all its descendants, counted after the end of the last one. The peak is that
    of the largest process, and at least a keeper's own (about 10 MB)."""

    cpu_s: float
    peak_memory_bytes: int
    disk_read_bytes: int
    disk_write_bytes: int


class OutputShare:
    """A share of the event loop, for the output of all programs of one sidecar. A program that writes thousands of
    pieces at once would keep the event loop busy. A reader pauses as long as the share requires, and the program waits
    with its pipe full. Unused time is saved for later bursts."""

    def __init__(self, share: float, clock_mono: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock_mono
        self._free_s = float("-inf")

    @asynccontextmanager
    async def piece(self, ended: asyncio.Future[Exit] | None = None) -> AsyncGenerator[None]:
        """Lets one piece be processed inside this block, and pauses after it, until `ended` at most. Only processor
        time counts: a busy machine does not make the pauses longer."""
        began_s = time.thread_time()
        yield
        owed_s = self.owed_s(time.thread_time() - began_s + PIECE_S)
        if ended is None:
            await asyncio.sleep(owed_s)
        else:
            await asyncio.wait({ended}, timeout=owed_s)

    def owed_s(self, spent_s: float) -> float:
        """Returns how long to pause after using so much of the event loop's time."""
        now_s = self._clock()
        self._free_s = max(self._free_s, now_s - CREDIT_S) + spent_s / self._share
        return max(0.0, self._free_s - now_s)


_Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Process:
    """A running program. Both outputs must be read, each piece inside `answer` or, if it is no answer, inside `aside`,
    unless its reader lets other tasks run in another way (`mcp/duplex_transport.py`)."""

    def __init__(
        self, line: _Line, pid: int, pipes: _Pipes, until: WaitLimit | None, answers: OutputShare, asides: OutputShare
    ) -> None:
        self.pid = pid
        self._answers, self._asides = answers, asides
        self.stdin = pipes.stdin
        self.stdout = pipes.stdout
        self.stderr = pipes.stderr
        self._pipes = pipes
        self._until = until
        self._hear, self._tell = line
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[Exit] = loop.create_future()
        self.used: ProcessUsage | None = None  # set once all of its processes have ended, if its keeper reports it
        self.followed = loop.create_task(self._follow(), name=f"follows process {pid}")

    @property
    def exit(self) -> Exit | None:
        return self._exit.result() if self._exit.done() else None

    def answer(self) -> AbstractAsyncContextManager[None]:
        """Counts against the event loop's share for answers."""
        return self._answers.piece()

    def aside(self) -> AbstractAsyncContextManager[None]:
        """Counts against the share for other output. The remaining output of an ended program is read at once."""
        return nullcontext() if self.exit is not None else self._asides.piece(self._exit)

    async def wait(self) -> Exit:
        """Waits until the program itself has ended; its descendants may live a little longer."""
        return await asyncio.shield(self._exit)

    async def end(self, *, patience_s: float = PATIENCE_S, grace_s: float = GRACE_S) -> None:
        """Closes its input, after `patience_s` signals it to end, and after `grace_s` kills it, with all descendants.
        If this is cancelled, its keeper ends it like after `abandon`."""
        try:
            self.stdin.close()
            if self.exit is None:
                await asyncio.wait({self._exit}, timeout=patience_s)
            if not self.followed.done():
                self._tell.write(json.dumps({"end": grace_s}).encode() + b"\n")
                await asyncio.wait({self.followed}, timeout=grace_s + _LAST_S)
        finally:
            self.abandon()

    def may_live(self, until: WaitLimit | None) -> None:
        """Extends its life until then, unless extended again; None removes the limit."""
        if until != self._until and not self._tell.is_closing():
            self._until = until
            self._tell.write(json.dumps({"until": until}).encode() + b"\n")

    def abandon(self) -> None:
        """Closes everything at once: its keeper signals it to end, and kills it after a second."""
        self._pipes.close()
        self._tell.close()

    def stop_reading(self) -> None:
        """Stops reading its output, because its descendants may hold its pipes open indefinitely."""
        self._pipes.close_outputs()

    async def _follow(self) -> None:
        exit_ = Exit()
        try:
            while line := await self._hear.readline():
                said = json.loads(line)
                if (status := said.get("exited")) is not None:
                    exit_ = Exit(code=status) if status >= 0 else Exit(signal=-status)
                    self._exit.set_result(exit_)
                elif "used" in said:
                    self.used = ProcessUsage(*said["used"])
        except (OSError, ValueError):
            pass  # the line broke: the program ends, and its exit is unknown
        finally:
            if not self._exit.done():
                self._exit.set_result(exit_)


class Processes:
    """Every program of this sidecar. A program receives only those variables of the sidecar's own `environ` that its
    definition names."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._orders: socket.socket | None = None
        self._warden: asyncio.subprocess.Process | None = None
        self._order = asyncio.Lock()
        self._starting: set[asyncio.Task[Process]] = set()
        self._running: set[Process] = set()
        self._closed = False
        self._shares = OutputShare(ANSWERS_SHARE), OutputShare(ASIDES_SHARE)

    @property
    def warden_pid(self) -> int | None:
        return None if self._warden is None else self._warden.pid

    async def start(self, program: Program) -> Process:
        """Starts a program. Raises StartFailed. A cancelled start leaves nothing behind."""
        starting = asyncio.create_task(self._start(program), name=f"starts {program.path}")
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_abandon)  # a partial start cannot be undone, but a complete one can
            raise

    async def _start(self, program: Program) -> Process:
        order = _order(program)
        async with AsyncExitStack() as undo:  # everything opened is closed again if the start fails
            try:
                ours, theirs = socket.socketpair()
                undo.callback(theirs.close)
                line = await asyncio.open_connection(sock=ours)
                undo.callback(line[1].close)
                pipes, ends = await _Pipes.opened()
                undo.callback(pipes.close)
                undo.callback(_close, ends)
                async with asyncio.timeout(START_S):
                    await self._send(order, [*ends, theirs.fileno()])
                    _close(ends)
                    theirs.close()
                    process = Process(line, _pid_in(await line[0].readline()), pipes, program.until, *self._shares)
            except TimeoutError:
                raise StartFailed("it could not be started in time", errno.ETIMEDOUT) from None
            except OSError as error:
                raise StartFailed(f"nothing can be started: {error.strerror}", error.errno) from None
            undo.pop_all()
        self._running.add(process)  # a program that has no more users is also followed to its end
        process.followed.add_done_callback(lambda _: self._running.discard(process))
        return process

    async def close(self) -> None:
        """Breaks every line and waits for the warden to end, so that every running program ends."""
        self._closed = True
        await asyncio.gather(*self._starting, return_exceptions=True)
        for process in list(self._running):
            process.abandon()
        self._forget_warden()
        if self._warden is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._warden.wait()

    async def _send(self, order: bytes, fds: list[int]) -> None:
        frame = warden.HEADER.pack(len(order)) + order
        async with self._order:
            orders = await self._with_warden()
            try:
                sent = await _sent(orders, frame, fds)
            except ConnectionError:  # it has just died, and has received none of this
                self._forget_warden()
                orders = await self._with_warden()
                sent = await _sent(orders, frame, fds)
            try:
                await asyncio.get_running_loop().sock_sendall(orders, frame[sent:])
            except BaseException:
                self._forget_warden()  # it would read the next order as the rest of this one
                raise

    def _forget_warden(self) -> None:
        if self._orders is not None:
            self._orders.close()
        self._orders = None

    async def _with_warden(self) -> socket.socket:
        """Returns the line to the warden, which is started if needed. Raises StartFailed, OSError."""
        if self._closed:
            raise StartFailed("the sidecar is shutting down")
        if self._orders is not None and self._warden is not None and self._warden.returncode is None:
            return self._orders
        self._forget_warden()
        ours, theirs = socket.socketpair()
        with theirs:
            # -I -S: ignores the environment and installed packages. A terminal's signals are for the sidecar alone.
            command = (sys.executable, "-I", "-S", str(_WARDEN), str(theirs.fileno()))
            self._warden = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        ours.setblocking(False)
        self._orders = ours
        return ours


class _Pipes:
    """The sidecar's ends of a program's three streams."""

    def __init__(self) -> None:
        self.stdin: asyncio.StreamWriter
        self.stdout = asyncio.StreamReader(READ_SIZE)
        self.stderr = asyncio.StreamReader(READ_SIZE)
        self._input: asyncio.WriteTransport | None = None
        self._outputs: list[asyncio.ReadTransport] = []

    @classmethod
    async def opened(cls) -> tuple[_Pipes, list[int]]:
        made: list[int] = []
        try:
            for _ in range(3):
                made += os.pipe()
        except OSError:
            _close(made)
            raise
        theirs_in, ours_in, ours_out, theirs_out, ours_err, theirs_err = made
        theirs, waiting = [theirs_in, theirs_out, theirs_err], [ours_err, ours_out, ours_in]
        pipes, loop = cls(), asyncio.get_running_loop()
        try:
            writing = asyncio.StreamReaderProtocol(asyncio.StreamReader())
            pipes._input, _ = await loop.connect_write_pipe(lambda: writing, _file(waiting.pop(), "wb", loop))
            pipes.stdin = asyncio.StreamWriter(pipes._input, writing, None, loop)
            for reader in (pipes.stdout, pipes.stderr):
                protocol = partial(asyncio.StreamReaderProtocol, reader)
                output, _ = await loop.connect_read_pipe(protocol, _file(waiting.pop(), "rb", loop))
                pipes._outputs.append(output)
        except BaseException:
            _close(theirs)
            _close(waiting)
            pipes.close()
            raise
        return pipes, theirs

    def close_outputs(self) -> None:
        for output in self._outputs:
            output.close()

    def close(self) -> None:
        if self._input is not None:
            # asyncio's pipe may be aborted only while it has data to write.
            if self._input.get_write_buffer_size():
                self._input.abort()
            self._input.close()
        self.close_outputs()


def _file(fd: int, mode: str, loop: asyncio.AbstractEventLoop) -> IO[bytes]:
    """Returns a descriptor as a file for the event loop's pipes. asyncio closes the file; uvloop closes the descriptor
    and then the file as well: by then another thread may have opened a file with the same number."""
    return os.fdopen(fd, mode, 0, closefd=isinstance(loop, asyncio.BaseEventLoop))


def _order(program: Program) -> bytes:
    order = {
        "path": program.path,
        "argv": list(program.argv),
        "env": dict(program.env),
        "cwd": program.cwd,
        "limits": dict(program.limits),
        "until": program.until,
        "private": f"{tempfile.gettempdir()}/sidecar-{os.getpid()}-{os.urandom(8).hex()}",
    }
    told = json.dumps(order).encode()
    if len(told) > warden.MAX_ORDER_BYTES:
        raise StartFailed(f"{program.path}: {os.strerror(errno.E2BIG)}", errno.E2BIG)
    return told


def _abandon(started: asyncio.Task[Process]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().abandon()


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _pid_in(line: bytes) -> int:
    """Returns the pid of the program from the keeper's answer. Raises StartFailed with the reason if there is none."""
    try:
        answer = json.loads(line)
    except ValueError:
        answer = {}
    if "started" in answer:
        return int(answer["started"])
    number, where = answer.get("failed"), answer.get("where")
    if not isinstance(number, int):
        raise StartFailed("the process that keeps it ended")
    if number == errno.ENOEXEC:
        raise StartFailed(f"{where} cannot be executed: its first line must name its interpreter", number)
    if number == errno.ENOENT and isinstance(where, str) and (why := _interpreter_of(where)):
        raise StartFailed(f"{where}: {why}", number)
    raise StartFailed(f"{where or 'nothing can be started'}: {os.strerror(number)}", number)


def _interpreter_of(program: str) -> str:
    """Returns why the system reports a program as not found that exists: its interpreter or loader is missing. "" if
    the program itself is missing or cannot be read."""
    first = None
    with suppress(OSError):
        if Path(program).is_file():
            with Path(program).open("rb") as file:
                first = file.readline(MAX_SHEBANG_BYTES)
    if first is None:
        return ""
    if not first.startswith(b"#!"):
        return "the loader that it names does not exist: it was built for another system"
    if first.endswith(b"\r\n"):
        return "its first line ends with a carriage return: use Unix line ends"
    named = first.removeprefix(b"#!").strip().split(b" ")[0].decode("utf-8", "backslashreplace")
    return f"its first line names {named}, which does not exist"


async def _sent(orders: socket.socket, frame: bytes, fds: list[int]) -> int:
    """Sends the beginning of a frame with the descriptors; returns the number of bytes sent. Raises OSError."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return socket.send_fds(orders, [frame], fds)
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(orders, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(orders)


class CapturedOutput(NamedTuple):
    """The beginning of both outputs, and how the program ended."""

    stdout: bytes
    stderr: bytes
    exit: Exit


async def output_of(processes: Processes, program: Program, *, most: int, sent: bytes = b"") -> CapturedOutput:
    """Runs a program with the input `sent`; returns the first `most` bytes of each output. Raises StartFailed;
    cancelling ends it."""
    process = await processes.start(program)

    async def feed() -> None:
        with suppress(ConnectionError):  # it ended early; its exit code says why
            process.stdin.write(sent)
            await process.stdin.drain()
        process.stdin.close()

    try:
        said, told, _ = await asyncio.gather(_kept(process.stdout, most), _kept(process.stderr, most), feed())
        return CapturedOutput(said, told, await process.wait())
    finally:
        await process.end(patience_s=0.0, grace_s=0.2)


async def _kept(stream: asyncio.StreamReader, most: int) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(READ_SIZE):
        kept += chunk[: most - len(kept)]
    return bytes(kept)
