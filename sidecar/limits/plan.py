"""Which limits does this call touch, and under whose counter?

Pure: an answered call in, its charges out. Everything that matches applies: the rows that allowed the call, the
entries of `tools:` for its object, the entries of `principals:` for everyone in the chain. Nothing that a caller
chooses freely (session, connection, request id, arguments, bytes of a token) is part of a counter's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from sidecar.policy.patterns import glob
from sidecar.vocabulary import Call, Chain, Decision, Principal, RowLimit

REMEMBERED_PLANS = 4096  # some 2 KB each; the pairs of object and chain in use are rarely more

Kind = Literal["hour", "day", "month", "rate", "concurrency"]
RolesOf = Callable[[Principal], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `most` per `kind`. For a rate, `most` is the burst and `interval_us` the time between two calls."""

    kind: Kind
    most: int
    interval_us: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of budgets.yaml. `each`: every principal has a counter of its own; otherwise all share one.

    `pattern` names objects (`tools`), or principals or roles (`principals`), with the one wildcard `*`.
    """

    source: Literal["tools", "principals"]
    pattern: str
    each: bool
    caps: tuple[Cap, ...]
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """One counter that a call moves. `limit` is its label, made of configuration only; `key` names the counter.

    `most` is the limit's number (a rate's burst), `interval_us` a rate's time between two calls, `window_s` how long
    the limit looks back (0 for concurrency, a long month for months). Of a limit with a `unit` it is not calls that
    count but what they cost; `most` and `amount` are then in millionths of that unit (money.py).
    """

    limit: str
    kind: Kind
    key: str
    most: int
    amount: int = 1
    interval_us: int = 0
    unit: str = ""

    window_s: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "window_s", _WINDOWS_S.get(self.kind, self.most * self.interval_us / 1e6))


_WINDOWS_S: dict[Kind, float] = {"hour": 3600.0, "day": 86400.0, "month": 31 * 86400.0, "concurrency": 0.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """All charges of one call, each counter once, and the smallest timeout that matched."""

    charges: tuple[Charge, ...] = ()
    timeout_s: float | None = None
    slots: tuple[Charge, ...] = field(init=False, compare=False)
    """Those of the charges that the end of the call frees."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", tuple(charge for charge in self.charges if charge.kind == "concurrency"))


NOTHING = Plan()


@dataclass(frozen=True, slots=True)
class Budgets:
    """All entries of budgets.yaml, in the order of the file. Remembers the plans it was asked for, within a bound."""

    tools: tuple[Entry, ...] = ()
    principals: tuple[Entry, ...] = ()
    remembered: dict[object, Plan] = field(default_factory=dict, init=False, repr=False, compare=False)
    read_roles: bool = field(init=False)
    """Whether the roles of a chain matter to any entry."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "read_roles", any(_names_roles(entry) for entry in self.principals))

    @property
    def labels(self) -> tuple[str, ...]:
        """What the limits of these entries are called in metrics and audit."""
        return tuple(_label(entry, cap) for entry in (*self.tools, *self.principals) for cap in entry.caps)


def plan_charges(budgets: Budgets, chain: Chain, roles_of: RolesOf, call: Call, decision: Decision) -> Plan:
    """The charges of an allowed call. Calls of the session itself (lists, pings) are bounded by `SessionCalls` instead.

    `roles_of` gives every role of a principal, from tokens and from policy; it is asked only if an entry names a role.
    """
    if call.session:
        return NOTHING
    names = tuple([principal.name for principal in chain])
    roles = tuple([roles_of(principal) for principal in chain]) if budgets.read_roles else ()
    asked = (call.question.object, names, roles, decision.limits)
    plan = budgets.remembered.get(asked)
    if plan is None:
        plan = _plan(budgets, *asked)
        _remember(budgets.remembered, asked, plan)
    return plan


def _remember(plans: dict[object, Plan], asked: object, plan: Plan) -> None:
    while len(plans) >= REMEMBERED_PLANS:
        del plans[next(iter(plans))]
    plans[asked] = plan


def _plan(
    budgets: Budgets, target: str, names: tuple[str, ...], roles: tuple[frozenset[str], ...], rows: tuple[RowLimit, ...]
) -> Plan:
    tools = [entry for entry in budgets.tools if glob(target, entry.pattern)]
    charges = [
        *(_row_charge(row) for row in rows),
        *(charge for entry in tools for charge in _charges(entry, names[-1])),
        *_principal_charges(budgets.principals, names, roles or (frozenset[str](),) * len(names)),
    ]
    # A principal that stands in the chain twice, or a team whose members call through one another, is charged once.
    once = {charge.key: charge for charge in charges}
    return Plan(tuple(once.values()), min((e.timeout_s for e in tools if e.timeout_s is not None), default=None))


def rule_label(rule_id: str) -> str:
    """What the limit of a rule is called in metrics and audit."""
    return f"rule:{rule_id}"


def _label(entry: Entry, cap: Cap) -> str:
    return f"{entry.source}:{entry.pattern}:{cap.kind}"


def _row_charge(row: RowLimit) -> Charge:
    return Charge(rule_label(row.rule_id), "hour", _key("hour", "rule", row.rule_id, row.counted_for), row.per_hour)


def _principal_charges(
    entries: Iterable[Entry], names: tuple[str, ...], roles: tuple[frozenset[str], ...]
) -> Iterator[Charge]:
    for entry in entries:
        for name, held in zip(names, roles, strict=True):
            known_as = held if _names_roles(entry) else (name,)
            if any(glob(word, entry.pattern) for word in known_as):
                yield from _charges(entry, name)


def _names_roles(entry: Entry) -> bool:
    return entry.pattern.startswith("role:")


def _charges(entry: Entry, principal: str) -> Iterator[Charge]:
    counted_for = principal if entry.each else ""
    for cap in entry.caps:
        key = _key(cap.kind, entry.source, entry.pattern, counted_for)
        yield Charge(_label(entry, cap), cap.kind, key, cap.most, interval_us=cap.interval_us)


def _key(kind: Kind, *parts: str) -> str:
    """A counter's name. Lengths stand before the parts, so that `a:b` + `c` and `a` + `b:c` are two counters."""
    digest = sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "big") + raw)
    return f"{kind}:{digest.hexdigest()}"
