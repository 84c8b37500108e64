"""Runs work that no caller waits for: a cancellation, the answer to a ping, the end of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from sidecar.errors import Refusal

MAX_TASKS: Final = 1_024
WITHIN_S: Final = 5.0
CLOSING_S: Final = 2.0


class BackgroundTasks:
    """Background tasks, bounded in time and number. Excess work is dropped, because servers and stores have their own
    time-outs."""

    def __init__(self, max_tasks: int = MAX_TASKS) -> None:
        self._max_tasks = max_tasks
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs it in the background, for WITHIN_S at most; its refusals are ignored."""
        if len(self._tasks) >= self._max_tasks:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(_done(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, within_s: float = CLOSING_S) -> None:
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def landed(tasks: dict[Any, asyncio.Task[Any]], key: object, task: asyncio.Task[Any]) -> None:
    """Removes the finished task under this key. Its exception goes to the waiting callers; it is not logged if there is
    none."""
    tasks.pop(key, None)
    if not task.cancelled():
        task.exception()


async def _done(work: Coroutine[Any, Any, object]) -> None:
    with suppress(Refusal, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            await work
