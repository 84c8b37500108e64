"""Bounds the share of the event loop that program output takes.

Of complaints the last are kept, and all must be read, because a pipe that is full stops who writes there; of an answer
each word goes to whoever listens. A program that says thousands of things at once would keep the loop busy with nothing
else. So all programs together have a share of it: who reads rests as long as the share wants, and the program, its pipe
full, waits. What was not used for a while is there for who has much to say at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

CREDIT_S: Final = 1.0  # of a share
PIECE_S: Final = 0.0001  # to take a piece out of its pipe


class OutputShare:
    """So much of the loop, for all programs of one sidecar."""

    def __init__(self, share: float, clock_mono: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock_mono
        self._free_s = float("-inf")

    @asynccontextmanager
    async def piece(self) -> AsyncGenerator[None]:
        """Do in here what is done with one piece; after it, the next one may be had."""
        began_s = self._clock()
        yield
        await asyncio.sleep(self.owed_s(self._clock() - began_s + PIECE_S))

    def owed_s(self, spent_s: float) -> float:
        """How long to rest, after so much of the loop's time."""
        now_s = self._clock()
        self._free_s = max(self._free_s, now_s - CREDIT_S) + spent_s / self._share
        return max(0.0, self._free_s - now_s)
