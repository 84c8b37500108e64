"""Renders pages and reads logs in a process of its own, so that the console's work does not delay calls.

The process starts with the console, gives way to calls, and ends with its parent. It gets a function and its arguments
as a pickle, and runs up to four of them at a time.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sidecar.admin.console import page_work
from sidecar.admin.console.page_work import HEAD, PageResult
from sidecar.admin.console.request import ConsoleFault
from sidecar.policy.worker_process import BEGINNING

T = TypeVar("T")
RUN_S: Final = 30.0


@dataclass(slots=True)
class PageProcess:
    """The process, started with the first order or by `start`. One that ended is replaced with the next order. For one
    event loop."""

    _process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None
    _waiting: dict[int, asyncio.Future[PageResult]] = field(default_factory=dict)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: int = 0
    _is_closed: bool = False

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
                process.stdin.writelines((HEAD.pack(len(raw), number), raw))
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
            if self._is_closed:
                raise ConsoleFault(503, "the console is being closed")
            if self._process is not None and self._process.returncode is None:
                return self._process
            # -P: no module is imported from the working directory. The new session keeps a terminal's signals away.
            command = (sys.executable, "-P", "-c", BEGINNING, page_work.__name__)
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
        """End the process, and start no other."""
        self._is_closed = True
        if self._process is not None and self._reader is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._reader

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out results until the process ends."""
        assert process.stdout is not None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length, number = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
                raw = await process.stdout.readexactly(length)
                if (waiting := self._waiting.get(number)) is not None and not waiting.done():
                    waiting.set_result(pickle.loads(raw))
        await process.wait()
        gone = ConsoleFault(503, "the console's process ended: look again in a moment")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(PageResult(error=gone))
