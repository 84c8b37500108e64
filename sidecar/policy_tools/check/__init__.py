"""Checks a policy for errors and suspicious rules. `matching`, `overlaps`, `names` and `conditions` are the lints for
the sidecar's own models, `casbin_names` those for other Casbin models.

The lints run only if the policy loads, because they need a whole one. Each runs over all of it, in time about linear in
the number of rules.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sidecar.errors import ConfigError, Fault
from sidecar.limits import Budgets, load_budgets
from sidecar.policy.faults import Faults
from sidecar.policy.files import policy_files
from sidecar.policy.rows import MAX_LINE_CHARS
from sidecar.policy.stock.table import StockTable
from sidecar.policy.table import RowTable
from sidecar.policy_tools.catalogue import KnownCatalogue
from sidecar.policy_tools.check import casbin_names, conditions, matching, names, overlaps
from sidecar.policy_tools.check.linted_policy import Granting, LintedPolicy, PolicyFinding
from sidecar.policy_tools.check.source_positions import RulePlace, RuleSources
from sidecar.policy_tools.policy_location import BUDGETS_FILE, PolicyLocation
from sidecar.upstreams.mcp.pins_file import PINS_FILE, load_pins
from sidecar.vocabulary import PermissionKind

MAX_TOLD = 200  # findings of one code
_QUOTED = re.compile(r'"([^"]+)"')

T = TypeVar("T")
Lint = Callable[[LintedPolicy], Iterator[PolicyFinding]]
LINTS: Sequence[Lint] = (
    matching.never_asked,
    matching.actions_never_asked,
    matching.empty_roles,
    matching.on_no_upstream,
    matching.on_nothing_there,
    matching.limits_nothing,
    conditions.roles_asked,
    conditions.always_the_same,
    conditions.arguments_nowhere,
    conditions.unasked_arguments,
    conditions.optional_claims,
    conditions.order_of_texts,
    overlaps.denied_anyway,
    overlaps.said_twice,
    overlaps.above_a_budget,
    matching.ended,
    matching.long_in_shadow,
    names.unused,
    names.without_rows,
    names.look_alikes,
    names.alike_ids,
    names.without_owner,
    matching.wide,
    matching.approved_by_no_one,
    matching.asks_too_late,
    casbin_names.maps_to_nothing,
    casbin_names.out_of_reach,
    casbin_names.never_counts,
    casbin_names.on_no_upstream,
)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All faults and findings, in the order of files and lines. `revision` is "" if the policy does not load. `rules`
    counts them by kind, `left_out` the omitted findings by code."""

    faults: tuple[Fault, ...]
    revision: str = ""
    rules: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the policy may serve: warnings do not prevent it."""
        return all(fault.severity != "error" for fault in self.faults)


def check(
    place: PolicyLocation,
    *,
    granting: Sequence[Granting] | None = None,
    catalogue: KnownCatalogue | None = None,
    now_s: float | None = None,
    soon_days: float = 14,
    strict: bool = False,
) -> CheckReport:
    """Returns every fault of the policy's files and, if it loads, the findings of the lints. `now_s` is the time in
    seconds since the epoch, None for the present; rules that expire within `soon_days` are reported. Never raises for
    the content of the policy's files."""
    refused: list[Fault] = []

    def loaded(load: Callable[[], T]) -> T | None:
        try:
            return load()
        except ConfigError as error:
            refused.extend(error.faults)
            return None

    budgets = loaded(lambda: load_budgets(place.policies / BUDGETS_FILE)) or Budgets()
    loaded(lambda: load_pins(place.policies / PINS_FILE))
    source = loaded(place.load)
    if source is None:
        return CheckReport(_ordered(refused))
    files = [file.path for file in policy_files(place.policies, Faults())]
    columns: dict[str, Sequence[str]] = {kind: model.columns for kind, model in source.models.items()}
    columns |= {kind: table.source.model.columns for kind, table in source.stock.items()}
    written = RuleSources(columns, files)
    policy = LintedPolicy(
        source=source,
        written=written,
        now_s=time.time() if now_s is None else now_s,
        budgets=budgets,
        budgets_file=str(place.policies / BUDGETS_FILE),
        names=place.names,
        programs=place.programs,
        granting=granting,
        catalogue=catalogue,
        config_file=str(place.config or ""),
        soon_days=soon_days,
        strict=strict,
    )
    found, left_out = suspicious(policy)
    told = [_with_line(fault, written) for fault in source.warnings]
    tables: dict[PermissionKind, RowTable | StockTable] = {**source.tables, **source.stock}
    counted = {kind.value: len(table) for kind, table in sorted(tables.items()) if len(table)}
    return CheckReport(_ordered([*refused, *told, *found]), source.revision, counted, left_out)


def suspicious(policy: LintedPolicy) -> tuple[list[Fault], dict[str, int]]:
    """Returns the findings of the lints, at most MAX_TOLD of one code, and the number of further ones by code."""
    seen: Counter[str] = Counter()
    faults = []
    for lint in LINTS:
        for finding in lint(policy):
            seen[finding.code] += 1
            if seen[finding.code] <= MAX_TOLD:
                faults.append(_fault(finding, policy.written))
    return faults, {code: count - MAX_TOLD for code, count in sorted(seen.items()) if count > MAX_TOLD}


def _fault(finding: PolicyFinding, written: RuleSources) -> Fault:
    hint = finding.hint() if callable(finding.hint) else finding.hint
    place = None
    if finding.rule is not None:
        place = written.rule(finding.rule, finding.column, finding.part)
    elif finding.name:
        place = written.link(finding.name)
    elif finding.file and finding.part:
        place = written.mention(finding.file, finding.part)
    told = (finding.code, finding.message, hint)
    if place is None:
        file = finding.file or str(written.files[0] if written.files else "")
        return Fault(file, 0, 0, *told, severity="warning")
    line = place.line
    return Fault(line.file, line.number, place.column, *told, line.text, place.width, severity="warning")


def _with_line(fault: Fault, written: RuleSources) -> Fault:
    """Returns a warning of the loader with the text of its line, marked at the first item that the message quotes."""
    if fault.source or not fault.line:
        return fault
    named = _QUOTED.search(fault.message)
    place = RulePlace(written.line(fault.file, fault.line), 1, MAX_LINE_CHARS).narrowed(named[1] if named else "")
    text = place.line.text.rstrip()
    return replace(fault, source=text, column=place.column, width=min(place.width, max(1, len(text))))


def _ordered(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: (fault.file, fault.line, fault.column, fault.code)))


def repository_of(folder: Path) -> Path:
    """Returns the root of the git repository that contains a folder; the working directory if there is none."""
    resolved = folder.resolve()
    return next((above for above in (resolved, *resolved.parents) if (above / ".git").exists()), Path.cwd())
