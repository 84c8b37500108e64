"""Writes policy tests for a suggestion.

There is one test for each rule, which must allow, and for each known subject one use that was never recorded and must
stay denied. A team that edits the suggestion therefore notices lost and added access. A record contains no arguments:
for a rule with a condition, and for a deny row with one, the test is a call without arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import product

from sidecar.policy import Engine
from sidecar.policy.grammar import ON_SERVERS
from sidecar.policy_tools.suggest.catalogue import Known
from sidecar.policy_tools.suggest.evidence import Triple, UsageEvidence
from sidecar.policy_tools.suggest.render import scalar
from sidecar.policy_tools.suggest.suggestion import Suggested, Suggestion
from sidecar.policy_tools.suggest.verification import question_of
from sidecar.vocabulary import Decision, PermissionKind, Principal

SUITE_FILE = "tests/suggested.yaml"
MAX_DENIED = 500
_ACTIONS = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
MAX_TRIES = 4  # subjects, and objects, for one row that denies


def suite_text(suggestion: Suggestion, evidence: UsageEvidence, known: Known, engine: Engine) -> str:
    """Return the suite, in the form of CONTRACT 2.3. Its time is that of the last record."""
    now = max(trace.last for trace in evidence.traces.values())
    now_s = datetime.fromisoformat(now).timestamp()
    lines = ["# Suggested with the rules beside it by `sidecar policy suggest`.", "suite: suggested"]
    lines += [f"now: {scalar(now)}", "tests:"]
    for rule in suggestion.rules:
        triple = Triple(rule.kind, rule.subjects[0], rule.objects[0], rule.actions[0])
        if _can_be_tested(triple):
            decision = engine.decide((Principal(triple.subject),), question_of(triple), now_s)
            lines.append(_recorded(rule, triple, decision))
    for rule_id, triple in _forbidden(suggestion, known, engine, now_s):
        expect = f"{{decision: deny, rule: {scalar(rule_id)}}}"
        lines.append(_test(f"{rule_id} denies {triple.action} of {triple.object}", triple, expect))
    for triple in _unused(suggestion, evidence, known):
        name = f"{triple.subject} never had {triple.object} for {triple.action}"
        lines += [_test(name, triple, "deny")]
    return "\n".join(lines) + "\n"


def _forbidden(suggestion: Suggestion, known: Known, engine: Engine, now_s: float) -> Iterator[tuple[str, Triple]]:
    """Yield for each deny row a known use that it denies, found in a few tries."""
    told: set[str] = set()
    for rule in suggestion.carried.denies[:MAX_DENIED]:
        objects = [name for name in known.fitting(rule.object) if name.startswith(ON_SERVERS)]
        tries = product(known.subjects[:MAX_TRIES], objects[:MAX_TRIES])
        for subject, obj in tries if rule.id not in told else ():
            triple = Triple(PermissionKind.AGENT_TO_TOOL, subject, obj, _ACTIONS[obj.partition(":")[0]])
            decision = engine.decide((Principal(subject),), question_of(triple), now_s)
            if any(rule.id == found.id for link in decision.links if not link.allowed for found in link.rules):
                told.add(rule.id)
                yield rule.id, triple
                break


def _unused(suggestion: Suggestion, evidence: UsageEvidence, known: Known) -> Iterator[Triple]:
    """Yield for each subject the first object that it never used, by an action that others use there."""
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
    """Whether a suite can express the question: it derives the kind from caller and object, and would take an MCP
    server as a whole for an agent.
    """
    return triple.kind is not PermissionKind.AGENT_TO_TOOL or not triple.object.startswith("nhi:")


def _allowed(rule: Suggested) -> str:
    return f"{{decision: allow, rule: {scalar(rule.id)}}}"


def _recorded(rule: Suggested, triple: Triple, decision: Decision) -> str:
    name = f"{rule.id} for {triple.object}" if rule.part else rule.id
    if decision.allowed and any(rule.id == found.id for link in decision.links if link.allowed for found in link.rules):
        return _test(f"{name} allows what was recorded", triple, _allowed(rule))
    expect = "allow" if decision.allowed else f"{{decision: deny, reason: {decision.reason}}}"
    return _test(f"{name} on a call without arguments", triple, expect)


def _test(name: str, triple: Triple, expect: str) -> str:
    asked = f"as: {scalar(triple.subject)}, calls: {scalar(triple.object)}, action: {scalar(triple.action)}"
    return f"  - {{name: {scalar(name)}, {asked}, expect: {expect}}}"
