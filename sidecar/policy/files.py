"""Finds the files of a policy.

Every file under the policy folder is either known by its name or a fault, so that a mistyped file name is not silently
ignored. The folder `tests` and names that begin with `.` (Kubernetes' `..data`) are skipped; files that an editor left
are skipped with a warning. Links are followed only inside the folder, and only regular files are opened.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sidecar.policy.faults import Faults, SourceLine, meant
from sidecar.policy.rows import MAX_FILE_BYTES, decoded
from sidecar.settings.yaml_document import leading_out
from sidecar.vocabulary import PermissionKind

ROLES, GUARDRAILS = "roles", "guardrails"
KINDS = tuple(kind for kind in PermissionKind if kind is not PermissionKind.GUARDRAIL)
POLICY = "policy"
STEMS = (*(kind.value for kind in KINDS), ROLES, GUARDRAILS, POLICY)
COMMON_MODEL = "model.conf"  # of the kinds without a model of their own; its rows are in policy.csv
MAX_FILES = 4096
YAML = (".yaml", ".yml")

_OTHERS = frozenset({"attributes.yaml", "budgets.yaml", "disabled.yaml", "pins.yaml"})  # read elsewhere
_OTHER_FOLDER = "tests"
_LEFT_BY_EDITORS = ("*~", "*.swp", "*.swo", "*.swx", "*.tmp", "#*#", "4913")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """One file of rows. `stem` is its name up to the first dot, for CSV a kind, `roles`, `guardrails` or `policy`;
    `relative` is its path with `/` under the folder."""

    path: Path
    relative: str
    stem: str

    @property
    def is_yaml(self) -> bool:
        """Whether each row states its own kind."""
        return self.path.suffix in YAML

    @property
    def kind(self) -> PermissionKind | None:
        """The kind of the file's `p` rows; None for files of roles and of the common model, and for YAML."""
        if self.is_yaml or self.stem in (ROLES, POLICY):
            return None
        return PermissionKind.GUARDRAIL if self.stem == GUARDRAILS else PermissionKind(self.stem)


def policy_files(folder: Path, faults: Faults, named: Container[Path] = ()) -> list[PolicyFile]:
    """Returns the files of rows under a folder, except those that the settings name (absolute paths)."""
    found: list[PolicyFile] = []
    for path in _walk(folder, faults):
        relative = path.relative_to(folder).as_posix()
        if relative in _OTHERS or path.absolute() in named:
            continue
        if left_by_an_editor(path.name):
            faults.warn(
                "P007", "ignored: an editor left this file behind", SourceLine(str(path), 0, ""), hint="remove it"
            )
            continue
        if leads_out(path, folder, faults):
            continue
        if len(found) == MAX_FILES:
            faults.whole("P001", f"more than {MAX_FILES} files", str(folder))
            break
        stem = "" if unprintable(path, faults) else _stem(path, faults)
        if stem:
            found.append(PolicyFile(path, relative, stem))
    return found


def leads_out(path: Path, folder: Path, faults: Faults) -> bool:
    """Whether this is a link that leads out of the folder; reports a fault if so."""
    fault = leading_out(path, folder) if _is(path.is_symlink) else None
    if fault is not None:
        faults.whole(fault.code, fault.message, fault.file, fault.hint)
    return fault is not None


def unprintable(path: Path, faults: Faults) -> bool:
    """Whether a name, which every message quotes, holds unprintable characters; reports a fault if so."""
    if path.name.isprintable():
        return False
    faults.whole("P002", "its name contains characters that cannot be shown", str(path), "rename it")
    return True


def left_by_an_editor(name: str) -> bool:
    """Whether a file of this name is an editor's backup, swap or probe file, which is not part of the policy."""
    return any(fnmatchcase(name, pattern) for pattern in _LEFT_BY_EDITORS)


def read_text(path: Path, faults: Faults) -> str | None:
    """Returns the text of one file, or None with a fault. Pipes and devices, which could block, are never opened."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            faults.whole("P001", "not a regular file", str(path))
            return None
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        faults.unreadable(error, path)
        return None
    if len(raw) > MAX_FILE_BYTES:
        faults.whole("P001", f"larger than {MAX_FILE_BYTES // 2**20} MiB", str(path))
        return None
    return decoded(raw, str(path), faults)


def _walk(folder: Path, faults: Faults) -> Iterator[Path]:
    """Yields files under the folder, ordered by name, those of a folder before those of its subfolders. A folder
    already visited (through a link upwards) is skipped."""
    entered: set[tuple[int, int]] = set()
    todo = [folder]
    while todo:
        current = todo.pop()
        try:
            info = current.stat()
            (current / "..").stat()  # raises PermissionError if the names in this folder can only be listed
            paths = sorted(current.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            faults.whole("P001", "this folder does not exist", str(current))
            continue
        except OSError as error:
            faults.unreadable(error, current)
            continue
        if (info.st_dev, info.st_ino) in entered:
            continue
        entered.add((info.st_dev, info.st_ino))
        folders = []
        for path in paths:
            if path.name.startswith(".") or (path == folder / _OTHER_FOLDER and _is(path.is_dir)):
                continue
            if _is(path.is_dir) and path.suffix in (".csv", *YAML):
                hint = "a mount of a missing file creates such a folder"
                faults.whole("P001", "a folder with the name of a file", str(path), hint)
            elif not _is(path.is_dir):
                yield path
            elif not (leads_out(path, folder, faults) or unprintable(path, faults)):
                folders.append(path)
        todo.extend(reversed(folders))


def _is(check: Callable[[], bool]) -> bool:
    """False also if the check fails, as for a link that is too long and in a folder that cannot be searched; reading
    then reports the error."""
    try:
        return check()
    except OSError:
        return False


def _stem(path: Path, faults: Faults) -> str:
    stem, _, _ = path.name.partition(".")
    if path.suffix in YAML:
        if path.name not in _OTHERS:
            return stem
        faults.whole("P003", f"{path.name} belongs in the top folder", str(path), "move it, or give it another name")
    elif path.suffix != ".csv" or stem not in STEMS:
        known = [f"{name}.csv" for name in STEMS]
        hint = meant(path.name, known) or "known are <kind>.csv, <kind>.<name>.csv, roles.csv, guardrails.csv"
        faults.whole("P002", "no policy file has this name", str(path), hint)
    else:
        return stem
    return ""
