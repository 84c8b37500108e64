"""Reads budgets.yaml.

    tools:       per object pattern, one counter for all callers unless `per: principal`
    principals:  per principal, pattern or role, one counter each unless `shared: true`
    costs:       what a call costs, in any unit
    budgets:     how much of a unit may be spent, by which principals and on which objects

The list of the original data models (`budgets: [{tool, rateLimit, concurrencyLimit, timeout, dailyQuota}]`) is
equivalent to `tools:`. The file is compiled into rules that `plan.py` matches without knowing their source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from sidecar.errors import PolicyError
from sidecar.limits.amounts import MOST, in_units, millionths, path_of
from sidecar.limits.plan import BudgetRule, Budgets, CallCost, Kind, LimitCap
from sidecar.settings.agent_endpoints import AgentOffer
from sidecar.settings.field_types import (
    PRINCIPAL_ID_PATTERN,
    SLUG,
    Count,
    Many,
    PerSecond,
    Quota,
    Seconds,
    Section,
    burst_of,
    interval_us,
    rate_faults,
)
from sidecar.settings.uris import normal_object
from sidecar.settings.validation_errors import Finding, reject
from sidecar.settings.yaml_document import is_written, read_document

PERIODS = ("per_hour", "per_day", "per_month")


def load_budgets(path: Path) -> Budgets:
    """Reads budgets.yaml; without the file, there are no entries. Raises PolicyError with every error and its
    position."""
    if not is_written(path, error=PolicyError):
        return Budgets()
    file = read_document(path, error=PolicyError, inside=path.parent).validate(BudgetsFile)
    tools = tuple(entry.compiled(pattern) for pattern, entry in file.tools.items())
    seeds = tuple(entry.compiled(entry.pattern) for entry in file.budgets if isinstance(entry, SeedEntry))
    return Budgets(
        tools + seeds,
        tuple(entry.compiled(pattern) for pattern, entry in file.principals.items()),
        tuple(entry.compiled() for entry in file.budgets if isinstance(entry, BudgetEntry)),
        tuple(entry.compiled() for entry in file.costs),
    )


def entries_of(offers: Mapping[str, AgentOffer]) -> tuple[BudgetRule, ...]:
    """Compiles the limits in agents' own settings. They count separately from an entry in budgets.yaml."""
    found = []
    for name, offer in offers.items():
        if (said := offer.rate_limiting) is not None:
            caps = _caps((said.requests_per_second, said.burst), day=said.daily_quota)
            found.append(BudgetRule("agents", f"nhi:{name}", said.per_principal, caps))
    return tuple(found)


def _caps(rate: tuple[float | None, int | None] = (None, None), **most: int | None) -> tuple[LimitCap, ...]:
    """Returns one cap for each limit that is set and not 0: a rate with its burst, and the most of each kind."""
    per_second, burst = rate
    caps = [] if per_second is None else [LimitCap("rate", burst_of(per_second, burst), interval_us(per_second))]
    return (*caps, *(LimitCap(cast(Kind, kind), number) for kind, number in most.items() if number))


def _matching(pattern: str, message: str, hint: str) -> AfterValidator:
    """Returns a validator that accepts text that matches the pattern as a whole."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            reject(message, hint=hint)
        return text

    return AfterValidator(check)


def _amount(value: object) -> int:
    try:
        return millionths(value)
    except ValueError:
        hint = "write 5, 0.002 or '0.002': below 1000000000, with six decimal places at most"
        reject("this is not an amount", "Y103", hint)


def _result_path(text: str) -> str:
    try:
        path_of(text)
    except ValueError:
        reject("this is not a path into a result", hint="write _meta.usage.cost, or /_meta/acme.example~1cost")
    return text


ObjectPattern = Annotated[
    str,
    _matching(
        r"\*|(tool|prompt|resource|nhi):\S{1,512}",
        "this is not an object",
        "write tool:<server>/<tool>, prompt:…, resource:… or nhi:…; * matches any run",
    ),
    AfterValidator(normal_object),
]
PrincipalPattern = Annotated[
    str,
    _matching(
        rf"\*|anonymous|(user|nhi|role):{PRINCIPAL_ID_PATTERN}",
        "this is not a principal",
        "write user:<id>, nhi:<id> or role:<name>; * matches any run",
    ),
]
SeedTool = Annotated[
    str,
    _matching(
        rf"{SLUG}|(tool|prompt|resource|nhi):\S{{1,512}}",
        "this is not a tool or a server",
        "write the server's name, such as github, or an object such as tool:github/*",
    ),
]
Calls = Annotated[int, Field(ge=1, le=1_000_000_000)]
Amount = Annotated[
    int,
    BeforeValidator(_amount),
    Field(ge=0, le=MOST),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1_000_000_000},
                {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})?$"},
            ]
        }
    ),
]
"""An amount of a unit; stored in millionths."""
Unit = Annotated[
    str,
    _matching(
        r"[A-Za-z][A-Za-z0-9_-]{0,31}",
        "this is not a unit",
        "write usd, tokens or another name of letters, digits, _ and -",
    ),
]


class SeedRate(Section):
    """Rate and burst, with the names of the original data models."""

    per_second: PerSecond = Field(alias="requestsPerSecond")
    """Maximum number of calls per second."""
    burst: Count | None = Field(None, alias="burstSize")
    """Maximum number of calls at once. Default: one second's worth."""


