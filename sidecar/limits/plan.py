"""Plans which limits a call touches, and under which counters.

Pure: an answered call in, its charges out. Everything that matches applies: the rows that allowed the call, the
entries of `tools:` for its object, the entries of `principals:` for everyone in the chain, and of `budgets:` for both.
Nothing that a caller chooses freely (session, connection, request id, arguments, bytes of a token) is part of a
counter's name.

What a call costs is charged in two steps. Before it, the most that it may cost is reserved, in every budget that its
unit touches; so no budget is ever overspent, however many calls are under way. Once it was answered, what it did not
cost comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

from sidecar.limits.amounts import MOST, reported
from sidecar.policy.patterns import glob
from sidecar.vocabulary import Call, Chain, Decision, Principal, RowLimit

REMEMBERED_PLANS = 4096  # some 2 KB each; the pairs of object and chain in use are rarely more

Kind = Literal["hour", "day", "month", "rate", "concurrency"]
Source = Literal["tools", "agents", "principals", "budgets"]
RolesOf = Callable[[Principal], frozenset[str]]


COSTING = frozenset({"tools/call", "prompts/get", "resources/read", "message/send", "message/stream"})
"""What begins work, and so may cost. Looking at it, or ending it, does not."""
ENDING = frozenset({"resources/unsubscribe"})
"""What is asked as what it ends, and is not charged to the rows that allow that."""


@dataclass(frozen=True, slots=True)
class LimitCap:
    """At most `most` per `kind`. For a rate, `most` is the burst and `interval_us` the time between two calls; of a
    budget, `most` is in millionths of its unit."""

    kind: Kind
    most: int
    interval_us: int = 0


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """One line of budgets.yaml, or of an agent's own settings (`agents`). `each`: every principal has a counter of its
    own; otherwise all share one.

    `pattern` names objects (`tools`, `agents`), or principals or roles (`principals`, `budgets`), with the one wildcard
    `*`; of `budgets` it may be "": whoever it is. Those count what calls on `object` cost in `unit`.
    """

    source: Source
    pattern: str
    each: bool
    caps: tuple[LimitCap, ...]
    timeout_s: float | None = None
    object: str = "*"
    unit: str = ""

    @property
    def names_objects(self) -> bool:
        """Whether it is about what is called, rather than who calls."""
        return self.source in ("tools", "agents")


@dataclass(frozen=True, slots=True)
class CallCost:
    """What a call on `object` costs: `per_call`, or what its answer says at `path`; never more than `most`. Amounts
    are millionths of `unit`."""

    object: str
    unit: str
    per_call: int
    most: int
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitCharge:
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


def lasting(charges: tuple[LimitCharge, ...]) -> tuple[LimitCharge, ...]:
    """All but slots, which come back with the end of their call."""
    return tuple([charge for charge in charges if charge.kind != "concurrency"])


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """All charges of one call, each counter once; the smallest timeout that matched; and what it may cost."""

    charges: tuple[LimitCharge, ...] = ()
    timeout_s: float | None = None
    costs: tuple[CallCost, ...] = ()
    slots: tuple[LimitCharge, ...] = field(init=False, compare=False)
    """Those of the charges that the end of the call frees."""
    settles: bool = field(init=False, compare=False)
    """Whether its answer may have cost less than was reserved."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", tuple(charge for charge in self.charges if charge.kind == "concurrency"))
        paid = any(charge.unit for charge in self.charges)
        object.__setattr__(self, "settles", paid and any(cost.per_call < cost.most for cost in self.costs))

    @property
    def at_creation(self) -> LimitPlan:
        """What is charged when a task is taken: all but the slots, which it takes once it is at its agent."""
        rest = (charge for charge in self.charges if charge not in self.slots)
        return replace(self, charges=tuple(rest)) if self.slots else self

    def tells(self, result: Mapping[str, Any]) -> bool:
        """Whether a result says anything of what the call cost."""
        return any(cost.path and reported(result, cost.path, cost.most) is not None for cost in self.costs)

    def spent(self, result: Mapping[str, Any] | None) -> Mapping[str, int]:
        """What a call cost, by unit: as its result tells, and where that tells nothing, as declared."""
        spent: dict[str, int] = {}
        for cost in self.costs:
            told = reported(result, cost.path, cost.most) if result is not None and cost.path else None
            spent[cost.unit] = spent.get(cost.unit, 0) + (cost.per_call if told is None else told)
        return spent

    def unspent(self, spent: Mapping[str, int]) -> tuple[LimitCharge, ...]:
        """What the end of a call that cost so much gives back: its slots, and the rest of what it reserved."""
        paid = [charge for charge in self.charges if charge.unit and charge.amount > spent.get(charge.unit, 0)]
        rest = (replace(charge, amount=charge.amount - spent.get(charge.unit, 0)) for charge in paid)
        return (*self.slots, *rest)


NOTHING = LimitPlan()


@dataclass(frozen=True, slots=True)
class Budgets:
    """All entries of budgets.yaml, in the order of the file, and those that agents have of their own (`offers`).
    Remembers the plans it was asked for, within a bound."""

    tools: tuple[BudgetRule, ...] = ()
    principals: tuple[BudgetRule, ...] = ()
    spending: tuple[BudgetRule, ...] = ()
    costs: tuple[CallCost, ...] = ()
    offers: tuple[BudgetRule, ...] = ()
    remembered: dict[object, LimitPlan] = field(default_factory=dict, init=False, repr=False, compare=False)
    read_roles: bool = field(init=False)
    """Whether the roles of a chain matter to any entry."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "read_roles", any(_names_roles(entry) for entry in (*self.principals, *self.spending)))

    @property
    def entries(self) -> tuple[BudgetRule, ...]:
        """All that limit."""
        return (*self.tools, *self.offers, *self.principals, *self.spending)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the limits of these entries are called in metrics and audit."""
        return tuple(label_of(entry, cap) for entry in self.entries for cap in entry.caps)

    @property
    def asked_for(self) -> list[str]:
        """Every principal of the chains whose plans are remembered, who came last stands last."""
        asked: list[Any] = list(self.remembered)
        return [name for _, names, *_ in asked for name in names]

    @property
    def spending_labels(self) -> tuple[str, ...]:
        """Those of them that count what calls cost."""
        return tuple(label_of(entry, cap) for entry in self.spending for cap in entry.caps)


