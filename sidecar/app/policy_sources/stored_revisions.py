"""Stores fetched policies, and remembers which one is in force.

Each policy is unpacked aside and gets its name when it is whole; the record that puts it in force is written last, and
in one step. Two are kept, the one in force and the one before it, for whoever looks for the difference.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sidecar.settings import Settings
from sidecar.settings.stored_policy import CURRENT, FOLDER, StoredPolicy, kept_for, placed, shelf_of

GIT: Final = "git"
ASIDE: Final = ".aside-"

__all__ = ["FOLDER", "SourceError", "StoredPolicy", "StoredRevisions", "kept_for", "placed"]


class SourceError(Exception):
    """Nothing was taken; its text says why, for operators, and holds no secret. `refused`: there was something, and
    it is not taken until it is another."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class StoredRevisions:
    """The folder of what was taken; absolute, as programs that work elsewhere are told it."""

    def __init__(self, settings: Settings) -> None:
        self.folder = shelf_of(settings).absolute()

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """An empty folder to unpack into; it goes, unless it was given a name."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = self.folder / f"{ASIDE}{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def name(self, made: Path, name: str) -> None:
        """What was unpacked is whole. Raises OSError."""
        target = self.folder / name
        if target.exists():  # refused once, or left by one who was killed: what is there now was checked
            shutil.rmtree(target)
        made.rename(target)
        _synced(self.folder)

    def put_in_force(self, kept: StoredPolicy, before: StoredPolicy | None) -> None:
        """From now on a start begins with this one. Raises OSError."""
        new = self.folder / f"{ASIDE}{secrets.token_hex(8)}"
        with new.open("wb") as file:
            file.write(kept.plain())
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / CURRENT)
        _synced(self.folder)
        self._tidy({kept.name} if before is None else {kept.name, before.name})

    def _tidy(self, needed: set[str]) -> None:
        for path in list(self.folder.iterdir()):
            if path.name in (CURRENT, GIT) or path.name in needed:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _synced(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
