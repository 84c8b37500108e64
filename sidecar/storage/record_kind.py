"""Describes one kind of record: its encoding and where it is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic

import orjson
from pydantic import ConfigDict

from sidecar.storage.record_store import R, UnreadableRecord

MAX_ID_CHARS: Final = 64
MAX_TOLD: Final = 1_000
FINITE: Final = ConfigDict(allow_inf_nan=False)  # NaN compares as neither earlier nor later than any time

log = logging.getLogger("sidecar.storage")


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[R]):
    """Encodes a record as bytes and decodes it. `decode` raises ValueError, TypeError or LookupError for data that is
    damaged or was written by a newer version. Every field of a decoded record has been checked, so code that uses it
    need not check again."""

    encode: Callable[[R], bytes]
    decode: Callable[[bytes | str], R]


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[R]):
    """One kind of record. `what` names one such record in a sentence; `table` is its table in SQLite and `key` its key
    in Redis. These and the codec are a storage format, which neighbouring versions share. `broken` and `newer` are the
    codes of faults for an unusable file, `lost` says what is lost without it, and `told` holds the unreadable records
    already logged."""

    what: str
    codec: RecordCodec[R]
    table: str
    key: str
    broken: str
    newer: str
    lost: str
    told: set[int] = field(default_factory=set, compare=False, repr=False)

    def read(self, body: bytes | str | None) -> R:
        """Decodes a stored record. Raises UnreadableRecord if it cannot be decoded: an unreadable record must not be
        reported as missing."""
        try:
            return self.codec.decode(body or b"")
        except (ValueError, TypeError, LookupError):
            raise UnreadableRecord(f"{self.what} cannot be read: it was damaged, or another version wrote it") from None

    def _tell(self, unreadable: UnreadableRecord, body: bytes | str | None) -> None:
        """Logs each unreadable record once, because it is read again and again."""
        if len(self.told) >= MAX_TOLD:
            self.told.clear()
        if (digest := hash(body)) not in self.told:
            self.told.add(digest)
            log.warning("%s", unreadable, extra={"id": _id_in(body)})

    def readable(self, bodies: Iterable[bytes | str | None]) -> list[R]:
        """Decodes the records that can be decoded and skips the others."""
        found = []
        for body in bodies:
            try:
                found.append(self.read(body))
            except UnreadableRecord as unreadable:
                self._tell(unreadable, body)
        return found


def _id_in(body: bytes | str | None) -> str | None:
    """Returns the record's id for the log if the body is JSON and has one, else None."""
    try:
        return str(orjson.loads(body or b"")["id"])[:MAX_ID_CHARS]
    except (ValueError, TypeError, LookupError):
        return None
