"""Writes records to places that cannot take them back, such as pipes, streams and networks.

Not into a file, but into a pipe, a stream or a network. `ChainedCarrier` gives them their places, a carrier takes the
lines:

    it returns           they are there
    OSError              they are not, and the next records stand in their place
    Unsure, again        they may be: they are carried once more before anything else is, and are there once
    Unsure, not again    they may be, and once more could double them: what follows stands behind them, and if they are
                         missing, the chain says so

A carrier waits for whoever does not answer, and tries again, as long as it may: who waits for it is refused by the
writer in time (`writer.py`), and what was begun is not lost.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, Protocol

from sidecar.audit.chain import ChainEnd
from sidecar.audit.file_sink import sealed

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5)
LONGEST_PAUSE_S: Final = 1.0


class AppendLines(NamedTuple):
    """Lines, each with its newline; where the chain ends before them, and where behind them."""

    lines: tuple[bytes, ...]
    before: ChainEnd
    after: ChainEnd


class UnsureError(OSError):
    """Nobody knows whether the lines are there. `again`: to carry them once more is no harm."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(errno.ETIMEDOUT, message)
        self.again = again


class Carrier(Protocol):
    """Takes lines somewhere. One thread carries; `give_up` comes from another."""

    def carry(self, append: AppendLines) -> None:
        """All of them, or none. Raises OSError."""

    def give_up(self) -> None:
        """Wait for nobody any more."""

    def close(self) -> None:
        """Let go of it."""


class ChainedCarrier:
    """A sink whose chain begins or goes on at `end`, as long as this process lives."""

    def __init__(self, carrier: Carrier, end: ChainEnd) -> None:
        self.end = end
        self.file = None
        self._carrier = carrier
        self._begun: AppendLines | None = None

    def append(self, records: Sequence[dict[str, Any]]) -> int:
        self.settle()
        lines, after = sealed(records, self.end)
        append = AppendLines(tuple(lines.splitlines(keepends=True)), self.end, after)
        try:
            self._carrier.carry(append)
        except UnsureError as unsure:
            if unsure.again:
                self._begun = append
            else:
                self.end = after
            raise
        self.end = after
        return len(append.lines)

    def settle(self) -> None:
        """As `ChainSink.settle`: what was begun comes first."""
        if self._begun is None:
            return
        try:
            self._carrier.carry(self._begun)
        except OSError as error:
            # To who waits now it is certain: their records were not so much as begun.
            raise OSError(errno.EBUSY, "what came before is not there yet") from error
        self.end, self._begun = self._begun.after, None

    def abandon(self) -> None:
        self._carrier.give_up()

    def close(self) -> None:
        self._carrier.close()


class CarrierDeadline:
    """How long to wait between attempts, until somebody gives up."""

    def __init__(self) -> None:
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """Whether nobody is to be waited for any more."""
        return self._over.is_set()

    def end(self) -> None:
        """From any thread."""
        self._over.set()

    def pauses(self) -> Iterator[float]:
        """Longer and longer, in seconds."""
        return chain(PAUSES_S, repeat(LONGEST_PAUSE_S))

    def wait(self, seconds: float) -> bool:
        """False if that is over."""
        return not self._over.wait(seconds)
