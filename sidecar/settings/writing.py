"""Replaces files atomically: readers see the old content or the new."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_whole(path: Path, raw: bytes, *, mode: int | None = None) -> None:
    """Replaces the content of `path`, synced to disk. Links are followed; with `mode` None an existing file keeps its
    mode. Raises OSError, also for a device, a pipe or a folder, which the rename would destroy."""
    path = path.resolve()
    check_replaceable(path)
    if mode is None:
        mode = path.stat().st_mode & 0o777
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        beside = Path(file.name)
        try:
            os.fchmod(file.fileno(), mode)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def sync_folder(folder: Path) -> None:
    """Syncs a folder's entries to disk, so that a rename in it survives a power failure. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_replaceable(path: Path) -> None:
    """Raises OSError if `path` exists and is not a regular file."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
