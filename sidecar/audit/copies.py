"""Copies the audit log to a second place without delaying requests.

The file is the evidence, and callers wait only for the file. A thread carries its lines to the second place, unchanged
and in order. Up to `MAX_WAITING` lines are queued; further lines are dropped from the copy, counted, and show there as
a gap in `seq`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from sidecar.audit.carrier import AppendLines, Carrier, UnsureError
from sidecar.audit.chain import ChainEnd, Unsealed, seal
from sidecar.audit.rotation import ChainSink

MAX_WAITING: Final = 20_000  # lines, about 40 MB
MAX_AT_ONCE: Final = 256
CLOSE_S: Final = 3.0

log = logging.getLogger("sidecar.audit")


class CopySink:
    """A sink, and a copy of its lines. `lost` and `copied` count lines."""

    def __init__(self, sink: ChainSink, end: ChainEnd, carrier: Carrier, *, max_waiting: int = MAX_WAITING) -> None:
        self.copied = self.lost = 0
        self.file, self.settle = sink.file, sink.settle
        self._sink, self._carrier, self._max_waiting = sink, carrier, max_waiting
        self._waiting: deque[tuple[bytes, ChainEnd]] = deque()
        self._changed = threading.Condition()
        self._at_work = 0
        self._closed = False
        self._end = end
        self._thread = threading.Thread(target=self._work, name="audit copy", daemon=True)
        self._thread.start()

    @property
    def end(self) -> ChainEnd:
        return self._sink.end

    @property
    def waiting(self) -> int:
        return len(self._waiting) + self._at_work

    def append(self, records: Sequence[Unsealed]) -> int:
        end = self.end
        count = self._sink.append(records)
        with self._changed:
            for record in records[:count]:
                line, end = seal(record, end)
                if len(self._waiting) < self._max_waiting:
                    self._waiting.append((line, end))
                else:
                    self._lose(1, "too many wait")
            self._changed.notify()
        return count

    def is_quick(self, count: int) -> bool:
        return False

    def abandon(self) -> None:
        self._sink.abandon()
        self._carrier.give_up()

    def close(self) -> None:
        """Close the sink, and give queued lines CLOSE_S to be delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._carrier.give_up()
        self._thread.join(CLOSE_S)
        self._sink.close()
        if not self._thread.is_alive():
            self._carrier.close()
        if self.waiting:
            self._lose(self.waiting, "closed")

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        log.error("the copy of the audit log lacks lines", extra={"lines": count, "why": why})

    def _work(self) -> None:
        while lines := self._next():
            append = AppendLines(tuple(line for line, _ in lines), self._end, lines[-1][1])
            for _ in range(2):  # the second attempt, where that is safe, resolves an unsure result
                try:
                    self._carrier.carry(append)
                    self.copied += len(lines)
                except OSError as error:
                    if isinstance(error, UnsureError) and error.again:
                        continue
                    self._lose(len(lines), str(error))
                break
            else:
                self._lose(len(lines), "it is unknown whether they arrived")
            self._end, self._at_work = append.after, 0

    def _next(self) -> list[tuple[bytes, ChainEnd]]:
        """The next lines to carry; empty once closed and drained."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            lines = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_AT_ONCE))]
            self._at_work = len(lines)
            return lines
