"""Reads a log in blocks of whole lines, from its end or from any position.

Lines of a file are found by their sequence or time without reading the previous lines: both only increase in a log, so
a binary search over its bytes finds the first matching line. Files that are rotated in the meantime are followed. For a
log without a file, the newest lines are stored here while a viewer reads them.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, NamedTuple, Protocol

from sidecar.audit.chain import MAX_LINE_BYTES
from sidecar.audit.segments import parts_of
from sidecar.audit.tail import NewestLines

BLOCK_BYTES: Final = 256 * 1024
RECENT_LINES: Final = 2_000  # about 4 MB
HEAD_BYTES: Final = 512  # of a line; they contain its sequence and its time
_NEAR_BYTES: Final = 16 * 1024  # from here on, lines are read sequentially
_HEAD: Final = re.compile(rb'"seq":(\d{1,19}),(?:[^{}]{0,200}?,)??"timestamp":"([^"]{1,40})"')


class LineHead(NamedTuple):
    seq: int
    timestamp: str


class LogBlock(NamedTuple):
    """Whole lines, and the heads of the first and the last record among them."""

    first: LineHead
    last: LineHead
    lines: bytes


Reached = Callable[[LineHead], bool]
"""Whether a line is at a position or after it."""


class LogTail(Protocol):
    def read(self, max_bytes: int) -> tuple[bytes, int]:
        """The newest lines since the last time, and the number of skipped bytes before them. Raises OSError."""

    def close(self) -> None: ...


class Log(Protocol):
    """One log. Its methods block, and raise OSError."""

    def before(self, reached: Reached | None = None) -> Iterator[LogBlock]:
        """The blocks, newest first; only lines before the first one for which `reached` is true."""

    def since(self, reached: Reached) -> Iterator[LogBlock]:
        """The blocks, oldest first, from the first line for which `reached` is true."""

    def tail(self) -> LogTail:
        """Follows the records from now on."""


class LogFiles(NamedTuple):
    """A log in files: the current one, and its parts next to it."""

    path: Path

    def before(self, reached: Reached | None = None) -> Iterator[LogBlock]:
        with ExitStack() as opened:
            for file in reversed(_open_files(self.path, opened)):
                size = os.fstat(file.fileno()).st_size
                end = size if reached is None else _offset_of(file, size, reached)
                yield from _backwards(file, end)

    def since(self, reached: Reached) -> Iterator[LogBlock]:
        with ExitStack() as opened:
            files = _open_files(self.path, opened)
            starts = [_offset_of(file, os.fstat(file.fileno()).st_size, reached) for file in files]
            for file, start in zip(files, starts, strict=True):
                yield from _forwards(file, start)

    def tail(self) -> LogTail:
        return NewestLines(self.path)


@dataclass(slots=True, eq=False)
class RecentLines:
    """The newest lines of a log without a file, each with its newline. Safe to use from several threads."""

    count: int = 0
    """The total number of lines so far."""
    _lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=RECENT_LINES))
    _lock: Lock = field(default_factory=Lock)

    def add(self, lines: Sequence[bytes]) -> None:
        with self._lock:
            self._lines.extend(lines)
            self.count += len(lines)

    def newest(self) -> Sequence[bytes]:
        with self._lock:
            return list(self._lines)

    def after(self, count: int) -> tuple[Sequence[bytes], int]:
        """The stored lines after the first `count` of all, and the total number of lines."""
        with self._lock:
            new = self.count - count
            return list(islice(self._lines, max(0, len(self._lines) - new), None)), self.count

    def before(self, reached: Reached | None = None) -> Iterator[LogBlock]:
        yield from self._blocks(lambda head: reached is None or not reached(head))

    def since(self, reached: Reached) -> Iterator[LogBlock]:
        yield from self._blocks(reached)

    def tail(self) -> LogTail:
        return RecentTail(self)

    def _blocks(self, wanted: Reached) -> Iterator[LogBlock]:
        lines = [line for line in self.newest() if (head := head_of(line)) is not None and wanted(head)]
        if (block := _block(b"".join(lines))) is not None:
            yield block


class RecentTail:
    """Follows the stored lines of a log without a file. Skipped lines, which are stored no more, are not counted."""

    def __init__(self, recent: RecentLines) -> None:
        self._recent, self._count = recent, recent.count

    def read(self, max_bytes: int) -> tuple[bytes, int]:
        lines, self._count = self._recent.after(self._count)
        return b"".join(lines), 0

    def close(self) -> None:
        pass


def head_of(line: bytes) -> LineHead | None:
    """The sequence and time of a line; None if it is not a record."""
    found = _HEAD.search(line, 0, HEAD_BYTES)
    return None if found is None else LineHead(int(found[1]), found[2].decode("ascii", "replace"))


def _open_files(path: Path, opened: ExitStack) -> list[BinaryIO]:
    """The files of a log, oldest first. The current one is opened before its parts are listed: if it is rotated in the
    meantime, it is among them and omitted there."""
    current: BinaryIO | None = None
    with suppress(FileNotFoundError):  # between the two renames of a rotation
        current = opened.enter_context(path.open("rb"))
    files: list[BinaryIO] = []
    for part in parts_of(path):
        with suppress(FileNotFoundError):  # deleted in the meantime
            file = opened.enter_context(part.open("rb"))
            if current is None or not os.path.samestat(os.fstat(file.fileno()), os.fstat(current.fileno())):
                files.append(file)
    return files if current is None else [*files, current]


def _offset_of(file: BinaryIO, size: int, reached: Reached) -> int:
    """Returns the offset of the first line for which `reached` is true; `size` if there is none."""
    low, high = 0, size
    while high - low > _NEAR_BYTES:
        middle = (low + high) // 2
        at, head = _next_head(file, middle, high)
        if head is None or reached(head):
            high = middle
        else:
            low = at
    file.seek(low)
    at = low
    while at < size and (line := file.readline(MAX_LINE_BYTES + 1)):
        head = head_of(line)
        if head is not None and reached(head):
            return at
        at += len(line)
    return size


def _next_head(file: BinaryIO, offset: int, end: int) -> tuple[int, LineHead | None]:
    """The first record that begins after an offset and before `end`, and its offset."""
    file.seek(offset)
    at = offset + len(file.readline(MAX_LINE_BYTES + 1))
    while at < end:
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            break
        if (head := head_of(line)) is not None:
            return at, head
        at += len(line)
    return end, None


def _backwards(file: BinaryIO, end: int) -> Iterator[LogBlock]:
    at, rest = end, b""
    is_torn = True  # bytes after the last newline are not a record
    while at:
        size = min(BLOCK_BYTES, at)
        at -= size
        file.seek(at)
        data = file.read(size) + rest
        if is_torn:
            data, newline, _ = data.rpartition(b"\n")
            data += newline
            is_torn = not newline
        if at:
            rest, newline, data = data.partition(b"\n")
            rest = b"" if len(rest) > MAX_LINE_BYTES else rest + newline  # too long for a record
        if (block := _block(data)) is not None:
            yield block


def _forwards(file: BinaryIO, start: int) -> Iterator[LogBlock]:
    file.seek(start)
    rest = b""
    while data := file.read(BLOCK_BYTES):
        whole, newline, after = (rest + data).rpartition(b"\n")
        rest = b"" if len(after) > MAX_LINE_BYTES else after
        if (block := _block(whole + newline)) is not None:
            yield block


def _block(lines: bytes) -> LogBlock | None:
    """A block of these lines; None if none of them is a record."""
    at = 0
    while (first := head_of(lines[at : at + HEAD_BYTES])) is None:
        at = lines.find(b"\n", at) + 1
        if not at:
            return None
    end = len(lines) - 1
    while True:
        begin = lines.rfind(b"\n", 0, max(0, end)) + 1
        if (last := head_of(lines[begin : begin + HEAD_BYTES])) is not None:
            return LogBlock(first, last, lines)
        end = begin - 1
