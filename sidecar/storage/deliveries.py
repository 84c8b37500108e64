"""Stores waiting deliveries, bounded by number and bytes, at the replica that accepted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import orjson

from sidecar.storage.record_kind import caller_from, plain_caller
from sidecar.storage.sqlite_file import SqliteFile
from sidecar.vocabulary import Caller

if TYPE_CHECKING:
    import sqlite3

Kind = Literal["push", "task", "approval"]
"""The kind of delivery: a push notification from an agent, the end of a task of the task API, or a notification of a
request for approval."""

Headers = tuple[tuple[str, str], ...]
GONE: Final = 410


class OnBehalfOf(NamedTuple):
    """The chain on whose behalf a delivery is made, with enough data to check later whether it is still allowed.
    `skill` is "" for none."""

    caller: Caller
    server: str
    skill: str = ""


class Delivery(NamedTuple):
    """One delivery for the chain `owner`. `ref` identifies its subject among the deliveries of its kind, such as the
    push configuration. Never printed: `headers` may hold secrets."""

    id: str
    kind: Kind
    ref: str
    owner: str
    url: str
    created_at: float
    headers: Headers
    body: bytes
    behalf: OnBehalfOf

    def __repr__(self) -> str:
        return f"Delivery({self.id!r}, {self.kind!r})"

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.body) + len(self.url) + sum(len(name) + len(value) for name, value in self.headers)


class PendingDelivery(NamedTuple):
    """A delivery without its content. `due_at` is when it may be sent next, in seconds since the epoch."""

    id: str
    kind: Kind
    ref: str
    owner: str
    url: str
    created_at: float
    attempts: int
    due_at: float


class DeliveryState(StrEnum):
    WAITING = "waiting"
    SENDING = "sending"
    DELIVERED = "delivered"
    REFUSED = "refused"
    WITHHELD = "withheld"
    GIVEN_UP = "given_up"
    FORGOTTEN = "forgotten"


class Happening(StrEnum):
    """An event that moves a delivery to another state."""

    TURN = "turn"
    ACCEPTED = "accepted"  # answered 2xx
    UNWANTED = "unwanted"  # answered 410: the receiver wants no more deliveries
    REFUSED = "refused"  # the address is not allowed, or no valid request can be made of it
    WITHHELD = "withheld"  # the caller is disabled, or may no longer have the content
    FAILED = "failed"
    EXHAUSTED = "exhausted"  # the last attempt failed, or it is too old
    POSTPONED = "postponed"  # whether it arrived is unknown, so it is sent again
    DROPPED = "dropped"


MOVES: Final[Mapping[tuple[DeliveryState, Happening], DeliveryState]] = {
    (DeliveryState.WAITING, Happening.TURN): DeliveryState.SENDING,
    (DeliveryState.WAITING, Happening.DROPPED): DeliveryState.FORGOTTEN,
    (DeliveryState.SENDING, Happening.ACCEPTED): DeliveryState.DELIVERED,
    (DeliveryState.SENDING, Happening.UNWANTED): DeliveryState.GIVEN_UP,
    (DeliveryState.SENDING, Happening.REFUSED): DeliveryState.REFUSED,
    (DeliveryState.SENDING, Happening.WITHHELD): DeliveryState.WITHHELD,
    (DeliveryState.SENDING, Happening.FAILED): DeliveryState.WAITING,
    (DeliveryState.SENDING, Happening.EXHAUSTED): DeliveryState.GIVEN_UP,
    (DeliveryState.SENDING, Happening.POSTPONED): DeliveryState.WAITING,
    (DeliveryState.SENDING, Happening.DROPPED): DeliveryState.FORGOTTEN,
}

Result = Literal["delivered", "failed", "refused", "withheld", "given_up"]


class DeliveryOutcome(NamedTuple):
    """The result of one attempt; after `failed` another follows. `why` is never the receiver's text."""

    id: str
    kind: Kind
    ref: str
    result: Result
    attempts: int
    why: str


class DeliveryBounds(NamedTuple):
    """The maximum number of waiting deliveries, per owner and in total, and their maximum total size in bytes."""

    per_owner: int
    total: int
    total_bytes: int


_STANDING: Final = "SELECT count(*), coalesce(sum(size), 0), coalesce(sum(owner = ?), 0) FROM deliveries"
_PUT: Final = "INSERT INTO deliveries VALUES (NULL, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
_WAITING: Final = """
SELECT id, kind, ref, owner, url, created_at, attempts, due_at FROM deliveries ORDER BY position
"""
_GET: Final = "SELECT id, kind, ref, owner, url, created_at, headers, body, behalf FROM deliveries WHERE id = ?"
_AGAIN: Final = "UPDATE deliveries SET attempts = ?, due_at = ? WHERE id = ?"
_ENDED: Final = "DELETE FROM deliveries WHERE id = ?"


class DeliveryStore:
    """Stores deliveries in a file or in memory. Every method raises RecordStoreOut."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @property
    def up(self) -> bool:
        return self._file.up

    async def put(self, delivery: Delivery, due_at: float, bounds: DeliveryBounds) -> bool:
        """Stores a delivery until `ended` deletes it; returns False if there is no room. Once this returns True, no
        crash loses a delivery in a file. If one with this id is stored, that one remains."""
        caller, server, skill = delivery.behalf
        behalf = orjson.dumps([plain_caller(caller), server, skill]).decode()
        headers = orjson.dumps(delivery.headers).decode()
        row = (*delivery[:6], due_at, delivery.size, headers, delivery.body, behalf)

        def work(connection: sqlite3.Connection) -> bool:
            count, size, mine = connection.execute(_STANDING, (delivery.owner,)).fetchone()
            if count >= bounds.total or size + delivery.size > bounds.total_bytes or mine >= bounds.per_owner:
                return False
            connection.execute(_PUT, row)
            return True

        return await self._file.run(work)

    async def waiting(self) -> Sequence[PendingDelivery]:
        """Returns all stored deliveries in the order in which they were stored."""
        return await self._file.read(lambda file: [PendingDelivery(*row) for row in file.execute(_WAITING)], [])

    async def get(self, id_: str) -> Delivery | None:
        """Returns one delivery with its content, or None. Raises ValueError if it is damaged."""
        row = await self._file.run(lambda connection: connection.execute(_GET, (id_,)).fetchone())
        return None if row is None else _delivery(row)

    async def again(self, id_: str, attempts: int, due_at: float) -> None:
        """Records the number of attempts, and when the next one is due, in seconds since the epoch."""
        await self._file.run(lambda connection: connection.execute(_AGAIN, (attempts, due_at, id_)))

    async def ended(self, ids: Sequence[str]) -> None:
        """Deletes these deliveries."""
        rows = [(id_,) for id_ in ids]
        await self._file.run(lambda connection: connection.executemany(_ENDED, rows))


def _delivery(row: tuple[Any, ...]) -> Delivery:
    *facts, headers, body, behalf = row
    try:
        caller, server, skill = orjson.loads(behalf)
        pairs = tuple((name, value) for name, value in orjson.loads(headers))
        return Delivery._make((*facts, pairs, body, OnBehalfOf(caller_from(caller), server, skill)))
    except (TypeError, LookupError):
        raise ValueError("the stored delivery is damaged") from None