class ToolEntry(Section):
    """The limits of one object, or the common limits of all objects that match a pattern."""

    requests_per_second: PerSecond | None = None
    """Maximum number of calls per second."""
    burst: Count | None = None
    """Maximum number of calls at once. Default: one second's worth."""
    concurrency: Count | None = None
    """Maximum number of calls in progress."""
    timeout: Seconds | None = None
    """Timeout of a call. It can only shorten the `timeout_s` of the upstream."""
    daily_quota: Quota | None = None
    """Maximum number of calls per day (UTC). 0 means unlimited."""
    per: Literal["principal"] | None = None
    """With `principal`, each caller has its own counters. By default, all callers share them."""
    seed_rate: SeedRate | None = Field(None, alias="rateLimit")
    """`requests_per_second` and `burst`, with the names of the original data models."""
    seed_concurrency: Count | None = Field(None, alias="concurrencyLimit")
    """`concurrency` in the original data models."""
    seed_quota: Quota | None = Field(None, alias="dailyQuota")
    """`daily_quota` in the original data models."""

    def _faults(self) -> Iterator[Finding]:
        pairs = (
            (self.requests_per_second, self.seed_rate, "requests_per_second", "rateLimit"),
            (self.burst, self.seed_rate, "burst", "rateLimit"),
            (self.concurrency, self.seed_concurrency, "concurrency", "concurrencyLimit"),
            (self.daily_quota, self.seed_quota, "daily_quota", "dailyQuota"),
        )
        for ours, seeds, name, seed_name in pairs:
            if ours is not None and seeds is not None:
                yield Finding(
                    f"{seed_name} and {name} have the same meaning",
                    hint="keep one of them",
                    at=(seed_name,),
                    on_key=True,
                )
        yield from rate_faults(*self._said_rate)

    @property
    def _said_rate(self) -> tuple[float | None, int | None]:
        if self.seed_rate is not None:
            return self.seed_rate.per_second, self.seed_rate.burst
        return self.requests_per_second, self.burst

    def compiled(self, pattern: str) -> BudgetRule:
        """Compiles this entry for the objects of `pattern`."""
        concurrency, quota = self.concurrency or self.seed_concurrency, self.daily_quota or self.seed_quota
        caps = _caps(self._said_rate, concurrency=concurrency, day=quota)
        return BudgetRule("tools", pattern, self.per is not None, caps, self.timeout)


class PrincipalEntry(Section):
    """The limits of one principal, or of each principal that matches a pattern or has a role."""

    per_hour: Calls | None = None
    """Maximum number of calls in any 60 minutes."""
    per_day: Calls | None = None
    """Maximum number of calls per day (UTC)."""
    per_month: Calls | None = None
    """Maximum number of calls per calendar month (UTC)."""
    concurrency: Count | None = None
    """Maximum number of calls in progress."""
    shared: bool = False
    """Whether all matching principals share one counter. By default, each has its own."""

    def compiled(self, pattern: str) -> BudgetRule:
        """Compiles this entry for the principals of `pattern`."""
        caps = _caps(hour=self.per_hour, day=self.per_day, month=self.per_month, concurrency=self.concurrency)
        return BudgetRule("principals", pattern, not self.shared, caps)


class SeedEntry(ToolEntry):
    """The ToolBudget of the original data models: the same limits as under `tools`."""

    tool: SeedTool | None = None
    """Name of a server, which stands for all its tools, or a pattern of objects. Required."""

    @property
    def pattern(self) -> str:
        """The object pattern of this entry."""
        tool = self.tool or ""
        return tool if ":" in tool else f"tool:{tool}/*"

    def _faults(self) -> Iterator[Finding]:
        yield from super()._faults()
        if self.tool is None:
            yield Finding('the key "tool" is missing', "Y102")


class CostEntry(Section):
    """The cost of a call on certain objects. If several entries of one unit match a call, their costs are added."""

    object: ObjectPattern
    """The objects whose calls have the cost."""
    unit: Unit
    """Unit of the cost, such as `usd` or `tokens`."""
    per_call: Amount | None = None
    """Cost of a call whose result does not report one. Default: `max_per_call`."""
    from_result: Annotated[str, AfterValidator(_result_path)] | None = None
    """Path of the cost in the result, such as `_meta.usage.cost`, or a JSON Pointer."""
    max_per_call: Amount | None = None
    """Maximum cost of a call, reserved before the call. A higher reported cost is reduced to it. Required with
    `from_result`."""

    def _faults(self) -> Iterator[Finding]:
        if self.per_call is None and self.from_result is None:
            yield Finding("the cost is missing", "Y102")
        if self.from_result is not None and self.max_per_call is None:
            hint = "the sidecar reserves this amount before the call, so that no budget is overspent"
            yield Finding("from_result needs max_per_call", "Y102", hint, at=("from_result",), on_key=True)
        if self.from_result is None and self.max_per_call is not None:
            yield Finding("max_per_call needs from_result", "Y102", at=("max_per_call",), on_key=True)
        if None not in (self.per_call, self.max_per_call) and (self.per_call or 0) > (self.max_per_call or 0):
            yield Finding("per_call is more than max_per_call", at=("per_call",))

    def compiled(self) -> CallCost:
        """Compiles this entry."""
        most = self.max_per_call if self.max_per_call is not None else self.per_call or 0
        declared = self.per_call if self.per_call is not None else most
        return CallCost(self.object, self.unit, declared, most, path_of(self.from_result) if self.from_result else ())


