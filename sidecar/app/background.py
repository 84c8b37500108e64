"""Runs background jobs and restarts those that fail.

It is begun anew, after a rest that grows while it goes on failing. A kill switch that no longer hears of the others, or
a load that nobody sheds, is worse than one that was away for a second; and a process that ended for it would take
everybody's calls along. Readiness says so while it lasts, and the log each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger("sidecar.app.background")

REST_S: Final = 1.0  # twice as long each time
MOST_S: Final = 60.0
SOUND_S: Final = 60.0  # after so long without an end it is well

Run = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class BackgroundJobs:
    """What runs in the background, by name."""

    rest_s: float = REST_S
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _ended_s: dict[str, float] = field(default_factory=dict)

    def begin(self, name: str, run: Run) -> None:
        """From here on it runs."""
        self._tasks[name] = asyncio.create_task(self._kept_up(name, run), name=name)

    @property
    def trouble(self) -> Iterator[str]:
        """What ended not long ago, in sentences."""
        now_s = asyncio.get_running_loop().time()
        for name, ended_s in self._ended_s.items():
            if now_s - ended_s < SOUND_S:
                yield f"{name} ended, and was begun anew: see the log"

    async def end(self) -> None:
        """Nothing runs any more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _kept_up(self, name: str, run: Run) -> None:
        loop, rest_s = asyncio.get_running_loop(), self.rest_s
        while True:
            begun_s, error = loop.time(), None
            try:
                await run()
            except Exception as ended:
                error = ended
            self._ended_s[name] = loop.time()
            rest_s = self.rest_s if loop.time() - begun_s >= SOUND_S else min(2 * rest_s, MOST_S)
            log.critical("a background task ended", extra={"task": name, "again_in_s": rest_s}, exc_info=error)
            await asyncio.sleep(rest_s)
