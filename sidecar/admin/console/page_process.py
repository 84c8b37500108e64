"""Renders pages and reads logs in a separate process, so that the console's work does not delay calls.

The process starts with the console, has a low priority, and ends with its parent. It receives functions with their
arguments as pickles, and runs up to four at a time.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
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
    """The process. It starts with the first order, and again with the next one after it has ended. For one event
    loop."""

    _process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None
    _orders: dict[int, asyncio.Future[PageResult]] = field(default_factory=dict)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: int = 0
    _is_closed: bool = False

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` in the process and returns its result. `work` is a function of a module, or a `partial` of one.
        Raises OSError if `work` does, PageProcessFailed if `work` raises another exception, ConsoleFault after RUN_S,
        or if the process ends or cannot start."""
        process = await self._started()
        raw, orders = pickle.dumps(work, pickle.HIGHEST_PROTOCOL), self._orders
        self._last = number = self._last + 1
        orders[number] = waiting = asyncio.get_running_loop().create_future()
        assert process.stdin is not None
        try:
            async with asyncio.timeout(RUN_S):
                process.stdin.writelines((HEAD.pack(len(raw), number), raw))
                await process.stdin.drain()
                result = await waiting
        except (TimeoutError, ConnectionError):
            raise ConsoleFault(503, "this page cannot be made in time: look again in a moment") from None
        finally:
            del orders[number]
        if result.error is not None:
            raise result.error
        value: T = result.value
        return value

    async def prepare(self) -> None:
        """Starts the process, and waits until it can render a page. If it cannot start, the next order tries again."""
        with suppress(ConsoleFault):
            await self.run(page_work.prepare)

    async def close(self) -> None:
        """Ends the process. Later orders raise ConsoleFault."""
        async with self._starting:  # so that a process that is being started is ended too
            self._is_closed = True
        if self._process is not None and self._reader is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._reader

    async def _started(self) -> asyncio.subprocess.Process:
        """The process, which is started unless it runs. Raises ConsoleFault."""
        async with self._starting:
            if self._is_closed:
                raise ConsoleFault(503, "the console is being closed")
            if self._process is not None and self._process.returncode is None:
                return self._process
            # -P: no module is imported from the working directory. A new session gets no signals of a terminal.
            command = (sys.executable, "-P", "-c", BEGINNING, page_work.__name__)
            pipe = subprocess.PIPE
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=pipe, stdout=pipe, start_new_session=True
                )
            except OSError as error:
                raise ConsoleFault(503, f"the console's process cannot start: {error.strerror or error}") from None
            self._process, self._orders = process, {}
            self._reader = asyncio.create_task(_hand_out(process, self._orders))
            return process


async def _hand_out(process: asyncio.subprocess.Process, orders: Mapping[int, asyncio.Future[PageResult]]) -> None:
    """Gives results to their orders until the process ends. The orders that are left then fail."""
    assert process.stdout is not None
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            length, number = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            raw = await process.stdout.readexactly(length)
            if (waiting := orders.get(number)) is not None and not waiting.done():
                waiting.set_result(pickle.loads(raw))
    await process.wait()
    gone = ConsoleFault(503, "the console's process ended: look again in a moment")
    for waiting in orders.values():
        if not waiting.done():
            waiting.set_result(PageResult(error=gone))
