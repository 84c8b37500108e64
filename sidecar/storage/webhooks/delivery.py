"""One delivery and its state table.

state       what happens    then
waiting     its turn        sending
sending     2xx             delivered       the end
sending     410             given_up        the end: the receiver wants no more of it
sending     refused         refused         the end: the address may not be reached, or no request can be made of it
sending     withheld        withheld        the end: whom it is sent for is disabled, or may not have it any more
sending     anything else   waiting         later each time, `failed` is told; after the last attempt: given_up
sending     we die          waiting         and is sent again: at least once
waiting     too old         given_up        the end
waiting     dropped         forgotten       nobody is told
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from sidecar.vocabulary import Caller

Kind = Literal["push", "task"]
"""Whose callback it is: a push notification that an agent sent, or the end of a task of the task API."""

Headers = tuple[tuple[str, str], ...]
GONE: Final = 410


class OnBehalfOf(NamedTuple):
    """On whose behalf it is, and whose word: the agent `server`, asked for this `skill` ("" for none). Enough to ask
    later whether it may still be sent."""

    caller: Caller
    server: str
    skill: str = ""


class Delivery(NamedTuple):
    """One callback as it was put: `kind` and `ref` are for whoever put it, `owner` is the chain that it is sent for.
    `headers` may hold what proves us to the receiver, so a callback is never printed."""

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
        """What it holds, in bytes, about."""
        return len(self.body) + len(self.url) + sum(len(name) + len(value) for name, value in self.headers)


class PendingDelivery(NamedTuple):
    """A callback without what it says. `due_at` is when it may be sent next, in seconds since the epoch."""

    id: str
    kind: Kind
    ref: str
    owner: str
    url: str
    created_at: float
    attempts: int
    due_at: float


class DeliveryState(StrEnum):
    """Where a callback stands."""

    WAITING = "waiting"
    SENDING = "sending"
    DELIVERED = "delivered"
    REFUSED = "refused"
    WITHHELD = "withheld"
    GIVEN_UP = "given_up"
    FORGOTTEN = "forgotten"


class Happening(StrEnum):
    """What moves it."""

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
    """What became of one attempt, for whoever put the callback. After `failed` comes another. `why` is a status or a
    sentence of ours, never the receiver's words."""

    id: str
    kind: Kind
    ref: str
    result: Result
    attempts: int
    why: str
