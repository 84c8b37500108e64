"""Makes record ids, which sort by time and cannot be guessed, and timestamps. Parts that stay the same are cached."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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
    chance = _digits(entropy, 19)

    def new_id() -> str:
        nonlocal known_ms, time
        now_ms = int(clock.time() * 1000)
        if now_ms != known_ms:
            digits = f"{now_ms:012x}"
            known_ms, time = now_ms, f"{digits[:8]}-{digits[8:]}"
        random = next(chance)
        return f"{time}-7{random[:3]}-{_VARIANTS[random[3]]}{random[4:7]}-{random[7:]}"

    return new_id


def timestamps() -> Callable[[float], str]:
    """Formats seconds since the epoch as RFC 3339 in UTC with microseconds. The date is computed once a second."""
    known_s, date = -1, ""

    def timestamp(epoch_s: float) -> str:
        nonlocal known_s, date
        whole_s, micros = divmod(round(epoch_s * 1_000_000), 1_000_000)
        if whole_s != known_s:
            known_s, date = whole_s, datetime.fromtimestamp(whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{date}.{micros:06d}Z"

    return timestamp


def _digits(entropy: Callable[[int], bytes], count: int) -> Iterator[str]:
    while True:
        stock = entropy(ENTROPY_BYTES).hex()
        for start in range(0, len(stock) - count + 1, count):
            yield stock[start : start + count]
