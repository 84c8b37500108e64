"""Makes record ids, which sort by time and cannot be guessed, and timestamps. Constant parts are cached."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

ENTROPY_BYTES = 1000  # read from the operating system at a time, for a hundred ids
_HEAD_BYTES = 400  # of them: four bytes of each id, two with the version and two with the variant
_VERSION, _VARIANT = (bytes(mark | byte & mask for byte in range(256)) for mark, mask in ((0x70, 0x0F), (0x80, 0x3F)))


class Clock(Protocol):
    """Wall and monotonic clock, as in Python's `time` module."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back."""


def time_ordered_ids(clock: Clock, *, entropy: Callable[[int], bytes] = os.urandom) -> Callable[[], str]:
    """A source of UUIDs of version 7 (RFC 9562): they sort by the millisecond, and 74 bits cannot be guessed. After a
    fork, the child must create its own source, because entropy is buffered."""
    begin_s = end_s = 0.0  # of the millisecond that `time` names
    now, time = clock.time, ""
    stock: list[str] = []  # of the random parts

    def new_id() -> str:
        nonlocal begin_s, end_s, time, stock
        now_s = now()
        if not begin_s <= now_s < end_s:
            now_ms = int(now_s * 1000)
            begin_s, end_s, digits = now_ms / 1000, (now_ms + 1) / 1000, f"{now_ms:012x}"
            time = f"{digits[:8]}-{digits[8:]}-"
        if not stock:
            stock = _random_parts(bytearray(entropy(ENTROPY_BYTES)))
        return time + stock.pop()

    return new_id


def _random_parts(drawn: bytearray) -> list[str]:
    """The ends of ids, from the version on. Slices take half as long as a loop."""
    drawn[:_HEAD_BYTES:4] = drawn[:_HEAD_BYTES:4].translate(_VERSION)
    drawn[2:_HEAD_BYTES:4] = drawn[2:_HEAD_BYTES:4].translate(_VARIANT)
    heads, tails = drawn[:_HEAD_BYTES].hex("-", 2).split("-"), drawn[_HEAD_BYTES:].hex("-", 6).split("-")
    return list(map("-".join, zip(heads[::2], heads[1::2], tails, strict=True)))


def timestamp(epoch_s: float) -> str:
    """Formats seconds since the epoch as RFC 3339 in UTC with microseconds."""
    whole_s = int(epoch_s)
    return f"{date_of(whole_s)}.{int((epoch_s - whole_s) * 1e6):06d}Z"


@lru_cache(4)
def date_of(whole_s: int) -> str:
    """A timestamp up to the whole second."""
    return datetime.fromtimestamp(whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
