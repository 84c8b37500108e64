"""What does budgets.yaml allow, and of whom?

    tools:       per object pattern, all callers together unless `per: principal`
    principals:  per principal, pattern or role, each its own counter unless `shared: true`

The seed's list (`budgets: [{tool, rateLimit, concurrencyLimit, timeout, dailyQuota}]`) says the same as `tools:`.
What the file says is compiled into entries that `plan.py` can match without knowing where they came from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from sidecar.errors import PolicyError
from sidecar.limits.plan import Budgets, Cap, Entry
from sidecar.settings.documents import read_document
from sidecar.settings.fields import SLUG, Count, Many, Seconds, Section
from sidecar.settings.findings import Finding, reject, reject_any

MAX_PER_SECOND = 10_000  # above it an interval of whole microseconds is off by more than one in a hundred
MAX_REFILL_S = 86_400  # a burst that takes longer to come back is a quota; also keeps Lua's numbers exact


def load_budgets(path: Path) -> Budgets:
    """Read budgets.yaml; without the file nothing is limited. Raises PolicyError with every fault and its position."""
    if not path.exists() and not path.is_symlink():  # a link that leads nowhere does not say "no limits"
        return Budgets()
    file = read_document(path, error=PolicyError).validate(BudgetsFile)
    tools = tuple(entry.compiled(pattern) for pattern, entry in file.tools.items())
    seeds = tuple(entry.compiled(entry.pattern) for entry in file.budgets)
    return Budgets(tools + seeds, tuple(entry.compiled(pattern) for pattern, entry in file.principals.items()))


def interval_us(per_second: float) -> int:
    """The time between two calls, in whole microseconds. Rounded up: never faster than what was written."""
    return math.ceil(1_000_000 / per_second)


def _object_pattern(text: str) -> str:
    if not re.fullmatch(r"\*|(tool|prompt|resource|nhi):\S{1,512}", text):
        hint = "write tool:<server>/<tool>, prompt:…, resource:… or nhi:…; * matches any run"
        reject(Finding("this names no object", hint=hint))
    return text


def _principal_pattern(text: str) -> str:
    if not re.fullmatch(r"\*|anonymous|(user|nhi|role):[!#-&(-+\--{}~]{1,512}", text):
        reject(Finding("this names no principal", hint="write user:<id>, nhi:<id> or role:<name>; * matches any run"))
    return text


def _later(value: Any) -> Any:
    if value is not None:
        reject(Finding("this comes with a later version", "B101", "remove it"))
    return value


ObjectPattern = Annotated[str, AfterValidator(_object_pattern)]
PrincipalPattern = Annotated[str, AfterValidator(_principal_pattern)]
PerSecond = Annotated[float, Field(gt=0, le=MAX_PER_SECOND, allow_inf_nan=False)]
Calls = Annotated[int, Field(ge=1, le=1_000_000_000)]
Quota = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""Calls a day; 0 means unlimited, as in the seed."""
Later = Annotated[Any, AfterValidator(_later)]


class SeedRate(Section):
    """The seed's spelling of rate and burst."""

    per_second: PerSecond = Field(alias="requestsPerSecond")
    burst: Count | None = Field(None, alias="burstSize")


