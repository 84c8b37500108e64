"""Writes audit lines whole to standard output or a pipe.

Standard output is the evidence's alone: from `take` on, what this process or a child of it prints goes to standard
error. A reader who is slow makes the write wait; one who is gone makes it fail. A line whose first byte is out is
carried to its end before any other, so that no reader ever sees a torn one in the midst.

Nothing can be read back from a pipe: the chain begins anew with each process, whose `instance` says which it is, and
there is no anchor.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable

from sidecar.audit.carrier import AppendLines, UnsureError
from sidecar.errors import SettingsError, fault_in

STDOUT, STDERR = 1, 2
LOOK_MS = 1000


class StdoutCarrier:
    """A descriptor that lines are written to. `let_go` ends it."""

    def __init__(self, descriptor: int, let_go: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._let_go = let_go
        self._begun: AppendLines | None = None
        self._rest = b""

    @classmethod
    def take(cls) -> StdoutCarrier:
        """Standard output, for nobody else from now on. Raises SettingsError."""
        try:
            if sys.stdout is None:  # closed from the beginning: what has its number now is not it
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            own = os.dup(STDOUT)
            os.dup2(STDERR, STDOUT)
        except OSError as error:
            message = f"standard output cannot be written: {error.strerror}"
            raise SettingsError([fault_in("audit.sink", message, code="A120")]) from None

        def give_back() -> None:
            os.dup2(own, STDOUT)
            os.close(own)

        return cls(own, give_back)

    def carry(self, append: AppendLines) -> None:
        whole = b"".join(append.lines)
        left = memoryview(self._rest if append is self._begun else whole)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # whoever gave it to us reads and writes without waiting
                writable = select.poll()
                writable.register(self._descriptor, select.POLLOUT)
                writable.poll(LOOK_MS)
            except OSError:
                if append is not self._begun and len(left) == len(whole):
                    raise
                self._begun, self._rest = append, bytes(left)
                raise UnsureError("the reader has a part of it", again=True) from None
        self._begun, self._rest = None, b""

    def give_up(self) -> None:
        """As `Carrier.give_up`. A write that hangs, hangs until its reader reads or this process ends."""

    def close(self) -> None:
        if self._descriptor >= 0:
            self._descriptor = -1
            self._let_go()
