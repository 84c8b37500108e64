"""The local file of kill switch changes, which survives restarts.

All changes are in one small file, rewritten with each change: to a temporary file, synced, then renamed. A file that
cannot be parsed stops the start, because a disabled principal must not be enabled by a damaged file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from sidecar.errors import SettingsError, fault_in
from sidecar.gateway.kill_switch.entries import NONE_DISABLED, Disabled, is_object
from sidecar.gateway.kill_switch.switch_versions import MAX_NUMBER, SwitchVersion, flip_from
from sidecar.settings.reading import read_bounded
from sidecar.settings.writing import sync_folder, write_whole

LEDGER_FILE = "disabled.json"
VERSION: Final = 1
MAX_FLIPS = 10_000
MAX_BYTES = 16 * 2**20
_HINT = "restore it from a backup; without it, only the store and policies/disabled.yaml name disabled principals"


@dataclass(slots=True)
class SwitchLedger:
    """The newest change of each principal, and the resulting entries; `switched_off` are tools and servers."""

    path: Path
    flips: dict[str, SwitchVersion] = field(default_factory=dict)
    disabled: Disabled = NONE_DISABLED
    switched_off: Disabled = NONE_DISABLED

    @classmethod
    def open(cls, path: Path) -> SwitchLedger:
        """Reads the file; returns an empty ledger if there is none. Raises SettingsError."""
        ledger = cls(path)
        try:
            ledger.take(_parsed(read_bounded(path, MAX_BYTES)))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is damaged: {error}"
            raise SettingsError([fault_in(path, why, code="D101", hint=_HINT)]) from None
        return ledger

    @classmethod
    def open_all(cls, own: Path, parts: Iterable[Path]) -> SwitchLedger:
        """Reads the file in the folder `own`, and takes newer changes from the other `parts`, so that the changes of
        each worker stay in force if the number of workers changes. Raises SettingsError."""
        ledger = cls.open(own / LEDGER_FILE)
        for part in parts:
            if part != own:
                ledger.take(cls.open(part / LEDGER_FILE).flips.values())
        return ledger

    def absorb(self, parts: Iterable[Path]) -> None:
        """Saves the changes from the folders of processes that no longer run, and removes those files: a change in one
        of them must not return when the change that undid it is forgotten. Raises OSError."""
        if left := [path for part in parts if (path := part / LEDGER_FILE).exists()]:
            self.save()
            for path in left:
                path.unlink()

    def next_number(self) -> int:
        """The highest known number plus one, at most the highest number that can be read again. A client that can write
        to the store can set that number; of two changes with the same number the safer one takes effect."""
        return min(max((flip.number for flip in self.flips.values()), default=0) + 1, MAX_NUMBER)

    def take(self, flips: Iterable[SwitchVersion]) -> list[SwitchVersion]:
        """Adds the changes that are newer than the known ones. Returns those added."""
        newer = []
        for flip in flips:
            known = self.flips.get(flip.principal)
            if known is None or flip.newer_than(known):
                self.flips[flip.principal] = flip
                newer.append(flip)
        if newer:
            self._tell()
        return newer

    def forget(self, now_s: float) -> None:
        """Drops changes that no longer have an effect."""
        stale = [name for name, flip in self.flips.items() if flip.forgotten(now_s)]
        for name in stale:
            del self.flips[name]
        if stale:
            self._tell()

    def save(self, *more: SwitchVersion) -> None:
        """Writes all changes, and those of `more` that are newer but not added yet, to disk atomically. Raises
        OSError."""
        flips = dict(self.flips)
        newer = (flip for flip in more if flip.principal not in flips or flip.newer_than(flips[flip.principal]))
        document = {
            "version": VERSION,
            "flips": [flip._asdict() for flip in (flips | {flip.principal: flip for flip in newer}).values()],
        }
        content = orjson.dumps(document, option=orjson.OPT_INDENT_2)
        # a store can send too much: a file that is too large to read must not replace a readable one
        if len(content) >= MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        write_whole(self.path, content + b"\n", mode=0o600)
        sync_folder(self.path.parent)

    def _tell(self) -> None:
        entries = [flip.entry for flip in self.flips.values() if flip.disabled]
        self.disabled = Disabled(tuple(entry for entry in entries if not is_object(entry.principal)))
        self.switched_off = Disabled(tuple(entry for entry in entries if is_object(entry.principal)))


def _parsed(raw: bytes) -> list[SwitchVersion]:
    document = orjson.loads(raw)
    if not isinstance(document, dict) or document.get("version") != VERSION or "flips" not in document:
        raise ValueError("it has another kind or version")
    if not isinstance(document["flips"], list):
        raise ValueError("its flips are not a list")
    return [flip_from(plain) for plain in document["flips"]]
