"""Formats differences for terminals and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sidecar.policy_tools.diff import Difference
from sidecar.policy_tools.diff.describe import actions_text, described, exceptions_text, guard_text, moment, place
from sidecar.policy_tools.diff.region_shapes import Region
from sidecar.policy_tools.diff.role_conditions import asks_of
from sidecar.policy_tools.diff.rules import Edit, LinkChange, RuleChange
from sidecar.policy_tools.diff.search import Point
from sidecar.vocabulary import PermissionKind, RuleRef

MOST_REGIONS = 200  # in text output; --json has all
MOST_NAMES, MOST_ROWS = 5, 50
_MARKS = {"wider": "🔺 wider", "narrower": "🔻 narrower", "unknown": "❔ unknown"}
_SAME = "no answer changes"


def summary_line(found: Difference) -> str:
    """Return `2 wider, 1 narrower, 1 unknown`."""
    return ", ".join(f"{count} {change}" for change, count in found.counts.items()) if found.regions else _SAME


def _also(found: Difference) -> list[str]:
    """Return the other differences in one line; nothing if there are none."""
    rules = found.rules
    counts = (
        ("rules added", len(rules.added)),
        ("rules removed", len(rules.removed)),
        ("rules changed", len(rules.changed)),
        ("limits lifted", len(found.lifted)),
        ("budgets", len(found.budgets)),
        ("rows of roles", len(found.roles)),
        ("rows of sets", len(found.sets)),
        ("models", len(found.models)),
    )
    told = ", ".join(f"{what}: {count}" for what, count in counts if count)
    return [f"Also different. {told}"] if told else []


# --- text -------------------------------------------------------------------------------------------------------------


def as_text(found: Difference) -> str:
    lines = [f"{found.old} → {found.new}: {summary_line(found)}", *_also(found)]
    lines += [f"NOT WORKED OUT: {note}" for note in found.notes]
    for region in found.regions[:MOST_REGIONS]:
        lines += ["", *_region_lines(region, found)]
    if len(found.regions) > MOST_REGIONS:
        lines += ["", f"and {len(found.regions) - MOST_REGIONS} more regions: --json has them all"]
    for title, entries in _sections(found):
        lines += ["", title, *(f"  {entry}" for entry in _cut(entries))]
    return "\n".join(lines)


def _region_lines(region: Region, found: Difference) -> Iterator[str]:
    yield f"{region.change:<9} {region.kind.value}: {described(region)}"
    for line in (*exceptions_text(region, MOST_NAMES), guard_text(region)):
        if line:
            yield f"          {line}"
    if region.witness is not None:
        yield f"          for example {_point_text(region.witness)}: {_answers(region)}"
    for line in _causes(region, found):
        yield f"          because {line}"


def _point_text(point: Point) -> str:
    roles = f" with {', '.join(sorted(point.roles))} in the token" if point.roles else ""
    return f"{point.subject}{roles}, {point.object}, {point.action}"


def _answers(region: Region) -> str:
    if region.change == "unknown":
        return "it depends on what the conditions say"
    before, after = before_after(region)
    return f"was {before}, is {after}"


def before_after(region: Region) -> tuple[str, str]:
    allowed = "not denied" if region.kind is PermissionKind.GUARDRAIL else "allowed"
    return (allowed, "denied") if region.change == "narrower" else ("denied", allowed)


def _causes(region: Region, found: Difference, most: int = MOST_NAMES) -> list[str]:
    told = [f"{rule.id} {how(rule, found)}{_at(rule)}" for rule in once(region.causes)]
    more = len(told) - most
    return told if more <= 1 else [*told[:most], f"{more} more rules"]


def once(rules: Iterable[RuleRef]) -> list[RuleRef]:
    """Return each rule of two policies once, wherever it is or was written."""
    return list({rule.id: rule for rule in reversed([*rules])}.values())[::-1]


def _at(rule: RuleRef) -> str:
    return f" ({place(rule)})" if place(rule) else ""


def how(rule: RuleRef, found: Difference) -> str:
    """Return what happened to a rule of a region."""
    if rule.id not in found.old_ids:
        return "was added"
    if rule.id not in found.new_ids:
        return "was removed"
    if any(rule.id == change.rules[0].id for change in found.rules.changed):
        return "was changed"
    asked = sorted(name for name in found.moved if name.startswith("role:") and asks_of(rule.when, frozenset((name,))))
    moved = [name for name in (rule.subject, rule.object, *asked) if name in found.moved]
    return f"is the same, but others are in {' and '.join(moved)} now" if moved else "is the same, but not alone"


def _sections(found: Difference) -> Iterator[tuple[str, list[str]]]:
    """Yield the other differences by category; only those that exist."""
    rules = found.rules
    sections: tuple[tuple[str, list[str]], ...] = (
        ("rules added", [_rule_text(rule) for rule in rules.added]),
        ("rules removed", [_rule_text(rule) for rule in rules.removed]),
        ("rules changed", [_change_text(change) for change in rules.changed]),
        ("limits lifted, where another rule allows the call", [_rule_text(rule) for rule in found.lifted]),
        ("budgets", [_edit_text(edit) for edit in found.budgets]),
        ("roles", [_link_text(link) for link in found.roles]),
        ("sets", [_link_text(link) for link in found.sets]),
        ("models", [f"{change.kind.value} {change.field}: {change.old} → {change.new}" for change in found.models]),
    )
    return ((title, entries) for title, entries in sections if entries)


def _rule_text(rule: RuleRef) -> str:
    """Return a rule in one line, with everything that restricts it."""
    more = [
        f"when {rule.when}" if rule.when else "",
        f"until {moment(rule.expires_at)}" if rule.expires_at is not None else "",
        f"{rule.max_calls_per_hour} an hour" if rule.max_calls_per_hour is not None else "",
        "shadow" if rule.shadow else "",
    ]
    said = f"{rule.effect} {rule.subject} × {rule.object} × {actions_text_of(rule)}"
    return ", ".join([f"{rule.id}: {said}", *filter(None, more)]) + _at(rule)


def actions_text_of(rule: RuleRef) -> str:
    """Return a rule's actions as written, `use` if it stands for all of them."""
    wild = [action for action in rule.actions if "*" in action]
    return "|".join(rule.actions) if wild else actions_text(rule.actions)


