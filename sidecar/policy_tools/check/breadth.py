"""Lints for rules that allow too much."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.policy.faults import shown
from sidecar.policy_tools.check.linted_policy import LintedPolicy, PolicyFinding
from sidecar.vocabulary import ANONYMOUS, RuleRef

_ANONYMOUS = "only upstreams that say `anonymous: true` have such callers"
_EVERYBODY = {"*": "everybody who was identified", "user:*": "every user", "nhi:*": "every NHI"}
_THINGS = {"tool": "tool", "prompt": "prompt", "resource": "resource", "nhi": "agent and server"}


def wide(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P651: for all callers. P652: on all objects. P653: for callers without a credential."""
    for rule in policy.rules:
        if rule.effect != "allow" or rule.shadow:
            continue
        if rule.subject == ANONYMOUS:
            yield PolicyFinding("P653", "allows callers without a credential", _ANONYMOUS, rule, "sub")
        if rule.when:
            continue
        if rule.subject in _EVERYBODY:
            message = f"{shown(rule.subject)} is {_EVERYBODY[rule.subject]}, and there is no condition"
            yield PolicyFinding("P651", message, "name a role or the callers, or add a condition", rule, "sub")
        if what := _everything(rule):
            message = f"{shown(rule.object)} is {what}, and there is no condition"
            yield PolicyFinding("P652", message, "name the servers or a set, or add a condition", rule, "obj")


def _everything(rule: RuleRef) -> str:
    """Return what an object without a name in it matches, or ""."""
    if rule.object == "*":
        return "everything"
    word, _, rest = rule.object.partition(":")
    return f"every {_THINGS[word]}" if word in _THINGS and not rest.strip("*/") else ""
