"""Detects a log that was rolled back behind its published checkpoints.

An attacker who resets log and anchor together leaves a matching pair. So before a start publishes anything, it compares
the log with the newest checkpoint under its own key:

    shorter    the log ends before the attested record
    another    the log has another record at that sequence

The newest is the one with the latest signed time, so replaying an old one has no effect.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.audit.chain import MAX_LINE_BYTES, MAX_SEQ, ChainEnd, SealedRecord, unseal
from sidecar.audit.checkpoints import Checkpoint, public_keys_of
from sidecar.audit.segments import files_of, last_seq_of
from sidecar.http.signing_keys import SigningKey

ROLLED_BACK: Final = "rolled-back"


class PublishedEnd(NamedTuple):
    """The newest published checkpoint under the sidecar's key, and the number of those that claim to be newer and are
    not signed by it."""

    newest: Checkpoint | None = None
    passed_over: int = 0


def newest_of(found: Iterable[Checkpoint], key: SigningKey) -> PublishedEnd:
    keys, passed_over = public_keys_of(key), 0
    for checkpoint in sorted(found, key=lambda one: (one.time, one.seq), reverse=True):
        if checkpoint.signed_by(keys):
            return PublishedEnd(checkpoint, passed_over)
        passed_over += 1
    return PublishedEnd(None, passed_over)


def rolled_back(newest: Checkpoint, end: ChainEnd, hash_at: Callable[[int], str | None]) -> Mapping[str, Any]:
    """The facts for the record if a log that ends at `end` contradicts the checkpoint; empty if it may match. `hash_at`
    returns the hash of a record, or None if unknown."""
    known = end.hash if newest.seq == end.seq else hash_at(newest.seq) if newest.seq < end.seq else ""
    if known is None or known == newest.hash:
        return {}
    how = "another" if known else "shorter"
    attested = {f"attested_{name}": value for name, value in newest._asdict().items()}
    return {"found": [ROLLED_BACK], "how": how, "last_seq": end.seq, **attested}


def hash_in(path: Path) -> Callable[[int], str | None]:
    def hash_at(seq: int) -> str | None:
        for file in files_of(path):
            if file == path or last_seq_of(file) >= seq:
                return _found(file, seq)
        return None

    return hash_at


def _found(path: Path, seq: int) -> str | None:
    """The hash of a record; None if it is not in the file. A binary search, because sequences increase along a file."""
    with path.open("rb") as file:

        def after(offset: int) -> SealedRecord | None:
            """The first record whose line begins at this offset or later."""
            file.seek(max(0, offset - 1))
            if offset:
                file.readline(MAX_LINE_BYTES + 1)  # up to the line's beginning
            while raw := file.readline(MAX_LINE_BYTES + 1):
                if (sealed := unseal(raw.removesuffix(b"\n"))) is not None:
                    return sealed
            return None

        size = file.seek(0, 2)
        at = bisect_left(range(size), seq, key=lambda offset: MAX_SEQ if (one := after(offset)) is None else one.seq)
        found = after(at)
    return found.hash if found is not None and found.seq == seq else None
