"""Lints for conditions that do not test what they appear to test. They read the syntax tree of a condition
(`Condition.paths`) and its text."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

from sidecar.policy.conditions import Condition, ConditionContext
from sidecar.policy.faults import meant, shown
from sidecar.policy.grammar import ACTIONS
from sidecar.policy_tools.check.linted_policy import AGENTS, KINDS_ASKED, LintedPolicy, PolicyFinding
from sidecar.policy_tools.check.matching import near
from sidecar.policy_tools.diff.condition_parts import parts
from sidecar.vocabulary import DELEGATE, Principal, Question, RuleRef

T = TypeVar("T")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_EQUALS = re.compile(r"\s*([a-z]\w*(?:\.\w+)*)\s*==\s*('[^'\\]*'|\"[^\"\\]*\"|-?\d+|true|false)\s*\Z")
_ORDERED = re.compile(r"(?<![<>=!])[<>]=?\s*(['\"]-?\d+(?:\.\d+)?['\"])|(['\"]-?\d+(?:\.\d+)?['\"])\s*[<>]=?(?!=)")
_ROLE_ASKED = re.compile(r"(!\s*)?has_role\(\s*[\w.\[\]]+\s*,\s*['\"](role:[^'\"]+)['\"]\s*\)")
_SCOPES_ASKED = re.compile(r"(!\s*\(\s*)?['\"][^'\"]*['\"]\s+in\s+(?:principal|origin|\w+)\.(scopes|roles)")
_MEND = "correct the condition, or remove the row"


class _Never(NamedTuple):
    """Why a condition always has the same outcome (`true`, `false` or `error`), and the part that causes it.
    `unless_absent`: if the caller omits a value, the outcome is an error instead, which is a match on a deny row."""

    outcome: str
    why: str
    part: str = ""
    hint: str = ""
    unless_absent: bool = False


def always_the_same(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P605: a condition that reads nothing, contradicts itself, or tests a value that cannot exist."""
    constant = _by_text(policy, _constant)
    for rule, _ in _conditioned(policy):
        never = constant(rule.when) or _never_asked(rule)
        if never is not None and not (never.unless_absent and rule.effect == "deny"):
            matches = never.outcome == "true" or (never.outcome == "error" and rule.effect == "deny")
            message = f"{never.why}: this {rule.effect} row {'always' if matches else 'never'} matches"
            yield PolicyFinding("P605", message, never.hint, rule, "when", never.part)


def _constant(condition: Condition) -> _Never | None:
    if not condition.paths:
        outcome = _without_claims(condition)
        gives = "always fails" if outcome == "error" else f"always gives {outcome}"
        return _Never(outcome, f"the condition {gives}", hint="write - for none" if outcome == "true" else _MEND)
    terms = parts(condition.text)
    if "false" in terms:
        return _Never("false", "the condition always gives false", "false", _MEND)
    return _contradiction(terms)


def _without_claims(condition: Condition) -> str:
    """Returns the outcome for a caller without roles and scopes and a call without arguments."""
    scene = ConditionContext((Principal("user:unknown"),), 0, Question("", "", ""), {}, 0.0, lambda _: frozenset())
    return condition.run(scene)[0]


def _contradiction(terms: Sequence[str]) -> _Never | None:
    asked: dict[str, str] = {}
    for term in terms:
        match = _EQUALS.match(term)
        if match is None:
            continue
        first = asked.setdefault(match[1], match[2])
        if first.replace('"', "'") != match[2].replace('"', "'"):
            why, optional = f"{match[1]} cannot be {first} and {match[2]}", match[1].startswith(("args", "call.meta"))
            return _Never("false", why, term, _MEND, unless_absent=optional)
        if match[1] == "call.action" and match[2][1:-1] not in ACTIONS:
            hint = meant(match[2][1:-1], ACTIONS)
            return _Never("false", f"no call has the action {match[2]}", match[2], hint)
    return None


def _never_asked(rule: RuleRef) -> _Never | None:
    kinds = KINDS_ASKED[rule.kind][0]
    for term in parts(rule.when):
        match = _EQUALS.match(term)
        if match is not None and match[1] == "principal.kind" and match[2][1:-1] not in kinds:
            hint = meant(match[2][1:-1], kinds) or f"write {' or '.join(sorted(kinds))}"
            return _Never("false", f"no subject of {rule.kind.value} is a {match[2]}", match[2], hint)
    return None


