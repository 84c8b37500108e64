"""Detects a log that was rolled back behind its published checkpoints.

Who puts log and anchor back together, to a copy of both or to nothing, leaves two that fit each other. What was
published of the log then knows more than the log does. So a start looks there, at the newest statement under its own
key, before it publishes anything itself:

    shorter    the log ends before the record that was attested
    another    it has that record, and it is another one

Only a signature of our own key is believed; what has none, or names another key, is passed over. The newest is the one
with the latest time that was signed: to show an old one once more says nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.audit.chain import MAX_LINE_BYTES, ChainEnd, unseal
from sidecar.audit.checkpoints import Checkpoint, public_keys_of
from sidecar.audit.segments import files_of, last_seq_of
from sidecar.http.signing_keys import SigningKey

ROLLED_BACK: Final = "rolled-back"
BY_HAND_BYTES: Final = 256 * 1024  # of a file in which a line is looked for one after the other


class PublishedEnd(NamedTuple):
    """What is known of our log elsewhere: the newest under our key. What claimed to be newer was passed over."""

    newest: Checkpoint | None = None
    passed_over: int = 0


def newest_of(found: Iterable[Checkpoint], key: SigningKey) -> PublishedEnd:
    """The newest statement of our own among them."""
    keys, passed_over = public_keys_of(key), 0
    for checkpoint in sorted(found, key=lambda one: (one.time, one.seq), reverse=True):
        if checkpoint.signed_by(keys):
            return PublishedEnd(checkpoint, passed_over)
        passed_over += 1
    return PublishedEnd(None, passed_over)


def rolled_back(newest: Checkpoint, end: ChainEnd, hash_at: Callable[[int], str | None]) -> Mapping[str, Any]:
    """What a record says of a log that ends at `end` and cannot be the one that was attested; empty if it may be.
    `hash_at` knows the hash of a record, None where nobody can tell."""
    known = end.hash if newest.seq == end.seq else hash_at(newest.seq) if newest.seq < end.seq else ""
    if known is None or known == newest.hash:
        return {}
    how = "another" if known else "shorter"
    return {"found": [ROLLED_BACK], "how": how, "last_seq": end.seq, **_attested(newest)}


def hash_in(path: Path) -> Callable[[int], str | None]:
    """The hashes of the records of a log in files."""

    def hash_at(seq: int) -> str | None:
        for file in files_of(path):
            if file == path or last_seq_of(file) >= seq:
                return _found(file, seq)
        return None

    return hash_at


def _attested(checkpoint: Checkpoint) -> dict[str, Any]:
    return {f"attested_{name}": value for name, value in checkpoint._asdict().items()}


def _found(path: Path, seq: int) -> str | None:
    """Sequences rise along a file: the place is halved until it is small."""
    with path.open("rb") as file:
        low, high = 0, file.seek(0, 2)
        while high - low > BY_HAND_BYTES:
            middle = (low + high) // 2
            file.seek(middle)
            file.readline(MAX_LINE_BYTES + 1)  # the rest of a line
            at = file.tell()
            sealed = unseal(file.readline(MAX_LINE_BYTES + 1).removesuffix(b"\n"))
            if sealed is None or at >= high:
                return _among(path, low, high, seq)
            low, high = (at, high) if sealed.seq <= seq else (low, middle)
    return _among(path, low, high, seq)


def _among(path: Path, low: int, high: int, seq: int) -> str | None:
    with path.open("rb") as file:
        file.seek(low)
        while file.tell() <= high and (raw := file.readline(MAX_LINE_BYTES + 1)):
            sealed = unseal(raw.removesuffix(b"\n"))
            if sealed is not None and sealed.seq == seq:
                return sealed.hash
    return None