def _change_text(change: RuleChange) -> str:
    rule = change.rules[0]
    return f"{rule.id}: {'; '.join(map(_field_text, change.edits))}{_at(rule)}"


def _edit_text(edit: Edit) -> str:
    return f"{edit.what}: {_field_text(edit)}"


def _field_text(edit: Edit) -> str:
    mark = f" [{edit.change}]" if edit.change else ""
    return f"{edit.field} {_value_text(edit.old)} → {_value_text(edit.new)}{mark}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return " | ".join(map(_value_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {content:g}" for name, content in value.items())
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _link_text(link: LinkChange) -> str:
    sign = "+" if link.how == "added" else "-"
    return f"{sign} {link.member} in {link.container}"


def _cut(entries: list[str], most: int = MOST_ROWS) -> list[str]:
    more = len(entries) - most
    return entries if more <= 1 else [*entries[:most], f"and {more} more"]


# --- Markdown ---------------------------------------------------------------------------------------------------------


def as_markdown(found: Difference) -> str:
    """Return the comment that a CI job posts on a pull request: the summary, one row per region, and the rest
    folded.
    """
    lines = [f"**Policy:** {summary_line(found)}"]
    for line in _also(found):
        lines += ["", line]
    for note in found.notes:
        lines += ["", f"> ⚠️ **Not worked out.** {_code(note)}"]
    if found.regions:
        lines += ["", "| change | who × what × how | for example |", "|---|---|---|"]
        lines += [_table_row(region) for region in found.regions[:MOST_ROWS]]
        if len(found.regions) > MOST_ROWS:
            lines += ["", f"…and {len(found.regions) - MOST_ROWS} more regions."]
        lines += ["", *_folded("Why", _why(found))]
    for title, entries in _sections(found):
        lines += ["", *_folded(f"{title[0].upper()}{title[1:]} ({len(entries)})", _cut(entries))]
    lines += ["", f"<sub>{_code(found.old)} → {_code(found.new)}, computed from the rules, not from samples.</sub>"]
    return "\n".join(lines)


def _table_row(region: Region) -> str:
    bounds = [line for line in (*exceptions_text(region, 3), guard_text(region)) if line]
    what = "<br>".join(_cell(_code(text)) for text in (described(region), *bounds))
    example = _cell(_code(_point_text(region.witness))) if region.witness else "not worked out"
    return f"| {_MARKS[region.change]} | {region.kind.value}<br>{what} | {example} |"


def _why(found: Difference) -> list[str]:
    told = []
    for region in found.regions[:MOST_ROWS]:
        causes = "; ".join(_causes(region, found)) or "see below"
        told.append(f"{region.change} {described(region)}: {causes}")
    return told


def _folded(title: str, entries: Iterable[str]) -> list[str]:
    listed = [f"- {_code(entry)}" for entry in entries]
    return [f"<details><summary>{title}</summary>", "", *listed, "", "</details>"]


def _code(text: str) -> str:
    """Format text from a policy as Markdown code, whatever it contains."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    ticks, pad = "`" * (longest + 1), " " if longest else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _cell(text: str) -> str:
    r"""Format text inside a table: GitHub takes `\\|` for a bar even in code."""
    return text.replace("|", "\\|")
