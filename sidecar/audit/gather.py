"""Sorts audit lines collected elsewhere into files that `verify` reads, one for each chain.

    a record of a known instance             belongs to its chain
    one sealed on the end of a chain         continues it: a restart that could read back
    any other                                starts a chain, named after its instance

Lines that are not records are skipped, byte-identical duplicates are dropped (OTLP may deliver a line again), and lines
are ordered by sequence. `verify` reports two different lines with one sequence.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.audit.chain import MAX_LINE_BYTES, SealedRecord, unseal

MAX_CHAINS: Final = 10_000
_RECORD: Final = b'{"v":'
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(slots=True)
class GatheredChain:
    """One file while it is written. `places` are the sequence, offset and length of each line."""

    path: Path
    last_hash: str = ""
    last_seq: int = 0
    in_order: bool = True
    size: int = 0
    places: array[int] = field(default_factory=lambda: array("q"))

    def take(self, sealed: SealedRecord, line: bytes) -> None:
        with self.path.open("ab") as file:  # records of many instances alternate, so none is held open
            file.write(line + b"\n")
        self.places.extend((sealed.seq, self.size, len(line) + 1))
        self.size += len(line) + 1
        self.in_order = self.in_order and sealed.seq > self.last_seq
        self.last_seq, self.last_hash = sealed.seq, sealed.hash

    def settle(self) -> None:
        """Rewrites the file with its lines in order, each once."""
        if self.in_order:
            return
        numbers = iter(self.places)
        places = sorted(zip(numbers, numbers, numbers, strict=True))
        aside = self.path.with_name(f".{self.path.name}")
        with self.path.open("rb") as file, aside.open("wb") as ordered:
            before = (0, b"")
            for seq, offset, length in places:
                file.seek(offset)
                line = file.read(length)
                if (seq, line) != before:
                    ordered.write(line)
                before = seq, line
        aside.replace(self.path)


def gather(lines: Iterable[bytes], folder: Path) -> list[Path]:
    """Writes every record into an empty folder. Returns the files by name. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(17, "is not empty", str(folder))
    chains: list[GatheredChain] = []
    by_instance: dict[str, GatheredChain] = {}
    for line in lines:
        sealed = unseal(line) if line.startswith(_RECORD) else None
        if sealed is None:
            continue
        instance = str(sealed.fields.get("instance"))
        chain = by_instance.get(instance) or next((one for one in chains if one.last_hash == sealed.prev_hash), None)
        if chain is None:
            if len(chains) >= MAX_CHAINS:
                raise OSError(7, f"more than {MAX_CHAINS} chains", str(folder))
            chain = GatheredChain(folder / _name(instance, len(chains)))
            chains.append(chain)
        by_instance[instance] = chain
        chain.take(sealed, line)
    for chain in chains:
        chain.settle()
    return sorted(chain.path for chain in chains)


def lines_in(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their newline. A line that is too long for a record is skipped."""
    cut = False
    while raw := file.readline(MAX_LINE_BYTES + 1):
        whole = raw.endswith(b"\n") or len(raw) <= MAX_LINE_BYTES
        if whole and not cut:
            yield raw.rstrip(b"\r\n")
        cut = not whole


def _name(instance: str, number: int) -> str:
    """A unique file name that cannot lead outside the folder, whatever the instance's name is."""
    return f"{number:04d}-{_UNSAFE.sub('_', instance)[:100]}.jsonl"
