"""Reports used and remaining limits.

Counters are named by digests, so they cannot be listed. The report covers the counters that the configuration defines
for principals that this process has charged, and for the one that the query names. Reading charges nothing and is
bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

from sidecar.limits.amounts import in_units
from sidecar.limits.counters import SECOND_US, CounterState
from sidecar.limits.plan import BudgetRule, Budgets, LimitCharge, charge_of, lasting, row_charge
from sidecar.limits.store import CounterStore
from sidecar.policy.patterns import glob
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.validation_errors import nothing_like
from sidecar.vocabulary import Principal, RowLimit, RuleRef

MAX_KNOWN = 2_000  # charged principals that this process remembers
MAX_SHOWN = 1_000
WHILE_S, MADE_AT_ONCE, NAMES_AT_ONCE = 0.002, 100, 100
READ_AT_ONCE = 50  # about 2 ms of Redis' time, which delays its other callers
RolesOf = Callable[[Principal], frozenset[str]]


class NoSuchLimit(LookupError):
    """A principal has no own limit of this name. The text names similar ones."""


class UsageQuery(NamedTuple):
    """A query; "" matches everything. `object` selects limits that a call on it may move; `limit` is a pattern."""

    principal: str = ""
    object: str = ""
    limit: str = ""

    def matches(self, charge: LimitCharge) -> bool:
        return not self.limit or glob(charge.limit, self.limit)


class CountedLimit(NamedTuple):
    """One counter that may exist."""

    charge: LimitCharge
    counted_for: str

    def plain(self, standing: CounterState) -> dict[str, Any]:
        """Returns the state as JSON values; amounts of a unit are in units."""
        charge = self.charge
        shown = in_units if charge.unit else int
        used = charge.most - standing.remaining
        return {
            "limit": charge.limit,
            "kind": charge.kind,
            "counted_for": self.counted_for or None,
            "unit": charge.unit or None,
            "most": shown(charge.most),
            "used": shown(used),
            "remaining": shown(standing.remaining),
            "reset_at": rfc3339(standing.reset_us / SECOND_US) if standing.reset_us and used else None,
        }


@dataclass(slots=True)
class CallsFirst:
    """Lets the event loop serve calls during work that takes long."""

    began_s: float = field(default_factory=time.perf_counter)

    async def after_a_while(self) -> None:
        if time.perf_counter() - self.began_s >= WHILE_S:
            await asyncio.sleep(0)
            self.began_s = time.perf_counter()


@dataclass(slots=True)
class UsageReport:
    """Reads the counters of one store."""

    store: CounterStore
    known: dict[str, None] = field(default_factory=dict)
    budgets: Budgets = field(default_factory=Budgets)

    def take(self, budgets: Budgets) -> None:
        """Uses new budgets; principals known from the previous ones remain known."""
        self._meet()
        self.budgets = budgets

    def _meet(self) -> None:
        for name in self.budgets.asked_for:
            self.known.pop(name, None)
            self.known[name] = None
        for name in list(islice(self.known, max(0, len(self.known) - MAX_KNOWN))):
            del self.known[name]

    async def show(
        self, wanted: UsageQuery, rules: Sequence[RuleRef], roles_of: RolesOf
    ) -> tuple[list[dict[str, Any]], bool]:
        """Returns the state of each limit, the most used first, and whether some limits were omitted: those of
        principals that were charged longest ago. Raises StoreUnavailable."""
        self._meet()
        pause, found = CallsFirst(), dict[str, CountedLimit]()
        names = [wanted.principal] if wanted.principal else [*reversed(self.known)]
        pieces = (names[start : start + NAMES_AT_ONCE] for start in range(0, max(1, len(names)), NAMES_AT_ONCE))
        for some in chain.from_iterable(_counted(wanted, self.budgets, rules, piece, roles_of) for piece in pieces):
            found |= {one.charge.key: one for one in some}
            if len(found) > MAX_SHOWN:
                break
            await pause.after_a_while()
        asked = list(islice(found.values(), MAX_SHOWN))
        if not asked:
            await self.store.ping()  # an unavailable store must not look unused
        shown = list[dict[str, Any]]()
        for start in range(0, len(asked), READ_AT_ONCE):
            read = asked[start : start + READ_AT_ONCE]
            standings = await self.store.look(tuple(one.charge for one in read))
            shown += [one.plain(standing) for one, standing in zip(read, standings, strict=True)]
            await pause.after_a_while()
        if not wanted.principal:  # of the principals that may have used something, select those that did
            shown = [each for each in shown if each["used"] or not each["counted_for"]]
        shown.sort(key=lambda each: (-each["used"] / each["most"], each["limit"], each["counted_for"] or ""))
        return shown, len(found) > MAX_SHOWN

    def own(self, principal: str, limit: str, rules: Sequence[RuleRef], roles_of: RolesOf) -> tuple[LimitCharge, ...]:
        """Returns the counters of this principal alone, except slots, for limits that match the pattern `limit`, or ""
        for all. Raises NoSuchLimit."""
        counted = _counted(UsageQuery(principal), self.budgets, rules, [principal], roles_of)
        every = islice(chain.from_iterable(counted), MAX_SHOWN)
        mine = lasting(tuple([one.charge for one in every if one.counted_for]))
        chosen = tuple([charge for charge in mine if not limit or glob(charge.limit, limit)])
        if limit and not chosen:
            known = {charge.limit for charge in mine}
            raise NoSuchLimit(nothing_like(f"no limit of this name counts {principal} alone", limit, known))
        return chosen


def _counted(
    wanted: UsageQuery, budgets: Budgets, rules: Iterable[RuleRef], names: Sequence[str], roles_of: RolesOf
) -> Iterator[Sequence[CountedLimit]]:
    """Yields the counters that may exist, some at a time."""
    roles = {name: roles_of(Principal(name)) for name in names}
    for entry in budgets.entries:
        if wanted.object and not _touches(budgets, entry, wanted.object):
            continue
        shared = not entry.each and (not wanted.principal or _means(entry, wanted.principal, roles))
        whose = [name for name in names if _means(entry, name, roles)] if entry.each else [""] * shared
        for cap in entry.caps:
            charges = ((charge_of(entry, cap, name), name) for name in whose)
            yield from _in_pieces(charges, wanted)
    by_word = _by_word(roles)
    for rule in rules:
        may_be = not wanted.object or rule.object.startswith("set:") or glob(wanted.object, rule.object)
        if rule.max_calls_per_hour is None or not may_be:
            continue
        is_pattern = "*" in rule.subject
        mine = [name for name in names if glob(name, rule.subject)] if is_pattern else by_word.get(rule.subject, [])
        counted = mine if rule.per != "rule" else [""] * (bool(mine) or not wanted.principal)
        charges = ((row_charge(RowLimit(rule.id, name, rule.max_calls_per_hour)), name) for name in counted)
        yield from _in_pieces(charges, wanted)


def _in_pieces(charges: Iterator[tuple[LimitCharge, str]], wanted: UsageQuery) -> Iterator[Sequence[CountedLimit]]:
    while some := list(islice(charges, MADE_AT_ONCE)):
        yield [CountedLimit(*one) for one in some if wanted.matches(one[0])]


def _by_word(roles: Mapping[str, frozenset[str]]) -> Mapping[str, Sequence[str]]:
    """Returns the principals that a subject without a wildcard means: the principal itself, or those that have the
    role."""
    found: dict[str, list[str]] = {name: [name] for name in roles}
    for name, words in roles.items():
        for word in words:
            found.setdefault(word, []).append(name)
    return found


def _means(entry: BudgetRule, name: str, roles: dict[str, frozenset[str]]) -> bool:
    """Whether an entry counts this principal."""
    return entry.names_objects or not entry.pattern or entry.means(name, roles[name])


def _touches(budgets: Budgets, entry: BudgetRule, target: str) -> bool:
    """Whether a call on this object may move an entry's counters."""
    if entry.names_objects:
        return glob(target, entry.pattern)
    costs = (cost for cost in budgets.costs if cost.unit == entry.unit)
    return not entry.unit or (glob(target, entry.object) and any(glob(target, cost.object) for cost in costs))
