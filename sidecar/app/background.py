"""Runs background jobs and restarts those that fail.

A job that ends is restarted after a pause that doubles while it keeps failing. Ending the process instead would drop
all callers' connections, and continuing without the kill switch or load shedding would be worse than a short pause.
Readiness reports each end for a minute, and the log has its cause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger("sidecar.app.background")

REST_S: Final = 1.0  # after the end of a healthy job; doubled by each other end
MOST_S: Final = 60.0
SOUND_S: Final = 60.0  # a job that runs this long counts as healthy

Run = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class BackgroundJobs:
    rest_s: float = REST_S
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _ended_s: dict[str, float] = field(default_factory=dict)

    def begin(self, name: str, run: Run) -> None:
        self._tasks[name] = asyncio.create_task(self._kept_up(name, run), name=name)

    @property
    def trouble(self) -> Iterator[str]:
        """The jobs that ended recently, in sentences."""
        now_s = asyncio.get_running_loop().time()
        for name, ended_s in self._ended_s.items():
            if now_s - ended_s < SOUND_S:
                yield f"{name} ended and was started again: see the log"

    async def end(self) -> None:
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
            log.critical(
                "a background task ended; it is started again",
                extra={"task": name, "again_in_s": rest_s},
                exc_info=error,
            )
            await asyncio.sleep(rest_s)
