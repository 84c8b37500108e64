"""Makes record ids, which sort by time and cannot be guessed, and timestamps. Parts that stay the same are cached."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

ENTROPY_BYTES = 1024  # read from the operating system at a time: enough for 107 ids
_VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # RFC 9562's variant bits, two random bits


class Clock(Protocol):
    """Wall and monotonic clock, as in Python's `time` module."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back."""


def time_ordered_ids(clock: Clock, *, entropy: Callable[[int], bytes] = os.urandom) -> Callable[[], str]:
    """A source of UUIDs of version 7 (RFC 9562): they sort by the millisecond, and 74 bits cannot be guessed. After a
    fork, the child must create its own source, because entropy is buffered."""
    known_ms, time = -1, ""
    stock: list[str] = []  # of the random parts

    def new_id() -> str:
        nonlocal known_ms, time, stock
        now_ms = int(clock.time() * 1000)
        if now_ms != known_ms:
            digits = f"{now_ms:012x}"
            known_ms, time = now_ms, f"{digits[:8]}-{digits[8:]}-7"
        if not stock:
            drawn = entropy(ENTROPY_BYTES).hex()
            parts = [drawn[start : start + 19] for start in range(0, len(drawn) - 18, 19)]
            stock = [f"{each[:3]}-{_VARIANTS[each[3]]}{each[4:7]}-{each[7:]}" for each in parts]
        return time + stock.pop()

    return new_id


def timestamp(epoch_s: float) -> str:
    """Formats seconds since the epoch as RFC 3339 in UTC with microseconds."""
    whole_s = int(epoch_s)
    return f"{date_of(whole_s)}.{int((epoch_s - whole_s) * 1e6):06d}Z"


@lru_cache(4)
def date_of(whole_s: int) -> str:
    """A timestamp up to the whole second."""
    return datetime.fromtimestamp(whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
