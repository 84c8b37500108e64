"""Defines the interface of a counter store. One contract test verifies that all implementations behave in the same
way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from sidecar.limits.counters import CounterState
from sidecar.limits.plan import LimitCharge

LEASE_S = 60.0
"""The lease of a slot: a dead owner's slot is freed after it; a living owner extends it every third of it."""
REMEMBER_S = 120
"""How long a reservation can be returned: longer than any call waits before it is forwarded."""

Charges = tuple[LimitCharge, ...]
Forgot = Literal["emptied", "rolled_back"]


class StoreUnavailable(ConnectionError):
    """The store gave no reliable answer. The text is for operators: the event, without values."""


class CounterUnreadable(StoreUnavailable):
    """The store answers, but the value under this name has another format."""


class Verdict(NamedTuple):
    """The result of one reservation. `numbers` holds three numbers per charge, in order; most are never read."""

    admitted: bool
    now_us: int
    numbers: tuple[int, ...]
    degraded: bool = False
    """Decided by this instance alone, because the store is unavailable."""

    @property
    def standings(self) -> tuple[CounterState, ...]:
        """One state per charge, in order."""
        numbers = self.numbers
        return tuple(map(CounterState, numbers[::3], numbers[1::3], numbers[2::3]))


class StoreObserver:
    """Receives events of a store; this one ignores them."""

    def answered(self, duration_s: float) -> None:
        """A reservation took this long, whether it was admitted, refused or failed."""

    async def forgot(self, how: Forgot, count: int) -> None:
        """The store returned with older data and was restored: `count` counters were too low, or charges missing."""

    def untold(self, counts: Mapping[str, int]) -> None:
        """This number of operations could not be sent: `give_back`, `release`, `charge` (admitted while the store was
        unavailable). The outage was too long, too many were pending, or the process ends."""


UNSEEN: Final = StoreObserver()


class CounterStore(Protocol):
    """All counters of a deployment. `decision_id` is the sidecar's own id of the call, never the caller's; charging or
    undoing twice under one id takes effect once. The synchronous methods return at once, and the work they start is
    completed even if the store is unavailable or the caller is cancelled."""

    kind: str
    """`memory`, `redis`, `redis+sentinel` or `redis+cluster`."""

    @property
    def up(self) -> bool:
        """Whether the store is connected and accepts charges."""

    @property
    def trouble(self) -> str:
        """The reason why the store is unavailable, or what it refuses, for operators; "" if there is no problem."""

    @property
    def warning(self) -> str:
        """The reason why the store may lose counters, for operators; "" if none is known."""

    @property
    def degraded(self) -> bool:
        """Whether this instance counts locally, because the store is unavailable."""

    def charge_now(self, charges: Charges, decision_id: str) -> Sequence[int] | None:
        """Reserves without waiting. Returns a `Verdict`'s numbers if all limits had room and were charged. Returns None
        if nothing was charged and `reserve` must be called, because it takes longer or the call is refused. Raises
        StoreUnavailable."""

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        """Checks all limits, then charges all or none, in one step. Raises StoreUnavailable."""

    def give_back(self, charges: Charges, decision_id: str) -> None:
        """Undoes a reservation, including one whose reply never arrived."""

    def release(self, charges: Charges, decision_id: str) -> None:
        """Ends a call and returns `charges`: its slots and the unspent part of its reservation. Other charges
        remain."""

    def extend(self, charges: Charges, decision_id: str) -> None:
        """Extends the slots of a running call."""

    async def look(self, charges: Charges) -> tuple[CounterState, ...]:
        """Returns the state of each limit, in order; nothing is charged. Raises StoreUnavailable."""

    async def reset(self, charges: Charges) -> None:
        """Sets these counters to unused, except slots, which running calls hold. Raises StoreUnavailable."""

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> Any:
        """Runs a Lua script on one key that all replicas share, and returns its reply; None if the store is not shared.
        Raises StoreUnavailable."""

    async def ping(self) -> None:
        """Raises StoreUnavailable if the store does not answer in time."""

    async def close(self) -> None:
        """Finishes started operations, as far as that takes less than a second, and disconnects."""
