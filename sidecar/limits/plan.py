"""Plans which limits a call touches, and under which counters.

Every match applies: the limits of the rules that allowed the call, the entries of `tools:` for its object, the entries
of `principals:` for each principal in the chain, and the entries of `budgets:` for both. A counter's name contains
nothing that a caller chooses freely (session, connection, request id, arguments, token bytes).

Before the call, its maximum cost is reserved in every budget of its unit, so a budget is never overspent, however many
calls are running. After the response, the unspent part is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, get_args

from sidecar.limits.amounts import MOST, reported
from sidecar.policy.patterns import glob
from sidecar.vocabulary import Call, Chain, Decision, Link, Principal, RowLimit

REMEMBERED_PLANS = 4096  # about 2 KB each; there are rarely more pairs of object and chain in use

Kind = Literal["hour", "day", "month", "rate", "concurrency"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Source = Literal["tools", "agents", "principals", "budgets"]
RolesOf = Callable[[Principal], frozenset[str]]


COSTING = frozenset({"tools/call", "prompts/get", "resources/read", "message/send", "message/stream"})
"""Methods that start work and may therefore cost. Reading or ending work does not."""
ENDING = frozenset({"resources/unsubscribe"})
"""Methods that are authorized like the method that they end, but are not charged to the rules that allow it."""


@dataclass(frozen=True, slots=True)
class LimitCap:
    """At most `most` per `kind`. For a rate, `most` is the burst and `interval_us` the time between two calls; for a
    budget, `most` is in millionths of its unit."""

    kind: Kind
    most: int
    interval_us: int = 0


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """One entry of budgets.yaml, or of an agent's own settings (`agents`). With `each`, every principal has its own
    counter; otherwise all share one. `pattern` names objects (`tools`, `agents`), or principals or roles (`principals`,
    `budgets`), with the single wildcard `*`; in `budgets` "" matches every principal. Budgets count the costs of calls
    on `object` in `unit`."""

    source: Source
    pattern: str
    each: bool
    caps: tuple[LimitCap, ...]
    timeout_s: float | None = None
    object: str = "*"
    unit: str = ""

    @property
    def names_objects(self) -> bool:
        """Whether it limits the called objects rather than the callers."""
        return self.source in ("tools", "agents")

    @property
    def names_roles(self) -> bool:
        return self.pattern.startswith("role:")

    def means(self, name: str, roles: frozenset[str]) -> bool:
        """Whether the pattern matches this principal or one of its roles."""
        return any(glob(word, self.pattern) for word in (roles if self.names_roles else (name,)))


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of a call on `object`: the amount that its result reports at `path`, otherwise `per_call`; never more
    than `most`. Amounts are millionths of `unit`."""

    object: str
    unit: str
    per_call: int
    most: int
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitCharge:
    """One counter that a call moves. `limit` is its label, which consists of configuration only; `key` names the
    counter. `most` is the limit's number (for a rate, the burst), `interval_us` a rate's time between two calls,
    `window_s` the length of the window (31 days for a month, 0 for concurrency). A limit with a `unit` counts costs:
    `most` and `amount` are then in millionths of it."""

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
    """Returns all charges except slots, which are freed when their call ends."""
    return tuple([charge for charge in charges if charge.kind != "concurrency"])


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """All charges of one call, each counter once; the smallest timeout that matched; and the call's possible cost."""

    charges: tuple[LimitCharge, ...] = ()
    timeout_s: float | None = None
    costs: tuple[CallCost, ...] = ()
    slots: tuple[LimitCharge, ...] = field(init=False, compare=False)
    """The charges that are freed when the call ends."""
    paid: bool = field(init=False, compare=False)
    """Whether a limit counts the cost of the call."""
    settles: bool = field(init=False, compare=False)
    """Whether the call may cost less than was reserved."""
    _without_slots: LimitPlan | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        slots = tuple([charge for charge in self.charges if charge.kind == "concurrency"])
        paid = any(charge.unit for charge in self.charges)
        without_slots = replace(self, charges=lasting(self.charges)) if slots else None
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "paid", paid)
        object.__setattr__(self, "settles", paid and any(cost.per_call < cost.most for cost in self.costs))
        object.__setattr__(self, "_without_slots", without_slots)

    @property
    def at_creation(self) -> LimitPlan:
        """The charges when a task is created: all except the slots, which are taken once the task is at its agent."""
        return self._without_slots or self

    @property
    def of_slots(self) -> LimitPlan:
        """The slots alone."""
        return LimitPlan(self.slots, self.timeout_s)

    def tells(self, result: Mapping[str, Any]) -> bool:
        """Whether a result reports a cost."""
        return any(cost.path and reported(result, cost.path, cost.most) is not None for cost in self.costs)

    def spent(self, result: Mapping[str, Any] | None) -> Mapping[str, int]:
        """Returns the cost of a call in millionths, by unit: the reported one, otherwise the declared one."""
        spent: dict[str, int] = {}
        for cost in self.costs:
            told = reported(result, cost.path, cost.most) if result is not None and cost.path else None
            spent[cost.unit] = spent.get(cost.unit, 0) + (cost.per_call if told is None else told)
        return spent

    def unspent(self, spent: Mapping[str, int]) -> tuple[LimitCharge, ...]:
        """Returns the charges that the end of a call returns: its slots, and the part of the reservation that it did
        not spend."""
        paid = [charge for charge in self.charges if charge.unit and charge.amount > spent.get(charge.unit, 0)]
        rest = (replace(charge, amount=charge.amount - spent.get(charge.unit, 0)) for charge in paid)
        return (*self.slots, *rest)


