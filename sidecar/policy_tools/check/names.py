"""Lints for unused and confusable names."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sidecar.policy.faults import shown
from sidecar.policy_tools.check.linted_policy import LintedPolicy, PolicyFinding
from sidecar.settings.field_types import PRINCIPAL_ID
from sidecar.vocabulary import RuleRef

_UNUSED = "remove its rows, or use it"
OFTEN = 3  # a name that is used once, next to a similar one that is used this often, is probably a typing error
_LOOKS = str.maketrans({"I": "l", "1": "l", "O": "o", "0": "o"})
_TIMES = {1: "once", 2: "twice"}
_ROLE = re.compile(f"role:{PRINCIPAL_ID}")


def unused(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P631: a role with rows that no rule, condition, approval or budget names, not even through a role that contains
    it. P632: such a set that no rule names."""
    counted = [entry.pattern for entry in (*policy.budgets.principals, *policy.budgets.spending)]
    asked = (rule.approval.role for rule in policy.rules if rule.approval is not None)
    roles = {name for name in (*counted, *asked, *(rule.subject for rule in policy.rules)) if name.startswith("role:")}
    roles.update(*(_ROLE.findall(text) for text in policy.source.conditions))
    for role in policy.members:
        if role not in roles and not policy.source.roles.closure((role,)) & roles:
            yield PolicyFinding("P631", f"no rule and no budget uses {shown(role)}", _UNUSED, name=role)
    sets = {rule.object for rule in policy.rules if rule.object.startswith("set:")}
    for name in policy.elements:
        if name not in sets and not policy.source.sets.closure((name,)) & sets:
            yield PolicyFinding("P632", f"no rule uses {shown(name)}", _UNUSED, name=name)


def without_rows(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P633: a file of rows without a row."""
    filled = {rule.file for rule in policy.rules}
    needless = (table.source.names for table in policy.stock if not table.source.reads_rows)
    filled.update(*needless)
    for path in policy.written.files:
        lines = [] if str(path) in filled else policy.written.lines(str(path))
        says = any(line.strip() and not line.strip().startswith(("#", "version:", "---")) for line in lines)
        if str(path) not in filled and not says:
            yield PolicyFinding("P633", "this file has no row", "fill it, or remove it", file=str(path))


@dataclass(slots=True)
class _Used:
    """How often a name is used, and its first use: a rule and a column, or a row of roles.csv."""

    rule: RuleRef | None = None
    column: str = ""
    row: str = ""
    times: int = 0


def look_alikes(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P634: a name that looks like another one that is used more often."""
    for names in _used_names(policy):
        told: dict[str, str] = {}
        for rare, often in _folded(names):
            told.setdefault(rare, often)
        for rare, often in told.items():
            entry, times = names[rare], names[often].times
            message = f"{shown(rare)} looks like {shown(often)}, which is used {_TIMES.get(times, f'{times} times')}"
            hint = "if it is a typing error, correct it; if both exist, rename one"
            yield PolicyFinding("P634", message, hint, entry.rule, entry.column, rare, name=entry.row)


def _used_names(policy: LintedPolicy) -> Iterator[dict[str, _Used]]:
    """Yields the names of subjects, then of objects: only names of the same kind are compared with each other."""
    for column, links in (("sub", policy.source.roles), ("obj", policy.source.sets)):
        found: dict[str, _Used] = {}
        for rule in policy.rules:
            name = rule.subject if column == "sub" else rule.object
            found.setdefault(name, _Used(rule, column)).times += 1
        for member, containers in links.parents.items():
            for name in (member, *containers):
                found.setdefault(name, _Used(row=name)).times += 1
        yield found


def _folded(used: Mapping[str, _Used]) -> Iterator[tuple[str, str]]:
    """Yields pairs of names that look alike, the rarer one first. If they differ in case, dashes and underscores, only
    pairs of a name used once and one used at least OFTEN times."""
    for often, *rest in _groups(used, lambda name: name.translate(_LOOKS)):
        yield from ((rare, often) for rare in rest)
    for often, *rest in _groups(used, lambda name: name.lower().replace("_", "-")):
        yield from ((rare, often) for rare in rest if used[rare].times == 1 and used[often].times >= OFTEN)


def _groups(used: Mapping[str, _Used], fold: Callable[[str], str]) -> Iterator[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in used:
        groups.setdefault(fold(name), []).append(name)
    for group in groups.values():
        if len(group) > 1:
            yield sorted(group, key=lambda name: -used[name].times)


def alike_ids(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P635: ids of rules that differ only in case, in dashes and underscores, or in characters that look alike."""
    first: dict[str, RuleRef] = {}
    for rule in policy.rules:
        other = first.setdefault(rule.id.translate(_LOOKS).lower().replace("_", "-"), rule)
        if other.id != rule.id:
            message = f"id {shown(rule.id)} looks like {shown(other.id)} ({other.file}:{other.line})"
            yield PolicyFinding("P635", message, "rename one", rule, "id")


def without_owner(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P661: a rule without an owner; reported only with --strict."""
    for rule in policy.rules if policy.strict else ():
        if not rule.owner:
            yield PolicyFinding("P661", "this rule has no owner", "write owner=… into its #: line", rule)
