"""Lists the policy's files for operators, and reads lines of them.

Only files of the policy in force can be named: those below its folders, unless a link leads out of them, and those that
the settings name.
"""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from sidecar.admin.console.marked_text import Piece, pieces_of
from sidecar.policy.files import MAX_FILES, left_by_an_editor
from sidecar.policy.rows import MAX_FILE_BYTES
from sidecar.settings.policy import PolicySettings
from sidecar.settings.yaml_document import leading_out

CHUNK_BYTES: Final = 64 * 1024
MAX_SCANS: Final = 8  # files whose numbers of lines are cached
MAX_SHOWN_BYTES: Final = 2 * 2**20
_KEY: Final = re.compile(r"\s*(?:- )?[\w.*/:\"'-]+(?::(?=\s|$)| =)")


class PolicyFolderFile(NamedTuple):
    """One file. `name` is its path with the name of its folder in front, such as `policies/tests/refunds.yaml`.
    `written_at` is in seconds since the epoch."""

    name: str
    path: Path
    bytes: int
    written_at: float

    def plain(self) -> Mapping[str, Any]:
        return {"name": self.name, "path": str(self.path), "bytes": self.bytes, "written_at": self.written_at}


class ShownLines(NamedTuple):
    """Some lines of a file. `first` is the number of the first of them, counted from 1, and `total` the number of all
    lines."""

    first: int
    lines: Sequence[str]
    total: int


def files_of(policy: PolicySettings) -> list[PolicyFolderFile]:
    """The files of models, rules, limits and tests, at most MAX_FILES, folder by folder. Blocks."""
    folders = [policy.models, policy.path] if isinstance(policy.models, Path) else [policy.path]
    found = [one for folder in folders for one in _under(folder)]
    apart = (path for path in (*policy.files, policy.rows) if path is not None)
    found += [one for path in apart if (one := _file_at(path, path.name)) is not None]
    return found[:MAX_FILES]


def file_named(policy: PolicySettings, name: str) -> PolicyFolderFile | None:
    """A file by its name, by its path as in rules and faults, or by its path inside its folder; None if there is none.
    Blocks."""
    for one in files_of(policy):
        if name in (one.name, str(one.path), one.name.partition("/")[2]):
            return one
    return None


def _under(folder: Path) -> Iterator[PolicyFolderFile]:
    entered, count = set[tuple[int, int]](), 0
    for top, folders, names in os.walk(folder, followlinks=True):
        try:
            seen = Path(top).stat()
        except OSError:  # it has been removed in the meantime
            continue
        if (seen.st_dev, seen.st_ino) in entered:
            folders.clear()
            continue
        entered.add((seen.st_dev, seen.st_ino))
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(names):
            path = Path(top, name)
            if name.startswith(".") or left_by_an_editor(name) or not name.isprintable():
                continue
            if leading_out(path, folder) is not None:
                continue
            count += 1
            if count > MAX_FILES:
                return
            label = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            if (one := _file_at(path, label)) is not None:
                yield one


def _file_at(path: Path, name: str) -> PolicyFolderFile | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return PolicyFolderFile(name, path, found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None


@dataclass(slots=True)
class LineReader:
    """Reads lines of files, which may be large. The lines of a file are counted once for each size and write time."""

    _scans: OrderedDict[tuple[str, int, float], Sequence[int]] = field(default_factory=OrderedDict)

    def read(self, file: PolicyFolderFile, first: int, most: int) -> ShownLines:
        """Up to `most` lines from the line `first` on, or the last line if there are fewer. Blocks. Raises OSError."""
        with file.path.open("rb") as source:
            before = self._before_chunks(file, source)
            total = before[-1]
            first = max(1, min(first, total))
            # The first line in a chunk may have begun in an earlier one.
            chunk = max(0, bisect_left(before, first - 1, 0, len(before) - 1) - 1)
            source.seek(chunk * CHUNK_BYTES)
            lines = source.read(MAX_SHOWN_BYTES).split(b"\n")
        at = first - 1 - before[chunk]
        shown = [raw.rstrip(b"\r").decode("utf-8", "replace") for raw in lines[at : at + min(most, total - first + 1)]]
        return ShownLines(first, shown, total)

    def _before_chunks(self, file: PolicyFolderFile, source: IO[bytes]) -> Sequence[int]:
        """The numbers of lines that end before each chunk of a file, and then the number of all lines."""
        state = str(file.path), file.bytes, file.written_at
        if (known := self._scans.get(state)) is not None:
            return known
        before, last, count, read = list[int](), b"\n", 0, 0
        while (chunk := source.read(CHUNK_BYTES)) and read < MAX_FILE_BYTES:
            before.append(count)
            count, last, read = count + chunk.count(b"\n"), chunk[-1:], read + len(chunk)
        before = [*(before or [0]), count + (last != b"\n")]
        self._scans[state] = before
        if len(self._scans) > MAX_SCANS:
            self._scans.popitem(last=False)
        return before


def pieces_in(line: str, suffix: str) -> list[Piece]:
    """A line of a CSV, YAML or model file in pieces, with marks for comments, notes, keys and the effect of a row."""
    words = line.strip()
    if words.startswith("#"):
        return pieces_of(line, "note" if words.startswith("#:") else "comment")
    if suffix == ".csv":
        start, comma, effect = line.rpartition(",")
        mark = effect.strip() if effect.strip() in ("allow", "deny") else ""
        return [*pieces_of(start + comma), *pieces_of(effect, mark)] if comma else pieces_of(line)
    if suffix == ".conf" and words.startswith("["):
        return pieces_of(line, "key")
    key = _KEY.match(line)
    return [*pieces_of(key[0], "key"), *pieces_of(line[key.end() :])] if key else pieces_of(line)
