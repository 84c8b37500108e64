"""The interface of a counter store.

In this process, or in Redis or Valkey; the two answer alike, and one contract test runs over both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from sidecar.limits.counters import CounterState
from sidecar.limits.plan import LimitCharge

LEASE_S = 60.0
"""A slot whose owner has died comes back after this; a living owner extends it every third of it."""
REMEMBER_S = 120
"""A reservation can be given back for this long: longer than any call waits before it is forwarded."""

Charges = tuple[LimitCharge, ...]
Forgot = Literal["emptied", "rolled_back"]


class StoreUnavailable(Exception):
    """The store gave no answer that can be trusted. Its text is for operators: what happened, never a value."""


class CounterUnreadable(StoreUnavailable):
    """The store is there, and what it keeps under this name is not ours to understand."""


class Verdict(NamedTuple):
    """What a store said to one reservation: all was charged or nothing.

    `numbers` are the standings, three numbers for each charge, in their order: most of them are never looked at.
    """

    admitted: bool
    now_us: int
    numbers: tuple[int, ...]
    degraded: bool = False
    """By this instance alone, while the store is out."""

    @property
    def standings(self) -> tuple[CounterState, ...]:
        """One per charge, in their order."""
        numbers = self.numbers
        return tuple(map(CounterState, numbers[::3], numbers[1::3], numbers[2::3]))


class StoreObserver(Protocol):
    """Who is told what a store does."""

    def answered(self, duration_s: float) -> None:
        """One reservation was answered, well or not."""

    async def forgot(self, how: Forgot, count: int) -> None:
        """It came back with less than it had been told, and was told again: so many counters that were too low (of one
        that was `emptied` or exchanged), or so many charges (of one that was `rolled_back`)."""

    def untold(self, counts: Mapping[str, int]) -> None:
        """It could not be told so many more of these: `give_back`, `release`, `charge` (what was admitted while it was
        out). An outage was too long, too much was owed, or we end."""


class UnseenUsage:
    """Nobody is told."""

    def answered(self, duration_s: float) -> None:
        """Nobody is told."""

    async def forgot(self, how: Forgot, count: int) -> None:
        """Nobody is told."""

    def untold(self, counts: Mapping[str, int]) -> None:
        """Nobody is told."""


UNSEEN = UnseenUsage()


class CounterStore(Protocol):
    """All counters of a deployment. `decision_id` is our own id of the call, never the caller's: charging twice under
    one id charges once, and so does undoing. Only `reserve` and `ping` wait; what the others begin is finished even
    while the store is away or the caller was cancelled.
    """

    kind: str
    """`memory`, `redis`, `redis+sentinel` or `redis+cluster`."""

    @property
    def up(self) -> bool:
        """Whether the last that was heard of it was good, and it charges what it is asked to."""

    @property
    def trouble(self) -> str:
        """Why it is out, or what it refuses, for operators; "" if it is well."""

    @property
    def warning(self) -> str:
        """What may make it forget, for operators; "" as far as anybody knows."""

    @property
    def degraded(self) -> bool:
        """Whether this instance counts by itself, because the store is out."""

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        """Ask all limits, then charge all or none, in one step. Raises StoreUnavailable, 20 ms after the deadline
        at the latest."""

    def give_back(self, charges: Charges, decision_id: str) -> None:
        """Undo a reservation, also one whose answer never came."""

    def release(self, charges: Charges, decision_id: str) -> None:
        """A call is over: give back its slots, and what it reserved and did not spend. `charges` are that, and no
        more; all else that it was charged stays for good."""

    def extend(self, charges: Charges, decision_id: str) -> None:
        """Keep the slots of a call that goes on."""

    async def look(self, charges: Charges) -> tuple[CounterState, ...]:
        """Where limits stand, one for each; nothing is charged. Raises StoreUnavailable."""

    async def reset(self, charges: Charges) -> None:
        """Set these counters back to unused. Slots are not set back: calls that go on hold them. Raises
        StoreUnavailable."""

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> Any:
        """What a Lua script answers that works on one key of all replicas. Raises StoreUnavailable; a store that
        nobody shares answers None."""

    async def ping(self) -> None:
        """Raises StoreUnavailable if it does not answer in time."""

    async def close(self) -> None:
        """Finish what was begun, within a second, and let go."""
