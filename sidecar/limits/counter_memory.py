"""Remembers recent counters, to restore a store that lost them.

Two memories, for two ways of forgetting:

    seen     per counter, how much of it was used when this instance last charged it, by whomever. For a store that
             was emptied or exchanged: told what all living instances saw last, it knows what the last of them saw.
    charged  the charges that this instance made in the last two minutes, numbered. For a replica that was promoted:
             replication loses an end, never a middle, and the number that it kept says where that end begins.

Both are bounded; what was dropped is not restored, and `dropped` counts it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sidecar.limits.counters import DAY_US, MINUTE_US, WINDOW_BUCKETS
from sidecar.limits.plan import Kind, LimitCharge
from sidecar.limits.store import Charges, Verdict

SEEN_KINDS: tuple[Kind, ...] = ("hour", "day", "month", "rate")
MAX_SEEN = 100_000  # per kind, some 300 bytes each
MAX_CHARGED = 20_000  # some 160 charges a second for as long as they are kept
KEPT_S = 120.0
"""Longer than the default time after which Sentinels give a primary up (30 s) and find another."""
CHARGED_AGAIN_S = 3600.0
"""What was charged longer ago has left the hour; and a tide that nobody kept alive for a day is forgotten."""
SWEPT_AT_ONCE = 2


class SeenUsage(NamedTuple):
    """A counter as this instance last saw it: when, how much was used, when all of it is back; µs since the epoch."""

    kind: Kind
    key: str
    at_us: int
    used: int
    full_us: int


@dataclass(slots=True)
class RecentCharge:
    """One charge of ours. `number` rises by one with each that was asked for; `at_s` is loop time."""

    number: int
    at_s: float
    charges: Charges


class CounterMemory:
    """The memory of one instance."""

    def __init__(self, *, max_seen: int = MAX_SEEN, max_charged: int = MAX_CHARGED) -> None:
        self._max_seen = max_seen
        self._max_charged = max_charged
        # Last seen stands last, so that what time has emptied gathers in front. Slots are not seen but held.
        self._seen: dict[Kind, OrderedDict[str, SeenUsage]] = {kind: OrderedDict() for kind in SEEN_KINDS}
        self._charged: OrderedDict[str, RecentCharge] = OrderedDict()
        self._held: dict[str, Charges] = {}
        self._now_us = 0  # as the store told it last
        self.dropped = 0

    def admitted(self, charges: Charges, verdict: Verdict, decision_id: str, number: int, now_s: float) -> None:
        """The store has charged a call."""
        self._now_us = now_us = verdict.now_us
        numbers, at = verdict.numbers, 0
        slots = False
        for charge in charges:
            seen = self._seen.get(charge.kind)
            if seen is None:
                slots = True
            else:
                key = charge.key
                if seen.pop(key, None) is None:
                    self._make_room(seen, now_us)
                seen[key] = SeenUsage(charge.kind, key, now_us, charge.most - numbers[at], numbers[at + 2])
            at += 3
        if slots:
            self._held[decision_id] = charges
        self._forget_charged(now_s)
        self._charged.pop(decision_id, None)  # one that is charged again stands where its new number belongs
        self._charged[decision_id] = RecentCharge(number, now_s, charges)

    def released(self, charges: Charges, decision_id: str) -> None:
        """The call is over. `charges` are its slots, and what it did not spend."""
        self._held.pop(decision_id, None)
        unspent = tuple([charge for charge in charges if charge.kind != "concurrency"])
        if unspent and (charged := self._charged.get(decision_id)):
            charged.charges = _without(charged.charges, unspent)
            self._use_less(unspent)

    def given_back(self, charges: Charges, decision_id: str) -> None:
        """The call was never made; or some calls of a block were not (`fast_lane.py`). What of that was made is charged
        again as it was, should its charge be lost, until the store has heard what came back."""
        self._held.pop(decision_id, None)
        if charged := self._charged.get(decision_id):
            self._use_less(charges)
            if not any(one.amount for one in _without(charged.charges, charges)):
                del self._charged[decision_id]

    def heard_back(self, charges: Charges, decision_id: str) -> None:
        """The store has heard it."""
        if charged := self._charged.get(decision_id):
            charged.charges = _without(charged.charges, charges)

    def reset(self, keys: Collection[str]) -> None:
        """These counters were set back: what was charged to them before counts no more."""
        gone = frozenset(keys)
        for seen in self._seen.values():
            for key in gone & seen.keys():
                del seen[key]
        for charged in self._charged.values():
            charged.charges = tuple([charge for charge in charged.charges if charge.key not in gone])

    def _use_less(self, charges: Charges) -> None:
        for charge in charges:
            seen = self._seen.get(charge.kind)
            if seen is not None and (last := seen.get(charge.key)):
                seen[charge.key] = last._replace(used=max(0, last.used - charge.amount))

    @property
    def held(self) -> Sequence[tuple[str, Charges]]:
        """The calls that are under way and hold slots."""
        return tuple(self._held.items())

    def after(self, tide: int, now_s: float) -> Sequence[tuple[str, Charges]]:
        """The charges that a store whose tide is this one has never heard of, oldest first. Slots of calls that are
        over are none."""
        return tuple(
            (decision_id, charges)
            for decision_id, charged in self._charged.items()
            if charged.number > tide
            and charged.at_s > now_s - CHARGED_AGAIN_S
            and (charges := self._still(decision_id, charged.charges))
        )

    def forget_charged(self) -> None:
        """Another store was told of all that was seen."""
        self._charged.clear()

    def pages(self, size: int) -> Iterator[Sequence[SeenUsage]]:
        """Every counter whose window was not over when we last heard of one, some at a time."""
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

    def _still(self, decision_id: str, charges: Charges) -> Charges:
        if decision_id in self._held:
            return charges
        return tuple(charge for charge in charges if charge.kind != "concurrency")

    def _make_room(self, seen: OrderedDict[str, SeenUsage], now_us: int) -> None:
        for _ in range(SWEPT_AT_ONCE):
            if seen and _over(next(iter(seen.values())), now_us):
                seen.popitem(last=False)
        if len(seen) >= self._max_seen:
            seen.popitem(last=False)
            self.dropped += 1

    def _forget_charged(self, now_s: float) -> None:
        charged = self._charged
        for _ in range(SWEPT_AT_ONCE):
            if charged and next(iter(charged.values())).at_s < now_s - KEPT_S:
                charged.popitem(last=False)
        if len(charged) >= self._max_charged:
            charged.popitem(last=False)


def _without(charges: Charges, back: Charges) -> Charges:
    amounts = {charge.key: charge.amount for charge in back}
    return tuple([_less(charge, amounts.get(charge.key, 0)) for charge in charges])


def _less(charge: LimitCharge, amount: int) -> LimitCharge:
    return replace(charge, amount=charge.amount - amount) if amount else charge


def _over(seen: SeenUsage, now_us: int) -> bool:
    match seen.kind:
        case "hour":
            return now_us // MINUTE_US - seen.at_us // MINUTE_US > WINDOW_BUCKETS
        case "day":
            return now_us // DAY_US != seen.at_us // DAY_US
        case _:
            return seen.full_us <= now_us
