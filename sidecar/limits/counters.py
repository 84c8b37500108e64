"""Implements the arithmetic of each kind of counter, in integer microseconds since the epoch.

`admit.lua` does the same in Redis; one test compares the two. `take` charges a call and returns the new state, or None
if there is no room for it. `undo` reverses this immediately, because another limit of the call had no room. `give_back`
returns an earlier charge. `ask` returns the state and does not change counts. `idle` reports whether nothing is
charged.

    SlidingWindow     hour          one-minute buckets: at most N in any 60 minutes; all N are back after 61 idle ones
    CalendarWindow    day, month    one calendar day or month, UTC
    RateLimit         rate          GCRA: one number, the time at which the whole burst is available again
    ConcurrencySlots  concurrency   leases that expire

A clock that steps back loses no count: a counter continues in the latest period that it has seen. If the clock was
ahead by more than one further period, the count is moved to the current time, so that the limit does not remain
blocked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from sidecar.limits.plan import LimitCharge

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_US = 86_400 * SECOND_US
WINDOW_BUCKETS = 60
SLOT_WAIT_US = SECOND_US  # the end of a running call is unknown; suggest a retry after a second


class CounterState(NamedTuple):
    """The state of a limit. `wait_us` is 0 if there is room, otherwise the time until there is room. `reset_us` is when
    all of it is available again if nothing more is charged, in µs since the epoch; 0 for concurrency."""

    remaining: int
    wait_us: int
    reset_us: int


Told = tuple[int, int, int]
"""The fields of a CounterState as a plain tuple, which costs a tenth. Most are never read."""


class SlidingWindow:
    """At most `most` in any 60 buckets of `bucket_us`, counted over the current bucket and the 60 before it."""

    __slots__ = ("_bucket_us", "_buckets", "_ends_us", "_far_us", "_newest", "_reset_us", "_total")

    def __init__(self, bucket_us: int = MINUTE_US) -> None:
        self._bucket_us = bucket_us
        self._far_us = (WINDOW_BUCKETS + 1) * bucket_us
        # [its end in µs, count, 1 if it remains when its count is 0], oldest first; the newest is among them once
        # charged
        self._buckets: deque[list[int]] = deque()
        self._newest = [0, 0, 0]
        self._ends_us = self._reset_us = 0  # the current bucket's end, and the time at which it leaves the window
        self._total = 0

    def _turn(self, now_us: int) -> None:
        """Starts a new bucket and drops expired ones, or corrects for a clock that was far ahead."""
        was_us, self._ends_us = self._ends_us, (now_us // self._bucket_us + 1) * self._bucket_us
        ends_us, buckets = self._ends_us, self._buckets
        self._reset_us, self._newest = self._gone_us(ends_us), [ends_us, 0, 0]
        if was_us > ends_us and buckets:
            buckets.clear()
            self._newest[1:] = self._total, 1
            buckets.append(self._newest)
        first_us = ends_us - WINDOW_BUCKETS * self._bucket_us
        while buckets and buckets[0][0] < first_us:
            self._total -= buckets.popleft()[1]

    def ask(self, charge: LimitCharge, now_us: int) -> CounterState:
        if not 0 < self._ends_us - now_us <= self._far_us:
            self._turn(now_us)
        wait_us = 0 if self._total + charge.amount <= charge.most else self._wait_us(charge, now_us)
        reset_us = self._gone_us(self._buckets[-1][0]) if self._total else now_us
        return CounterState(max(0, charge.most - self._total), wait_us, reset_us)

    def _wait_us(self, charge: LimitCharge, now_us: int) -> int:
        missing = self._total + charge.amount - charge.most
        for ends_us, count, _ in self._buckets:
            missing -= count
            if missing <= 0:
                return self._gone_us(ends_us) - now_us
        return (WINDOW_BUCKETS + 1) * self._bucket_us

    def _gone_us(self, ends_us: int) -> int:
        """Returns the time at which a bucket leaves the window."""
        return ends_us + WINDOW_BUCKETS * self._bucket_us

    def take(self, charge: LimitCharge, now_us: int, owner: str) -> Told | None:
        if not 0 < self._ends_us - now_us <= self._far_us:
            self._turn(now_us)
        amount = charge.amount
        total = self._total + amount
        if total > charge.most:
            return None
        self._total = total
        newest = self._newest
        newest[1] = count = newest[1] + amount
        if count == amount and not newest[2]:
            self._buckets.append(newest)
        return charge.most - total, 0, self._reset_us

    def undo(self, charge: LimitCharge, owner: str) -> None:
        newest = self._newest
        newest[1] -= charge.amount
        self._total -= charge.amount
        if not (newest[1] or newest[2]):
            self._buckets.pop()

    def give_back(self, charge: LimitCharge, charged_us: int, owner: str) -> None:
        ends_us = (charged_us // self._bucket_us + 1) * self._bucket_us
        for entry in reversed(self._buckets):
            if entry[0] == ends_us and entry[1] >= charge.amount:
                entry[1:] = entry[1] - charge.amount, 1
                self._total -= charge.amount
                return

    def idle(self, now_us: int) -> bool:
        if not 0 < self._ends_us - now_us <= self._far_us:
            self._turn(now_us)
        return not self._total


class CalendarWindow:
    """At most `most` per calendar period. `end_of` returns a period's end in µs; `far_us` is two periods or more."""

    __slots__ = ("_count", "_end_of", "_ends_us", "_far_us")

    def __init__(self, end_of: Callable[[int], int], far_us: int) -> None:
        self._end_of = end_of
        self._far_us = far_us
        self._ends_us = 0
        self._count = 0

    def _turn(self, now_us: int) -> None:
        if self._ends_us <= now_us:
            self._count = 0
        self._ends_us = self._end_of(now_us)

    def ask(self, charge: LimitCharge, now_us: int) -> CounterState:
        if not 0 < self._ends_us - now_us <= self._far_us:
            self._turn(now_us)
        wait_us = 0 if self._count + charge.amount <= charge.most else self._ends_us - now_us
        return CounterState(max(0, charge.most - self._count), wait_us, self._ends_us)

    def take(self, charge: LimitCharge, now_us: int, owner: str) -> Told | None:
        if not 0 < self._ends_us - now_us <= self._far_us:
            self._turn(now_us)
        count = self._count + charge.amount
        if count > charge.most:
            return None
        self._count = count
        return charge.most - count, 0, self._ends_us

    def undo(self, charge: LimitCharge, owner: str) -> None:
        self._count -= charge.amount

    def give_back(self, charge: LimitCharge, charged_us: int, owner: str) -> None:
        if self._end_of(charged_us) == self._ends_us:
            self._count = max(0, self._count - charge.amount)

    def idle(self, now_us: int) -> bool:
        if not 0 < self._ends_us - now_us <= self._far_us:
            self._turn(now_us)
        return not self._count