class BudgetEntry(Section):
    """A budget: the amount of a unit that each matching principal, or all callers together, may spend. At least one
    period is required."""

    principal: PrincipalPattern | None = None
    """Principals that have the budget. Each matching principal of the chain has its own. Default: one budget for all
    calls."""
    object: ObjectPattern = "*"
    """The objects whose calls count. Default: all."""
    unit: Unit
    """Unit of the amounts. An entry of `costs` must have it too."""
    per_hour: Amount | None = None
    """Maximum amount in any 60 minutes."""
    per_day: Amount | None = None
    """Maximum amount per day (UTC)."""
    per_month: Amount | None = None
    """Maximum amount per calendar month (UTC)."""
    shared: bool = False
    """Whether all matching principals share one budget. By default, each has its own."""

    def _faults(self) -> Iterator[Finding]:
        periods = {name: getattr(self, name) for name in PERIODS}
        if all(most is None for most in periods.values()):
            yield Finding("the amount is missing", "Y102", "write per_hour, per_day or per_month")
        for name, most in periods.items():
            if most == 0:  # a daily_quota of 0 means unlimited, so 0 would be ambiguous here
                yield Finding("a budget must be more than 0", hint="to deny the calls, write a rule", at=(name,))
        if self.shared and self.principal is None:
            hint = "without a principal, all calls already share one counter"
            yield Finding("shared needs a principal", "Y102", hint, at=("shared",), on_key=True)

    def compiled(self) -> BudgetRule:
        """Compiles this entry."""
        caps = _caps(hour=self.per_hour, day=self.per_day, month=self.per_month)
        each = self.principal is not None and not self.shared
        return BudgetRule("budgets", self.principal or "", each, caps, object=self.object, unit=self.unit)


def _spelling(entry: object) -> str:
    """Returns `ours` for an entry of `budgets:` in the sidecar's format, otherwise `seed`, as in the original data
    models."""
    ours = isinstance(entry, BudgetEntry) or (isinstance(entry, Mapping) and not _OURS.isdisjoint(entry))
    return "ours" if ours else "seed"


_OURS = frozenset(BudgetEntry.model_fields)
EitherEntry = Annotated[
    Annotated[BudgetEntry, Tag("ours")] | Annotated[SeedEntry, Tag("seed")], Discriminator(_spelling)
]


class BudgetsFile(Section):
    """Limits and budgets. `*` in a pattern matches any run of characters."""

    version: Literal[1]
    """Version of this file format."""
    tools: dict[ObjectPattern, ToolEntry] = Field(default_factory=dict)
    """Limits of objects, by object or pattern."""
    principals: dict[PrincipalPattern, PrincipalEntry] = Field(default_factory=dict)
    """Limits of principals, by principal, pattern or role."""
    budgets: Many[EitherEntry] = ()
    """Budgets. Entries may also be ToolBudgets of the original data models."""
    costs: Many[CostEntry] = ()
    """Costs of calls."""

    def _faults(self) -> Iterator[Finding]:
        yield from self._repeated()
        yield from self._without_costs()

    def _repeated(self) -> Iterator[Finding]:
        known: set[object] = set(self.tools)
        for index, entry in enumerate(self.budgets):
            seed = isinstance(entry, SeedEntry)
            what = entry.pattern if isinstance(entry, SeedEntry) else (entry.principal, entry.object, entry.unit)
            if what in known:
                name = what if seed else "this combination of principal, object and unit"
                place = "tool" if seed else "unit"
                yield Finding(f"{name} already has an entry", hint="keep one of them", at=("budgets", index, place))
            known.add(what)

    def _without_costs(self) -> Iterator[Finding]:
        """Reports budgets to which nothing is ever charged, and budgets into which no call fits."""
        least: dict[str, int] = {}
        for cost in self.costs:
            most = cost.compiled().most
            least[cost.unit] = min(most, least.get(cost.unit, most))
        for index, entry in enumerate(self.budgets):
            if not isinstance(entry, BudgetEntry):
                continue
            if entry.unit not in least:
                hint = (
                    f"units that have costs: {', '.join(sorted(least))}"
                    if least
                    else "write the costs of calls under costs"
                )
                yield Finding(f"no entry of costs has the unit {entry.unit}", hint=hint, at=("budgets", index, "unit"))
            for name in PERIODS:
                most = getattr(entry, name)
                if most and most < least.get(entry.unit, 0):
                    reserved = in_units(least[entry.unit])
                    yield Finding(
                        f"no call can be within it: each reserves {reserved} or more", at=("budgets", index, name)
                    )
