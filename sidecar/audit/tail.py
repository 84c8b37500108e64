"""Reads the whole lines of a log from its first file on, and follows what is appended, also after rotation."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from sidecar.audit.chain import MAX_LINE_BYTES
from sidecar.audit.file_sink import is_at
from sidecar.audit.segments import last_seq_of, parts_of


def lines(paths: Sequence[Path]) -> Iterator[bytes]:
    """Every whole line of some files; a line longer than a record comes in pieces. Raises OSError."""
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
    """The lines of a file for as long as it has this name, to its end."""
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
