"""Renders pages and reads logs in a process of its own, so that the console's work does not delay calls.

The process starts with the console, gives way to calls, and ends with its parent. It gets a function and its arguments
as a pickle, and runs up to four of them at a time.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from threading import Lock
from typing import IO, Any, Final, NamedTuple, TypeVar

from sidecar.admin.console.request import ConsoleFault
from sidecar.policy.worker_process import BEGINNING

T = TypeVar("T")
RUN_S: Final = 30.0
THREADS: Final = 4
NICENESS: Final = 10
MAX_RESULT_BYTES: Final = 64 * 2**20
_HEAD: Final = Struct(">IQ")
"""What precedes a pickle: its length in bytes, and the number of the order."""


class PageProcessFailed(RuntimeError):
    """A function failed in the process; the text is its traceback."""


class _Result(NamedTuple):
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class PageProcess:
    """The process, started with the first order or by `start`. One that ended is replaced with the next order. For one
    event loop."""

    _process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None
    _waiting: dict[int, asyncio.Future[_Result]] = field(default_factory=dict)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: int = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns there: a function of a module with its arguments, such as a `partial`. Raises OSError as
        `work` does, ConsoleFault after `RUN_S` and where the process cannot run, PageProcessFailed."""
        process = await self.start()
        raw = pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
        self._last = number = self._last + 1
        self._waiting[number] = waiting = asyncio.get_running_loop().create_future()
        assert process.stdin is not None
        try:
            async with asyncio.timeout(RUN_S):
                process.stdin.writelines((_HEAD.pack(len(raw), number), raw))
                await process.stdin.drain()
                result = await waiting
        except (TimeoutError, ConnectionError):
            raise ConsoleFault(503, "this page cannot be made in time: look again in a moment") from None
        finally:
            self._waiting.pop(number, None)
        if result.error is not None:
            raise result.error
        value: T = result.value
        return value

    async def start(self) -> asyncio.subprocess.Process:
        """Start the process unless it runs. Raises ConsoleFault."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            # -P: no module is imported from the working directory. The new session keeps a terminal's signals away.
            command = (sys.executable, "-P", "-c", BEGINNING, __name__)
            pipe = subprocess.PIPE
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=pipe, stdout=pipe, start_new_session=True
                )
            except OSError as error:
                raise ConsoleFault(503, f"the console's process cannot start: {error.strerror or error}") from None
            self._process, self._reader = process, asyncio.create_task(self._read(process))
            return process

    async def close(self) -> None:
        """End the process."""
        if self._process is not None and self._reader is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._reader

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out results until the process ends."""
        assert process.stdout is not None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length, number = _HEAD.unpack(await process.stdout.readexactly(_HEAD.size))
                raw = await process.stdout.readexactly(length)
                if (waiting := self._waiting.get(number)) is not None and not waiting.done():
                    waiting.set_result(pickle.loads(raw))
        await process.wait()
        gone = ConsoleFault(503, "the console's process ended: look again in a moment")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(_Result(error=gone))


# --- in the process ---------------------------------------------------------------------------------------------------


def serve_order(orders: IO[bytes], out: IO[bytes]) -> None:
    """Carry out orders until the input is closed. Entered by `BEGINNING`."""
    with suppress(OSError, AttributeError):  # the latter where the system has no such classes
        os.nice(NICENESS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # waking up, it interrupts no call
    writing = Lock()
    with ThreadPoolExecutor(THREADS) as threads:
        while head := orders.read(_HEAD.size):
            length, number = _HEAD.unpack(head)
            threads.submit(_carry_out, orders.read(length), number, out, writing)
        os._exit(0)  # the parent is gone: nothing waits for what still runs


def _carry_out(order: bytes, number: int, out: IO[bytes], writing: Lock) -> None:
    raw = _result_of(order)
    with writing:
        out.write(_HEAD.pack(len(raw), number))
        out.write(raw)
        out.flush()


def _result_of(order: bytes) -> bytes:
    try:
        raw = _pickled(_Result(pickle.loads(order)()))
    except OSError as error:
        return _pickled(_Result(error=error))
    except Exception:
        return _pickled(_Result(error=PageProcessFailed(traceback.format_exc())))
    if len(raw) > MAX_RESULT_BYTES:
        return _pickled(_Result(error=PageProcessFailed(f"a result of {len(raw)} bytes is too large")))
    return raw


def _pickled(result: _Result) -> bytes:
    return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