def by_day() -> CalendarWindow:
    """Returns a counter per day, UTC."""
    return CalendarWindow(lambda moment_us: (moment_us // DAY_US + 1) * DAY_US, 2 * DAY_US)


def by_month() -> CalendarWindow:
    """Returns a counter per month, UTC."""
    return CalendarWindow(month_end_us, 62 * DAY_US)


def month_end_us(moment_us: int) -> int:
    """Returns the first midnight of the next month, UTC, in µs since the epoch."""
    moment = datetime.fromtimestamp(moment_us // SECOND_US, UTC)
    year, months = divmod(12 * moment.year + moment.month, 12)
    return int(datetime(year, months + 1, 1, tzinfo=UTC).timestamp()) * SECOND_US


class RateLimit:
    """One call per `interval_us`, and bursts of `most` (the generic cell rate algorithm).

    Once the burst is fully available again, returning an earlier charge would exceed the rate. So each charge that
    finds less than one call of backlog is recorded as a low tide. A return of a charge from before it is worth at most
    the backlog at that moment; a return from before the previous low tide is worth nothing."""

    __slots__ = ("_state", "_was")

    def __init__(self) -> None:
        # The time at which the whole burst is available again (the algorithm's "theoretical arrival time"), the last
        # low tide, its backlog, and the previous low tide. A tuple, so that restoring the last one undoes a charge.
        self._state = self._was = (0, 0, 0, 0)

    def take(self, charge: LimitCharge, now_us: int, owner: str) -> Told | None:
        full_at_us, low_at_us, low_us, before_us = state = self._state
        interval_us = charge.interval_us
        if full_at_us < now_us:
            full_at_us = now_us
        if full_at_us - now_us < interval_us:
            before_us, low_at_us, low_us = low_at_us, now_us, full_at_us - now_us
        full_at_us += charge.amount * interval_us
        left_us = charge.most * interval_us - full_at_us + now_us
        if left_us < 0:
            self._cap(charge, now_us)
            return None
        self._was, self._state = state, (full_at_us, low_at_us, low_us, before_us)
        return left_us // interval_us, 0, full_at_us

    def undo(self, charge: LimitCharge, owner: str) -> None:
        self._state = self._was

    def ask(self, charge: LimitCharge, now_us: int) -> CounterState:
        self._cap(charge, now_us)
        backlog_us, interval_us = max(self._state[0] - now_us, 0), charge.interval_us
        burst_us = charge.most * interval_us
        over_us = backlog_us + charge.amount * interval_us - burst_us
        return CounterState((burst_us - backlog_us) // interval_us, max(0, over_us), now_us + backlog_us)

    def _cap(self, charge: LimitCharge, now_us: int) -> None:
        """Caps the backlog at one burst, because a limit must not block until a clock that stepped back catches up."""
        full_at_us, low_at_us, low_us, before_us = self._state
        burst_us = charge.most * charge.interval_us
        self._state = min(full_at_us, now_us + burst_us), low_at_us, low_us, before_us

    def give_back(self, charge: LimitCharge, charged_us: int, owner: str) -> None:
        full_at_us, low_at_us, low_us, before_us = self._state
        worth_us = charge.amount * charge.interval_us
        if charged_us < low_at_us:
            worth_us = min(worth_us, low_us) if charged_us >= before_us else 0
        self._state = full_at_us - worth_us, low_at_us, low_us, before_us

    def idle(self, now_us: int) -> bool:
        return self._state[0] <= now_us


class ConcurrencySlots:
    """At most `most` leases at once. A lease that is not extended ends after `lease_us`."""

    __slots__ = ("_ends_us", "_lease_us", "_none_ends_before_us")

    def __init__(self, lease_us: int) -> None:
        self._lease_us = lease_us
        self._ends_us: dict[str, int] = {}  # owner → end of its lease, nearest end first
        self._none_ends_before_us = 0

    def _reap(self, now_us: int) -> None:
        if self._none_ends_before_us - now_us > 2 * self._lease_us:  # longer than any lease: the clock was ahead
            self._ends_us = dict.fromkeys(self._ends_us, now_us + self._lease_us)
        self._none_ends_before_us = now_us + self._lease_us
        ended = []
        for owner, end_us in self._ends_us.items():
            if end_us > now_us:
                self._none_ends_before_us = end_us
                break
            ended.append(owner)
        for owner in ended:
            del self._ends_us[owner]

    def ask(self, charge: LimitCharge, now_us: int) -> CounterState:
        if not 0 < self._none_ends_before_us - now_us <= 2 * self._lease_us:
            self._reap(now_us)
        held = len(self._ends_us)
        return CounterState(max(0, charge.most - held), 0 if held < charge.most else SLOT_WAIT_US, 0)

    def take(self, charge: LimitCharge, now_us: int, owner: str) -> Told | None:
        if not 0 < self._none_ends_before_us - now_us <= 2 * self._lease_us:
            self._reap(now_us)
        ends_us = self._ends_us
        if len(ends_us) >= charge.most:
            return None
        ends_us[owner] = end_us = now_us + self._lease_us
        if end_us < self._none_ends_before_us:  # the clock stepped back
            self._none_ends_before_us = end_us
        return charge.most - len(ends_us), 0, 0

    def undo(self, charge: LimitCharge, owner: str) -> None:
        del self._ends_us[owner]

    def give_back(self, charge: LimitCharge, charged_us: int, owner: str) -> None:
        self._ends_us.pop(owner, None)

    def extend(self, now_us: int, owner: str) -> None:
        # An expired lease remains expired, because another call may have its slot.
        if self._ends_us.pop(owner, 0) > now_us:
            self._ends_us[owner] = now_us + self._lease_us

    def idle(self, now_us: int) -> bool:
        self._reap(now_us)
        return not self._ends_us


Counter = SlidingWindow | CalendarWindow | RateLimit | ConcurrencySlots
