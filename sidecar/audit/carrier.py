"""Writes records to sinks that cannot remove them, such as pipes, streams and networks.

`ChainedCarrier` gives records their position in the chain; a `Carrier` delivers the lines. The results of a delivery:

    it returns               the lines are delivered
OSError                  they are not delivered; the next records take their position
    UnsureError, again       they may be; they are carried again before any others, and arrive once
    UnsureError, not again   they may be, and repeating could duplicate them: if they are missing, the chain shows it

A carrier retries until `give_up` is called; the writer refuses waiting callers at its deadline (`writer.py`).
"""

import errno
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from time import monotonic
from typing import Final, NamedTuple, Protocol

from sidecar.audit.chain import ChainEnd, Unsealed, seal
from sidecar.audit.log_blocks import RecentLines

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5)
LONGEST_PAUSE_S: Final = 1.0
UNSEEN_S: Final = 60.0  # after this, lines that no viewer reads are not stored any more


class AppendLines(NamedTuple):
    """Lines, each with its newline; and the chain's end before and after them."""

    lines: tuple[bytes, ...]
    before: ChainEnd
    after: ChainEnd


class UnsureError(OSError):
    """It is unknown whether the lines were delivered. `again`: they can safely be carried again."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(errno.ETIMEDOUT, message)
        self.again = again


class Carrier(Protocol):
    """Delivers lines. One thread calls `carry`; another may call `give_up`."""

    def carry(self, append: AppendLines) -> None:
        """Delivers all lines. Raises OSError if none of them is delivered, UnsureError if that is unknown."""

    def give_up(self) -> None:
        """Stops waiting for the receiver, if possible."""

    def close(self) -> None:
        """Releases the receiver."""


class ChainedCarrier:
    """A sink whose chain starts or continues at `end`, for the life of this process."""

    def __init__(self, carrier: Carrier, end: ChainEnd) -> None:
        self.end, self.file = end, None
        self.abandon, self.close = carrier.give_up, carrier.close
        self._carrier = carrier
        self._begun: AppendLines | None = None
        self._recent: RecentLines | None = None
        self._seen_mono_s = 0.0

    def recent(self) -> RecentLines:
        """The newest delivered lines, stored from the first call of this method on."""
        self._seen_mono_s = monotonic()
        if self._recent is None:
            self._recent = RecentLines()
        return self._recent

    def append(self, records: Sequence[Unsealed]) -> int:
        self.settle()
        lines, after = seal(records, self.end)
        append = AppendLines(tuple(lines), self.end, after)
        try:
            self._carrier.carry(append)
        except UnsureError as unsure:
            if unsure.again:
                self._begun = append
            else:
                self.end = after
            raise
        self._delivered(append)
        return len(append.lines)

    def quick_append(self, count: int) -> None:
        return None

    def settle(self) -> None:
        if self._begun is None:
            return
        try:
            self._carrier.carry(self._begun)
        except OSError as error:
            # The caller's records were certainly not written, because their append did not start.
            raise OSError(errno.EBUSY, "what came before is not there yet") from error
        self._delivered(self._begun)
        self._begun = None

    def _delivered(self, append: AppendLines) -> None:
        self.end = append.after
        if self._recent is not None and monotonic() - self._seen_mono_s < UNSEEN_S:
            self._recent.add(append.lines)
        else:
            self._recent = None


def pauses() -> Iterator[float]:
    """Increasing pauses between attempts, in seconds."""
    return chain(PAUSES_S, repeat(LONGEST_PAUSE_S))