def arguments_nowhere(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P606: a condition reads arguments, but no call that the rule can match has any."""
    for rule, condition in _conditioned(policy):
        reads = any(path[0] == "args" for path in condition.paths)
        if reads and policy.asked(rule) and (why := _no_arguments(policy, rule)):
            allows = "this row does not match unless the condition allows for that"
            then = allows if rule.effect == "allow" else "a condition that reads it fails, and the row denies"
            message = f"{why}: args is empty, so {then}"
            yield PolicyFinding("P606", message, "use origin, principal or call", rule, "when", "args")


def _no_arguments(policy: LintedPolicy, rule: RuleRef) -> str:
    if rule.kind in AGENTS:
        return "a delegation has no arguments" if policy.asked(rule) == {DELEGATE} else ""
    kinds = policy.object_kinds(rule)
    if kinds == {"resource"}:
        return "reading a resource has no arguments"
    return "a question about a server as a whole has no arguments" if kinds == {"nhi"} else ""


def unasked_arguments(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P641: a deny rule reads `args.x` or `call.meta.x` without testing whether it is present."""
    unasked = _by_text(policy, _unasked)
    for rule, _ in _conditioned(policy):
        if rule.effect != "deny" or (policy.asked(rule) and _no_arguments(policy, rule)):
            continue
        if path := unasked(rule.when):
            message = f"without {path} this deny row matches: it reads it without has()"
            below, _, key = path.rpartition(".")
            asking = f"has({path})" if key.isidentifier() else f"'{key}' in {below}"  # has() takes names only
            yield PolicyFinding("P641", message, f"if that is not intended, write {asking} && …", rule, "when", path)


def _unasked(condition: Condition) -> str:
    """Returns the first path into the caller's input that is read without a presence test, or ""."""
    asked = {read.path for read in condition.syntax.reads if read.test == "has"} | set(condition.syntax.sought)
    for path in condition.paths:
        own = 1 if path[0] == "args" else 2 if path[:2] == ("call", "meta") else len(path)
        for size in range(own + 1, len(path) + 1):
            if path[:size] not in asked:
                return ".".join(path[:size])
    return ""


def _by_text(policy: LintedPolicy, ask: Callable[[Condition], T]) -> Callable[[str], T]:
    """Returns a function from the text of a condition to the result of `ask`, which is called once for each text."""
    return lru_cache(None)(lambda text: ask(policy.source.conditions[text]))


def _conditioned(policy: LintedPolicy) -> Iterator[tuple[RuleRef, Condition]]:
    for rule in policy.rules:
        condition = policy.source.conditions.get(rule.when) if rule.when else None
        if condition is not None:
            yield rule, condition


def optional_claims(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P642: a deny rule that a token without roles or scopes escapes."""
    optional_in = _by_text(policy, partial(_optional_in, policy))
    for rule in policy.rules:
        if rule.effect == "deny" and rule.subject.startswith("role:") and _is_optional(policy, rule.subject):
            message = f"{shown(rule.subject)} comes from a claim that a token may lack: without it, this does not deny"
            yield PolicyFinding(
                "P642", message, "set required in roles_from, or deny all callers except …", rule, "sub"
            )
    for rule, _ in _conditioned(policy):
        if rule.effect == "deny" and (part := optional_in(rule.when)):
            message = "depends on a claim that a token may lack: without it, this does not deny"
            yield PolicyFinding("P642", message, "deny unless the claim is present", rule, "when", part)


def _is_optional(policy: LintedPolicy, role: str) -> bool:
    """Whether only tokens can grant this role, and an issuer that grants it does not require the claim. False if the
    issuers are unknown."""
    if policy.granting is None or policy.people(role):
        return False
    return any(one.grants(role) and not one.required for one in policy.granting)


def _optional_in(policy: LintedPolicy, condition: Condition) -> str:
    text = condition.text
    if _without_claims(condition) != "false":
        return ""
    for match in _ROLE_ASKED.finditer(text):
        by_token = "/" in match[2] and (policy.granting is None or _is_optional(policy, match[2]))
        if not match[1] and by_token and not policy.people(match[2]):
            return match[0]
    for match in _SCOPES_ASKED.finditer(text):
        if not match[1]:
            return match[0]
    return ""


def order_of_texts(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P643: an ordering operator, such as `<`, with a number in quotes."""
    for rule, condition in _conditioned(policy):
        match = _ORDERED.search(condition.text)
        texts = _TEXT.finditer(condition.text)
        if match and not any(found.start() < match.start() < found.end() - 1 for found in texts):
            part = match[1] or match[2]
            message = f"{part} is text, and text is not compared like numbers"
            yield PolicyFinding("P643", message, f"write {part[1:-1]}", rule, "when", part)


def roles_asked(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P604: a condition tests for a role without members."""
    for rule, condition in _conditioned(policy):
        for match in _ROLE_ASKED.finditer(condition.text):
            role = match[2]
            if not policy.people(role) and not policy.may_be_granted(role):
                hint = near(role, policy.members) or "add a member with a g row"
                yield PolicyFinding("P604", f"no principal has {shown(role)}", hint, rule, "when", role)