NOTHING = LimitPlan()


class PlanOfAnswer(NamedTuple):
    """A plan, with the policy answer and the call for which it was made."""

    links: tuple[Link, ...]
    limits: tuple[RowLimit, ...]
    chain: Chain
    target: str
    method: str
    plan: LimitPlan


@dataclass(frozen=True, slots=True)
class Budgets:
    """All entries of budgets.yaml in file order, and the agents' own limits (`offers`). Caches plans."""

    tools: tuple[BudgetRule, ...] = ()
    principals: tuple[BudgetRule, ...] = ()
    spending: tuple[BudgetRule, ...] = ()
    costs: tuple[CallCost, ...] = ()
    offers: tuple[BudgetRule, ...] = ()
    remembered: dict[object, LimitPlan] = field(default_factory=dict, init=False, repr=False, compare=False)
    latest: dict[int, PlanOfAnswer] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Plans by the identity of an answer's links, which policy shares among equal answers."""
    read_roles: bool = field(init=False)
    """Whether any entry depends on the roles of a chain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "read_roles", any(entry.names_roles for entry in (*self.principals, *self.spending)))

    @property
    def entries(self) -> tuple[BudgetRule, ...]:
        """All entries that set a limit."""
        return (*self.tools, *self.offers, *self.principals, *self.spending)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of these entries' limits in metrics and audit records."""
        return tuple(label_of(entry, cap) for entry in self.entries for cap in entry.caps)

    @property
    def asked_for(self) -> list[str]:
        """The principals of the cached plans' chains, in the order in which the plans were made. Some occur
        repeatedly."""
        asked: list[Any] = list(self.remembered)
        return [name for _, names, *_ in asked for name in names]

    @property
    def spending_labels(self) -> tuple[str, ...]:
        """The labels of limits that count costs."""
        return tuple(label_of(entry, cap) for entry in self.spending for cap in entry.caps)


def plan_charges(budgets: Budgets, chain: Chain, roles_of: RolesOf, call: Call, decision: Decision) -> LimitPlan:
    """Returns the charges of an allowed call. `roles_of` returns all roles of a principal, from tokens and policy; it
    is called only if an entry names a role."""
    if call.session:
        return NOTHING
    known = budgets.latest.get(id(decision.links))
    if known is not None:
        _, limits, of, target, method, plan = known
        if limits is decision.limits and of is chain and method == call.method and target == call.questions[0].object:
            return plan
    plan = _known_plan(budgets, chain, roles_of, call, decision)
    if links := decision.links:
        if len(budgets.latest) >= REMEMBERED_PLANS:
            budgets.latest.clear()
        about = decision.limits, chain, call.question.object, call.method
        budgets.latest[id(links)] = PlanOfAnswer(links, *about, plan)
    return plan


