"""Finds the files of one rotated log, in order.

A part is named by the time and the sequence of its last record, so that names sort as the records do; result files are
rotated with the log, under the same names:

    audit.jsonl    audit.jsonl.head    audit-20261128T141503Z-000000120000.jsonl    evidence-20261128T141503Z-….jsonl
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sidecar.audit.chain import HEAD_SUFFIX, MAX_LINE_BYTES, ChainEnd, SealedRecord, unseal

SUFFIX: Final = ".jsonl"
SEQ_DIGITS: Final = 12
MAX_PARTS: Final = 100_000
_STAMPED: Final = re.compile(r"-\d{8}T\d{6}Z-(\d{12,19})\Z")


def aside(path: Path, at_s: float, last_seq: int) -> Path:
    stamp = datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    return path.with_name(f"{path.stem}-{stamp}-{last_seq:0{SEQ_DIGITS}d}{path.suffix}")


def last_seq_of(part: Path) -> int:
    """The sequence in the name of a part; -1 if it is not a part."""
    match = _STAMPED.search(part.stem)
    return -1 if match is None else int(match[1])


def parts_of(path: Path) -> tuple[Path, ...]:
    """The rotated parts of this file, oldest first. Raises OSError."""
    if not path.parent.is_dir():
        return ()
    found = [each for each in path.parent.iterdir() if each.suffix == path.suffix and _is_part(path, each)]
    return tuple(sorted(found, key=last_seq_of)[-MAX_PARTS:])  # the clock may have gone back; sequences do not


def files_of(path: Path) -> tuple[Path, ...]:
    """The existing parts of a log and its file, oldest first. Raises OSError."""
    return (*parts_of(path), *((path,) if path.is_file() else ()))


def given(path: Path) -> tuple[Path, ...]:
    """Returns the files of a path: a log's parts and its current file. A folder without a current file means all its
    files, in chain order; a folder without files means the logs in the folders below it, one after another. Raises
    OSError; FileNotFoundError for a folder with several logs or none."""
    if not path.is_dir():
        return (path,)
    names = {each.name for each in path.iterdir()}
    current = [path / name.removesuffix(HEAD_SUFFIX) for name in names if name.endswith(HEAD_SUFFIX)]
    if len(current) > 1:
        raise FileNotFoundError(2, f"{len(current)} logs in one folder: name the file", str(path))
    if current:
        of_the_log = files_of(current[0])
        if not of_the_log:
            raise FileNotFoundError(2, "of the log in it only the anchor is left", str(path))
        return of_the_log
    files = [each for name in names if name.endswith(SUFFIX) and (each := path / name).is_file()]
    if not files:
        if below := logs_in(path):
            return tuple(file for log in below for file in files_of(log))
        raise FileNotFoundError(2, f"no file in it ends in {SUFFIX}", str(path))
    firsts = {path: first_line(path) for path in files}  # in the order of their first records; other files last
    return tuple(sorted(firsts, key=lambda path: (first.seq if (first := firsts[path]) else 2**63, path.name)))


def logs_in(folder: Path) -> tuple[Path, ...]:
    """The current files of all logs in a folder and in those below it, by their anchors. Raises OSError."""
    heads = sorted(folder.rglob(f"*{SUFFIX}{HEAD_SUFFIX}"))[:MAX_PARTS]
    return tuple(head.with_name(head.name.removesuffix(HEAD_SUFFIX)) for head in heads)


def first_line(path: Path) -> SealedRecord | None:
    """The first record of a file; None if it does not begin with one. Raises OSError."""
    with path.open("rb") as file:
        return unseal(file.readline(MAX_LINE_BYTES + 1).removesuffix(b"\n"))


def last_end(path: Path) -> ChainEnd | None:
    """The chain's end in a file; None if it does not end in a record. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MAX_LINE_BYTES - 1))
        lines = file.read(MAX_LINE_BYTES + 1).split(b"\n")
    last = unseal(lines[-2]) if len(lines) > 1 and not lines[-1] else None
    return None if last is None else ChainEnd(last.seq, last.hash)


def all_given(paths: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(file for path in paths for file in given(path))


def _is_part(path: Path, other: Path) -> bool:
    named = other.stem.startswith(f"{path.stem}-") and _STAMPED.fullmatch(other.stem, len(path.stem)) is not None
    return named and other.is_file()  # a regular file only: opening a pipe would block until it has a writer
