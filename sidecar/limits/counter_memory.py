"""Remembers recent counters, to restore a store that lost them.

    seen     per counter, how much was used in total when this instance last charged it. For a store that was emptied
             or replaced: when all living instances report what they saw last, the store has the latest state.
    charged  this instance's charges of the last two minutes, numbered. For a promoted replica: replication loses a
             suffix of the writes, and the number that the replica has marks the beginning of that suffix.

Both are bounded, and dropped entries are not restored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from sidecar.limits.counters import DAY_US, MINUTE_US, WINDOW_BUCKETS
from sidecar.limits.plan import Kind, lasting
from sidecar.limits.store import Charges, Verdict

SEEN_KINDS: tuple[Kind, ...] = ("hour", "day", "month", "rate")
MAX_SEEN = 100_000  # per kind, about 300 bytes each
MAX_CHARGED = 20_000  # about 160 charges a second for `KEPT_S`
KEPT_S = 120.0
"""Longer than Sentinels need by default (30 s) to declare a primary down and promote another."""
CHARGED_AGAIN_S = 3600.0
"""Older charges are outside the one-hour window. A tide that was not refreshed for a day expires."""
MAX_LATEST = 1_000
SWEPT_AT_ONCE = 2
FORGOTTEN_EVERY = 32  # charges


class SeenUsage(NamedTuple):
    """A counter as last seen: the time, the amount used, and the time at which all of it is available again; µs since
    the epoch."""

    kind: Kind
    key: str
    at_us: int
    used: int
    full_us: int


LatestCharge = tuple[Charges, Verdict, bool]
"""The latest charge of a plan, which is not in `seen` yet, and whether there are slots among its charges."""
RecentCharge = tuple[int, float, Charges]
"""One charge by this instance: its number, which increases with each reservation, its monotonic time, and the
charges."""


class CounterMemory:
    """The counter memory of one instance."""

    def __init__(self, *, max_seen: int = MAX_SEEN, max_charged: int = MAX_CHARGED) -> None:
        self._max_seen = max_seen
        self._max_charged = max_charged
        # Most recently seen last, so that expired entries are at the front. Slots are held, not seen.
        self._seen: dict[Kind, OrderedDict[str, SeenUsage]] = {kind: OrderedDict() for kind in SEEN_KINDS}
        self._charged: OrderedDict[str, RecentCharge] = OrderedDict()
        self._held: dict[str, Charges] = {}
        self._latest: dict[int, LatestCharge] = {}  # by the identity of its charges, latest last
        self._now_us = 0  # the store's last reported time

    def admitted(self, charges: Charges, verdict: Verdict, decision_id: str, number: int, now_s: float) -> None:
        """Records that the store charged a call."""
        self._now_us = verdict.now_us
        latest = self._latest.pop(id(charges), None)
        if latest is not None:
            holds = latest[2]
        else:
            holds = any(charge.kind == "concurrency" for charge in charges)
            if len(self._latest) >= MAX_LATEST:
                self._see_latest()
        self._latest[id(charges)] = charges, verdict, holds
        if holds:
            self._held[decision_id] = charges
        charged = self._charged
        charged.pop(decision_id, None)  # a repeated charge moves to the position of its new number
        if len(charged) >= self._max_charged or not number % FORGOTTEN_EVERY:
            self._forget_charged(now_s)
        charged[decision_id] = number, now_s, charges

    def _see_latest(self) -> None:
        """Records the counters in the latest charge of each plan. The last charge of a counter includes the earlier
        ones."""
        for charges, (_, now_us, numbers, *_), _ in self._latest.values():
            for charge, remaining, full_us in zip(charges, numbers[::3], numbers[2::3], strict=True):
                if (seen := self._seen.get(charge.kind)) is None:
                    continue
                if seen.pop(charge.key, None) is None:
                    self._make_room(seen, now_us)
                seen[charge.key] = SeenUsage(charge.kind, charge.key, now_us, charge.most - remaining, full_us)
        self._latest.clear()

    def released(self, charges: Charges, decision_id: str) -> None:
        """Records the end of a call. `charges` are its slots and the unspent part."""
        self._held.pop(decision_id, None)
        for charge in charges:
            if charge.kind != "concurrency" and (charged := self._charged.get(decision_id)):
                number, at_s, whole = charged
                self._charged[decision_id] = number, at_s, _without(whole, unspent := lasting(charges))
                self._use_less(unspent)
                break

    def given_back(self, charges: Charges, decision_id: str) -> None:
        """Records that a call was not made."""
        self._held.pop(decision_id, None)
        if self._charged.pop(decision_id, None):
            self._use_less(charges)

    def reset(self, keys: Collection[str]) -> None:
        """Records that these counters were reset: what was charged to them before is forgotten."""
        self._see_latest()
        gone = frozenset(keys)
        for seen in self._seen.values():
            for key in gone & seen.keys():
                del seen[key]
        for decision_id, (number, at_s, charges) in self._charged.items():
            left = tuple([charge for charge in charges if charge.key not in gone])
            self._charged[decision_id] = number, at_s, left

    def _use_less(self, charges: Charges) -> None:
        self._see_latest()
        for charge in charges:
            seen = self._seen.get(charge.kind)
            if seen is not None and (last := seen.get(charge.key)):
                seen[charge.key] = last._replace(used=max(0, last.used - charge.amount))

    @property
    def held(self) -> Sequence[tuple[str, Charges]]:
        """The running calls that hold slots, by decision id, with all their charges."""
        return tuple(self._held.items())

    def after(self, tide: int, now_s: float) -> Sequence[tuple[str, Charges]]:
        """Returns the charges that a store at this tide has not received, oldest first, without the slots of ended
        calls."""
        return tuple(
            (decision_id, charges)
            for decision_id, (number, at_s, whole) in self._charged.items()
            if number > tide
            and at_s > now_s - CHARGED_AGAIN_S
            and (charges := whole if decision_id in self._held else lasting(whole))
        )

    def forget_charged(self) -> None:
        """Forgets the charges, after `seen` was written to another store."""
        self._charged.clear()

    def pages(self, size: int) -> Iterator[Sequence[SeenUsage]]:
        """Yields every counter whose window had not ended at the store's last reported time, in pages of `size`."""
        self._see_latest()
        page: list[SeenUsage] = []
        for counters in self._seen.values():
            for seen in tuple(counters.values()):
                if not _over(seen, self._now_us):
                    page.append(seen)
                if len(page) == size:
                    yield page
                    page = []
        if page:
            yield page

    def _make_room(self, seen: OrderedDict[str, SeenUsage], now_us: int) -> None:
        for _ in range(SWEPT_AT_ONCE):
            if seen and _over(next(iter(seen.values())), now_us):
                seen.popitem(last=False)
        if len(seen) >= self._max_seen:
            seen.popitem(last=False)

    def _forget_charged(self, now_s: float) -> None:
        charged, until_s = self._charged, now_s - KEPT_S
        for _ in range(2 * FORGOTTEN_EVERY):
            if not charged or (len(charged) < self._max_charged and next(iter(charged.values()))[1] >= until_s):
                return
            charged.popitem(last=False)


def _without(charges: Charges, back: Charges) -> Charges:
    amounts = {charge.key: charge.amount for charge in back}
    return tuple([replace(charge, amount=charge.amount - amounts.get(charge.key, 0)) for charge in charges])


def _over(seen: SeenUsage, now_us: int) -> bool:
    match seen.kind:
        case "hour":
            return now_us // MINUTE_US - seen.at_us // MINUTE_US > WINDOW_BUCKETS
        case "day":
            return now_us // DAY_US != seen.at_us // DAY_US
        case _:
            return seen.full_us <= now_us
