"""Formats differences as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sidecar.policy_tools.diff import Difference
from sidecar.policy_tools.diff.describe import described, moment
from sidecar.policy_tools.diff.formats import before_after, how, once
from sidecar.policy_tools.diff.region_shapes import Region
from sidecar.policy_tools.diff.rules import Edit
from sidecar.policy_tools.diff.terms import RowMeaning, RowTerm
from sidecar.vocabulary import RuleRef


def as_data(found: Difference) -> dict[str, Any]:
    """Return all differences as plain values."""
    rules = found.rules
    return {
        "old": found.old,
        "new": found.new,
        "summary": {
            **found.counts,
            "rules_added": len(rules.added),
            "rules_removed": len(rules.removed),
            "rules_changed": len(rules.changed),
        },
        "regions": [_region_data(region, found) for region in found.regions],
        "rules": {
            "added": [_rule_data(rule) for rule in rules.added],
            "removed": [_rule_data(rule) for rule in rules.removed],
            "changed": [
                {"id": change.rules[0].id, **_where(change.rules[0]), "fields": [*map(_edit_data, change.edits)]}
                for change in rules.changed
            ],
        },
        "limits": _edits_data(found, ("max_calls_per_hour", "per")),
        "limits_lifted": [_rule_data(rule) for rule in found.lifted],
        "expiries": _edits_data(found, ("expires_at",)),
        "conditions": _edits_data(found, ("when",)),
        "shadow": _edits_data(found, ("shadow",)),
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
        "subjects": _labels(region.subjects),
        "except_subjects": _labels(region.not_subjects),
        "objects": _labels(region.objects),
        "except_objects": _labels(region.not_objects),
        "actions": sorted(region.actions),
        "only_where": [[*map(_row_data, group)] for group in region.within],
        "except": [*map(_row_data, region.exceptions)],
        "when": sorted(region.guard.whens),
        "before": moment(region.guard.before) if region.guard.before is not None else None,
        "lost_when": sorted(lost.whens) if lost is not None else None,
        "lost_before": moment(lost.before) if lost is not None and lost.before is not None else None,
        "text": described(region),
        "witness": _witness_data(region),
        "because": [{"rule": rule.id, "how": how(rule, found), **_where(rule)} for rule in once(region.causes)],
        "decided": not region.undecided,
    }


def _witness_data(region: Region) -> dict[str, Any] | None:
    point = region.witness
    if point is None:
        return None
    before, after = before_after(region) if region.change != "unknown" else ("depends", "depends")
    return {
        "subject": point.subject,
        "roles": sorted(point.roles),
        "object": point.object,
        "action": point.action,
        "old": before,
        "new": after,
    }


def _labels(terms: Iterable[RowTerm]) -> list[str]:
    return [term.label for term in terms]


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
    return {
        "id": rule.id,
        "kind": rule.kind.value,
        "subject": rule.subject,
        "object": rule.object,
        "actions": list(rule.actions),
        "effect": rule.effect,
        "expires_at": moment(rule.expires_at) if rule.expires_at is not None else None,
        "max_calls_per_hour": rule.max_calls_per_hour,
        "when": rule.when or None,
        "per": rule.per,
        "shadow": rule.shadow,
        "owner": rule.owner or None,
        "reason": rule.reason or None,
        **_where(rule),
    }


def _edit_data(edit: Edit) -> dict[str, Any]:
    return {"field": edit.field, "old": edit.old, "new": edit.new, "change": edit.change}


def _edits_data(found: Difference, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    edits = [edit for change in found.rules.changed for edit in change.edits if edit.field in fields]
    return [{"rule": edit.what, **_edit_data(edit)} for edit in edits]
