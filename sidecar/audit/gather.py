"""Sorts audit lines collected elsewhere into files that `verify` reads.

From lines as somebody kept them: the output of containers, an export of logs, a stream. Whatever is no record is passed
over. What remains is sorted out into chains, a file for each:

    a record of an instance that is known         belongs to its chain
    one that is sealed upon the end of a chain    goes on with it: a restart that could read back
    any other                                     begins a chain, called after its instance

A line that is there twice, byte for byte, is taken once (OTLP may deliver it again), and lines that came in another
order are put in that of their sequence. Nothing else is mended: what two different lines say of one place is there
for `verify` to find.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.audit.chain import MAX_LINE_BYTES, SealedRecord, unseal

MAX_CHAINS: Final = 10_000
MAX_OPEN: Final = 64
_RECORD: Final = b'{"v":'
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(slots=True)
class GatheredChain:
    """One file while it is written. `places` are sequence, offset and length of each line."""

    path: Path
    last_hash: str = ""
    last_seq: int = 0
    in_order: bool = True
    size: int = 0
    places: array[int] = field(default_factory=lambda: array("q"))

    def take(self, file: BinaryIO, sealed: SealedRecord, line: bytes) -> None:
        """Put a line at the end, for now."""
        file.write(line + b"\n")
        self.places.extend((sealed.seq, self.size, len(line) + 1))
        self.size += len(line) + 1
        self.in_order = self.in_order and sealed.seq > self.last_seq
        self.last_seq, self.last_hash = sealed.seq, sealed.hash

    def settle(self) -> None:
        """Put the lines in order, each once."""
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


class _Files:
    """Some of the files stay open: records of many instances come in turn."""

    def __init__(self, closing: ExitStack) -> None:
        self._open: dict[Path, BinaryIO] = {}
        closing.callback(self._close)

    def of(self, path: Path) -> BinaryIO:
        """The file, at its end."""
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= MAX_OPEN:
                self._close()
            file = self._open[path] = path.open("ab")
        return file

    def _close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


def gather(lines: Iterable[bytes], folder: Path) -> list[Path]:
    """Write every record of these lines into a folder; the files, by name. Raises OSError, FileExistsError where the
    folder has something in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(17, "is not empty", str(folder))
    chains: list[GatheredChain] = []
    with ExitStack() as closing:
        _sort_out(lines, folder, chains, _Files(closing))
    for chain in chains:
        chain.settle()
    return sorted(chain.path for chain in chains)


def _sort_out(lines: Iterable[bytes], folder: Path, chains: list[GatheredChain], files: _Files) -> None:
    by_instance: dict[str, GatheredChain] = {}
    for line in lines:
        sealed = unseal(line) if line.startswith(_RECORD) else None
        if sealed is None:
            continue
        instance = str(sealed.fields.get("instance"))
        chain = by_instance.get(instance) or _going_on(chains, sealed)
        if chain is None:
            if len(chains) >= MAX_CHAINS:
                raise OSError(7, f"more than {MAX_CHAINS} chains", str(folder))
            chain = GatheredChain(folder / _name(instance, len(chains)))
            chains.append(chain)
        by_instance[instance] = chain
        chain.take(files.of(chain.path), sealed, line)


def lines_in(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their newline. One that is too long for a record is passed over."""
    cut = False
    while raw := file.readline(MAX_LINE_BYTES + 1):
        whole = raw.endswith(b"\n") or len(raw) <= MAX_LINE_BYTES
        if whole and not cut:
            yield raw.rstrip(b"\r\n")
        cut = not whole


def _going_on(chains: Iterable[GatheredChain], sealed: SealedRecord) -> GatheredChain | None:
    return next((chain for chain in chains if chain.last_hash == sealed.prev_hash), None)


def _name(instance: str, number: int) -> str:
    """A file's name that no instance can choose outside the folder, nor twice."""
    return f"{number:04d}-{_UNSAFE.sub('_', instance)[:100]}.jsonl"
