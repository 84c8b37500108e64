"""Makes record ids, which sort by time and cannot be guessed, and timestamps. Parts that stay the same are cached."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

ENTROPY_BYTES = 4096  # read from the operating system at a time: enough for 431 ids
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
    stock, used = "", 0  # hexadecimal digits

    def new_id() -> str:
        nonlocal known_ms, time, stock, used
        now_ms = int(clock.time() * 1000)
        if now_ms != known_ms:
            digits = f"{now_ms:012x}"
            known_ms, time = now_ms, f"{digits[:8]}-{digits[8:]}"
        random = stock[used : used + 19]
        if len(random) < 19:
            stock, used = entropy(ENTROPY_BYTES).hex(), 0
            random = stock[:19]
        used += 19
        return f"{time}-7{random[:3]}-{_VARIANTS[random[3]]}{random[4:7]}-{random[7:]}"

    return new_id


def timestamp(epoch_s: float) -> str:
    """Formats seconds since the epoch as RFC 3339 in UTC with microseconds."""
    whole_s, micros = divmod(round(epoch_s * 1_000_000), 1_000_000)
    return f"{_date(whole_s)}.{micros:06d}Z"


@lru_cache(4)
def _date(whole_s: int) -> str:
    return datetime.fromtimestamp(whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
