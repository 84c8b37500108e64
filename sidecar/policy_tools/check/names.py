"""Lints for unused and confusable names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sidecar.policy.faults import shown
from sidecar.policy_tools.check.linted_policy import LintedPolicy, PolicyFinding
from sidecar.vocabulary import RuleRef

_UNUSED = "take its rows away, or use it"
OFTEN = 3  # a name used once, beside a similar one used this often, is probably a typing error
_LOOKS = str.maketrans({"I": "l", "1": "l", "O": "o", "0": "o"})
_ROLE = re.compile(r"role:[!#-&(-)+\-./0-{}~]+")


def unused(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P631, P632: filled by rows, but named by nothing that decides or counts."""
    roles = _used_roles(policy)
    for role in policy.members:
        if role not in roles and not policy.roles_above(role) & roles:
            yield PolicyFinding("P631", f"no rule and no budget uses {shown(role)}", _UNUSED, name=role)
    sets = {rule.object for rule in policy.rules if rule.object.startswith("set:")}
    for name in policy.elements:
        if name not in sets and not policy.source.sets.closure((name,)) & sets:
            yield PolicyFinding("P632", f"no rule uses {shown(name)}", _UNUSED, name=name)


def _used_roles(policy: LintedPolicy) -> set[str]:
    used = {rule.subject for rule in policy.rules if rule.subject.startswith("role:")}
    used.update(
        entry.pattern
        for entry in (*policy.budgets.principals, *policy.budgets.spending)
        if entry.pattern.startswith("role:")
    )
    for text in policy.source.conditions:
        used.update(_ROLE.findall(text))
    return used


def without_rows(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P633: a file of rows that contains only comments."""
    filled = {rule.file for rule in policy.rules}
    for path in policy.written.files:
        if str(path) not in filled and not any(_says(line) for line in policy.written.lines(str(path))):
            yield PolicyFinding("P633", "no row stands in this file", "fill it, or remove it", file=str(path))


def _says(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith("#") and not text.startswith(("version:", "---"))


# --- look-alikes ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Used:
    """How often a name is used, and its first use: a rule and a column, or a row of roles.csv."""

    rule: RuleRef | None = None
    column: str = ""
    row: str = ""
    times: int = 0


@dataclass(slots=True)
class _Names:
    """Names of one sort, which are compared only with each other."""

    used: dict[str, _Used] = field(default_factory=dict)

    def add(self, name: str, rule: RuleRef | None = None, column: str = "", row: str = "") -> None:
        entry = self.used.setdefault(name, _Used(rule, column, row))
        entry.times += 1


def look_alikes(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P634: names with differences that a reader cannot see, or that differ in one letter of a server's name. If the
    upstreams are known, a server's name is compared with them instead (P121).
    """
    for sort, names in _sorts(policy).items():
        if sort == "server" and policy.names is not None:
            continue
        for rare, often in _alike(names.used, sort):
            entry = names.used[rare]
            message = f"{shown(rare)} looks like {shown(often)}, which is used {_times(names.used[often].times)}"
            hint = "if it is a slip, write the other; if both exist, rename one"
            yield PolicyFinding("P634", message, hint, entry.rule, entry.column, rare, name=entry.row)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _sorts(policy: LintedPolicy) -> Mapping[str, _Names]:
    sorts = {sort: _Names() for sort in ("subject", "server", "object")}
    for rule in policy.rules:
        sorts["subject"].add(rule.subject, rule, "sub")
        _add_object(rule.object, sorts, rule, "obj", "")
    for member, containers in policy.source.roles.parents.items():
        for name in (member, *containers):
            sorts["subject"].add(name, row=name)
    for element, containers in policy.source.sets.parents.items():
        for name in (element, *containers):
            _add_object(name, sorts, None, "", name)
    return sorts


def _add_object(obj: str, sorts: Mapping[str, _Names], rule: RuleRef | None, column: str, row: str) -> None:
    word, _, rest = obj.partition(":")
    server, slash, _ = rest.partition("/")
    if word in ("tool", "prompt", "resource") and slash and "*" not in server:
        sorts["server"].add(server, rule, column, row)
    sorts["object"].add(obj, rule, column, row)


def _alike(used: Mapping[str, _Used], sort: str) -> Iterator[tuple[str, str]]:
    """Yield pairs (rarer, more frequent), each rarer name once."""
    told: set[str] = set()
    for rare, often in (*_folded(used), *(_one_letter_off(used) if sort == "server" else ())):
        if rare not in told:
            told.add(rare)
            yield rare, often


def _folded(used: Mapping[str, _Used]) -> Iterator[tuple[str, str]]:
    """Yield names that look the same, always; and names that differ only in case, dashes and underscores, if one of
    them is rare.
    """
    for group in _groups(used, lambda name: name.translate(_LOOKS)):
        often = group[0]
        yield from ((rare, often) for rare in group[1:])
    for group in _groups(used, lambda name: name.lower().replace("_", "-")):
        often = group[0]
        yield from ((rare, often) for rare in group[1:] if _is_slip(used, rare, often))


def _groups(used: Mapping[str, _Used], fold: Callable[[str], str]) -> Iterator[list[str]]:
    """Yield the names with the same folded form, the most used one first."""
    groups: dict[str, list[str]] = {}
    for name in used:
        groups.setdefault(fold(name), []).append(name)
    for group in groups.values():
        if len(group) > 1:
            yield sorted(group, key=lambda name: -used[name].times)


def _is_slip(used: Mapping[str, _Used], rare: str, often: str) -> bool:
    return used[rare].times == 1 and used[often].times >= OFTEN


def _one_letter_off(used: Mapping[str, _Used]) -> Iterator[tuple[str, str]]:
    """Yield names that become equal when one letter of each, or of one, is removed; digits must not differ."""
    by_rest: dict[str, list[str]] = {}
    for name in used:
        for rest in {name, *(name[:at] + name[at + 1 :] for at in range(len(name)))}:
            by_rest.setdefault(rest, []).append(name)
    for names in by_rest.values():
        often = max(names, key=lambda name: used[name].times)
        for rare in names:
            if rare != often and len(rare) > 3 and _is_slip(used, rare, often) and _differ_by_letter(rare, often):
                yield rare, often


def _differ_by_letter(one: str, other: str) -> bool:
    """Whether the names differ in one place or by one letter, and in no digit: srv-1 and srv-2 are distinct."""
    more, less = Counter(one), Counter(other)
    changed = [*(more - less).elements(), *(less - more).elements()]
    near = sum(a != b for a, b in zip(one, other, strict=True)) == 1 if len(one) == len(other) else True
    return near and not any(letter.isdigit() for letter in changed)


def alike_ids(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P635: ids of rules that differ in case, in dashes, or in letters that look the same."""
    first: dict[str, RuleRef] = {}
    for rule in policy.rules:
        other = first.setdefault(rule.id.translate(_LOOKS).lower().replace("_", "-"), rule)
        if other.id != rule.id:
            message = f"id {shown(rule.id)} looks like {shown(other.id)} ({other.file}:{other.line})"
            yield PolicyFinding("P635", message, "rename one", rule, "id")


def without_owner(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P661: reported only with --strict."""
    if policy.strict:
        for rule in policy.rules:
            if not rule.owner:
                yield PolicyFinding("P661", "nobody owns this rule", "write owner=… into its #: line", rule)
