"""Reads the whole lines of a log from its first file on, and follows appended lines, also after rotation."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from sidecar.audit.chain import MAX_LINE_BYTES
from sidecar.audit.file_sink import is_at
from sidecar.audit.segments import last_seq_of, parts_of


def lines(paths: Sequence[Path]) -> Iterator[bytes]:
    """Every whole line of some files; a line that is longer than a record comes in pieces. Raises OSError."""
    for path in paths:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if line.endswith(b"\n") or len(line) > MAX_LINE_BYTES:
                    yield line  # an unterminated line is not a record


def follow(paths: Sequence[Path], wait: Callable[[], object]) -> Iterator[bytes]:
    """Every whole line of the files, the last of which is still being written, then every new one. `wait` is called
    when there is nothing new. Progress is tracked by names and open files: a line that claims a high sequence must not
    hide later ones."""
    *older, path = paths
    newest = max(map(last_seq_of, older or parts_of(path)), default=-1)
    shown = {part for part in parts_of(path) if last_seq_of(part) <= newest}
    yield from lines(older)
    while True:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # between the two renames of a rotation
            wait()
            continue
        with file:
            for part in parts_of(path):
                if _is_still(part, file):
                    break
                if part not in shown:
                    shown.add(part)
                    yield from lines([part])
            yield from _while_it_is(path, file, wait)
            shown |= {part for part in parts_of(path) if _is_still(part, file)}


def _while_it_is(path: Path, file: BinaryIO, wait: Callable[[], object]) -> Iterator[bytes]:
    """The lines of a file to its end, while it has this name."""
    whole_at, is_over = 0, False
    while True:
        line = file.readline(MAX_LINE_BYTES + 1)
        if line.endswith(b"\n"):
            whole_at += len(line)
            yield line
        elif is_over:
            return
        else:
            whole_at = min(whole_at, os.fstat(file.fileno()).st_size)  # an append was undone, or the file was truncated
            file.seek(whole_at)
            is_over = not _is_still(path, file)  # if it was rotated, read only the rest
            if not is_over:
                wait()


def _is_still(path: Path, file: BinaryIO) -> bool:
    return is_at(path, os.fstat(file.fileno()))


class NewestLines:
    """Follows the lines appended to a log from now on. If there are too many, only the newest are read. Not
    thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._offset = path, _opened(path), 0
        if self._file is not None:
            self._offset = self._file.seek(0, os.SEEK_END)

    def read(self, max_bytes: int) -> tuple[bytes, int]:
        """Returns the newest whole lines since the last time, up to `max_bytes` of a file, and the number of skipped
        bytes before them. The rest of a file that was rotated in the meantime comes first. Raises OSError."""
        lines, passed_bytes = self._read(max_bytes)
        if self._file is None or not _is_still(self._path, self._file):
            if self._file is not None:
                self._file.close()
            self._file, self._offset = _opened(self._path), 0
            more, more_passed = self._read(max_bytes)
            lines, passed_bytes = lines + more, passed_bytes + more_passed
        return lines, passed_bytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, max_bytes: int) -> tuple[bytes, int]:
        if self._file is None:
            return b"", 0
        size = os.fstat(self._file.fileno()).st_size
        begin = max(self._offset, size - max_bytes)
        passed_bytes, self._offset = begin - self._offset, min(self._offset, size)  # an append may have been undone
        if size <= begin:
            return b"", 0
        self._file.seek(begin)
        lines = self._file.read(size - begin)
        if passed_bytes:
            cut, newline, lines = lines.partition(b"\n")
            passed_bytes += len(cut) + len(newline)
        lines, newline, _ = lines.rpartition(b"\n")
        self._offset += passed_bytes + len(lines) + len(newline)
        return lines + newline, passed_bytes


def _opened(path: Path) -> BinaryIO | None:
    with suppress(FileNotFoundError):  # between the two renames of a rotation, or of a worker that is yet to start
        return path.open("rb")
    return None
