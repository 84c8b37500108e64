"""Returns memory to the operating system after a peak.

What thousands of streams held, or large bodies and answers, is free when they are over, but the allocators keep it for
the next, and an operator sees a process that stays as large as its worst hour. So what can be given back is, once, when
nearly all of a crowd has left.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

CROWD: Final = 500  # fewer hold no more than some 25 MB
STREAM_BYTES: Final = 50_000  # what one stream holds; bodies and answers are counted as so many streams


@dataclass(slots=True)
class MemoryTrim:
    """`give_back` is done once for each crowd."""

    give_back: Callable[[], None]
    most: int = 0
    last: int = 0

    def look(self, present: int) -> None:
        """How many there are now; asked every so often. Acts on the second look in a row that finds the place quiet."""
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
    """To the system. Some ten milliseconds, in which nothing else is done."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc alone has a word for it
        ctypes.CDLL(None).malloc_trim(0)
