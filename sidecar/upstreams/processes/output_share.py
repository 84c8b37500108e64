"""Bounds the share of the event loop that program output takes.

All output must be read, because a full pipe blocks the program: of error output the last lines are kept, and of an
answer every message is forwarded. A program that writes thousands of pieces at once would keep the event loop busy. So
all programs together have a share of it: a reader pauses as long as the share requires, and the program waits with its
pipe full. Unused time is saved up for later bursts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

CREDIT_S: Final = 1.0  # of a share
PIECE_S: Final = 0.0001  # the time to read one piece from a pipe


class OutputShare:
    """A share of the event loop, for all programs of one sidecar."""

    def __init__(self, share: float, clock_mono: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock_mono
        self._free_s = float("-inf")

    @asynccontextmanager
    async def piece(self) -> AsyncGenerator[None]:
        """Process one piece inside this block; the next piece may be read after it."""
        began_s = self._clock()
        yield
        await asyncio.sleep(self.owed_s(self._clock() - began_s + PIECE_S))

    def owed_s(self, spent_s: float) -> float:
        """How long to pause after using so much of the event loop's time."""
        now_s = self._clock()
        self._free_s = max(self._free_s, now_s - CREDIT_S) + spent_s / self._share
        return max(0.0, self._free_s - now_s)