def _known_plan(budgets: Budgets, chain: Chain, roles_of: RolesOf, call: Call, decision: Decision) -> LimitPlan:
    names = tuple([principal.name for principal in chain])
    roles = tuple([roles_of(principal) for principal in chain]) if budgets.read_roles else ()
    costing = bool(budgets.costs) and call.method in COSTING
    rows = () if call.method in ENDING else decision.limits
    asked = (call.question.object, names, roles, rows, costing)
    plan = budgets.remembered.get(asked)
    if plan is None:
        while len(budgets.remembered) >= REMEMBERED_PLANS:
            del budgets.remembered[next(iter(budgets.remembered))]
        plan = budgets.remembered[asked] = _plan(budgets, *asked)
    return plan


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
    # A principal that is in the chain twice, or a team whose members call through one another, is charged once.
    once = {charge.key: charge for charge in charges}
    timeout_s = min((entry.timeout_s for entry in tools if entry.timeout_s is not None), default=None)
    return LimitPlan(tuple(once.values()), timeout_s, costs)


def rule_label(rule_id: str) -> str:
    """Returns the label of a rule's limit in metrics and audit records."""
    return f"rule:{rule_id}"


def label_of(entry: BudgetRule, cap: LimitCap) -> str:
    """Returns the label of one cap of an entry in metrics and audit records."""
    what = [entry.object] if entry.object != "*" else []
    parts = [entry.source, *filter(None, (entry.pattern,)), *what, *filter(None, (entry.unit,)), cap.kind]
    return ":".join(parts)


def row_charge(row: RowLimit) -> LimitCharge:
    """Returns the charge of a rule's own limit."""
    return LimitCharge(
        rule_label(row.rule_id), "hour", _key("hour", "rule", row.rule_id, row.counted_for), row.per_hour
    )


def _principal_charges(
    entries: Iterable[BudgetRule], names: tuple[str, ...], roles: tuple[frozenset[str], ...]
) -> Iterator[LimitCharge]:
    for entry in entries:
        for name, held in zip(names, roles, strict=True):
            if entry.means(name, held):
                yield from _charges(entry, name)


def _spending(
    entries: Iterable[BudgetRule],
    target: str,
    names: tuple[str, ...],
    roles: tuple[frozenset[str], ...],
    costs: tuple[CallCost, ...],
) -> Iterator[LimitCharge]:
    """Yields the maximum cost of the call, in each budget of its unit."""
    due: dict[str, int] = {}
    for cost in costs:  # capped just above the largest limit, so that the sum can be counted and is still refused
        due[cost.unit] = min(due.get(cost.unit, 0) + cost.most, MOST + 1)
    for entry in entries:
        amount = due.get(entry.unit, 0)
        if not amount or not glob(target, entry.object):
            continue
        charged = _principal_charges([entry], names, roles) if entry.pattern else _charges(entry, "")
        yield from (replace(charge, amount=amount) for charge in charged)


def _charges(entry: BudgetRule, principal: str) -> Iterator[LimitCharge]:
    counted_for = principal if entry.each else ""
    for cap in entry.caps:
        yield charge_of(entry, cap, counted_for)


def charge_of(entry: BudgetRule, cap: LimitCap, counted_for: str) -> LimitCharge:
    """Returns the charge of one cap for a principal, or with "" of the shared counter."""
    also = (entry.object, entry.unit) if entry.unit else ()
    key = _key(cap.kind, entry.source, entry.pattern, *also, counted_for)
    return LimitCharge(label_of(entry, cap), cap.kind, key, cap.most, interval_us=cap.interval_us, unit=entry.unit)


def _key(kind: Kind, *parts: str) -> str:
    """Returns a counter's name. Each part is prefixed with its length, so that `a:b` + `c` and `a` + `b:c` differ."""
    digest = sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "big") + raw)
    return f"{kind}:{digest.hexdigest()}"
