"""How full is one limit at this moment?

Pure arithmetic over integer microseconds since the epoch; `admit.lua` says the same to Redis, and one test holds
the two against each other. Each counter answers three things: `ask` reads and changes nothing that counts,
`charge` is called only after every `ask` found room, `give_back` undoes one charge.

    Sliding   hour          one-minute buckets: in no 60 minutes more than N, quiet for 61 and all N are back
    Daily     day           one calendar day, UTC
    Rate      rate          GCRA: one number, the time at which the burst is whole again
    Slots     concurrency   leases that end by themselves

A clock that steps back loses no count: a counter goes on in the latest bucket or day that it has seen.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sidecar.limits.plan import Charge

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_US = 86_400 * SECOND_US
WINDOW_BUCKETS = 60
SLOT_WAIT_US = SECOND_US  # nobody knows when a call in flight will end; a second is a polite guess


class Standing(NamedTuple):
    """Where a limit stands. `wait_us` is 0 where there is room, else how long until there is.

    `reset_us` is when all of it is back if nothing more is charged, in µs since the epoch; 0 for concurrency.
    """

    remaining: int
    wait_us: int
    reset_us: int


class Sliding:
    """At most `most` in any 60 buckets of `bucket_us`, counted over the current bucket and the 60 before it."""

    __slots__ = ("_bucket_us", "_buckets", "_total")

    def __init__(self, bucket_us: int = MINUTE_US) -> None:
        self._bucket_us = bucket_us
        self._buckets: deque[list[int]] = deque()  # [bucket number, count], oldest first
        self._total = 0

    def _advance(self, now_us: int) -> int:
        buckets, bucket = self._buckets, now_us // self._bucket_us
        if buckets and buckets[-1][0] > bucket:
            bucket = buckets[-1][0]
        while buckets and buckets[0][0] < bucket - WINDOW_BUCKETS:
            self._total -= buckets.popleft()[1]
        return bucket

    def ask(self, charge: Charge, now_us: int) -> Standing:
        self._advance(now_us)
        missing = self._total + charge.amount - charge.most
        wait_us = self._wait_us(missing, now_us) if missing > 0 else 0
        return Standing(max(0, charge.most - self._total), wait_us, self._reset_us(now_us))

    def _wait_us(self, missing: int, now_us: int) -> int:
        for bucket, count in self._buckets:
            missing -= count
            if missing <= 0:
                return self._end_us(bucket) - now_us
        return (WINDOW_BUCKETS + 1) * self._bucket_us

    def _end_us(self, bucket: int) -> int:
        return (bucket + WINDOW_BUCKETS + 1) * self._bucket_us

    def _reset_us(self, now_us: int) -> int:
        return self._end_us(self._buckets[-1][0]) if self._total else now_us

    def charge(self, charge: Charge, now_us: int, owner: str) -> Standing:
        bucket = self._advance(now_us)
        if self._buckets and self._buckets[-1][0] == bucket:
            self._buckets[-1][1] += charge.amount
        else:
            self._buckets.append([bucket, charge.amount])
        self._total += charge.amount
        return Standing(max(0, charge.most - self._total), 0, self._end_us(bucket))

    def give_back(self, charge: Charge, charged_us: int, owner: str) -> None:
        bucket = charged_us // self._bucket_us
        for entry in reversed(self._buckets):
            if entry[0] == bucket and entry[1] >= charge.amount:
                entry[1] -= charge.amount
                self._total -= charge.amount
                return

    def idle(self, now_us: int) -> bool:
        self._advance(now_us)
        return not self._total


class Daily:
    """At most `most` in one calendar day, UTC."""

    __slots__ = ("_count", "_day")

    def __init__(self) -> None:
        self._day = 0
        self._count = 0

    def _advance(self, now_us: int) -> None:
        day = now_us // DAY_US
        if day > self._day:
            self._day, self._count = day, 0

    def ask(self, charge: Charge, now_us: int) -> Standing:
        self._advance(now_us)
        reset_us = (self._day + 1) * DAY_US
        room = self._count + charge.amount <= charge.most
        return Standing(max(0, charge.most - self._count), 0 if room else reset_us - now_us, reset_us)

    def charge(self, charge: Charge, now_us: int, owner: str) -> Standing:
        self._advance(now_us)
        self._count += charge.amount
        return Standing(max(0, charge.most - self._count), 0, (self._day + 1) * DAY_US)

    def give_back(self, charge: Charge, charged_us: int, owner: str) -> None:
        if charged_us // DAY_US == self._day:
            self._count = max(0, self._count - charge.amount)

    def idle(self, now_us: int) -> bool:
        self._advance(now_us)
        return not self._count


class Rate:
    """One call each `interval_us`, and `most` of them at once (the generic cell rate algorithm).

    Giving back is the hard part: once the burst was whole again, time has paid a charge back already, and to do it
    again would exceed the rate. So each charge that finds less than one call of backlog is noted as a low tide: what
    was charged before it is worth no more than what was left then; what was charged two low tides ago, nothing.
    """

    __slots__ = ("_before_us", "_full_at_us", "_low_at_us", "_low_us")

    def __init__(self) -> None:
        self._full_at_us = 0  # the algorithm's "theoretical arrival time"
        self._low_at_us = 0
        self._low_us = 0  # the backlog then
        self._before_us = 0  # the low tide before that

    def _backlog_us(self, charge: Charge, now_us: int) -> int:
        # Never more than a whole burst: after a clock that stepped back, the rate goes on instead of standing still.
        return min(max(self._full_at_us - now_us, 0), charge.most * charge.interval_us)

    def ask(self, charge: Charge, now_us: int) -> Standing:
        backlog_us, interval_us = self._backlog_us(charge, now_us), charge.interval_us
        burst_us = charge.most * interval_us
        over_us = backlog_us + charge.amount * interval_us - burst_us
        return Standing((burst_us - backlog_us) // interval_us, max(0, over_us), now_us + backlog_us)

    def charge(self, charge: Charge, now_us: int, owner: str) -> Standing:
        backlog_us, interval_us = self._backlog_us(charge, now_us), charge.interval_us
        if backlog_us < interval_us:
            self._before_us, self._low_at_us, self._low_us = self._low_at_us, now_us, backlog_us
        backlog_us += charge.amount * interval_us
        self._full_at_us = now_us + backlog_us
        return Standing((charge.most * interval_us - backlog_us) // interval_us, 0, self._full_at_us)

    def give_back(self, charge: Charge, charged_us: int, owner: str) -> None:
        worth_us = charge.amount * charge.interval_us
        if charged_us < self._low_at_us:
            worth_us = min(worth_us, self._low_us) if charged_us >= self._before_us else 0
        self._full_at_us -= worth_us

    def idle(self, now_us: int) -> bool:
        return self._full_at_us <= now_us


class Slots:
    """At most `most` leases at once. A lease that nobody extends ends after `lease_us`, whatever its owner does."""

    __slots__ = ("_ends_us", "_lease_us")

    def __init__(self, lease_us: int) -> None:
        self._lease_us = lease_us
        self._ends_us: dict[str, int] = {}  # owner → end of its lease, nearest end first

    def _reap(self, now_us: int) -> None:
        ended = []
        for owner, end_us in self._ends_us.items():
            if end_us > now_us:
                break
            ended.append(owner)
        for owner in ended:
            del self._ends_us[owner]

    def ask(self, charge: Charge, now_us: int) -> Standing:
        self._reap(now_us)
        remaining = charge.most - len(self._ends_us)
        return Standing(max(0, remaining), 0 if remaining > 0 else SLOT_WAIT_US, 0)

    def charge(self, charge: Charge, now_us: int, owner: str) -> Standing:
        self._ends_us[owner] = now_us + self._lease_us
        return Standing(max(0, charge.most - len(self._ends_us)), 0, 0)

    def give_back(self, charge: Charge, charged_us: int, owner: str) -> None:
        self._ends_us.pop(owner, None)

    def extend(self, now_us: int, owner: str) -> None:
        # A lease that has ended stays ended: its slot may be another's by now.
        if self._ends_us.pop(owner, 0) > now_us:
            self._ends_us[owner] = now_us + self._lease_us

    def idle(self, now_us: int) -> bool:
        self._reap(now_us)
        return not self._ends_us


Counter = Sliding | Daily | Rate | Slots
