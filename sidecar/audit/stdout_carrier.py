"""Writes audit lines whole to standard output or a pipe.

After `take`, prints of this process and its children go to standard error. A line whose first byte was written is
completed before any other line, so no reader sees an incomplete line in the middle.
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
    """Writes lines to a descriptor. `let_go` releases it."""

    def __init__(self, descriptor: int, let_go: Callable[[], None]) -> None:
        self._descriptor, self._let_go = descriptor, let_go
        self._begun: AppendLines | None = None
        self._rest = b""

    @classmethod
    def take(cls) -> StdoutCarrier:
        """Takes standard output. Raises SettingsError if it is closed."""
        try:
            if sys.stdout is None:  # closed at start: the descriptor number may belong to another file
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
            except BlockingIOError:  # the inherited descriptor is non-blocking
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
        """A blocked write remains blocked until its reader reads or this process ends."""

    def close(self) -> None:
        if self._descriptor >= 0:
            self._descriptor = -1
            self._let_go()
