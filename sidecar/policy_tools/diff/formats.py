"""Formats differences for terminals, pull requests, and programs."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sidecar.policy_tools.diff import Difference
from sidecar.policy_tools.diff.casbin_rows import CasbinRowChange
from sidecar.policy_tools.diff.condition_parts import asks_of
from sidecar.policy_tools.diff.describe import actions_text, described, exceptions_text, guard_text
from sidecar.policy_tools.diff.regions import Region
from sidecar.policy_tools.diff.rules import Edit, LinkChange, RuleChange
from sidecar.policy_tools.diff.search import Point
from sidecar.policy_tools.diff.terms import RowMeaning
from sidecar.policy_tools.rule_text import approval_text, cut, moment, place
from sidecar.vocabulary import ApprovalTerms, PermissionKind, RuleRef

MOST_REGIONS = 200  # in text output; --json has all
MOST_NAMES, MOST_ROWS = 5, 50
_MARKS = {"wider": "🔺 wider", "narrower": "🔻 narrower", "unknown": "❔ unknown"}
_SAME = "no answer changes"


def summary_line(found: Difference) -> str:
    """Returns the numbers of regions by change: `2 wider, 1 narrower, 1 unknown`."""
    return ", ".join(f"{count} {change}" for change, count in found.counts.items()) if found.regions else _SAME


def _also(found: Difference) -> list[str]:
    """Returns a line with the numbers of other differences; no line if there are none."""
    told = ", ".join(f"{_SHORT.get(title, title)}: {len(entries)}" for title, entries in sections(found))
    return [f"Also different. {told}"] if told else []


_LIFTED = "limits lifted, where another rule allows the call"
_SHORT = {_LIFTED: "limits lifted", "roles": "rows of roles", "sets": "rows of sets"}


def as_text(found: Difference) -> str:
    lines = [f"{found.old} → {found.new}: {summary_line(found)}", *_also(found)]
    lines += [f"NOT WORKED OUT: {note}" for note in found.notes]
    for region in found.regions[:MOST_REGIONS]:
        lines += ["", *_region_lines(region, found)]
    if len(found.regions) > MOST_REGIONS:
        lines += ["", f"and {len(found.regions) - MOST_REGIONS} more regions: --json has them all"]
    for title, entries in sections(found):
        lines += ["", title, *(f"  {entry}" for entry in cut(entries, MOST_ROWS))]
    return "\n".join(lines)


def _region_lines(region: Region, found: Difference) -> Iterator[str]:
    yield f"{region.change:<9} {region.kind.value}: {described(region)}"
    for line in (*exceptions_text(region, MOST_NAMES), guard_text(region), demand_text(region)):
        if line:
            yield f"          {line}"
    if region.witness is not None:
        was, now = before_after(region)
        answers = "it depends on what the conditions say" if region.change == "unknown" else f"was {was}, is {now}"
        yield f"          for example {_point_text(region.witness)}: {answers}"
    for line in _causes(region, found):
        yield f"          because {line}"


def _point_text(point: Point) -> str:
    roles = f" with {', '.join(sorted(point.roles))} in the token" if point.roles else ""
    return f"{point.subject}{roles}, {point.object}, {point.action}"


def before_after(region: Region) -> tuple[str, str]:
    if region.change == "unknown":
        return "depends", "depends"
    allowed = "not denied" if region.kind is PermissionKind.GUARDRAIL else "allowed"
    if region.approval is not None:
        least, most = "allowed once approved", "allowed once approved otherwise" if region.waits else allowed
    else:
        least, most = "denied", f"{allowed} once approved" if region.waits else allowed
    return (most, least) if region.change == "narrower" else (least, most)


def demand_text(region: Region) -> str:
    if region.approval is None:
        return ""
    how = "is demanded now" if region.change == "narrower" else "is not demanded now"
    return f"the approval of {approval_text(region.approval)}, {how}"


def _causes(region: Region, found: Difference) -> list[str]:
    told = [f"{rule.id} {_how(rule, found)}{_at(rule)}" for rule in _once(region.causes)]
    return cut(told, MOST_NAMES, "{} more rules")


def _once(rules: Iterable[RuleRef]) -> list[RuleRef]:
    return list({rule.id: rule for rule in reversed([*rules])}.values())[::-1]


def _at(rule: RuleRef) -> str:
    return f" ({place(rule)})" if place(rule) else ""


def _how(rule: RuleRef, found: Difference) -> str:
    if rule.id not in found.old_ids:
        return "was added"
    if rule.id not in found.new_ids:
        return "was removed"
    if any(rule.id == change.rules[0].id for change in found.rules.changed):
        return "was changed"
    asked = sorted(name for name in found.moved if name.startswith("role:") and asks_of(rule.when, frozenset((name,))))
    moved = [name for name in (rule.subject, rule.object, *asked) if name in found.moved]
    return f"is the same, but others are in {' and '.join(moved)} now" if moved else "is the same, but not alone"


def sections(found: Difference) -> Iterator[tuple[str, list[str]]]:
    """Returns the other differences as (title, lines), without empty sections."""
    rules = found.rules
    sections: tuple[tuple[str, list[str]], ...] = (
        ("rules added", [_rule_text(rule) for rule in rules.added]),
        ("rules removed", [_rule_text(rule) for rule in rules.removed]),
        ("rules changed", [_change_text(change) for change in rules.changed]),
        (_LIFTED, [_rule_text(rule) for rule in found.lifted]),
        ("Casbin rows", [_row_text(row) for row in found.casbin]),
        ("approvers", [f"{edit.what}: {_field_text(edit)}" for edit in found.approvers]),
        ("budgets", [f"{edit.what}: {_field_text(edit)}" for edit in found.budgets]),
        ("roles", [_link_text(link) for link in found.roles]),
        ("sets", [_link_text(link) for link in found.sets]),
        ("models", [f"{change.kind.value} {change.field}: {change.old} → {change.new}" for change in found.models]),
    )
    return ((title, entries) for title, entries in sections if entries)


def _rule_text(rule: RuleRef) -> str:
    more = [
        f"when {rule.when}" if rule.when else "",
        f"until {moment(rule.expires_at)}" if rule.expires_at is not None else "",
        f"{rule.max_calls_per_hour} an hour" if rule.max_calls_per_hour is not None else "",
        "shadow" if rule.shadow else "",
        f"by approval of {approval_text(rule.approval)}" if rule.approval is not None else "",
    ]
    actions = "|".join(rule.actions)
    actions = actions if "*" in actions else actions_text(rule.actions)
    said = f"{rule.effect} {rule.subject} × {rule.object} × {actions}"
    return ", ".join([f"{rule.id}: {said}", *filter(None, more)]) + _at(rule)


def _row_text(change: CasbinRowChange) -> str:
    sign = {"added": "+", "removed": "-"}.get(change.how, "~")
    return f"{sign} {change.row}" + (f" ({change.file}:{change.line})" if change.file else "")


def _change_text(change: RuleChange) -> str:
    rule = change.rules[0]
    return f"{rule.id}: {'; '.join(map(_field_text, change.edits))}{_at(rule)}"


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


def as_markdown(found: Difference) -> str:
    """Returns a comment for a pull request: the summary, a table with a row for each region, and the rest folded."""
    lines = [f"**Policy:** {summary_line(found)}"]
    for line in _also(found):
        lines += ["", line]
    for note in found.notes:
        lines += ["", f"> ⚠️ **Not worked out.** {_code(note)}"]
    if found.regions:
        lines += ["", "| change | who × what × how | for example |", "|---|---|---|"]
        for region in found.regions[:MOST_ROWS]:
            bounds = [line for line in (*exceptions_text(region, 3), guard_text(region), demand_text(region)) if line]
            what = "<br>".join(_cell(_code(text)) for text in (described(region), *bounds))
            example = _cell(_code(_point_text(region.witness))) if region.witness else "not worked out"
            lines.append(f"| {_MARKS[region.change]} | {region.kind.value}<br>{what} | {example} |")
        if len(found.regions) > MOST_ROWS:
            lines += ["", f"…and {len(found.regions) - MOST_ROWS} more regions."]
        why = [
            f"{region.change} {described(region)}: {'; '.join(_causes(region, found)) or 'see below'}"
            for region in found.regions[:MOST_ROWS]
        ]
        lines += ["", *_folded("Why", why)]
    for title, entries in sections(found):
        lines += ["", *_folded(f"{title[0].upper()}{title[1:]} ({len(entries)})", cut(entries, MOST_ROWS))]
    lines += ["", f"<sub>{_code(found.old)} → {_code(found.new)}, computed from the rules, not from samples.</sub>"]
    return "\n".join(lines)


def _folded(title: str, entries: Iterable[str]) -> list[str]:
    listed = [f"- {_code(entry)}" for entry in entries]
    return [f"<details><summary>{title}</summary>", "", *listed, "", "</details>"]


def _code(text: str) -> str:
    """Formats text from a policy as Markdown code, whatever it contains."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    ticks, pad = "`" * (longest + 1), " " if longest else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _cell(text: str) -> str:
    r"""Formats text inside a table: GitHub takes `\\|` for a bar even in code."""
    return text.replace("|", "\\|")


def as_data(found: Difference) -> dict[str, Any]:
    rules = found.rules
    return {
        "old": found.old,
        "new": found.new,
        "summary": {**found.counts, **{f"rules_{how}": len(changed) for how, changed in rules._asdict().items()}},
        "regions": [_region_data(region, found) for region in found.regions],
        "rules": {
            "added": [_rule_data(rule) for rule in rules.added],
            "removed": [_rule_data(rule) for rule in rules.removed],
            "changed": [
                {"id": change.rules[0].id, **_where(change.rules[0]), "fields": [*map(_edit_data, change.edits)]}
                for change in rules.changed
            ],
        },
        "casbin_rows": [
            {**change._asdict(), "kinds": [kind.value for kind in change.kinds]} for change in found.casbin
        ],
        "limits": _edits_data(found, ("max_calls_per_hour", "per")),
        "limits_lifted": [_rule_data(rule) for rule in found.lifted],
        "expiries": _edits_data(found, ("expires_at",)),
        "conditions": _edits_data(found, ("when",)),
        "shadow": _edits_data(found, ("shadow",)),
        "approvals": _edits_data(found, ("approval",)),
        "approvers": [{"role": edit.what, **_edit_data(edit)} for edit in found.approvers],
        "budgets": [{"entry": edit.what, **_edit_data(edit)} for edit in found.budgets],
        "roles": [{"change": link.how, "member": link.member, "role": link.container} for link in found.roles],
        "sets": [{"change": link.how, "object": link.member, "set": link.container} for link in found.sets],
        "models": [
            {"kind": change.kind.value, "field": change.field, "old": change.old, "new": change.new}
            for change in found.models
        ],
        "notes": list(found.notes),
    }


def _region_data(region: Region, found: Difference) -> dict[str, Any]:
    lost = region.lost_guard
    return {
        "kind": region.kind.value,
        "change": region.change,
        "subjects": [term.label for term in region.subjects],
        "except_subjects": [term.label for term in region.not_subjects],
        "objects": [term.label for term in region.objects],
        "except_objects": [term.label for term in region.not_objects],
        "actions": sorted(region.actions),
        "only_where": [[*map(_row_data, group)] for group in region.within],
        "except": [*map(_row_data, region.exceptions)],
        "when": sorted(region.guard.whens),
        "before": _moment(region.guard.before),
        "lost_when": sorted(lost.whens) if lost is not None else None,
        "lost_before": _moment(lost.before) if lost is not None else None,
        "approval": _approval_data(region.approval),
        "text": described(region),
        "witness": _witness_data(region),
        "because": [{"rule": rule.id, "how": _how(rule, found), **_where(rule)} for rule in _once(region.causes)],
        "decided": not region.undecided,
    }


def _witness_data(region: Region) -> dict[str, Any] | None:
    point = region.witness
    if point is None:
        return None
    before, after = before_after(region)
    return point._asdict() | {"roles": sorted(point.roles), "old": before, "new": after}


def _moment(at_s: float | None) -> str | None:
    return None if at_s is None else moment(at_s)


def _row_data(row: RowMeaning) -> dict[str, Any]:
    return {
        "subject": row.subject.label,
        "object": row.object.label,
        "actions": sorted(row.actions),
        "rule": row.rule.id,
        **_where(row.rule),
    }


def _where(rule: RuleRef) -> dict[str, Any]:
    return {"file": rule.file, "line": rule.line}


def _rule_data(rule: RuleRef) -> dict[str, Any]:
    return rule._asdict() | {
        "kind": rule.kind.value,
        "actions": list(rule.actions),
        "expires_at": _moment(rule.expires_at),
        "when": rule.when or None,
        "owner": rule.owner or None,
        "reason": rule.reason or None,
        "approval": _approval_data(rule.approval),
    }


def _approval_data(terms: ApprovalTerms | None) -> dict[str, Any] | None:
    return None if terms is None else terms._asdict()


def _edit_data(edit: Edit) -> dict[str, Any]:
    return {"field": edit.field, "old": edit.old, "new": edit.new, "change": edit.change}


def _edits_data(found: Difference, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    edits = [edit for change in found.rules.changed for edit in change.edits if edit.field in fields]
    return [{"rule": edit.what, **_edit_data(edit)} for edit in edits]