def plan_charges(budgets: Budgets, chain: Chain, roles_of: RolesOf, call: Call, decision: Decision) -> LimitPlan:
    """The charges of an allowed call. Calls of the session itself (lists, pings) are bounded by `SessionCalls` instead.

    `roles_of` gives every role of a principal, from tokens and from policy; it is asked only if an entry names a role.
    """
    if call.session:
        return NOTHING
    names = tuple([principal.name for principal in chain])
    roles = tuple([roles_of(principal) for principal in chain]) if budgets.read_roles else ()
    costing = bool(budgets.costs) and call.method in COSTING
    rows = () if call.method in ENDING else decision.limits
    asked = (call.question.object, names, roles, rows, costing)
    plan = budgets.remembered.get(asked)
    if plan is None:
        plan = _plan(budgets, *asked)
        _remember(budgets.remembered, asked, plan)
    return plan


def _remember(plans: dict[object, LimitPlan], asked: object, plan: LimitPlan) -> None:
    while len(plans) >= REMEMBERED_PLANS:
        del plans[next(iter(plans))]
    plans[asked] = plan


def _plan(
    budgets: Budgets,
    target: str,
    names: tuple[str, ...],
    roles: tuple[frozenset[str], ...],
    rows: tuple[RowLimit, ...],
    costing: bool,
) -> LimitPlan:
    roles = roles or (frozenset[str](),) * len(names)
    tools = [entry for entry in (*budgets.tools, *budgets.offers) if glob(target, entry.pattern)]
    costs = tuple(cost for cost in budgets.costs if glob(target, cost.object)) if costing else ()
    charges = [
        *(row_charge(row) for row in rows),
        *(charge for entry in tools for charge in _charges(entry, names[-1])),
        *_principal_charges(budgets.principals, names, roles),
        *_spending(budgets.spending, target, names, roles, costs),
    ]
    # A principal that stands in the chain twice, or a team whose members call through one another, is charged once.
    once = {charge.key: charge for charge in charges}
    timeout_s = min((entry.timeout_s for entry in tools if entry.timeout_s is not None), default=None)
    return LimitPlan(tuple(once.values()), timeout_s, costs)


def rule_label(rule_id: str) -> str:
    """What the limit of a rule is called in metrics and audit."""
    return f"rule:{rule_id}"


def label_of(entry: BudgetRule, cap: LimitCap) -> str:
    """What one cap of an entry is called in metrics and audit."""
    what = [entry.object] if entry.object != "*" else []
    parts = [entry.source, *filter(None, (entry.pattern,)), *what, *filter(None, (entry.unit,)), cap.kind]
    return ":".join(parts)


def row_charge(row: RowLimit) -> LimitCharge:
    """The charge of a row's own limit."""
    return LimitCharge(
        rule_label(row.rule_id), "hour", _key("hour", "rule", row.rule_id, row.counted_for), row.per_hour
    )


def _principal_charges(
    entries: Iterable[BudgetRule], names: tuple[str, ...], roles: tuple[frozenset[str], ...]
) -> Iterator[LimitCharge]:
    for entry in entries:
        for name, held in zip(names, roles, strict=True):
            known_as = held if _names_roles(entry) else (name,)
            if any(glob(word, entry.pattern) for word in known_as):
                yield from _charges(entry, name)


def _spending(
    entries: Iterable[BudgetRule],
    target: str,
    names: tuple[str, ...],
    roles: tuple[frozenset[str], ...],
    costs: tuple[CallCost, ...],
) -> Iterator[LimitCharge]:
    """The most that the call may cost, in each budget of its unit."""
    due: dict[str, int] = {}
    for cost in costs:  # what is more than any limit stays that, and small enough to be counted
        due[cost.unit] = min(due.get(cost.unit, 0) + cost.most, MOST + 1)
    for entry in entries:
        amount = due.get(entry.unit, 0)
        if not amount or not glob(target, entry.object):
            continue
        charged = _principal_charges([entry], names, roles) if entry.pattern else _charges(entry, "")
        yield from (replace(charge, amount=amount) for charge in charged)


def _names_roles(entry: BudgetRule) -> bool:
    return entry.pattern.startswith("role:")


def _charges(entry: BudgetRule, principal: str) -> Iterator[LimitCharge]:
    counted_for = principal if entry.each else ""
    for cap in entry.caps:
        yield charge_of(entry, cap, counted_for)


def charge_of(entry: BudgetRule, cap: LimitCap, counted_for: str) -> LimitCharge:
    """One cap's counter for a principal, or with "" the one that all share."""
    also = (entry.object, entry.unit) if entry.unit else ()
    key = _key(cap.kind, entry.source, entry.pattern, *also, counted_for)
    return LimitCharge(label_of(entry, cap), cap.kind, key, cap.most, interval_us=cap.interval_us, unit=entry.unit)


def _key(kind: Kind, *parts: str) -> str:
    """A counter's name. Lengths stand before the parts, so that `a:b` + `c` and `a` + `b:c` are two counters."""
    digest = sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "big") + raw)
    return f"{kind}:{digest.hexdigest()}"
