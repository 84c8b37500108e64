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
FINITE: Final = ConfigDict(allow_inf_nan=False)  # a time that is not a number is before and after nothing

log = logging.getLogger("sidecar.storage")


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[R]):
    """A record as bytes, and back. `decode` raises ValueError, TypeError or LookupError for what says nothing to us: it
    was damaged, or a newer version wrote it. What it gives is whole, each part of its type: whoever reads on looks at
    nothing twice."""

    encode: Callable[[R], bytes]
    decode: Callable[[bytes | str], R]


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[R]):
    """One kind of record. `what` is one of them in a sentence, `table` has them in a file and `key` in Redis: these and
    the codec are a format, which neighbouring versions share. A file that cannot be used is told with the codes
    `broken` and `newer`, and what is `lost` without it; `told` is of which it was said that they cannot be read."""

    what: str
    codec: RecordCodec[R]
    table: str
    key: str
    broken: str
    newer: str
    lost: str
    told: set[int] = field(default_factory=set, compare=False, repr=False)

    def read(self, body: bytes | str | None) -> R:
        """The record that was kept so. Raises Unreadable: nothing is said of what we cannot read, and least of all that
        it is not there."""
        try:
            return self.codec.decode(body or b"")
        except (ValueError, TypeError, LookupError):
            raise UnreadableRecord(f"{self.what} cannot be read: it was damaged, or another version wrote it") from None

    def _tell(self, unreadable: UnreadableRecord, body: bytes | str | None) -> None:
        """Once of each: it is met again and again."""
        if len(self.told) >= MAX_TOLD:
            self.told.clear()
        if (digest := hash(body)) not in self.told:
            self.told.add(digest)
            log.warning("%s", unreadable, extra={"id": _id_in(body)})

    def readable(self, bodies: Iterable[bytes | str | None]) -> list[R]:
        """Those of the records that can be read: one that cannot is no other's trouble."""
        found = []
        for body in bodies:
            try:
                found.append(self.read(body))
            except UnreadableRecord as unreadable:
                self._tell(unreadable, body)
        return found


def _id_in(body: bytes | str | None) -> str | None:
    """Which one it may be, so that somebody finds it: as far as it is JSON, it says so."""
    try:
        return str(orjson.loads(body or b"")["id"])[:MAX_ID_CHARS]
    except (ValueError, TypeError, LookupError):
        return None