class ToolEntry(Section):
    """What one object, or all objects of a pattern together, can bear."""

    requests_per_second: PerSecond | None = None
    burst: Count | None = None
    """How many may come at once; without it, one second's worth."""
    concurrency: Count | None = None
    timeout: Seconds | None = None
    daily_quota: Quota | None = None
    per: Literal["principal"] | None = None
    """`principal`: each caller has counters of its own."""
    seed_rate: SeedRate | None = Field(None, alias="rateLimit")
    seed_concurrency: Count | None = Field(None, alias="concurrencyLimit")
    seed_quota: Quota | None = Field(None, alias="dailyQuota")

    @model_validator(mode="after")
    def _said_once(self) -> ToolEntry:
        reject_any(self._contradictions())
        return self

    def _contradictions(self) -> Iterator[Finding]:
        pairs = (
            (self.requests_per_second, self.seed_rate, "requests_per_second", "rateLimit"),
            (self.burst, self.seed_rate, "burst", "rateLimit"),
            (self.concurrency, self.seed_concurrency, "concurrency", "concurrencyLimit"),
            (self.daily_quota, self.seed_quota, "daily_quota", "dailyQuota"),
        )
        for ours, seeds, name, seed_name in pairs:
            if ours is not None and seeds is not None:
                yield Finding(
                    f"{seed_name} says again what {name} says", hint="keep one of them", at=(seed_name,), on_key=True
                )
        if self.burst is not None and self.requests_per_second is None and self.seed_rate is None:
            yield Finding("a burst needs requests_per_second", "Y102", at=("burst",), on_key=True)
        if (rate := self._rate()) and rate.most * rate.interval_us > MAX_REFILL_S * 1_000_000:
            yield Finding("this burst would take more than a day to come back", hint="use daily_quota")

    def _rate(self) -> Cap | None:
        per_second = self.seed_rate.per_second if self.seed_rate else self.requests_per_second
        if per_second is None:
            return None
        burst = self.seed_rate.burst if self.seed_rate else self.burst
        return Cap("rate", burst or max(1, math.ceil(per_second)), interval_us(per_second))

    def compiled(self, pattern: str) -> Entry:
        """This entry for the objects of `pattern`."""
        concurrency, quota = self.concurrency or self.seed_concurrency, self.daily_quota or self.seed_quota
        caps = (
            self._rate(),
            Cap("concurrency", concurrency) if concurrency else None,
            Cap("day", quota) if quota else None,
        )
        return Entry("tools", pattern, self.per is not None, tuple(cap for cap in caps if cap), self.timeout)


class PrincipalEntry(Section):
    """How much one principal, or each of a pattern or role, may do."""

    per_hour: Calls | None = None
    per_day: Calls | None = None
    concurrency: Count | None = None
    shared: bool = False
    """All who match have one counter together."""
    per_month: Later = None

    def compiled(self, pattern: str) -> Entry:
        """This entry for the principals of `pattern`."""
        caps = (
            Cap("hour", self.per_hour) if self.per_hour else None,
            Cap("day", self.per_day) if self.per_day else None,
            Cap("concurrency", self.concurrency) if self.concurrency else None,
        )
        return Entry("principals", pattern, not self.shared, tuple(cap for cap in caps if cap))


def _seed_tool(text: str) -> str:
    if not re.fullmatch(rf"{SLUG}|(tool|prompt|resource|nhi):\S{{1,512}}", text):
        reject(
            Finding(
                "this names no tool", hint="write the server's name, such as github, or an object such as tool:github/*"
            )
        )
    return text


class SeedEntry(ToolEntry):
    """The seed's ToolBudget: `tool` is a server's name and means all its tools. Its keys for money come later."""

    tool: Annotated[str, AfterValidator(_seed_tool)] | None = None
    principal: Later = None
    object: Later = None
    unit: Later = None
    per_hour: Later = None
    per_day: Later = None
    per_month: Later = None

    @property
    def pattern(self) -> str:
        """The objects it means."""
        tool = self.tool or ""
        return tool if ":" in tool else f"tool:{tool}/*"

    @model_validator(mode="after")
    def _has_a_tool(self) -> SeedEntry:
        if self.tool is None:
            reject(Finding('the key "tool" is missing', "Y102"))
        return self


class BudgetsFile(Section):
    """budgets.yaml."""

    version: Literal[1]
    tools: dict[ObjectPattern, ToolEntry] = Field(default_factory=dict)
    principals: dict[PrincipalPattern, PrincipalEntry] = Field(default_factory=dict)
    budgets: Many[SeedEntry] = ()
    costs: Later = None

    @model_validator(mode="after")
    def _each_pattern_once(self) -> BudgetsFile:
        reject_any(self._repeated())
        return self

    def _repeated(self) -> Iterator[Finding]:
        known = set(self.tools)
        for index, entry in enumerate(self.budgets):
            if entry.pattern in known:
                yield Finding(
                    f"{entry.pattern} has an entry already", hint="keep one of them", at=("budgets", index, "tool")
                )
            known.add(entry.pattern)
