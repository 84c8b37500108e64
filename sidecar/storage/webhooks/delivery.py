"""One delivery and its state table.

state       event           next
waiting     its turn        sending
sending     2xx             delivered       final
sending     410             given_up        final: the receiver wants no more deliveries
sending     refused         refused         final: the address is not allowed, or no request can be made of it
sending     withheld        withheld        final: the caller is disabled, or may no longer have the content
sending     anything else   waiting         after a growing delay, told as `failed`; after the last attempt: given_up
sending     process dies    waiting         sent again: at least once
waiting     too old         given_up        final
waiting     dropped         forgotten       not reported
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from sidecar.vocabulary import Caller

Kind = Literal["push", "task"]
"""The kind of delivery: a push notification from an agent, or the end of a task of the task API."""

Headers = tuple[tuple[str, str], ...]
GONE: Final = 410


class OnBehalfOf(NamedTuple):
    """On whose behalf a delivery is made: the caller, and the agent `server` that was asked for `skill` ("" for none).
    This is enough to check later whether the delivery is still allowed."""

    caller: Caller
    server: str
    skill: str = ""


class Delivery(NamedTuple):
    """One delivery. `kind` and `ref` are for the code that queued it; `owner` is the binding of the chain it is sent
    for. `headers` may hold credentials for the receiver, so a delivery is never printed."""

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
        return f"Callback({self.id!r}, {self.kind!r})"

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
    """The state of a delivery."""

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
    ACCEPTED = "accepted"
    UNWANTED = "unwanted"
    REFUSED = "refused"
    WITHHELD = "withheld"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    POSTPONED = "postponed"
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
    """The result of one attempt, for the code that queued the delivery. After `failed` another attempt follows. `why`
    is a status or a sentence of the sidecar's, never the receiver's text."""

    id: str
    kind: Kind
    ref: str
    result: Result
    attempts: int
    why: str
