"""Reads whole files that an operator names or another process writes, up to a limit."""

from __future__ import annotations

import errno
from io import BufferedReader
from pathlib import Path


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises OSError, also (EFBIG) for a file that is larger, with the limit in its text."""
    with path.open("rb") as file:
        return bounded_content(file, max_bytes)


def bounded_content(file: BufferedReader, max_bytes: int) -> bytes:
    """The content of an open file, like `read_bounded`."""
    raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes: put the right file there", file.name)
    return raw
