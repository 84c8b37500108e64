"""Which policy tests hold a suggestion to what it stands on?

One for each rule, which it must be that allows; and for each known subject one use that was never recorded and must
stay denied. A team that goes on from the suggestion sees at once when it lost the one or won the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.vocabulary import PermissionKind
from sidecar.workbench.suggest.evidence import Evidence, Triple
from sidecar.workbench.suggest.known import Known
from sidecar.workbench.suggest.render import scalar
from sidecar.workbench.suggest.suggestion import Suggested, Suggestion

SUITE_FILE = "tests/suggested.yaml"
MAX_DENIED = 500


def suite_text(suggestion: Suggestion, evidence: Evidence, known: Known) -> str:
    """The suite, in the form of CONTRACT 2.3."""
    lines = ["# Suggested with the rules beside it by `sidecar policy suggest`.", "suite: suggested", "tests:"]
    for rule in suggestion.rules:
        triple = Triple(rule.kind, rule.subjects[0], rule.objects[0], rule.actions[0])
        if _can_be_tested(triple):
            lines.append(_test(f"{rule.id} allows what was recorded", triple, _allowed(rule)))
    for triple in _unused(suggestion, evidence, known):
        name = f"{triple.subject} never had {triple.object} for {triple.action}"
        lines += [_test(name, triple, "deny")]
    return "\n".join(lines) + "\n"


def _unused(suggestion: Suggestion, evidence: Evidence, known: Known) -> Iterator[Triple]:
    """For each subject the first object that it never used, by an action that others use there."""
    widened = {name for rule in suggestion.rules for name in rule.widened}
    used: dict[tuple[PermissionKind, str], set[str]] = {}
    actions: dict[tuple[PermissionKind, str], str] = {}
    for triple in evidence.traces:
        used.setdefault((triple.kind, triple.subject), set()).add(triple.object)
        actions.setdefault((triple.kind, triple.object), triple.action)
    told = 0
    for kind in PermissionKind:
        there = [(obj, action) for (one, obj), action in actions.items() if one is kind and obj not in widened]
        for subject in known.subjects_of(kind) if there else ():
            mine = used.get((kind, subject), set())
            found = next((Triple(kind, subject, obj, action) for obj, action in there if obj not in mine), None)
            if found is not None and _can_be_tested(found) and told < MAX_DENIED:
                told += 1
                yield found


def _can_be_tested(triple: Triple) -> bool:
    """A suite tells by caller and object which kind is asked; an MCP server as a whole would be taken for an agent."""
    return triple.kind is not PermissionKind.AGENT_TO_TOOL or not triple.object.startswith("nhi:")


def _allowed(rule: Suggested) -> str:
    return f"{{decision: allow, rule: {scalar(rule.id)}}}"


def _test(name: str, triple: Triple, expect: str) -> str:
    asked = f"as: {scalar(triple.subject)}, calls: {scalar(triple.object)}, action: {scalar(triple.action)}"
    return f"  - {{name: {scalar(name)}, {asked}, expect: {expect}}}"
