"""Stores fetched policies, each as a whole or not at all: the one in force, recorded last and atomically, and the
previous one."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import CURRENT, StoredPolicy, shelf_of
from sidecar.settings.writing import sync_folder, write_whole

GIT: Final = "git"
FEW_ROWS: Final = 3  # below this number, any number of rows may be removed


class SourceError(Exception):
    """The reason why no policy was accepted, for operators. `refused`: the source's policy is not accepted until it
    changes."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class StoredRevisions:
    """The folder of stored policies. Its path is absolute, because programs with other working folders receive it."""

    def __init__(self, settings: Settings) -> None:
        self.folder = shelf_of(settings).absolute()

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """A temporary folder to unpack into; removed unless `name` gives it a name."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = self.folder / f".aside-{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def name(self, made: Path, name: str) -> None:
        """Renames a completely unpacked policy to its final name. Raises OSError."""
        target = self.folder / name
        if target.exists():  # refused earlier, or left by a killed process; the new content is checked
            shutil.rmtree(target)
        made.rename(target)
        sync_folder(self.folder)

    def put_in_force(self, kept: StoredPolicy, before: StoredPolicy | None) -> None:
        """Makes the next start use this policy. Raises OSError."""
        write_whole(self.folder / CURRENT, kept.plain(), mode=0o600)
        sync_folder(self.folder)
        self._tidy({kept.name} if before is None else {kept.name, before.name})

    def _tidy(self, needed: set[str]) -> None:
        for path in list(self.folder.iterdir()):
            if path.name in (CURRENT, GIT) or path.name in needed:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def objection(new: StoredPolicy, old: StoredPolicy | None, accept: str | None) -> str:
    """Returns why the policy is refused; "" if it is not. Policies of another repository or name are accepted, because
    the settings changed.

    A valid signature does not stop the replay of an old policy, so versions must increase. A policy that lost more than
    half of its bytes is probably a packaging mistake. The operator can `accept` one policy nonetheless, by its digest.
    """
    if old is None or accept == new.name or (new.kind, new.of) != (old.kind, old.of):
        return ""
    if new.version < old.version:
        return f"it is older than what serves: {new.version} after {old.version}"
    if new.version == old.version and new.kind == "bundle":
        return f"it is another one of the same version, {new.version}"
    if new.kind == "adapter":
        few = new.size * 2 <= old.size and old.size >= FEW_ROWS
        return f"it gave half of what serves, or less: {new.size} rows after {old.size}" if few else ""
    if new.size * 2 < old.size:
        return f"it is less than half as large as what serves: {new.size} bytes after {old.size}"
    return ""
