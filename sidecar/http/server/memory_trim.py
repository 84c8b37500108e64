"""Returns memory to the operating system after a peak.

The memory of thousands of streams or large bodies is free after they end, but the allocators retain it. So free memory
is returned once, when nearly all of them have ended.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

CROWD: Final = 500  # fewer use at most about 25 MB
STREAM_BYTES: Final = 50_000  # the memory of one stream; bodies and answers are counted as that many streams


@dataclass(slots=True)
class MemoryTrim:
    """Calls `give_back` once after each peak of at least CROWD streams."""

    give_back: Callable[[], None]
    most: int = 0
    last: int = 0

    def look(self, present: int) -> None:
        """Receives the number of streams periodically; trims when it is stable and less than a quarter of the peak."""
        quiet = present == self.last
        self.last = present
        if present >= self.most // 4:
            self.most = max(self.most, present)
        elif self.most < CROWD:
            self.most = present
        elif quiet:
            self.give_back()
            self.most = present


def give_memory_back() -> None:
    """Returns free memory to the system. Takes about ten milliseconds, during which nothing else runs."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
