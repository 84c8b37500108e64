"""Replaces files atomically: readers see the old content or the new."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from tempfile import NamedTemporaryFile


def write_whole(path: Path, raw: bytes, *, mode: int | None = None) -> None:
    """Replaces the content of `path`, or creates the file. The content is synced to disk, its rename is not
    (`sync_folder`). Links are followed. With `mode` None the file must exist, and keeps its mode. Raises OSError, also
    if `path` is not a regular file, which the rename would replace."""
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


class UnwrittenError(Exception):
    """Not all files were written; the text says why."""


def write_all(files: Mapping[Path, bytes], *, force: bool) -> None:
    """Writes files. All content is written before the first file is replaced. Raises UnwrittenError, also if a file
    exists, unless `force`; its text names files that were replaced nevertheless."""
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise UnwrittenError(f"{', '.join(there[:3])}{more} would be overwritten: --force does that")
    written: list[tuple[Path, Path]] = []
    try:
        for path, raw in files.items():
            check_replaceable(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{token_hex(8)}")
            written.append((beside, path))
            with beside.open("xb") as file:
                file.write(raw)
        for beside, path in written:
            beside.replace(path)
    except OSError as error:
        replaced = [str(path) for beside, path in written[:-1] if not beside.exists()]
        also = f"; already replaced: {', '.join(replaced)}" if replaced else ""
        raise UnwrittenError(f"cannot be written: {error.strerror}: {error.filename}{also}") from None
    finally:
        for beside, _ in written:
            beside.unlink(missing_ok=True)
