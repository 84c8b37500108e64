"""Sends messages to servers that no caller waits for.

A cancellation, the answer to a ping, the end of a session: each is sent in the background, bounded in time and in
number. Messages beyond the bound are dropped: the server has time-outs of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from sidecar.errors import Refusal

MAX_CHORES: Final = 1_024
WITHIN_S: Final = 5.0
_CLOSING_S: Final = 2.0


class CleanupMessages:
    """Background tasks of one server."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, object]) -> None:
        """Run it in the background; its refusals are ignored."""
        if len(self._tasks) >= MAX_CHORES:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(_done(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait a little for the tasks in progress, and cancel the rest."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=_CLOSING_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


async def _done(work: Coroutine[Any, Any, object]) -> None:
    with suppress(Refusal, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            await work
