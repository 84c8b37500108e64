"""Writes suggestions as files, text and data.

Each rule has a comment with its evidence. Comments contain nothing that a terminal or a reader of rows would interpret:
text from a record was checked by the grammar of names, or is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from sidecar.policy import grammar
from sidecar.policy.faults import shown
from sidecar.policy.grammar import NONE
from sidecar.policy_tools.suggest.current_policy import Present
from sidecar.policy_tools.suggest.evidence import UsageEvidence
from sidecar.policy_tools.suggest.suggestion import Suggested, Suggestion
from sidecar.policy_tools.suggest.terms import GONE, PLAIN, Terms, moment
from sidecar.vocabulary import PermissionKind, RuleRef

YAML_FILE, ROLES_FILE = "suggested.yaml", "roles.csv"
MAX_SHOWN = 12  # names in one comment
_TITLES = {
    "user_to_nhi": "Which users may use which NHI: send it messages, or lend it authority (delegate).",
    "nhi_to_nhi": "Which NHI may call which other one, or lend it the authority that it carries (delegate).",
    "agent_to_tool": "Who may use which tool, prompt, resource or MCP server.",
    "guardrail": "What is forbidden, whatever else is allowed.",
}
_FILES = {PermissionKind.GUARDRAIL: "guardrails.csv"}
_CARRIED = "Rows that deny, carried over from the present policy."
_ORIGIN = "Suggested from recorded calls by `sidecar policy suggest`. Read it as you would read a colleague's."


def csv_files(suggestion: Suggestion, present: Present) -> dict[str, str]:
    """Return file name → text, in the layout of `policies/`. Deny rows come first, where order decides."""
    files: dict[str, str] = {}
    for kind in PermissionKind:
        rules = [rule for rule in suggestion.rules if rule.kind is kind]
        denies = [rule for rule in suggestion.carried.denies if rule.kind is kind]
        if rules or denies:
            lines = [f"# {_TITLES[kind.value]}", f"# {_ORIGIN}", "#", "# " + ", ".join(present.columns[kind])]
            if denies:
                lines += ["", f"# {_CARRIED}", *_csv_denies(denies, present)]
            for rule in rules:
                lines += ["", *_csv_rule(rule, present)]
            files[_FILES.get(kind, f"{kind.value}.csv")] = "\n".join(lines) + "\n"
    links = list(_csv_links(suggestion))
    if links:
        files[ROLES_FILE] = "\n".join(["# Who is in which role (g), and what is in which set (g2).", *links]) + "\n"
    return files


def yaml_text(suggestion: Suggestion, present: Present) -> str:
    """Return the same in the YAML of CONTRACT 2.1, as one file."""
    lines = [f"# {_ORIGIN}", "version: 1", "rules:"]
    if suggestion.carried.denies:
        lines += [f"  # {_CARRIED}", *_yaml_denies(suggestion.carried.denies)]
    for rule in suggestion.rules:
        lines += [f"  # {line}" for line in _comments(rule, present)]
        lines += _yaml_part(rule) if rule.part else _yaml_rule(rule)
    for title, groups in (("roles", _groups(suggestion, "g")), ("sets", _groups(suggestion, "g2"))):
        if groups:
            lines.append(f"{title}:")
        for name, members in groups.items():
            lines += [f"  {scalar(name)}:", *(f"    - {scalar(member)}" for member in members)]
    return "\n".join(lines) + "\n"


def one_text(files: Mapping[str, str]) -> str:
    """Join several files into one text, each under its name."""
    return "\n".join(f"# ---- {name} ----\n{text}" for name, text in files.items())


def as_data(suggestion: Suggestion, evidence: UsageEvidence, present: Present) -> dict[str, Any]:
    """Return the suggestion as plain values."""
    return {
        "rules": [_rule_data(rule, present) for rule in suggestion.rules],
        "roles": {name: list(members) for name, members in suggestion.roles.items()},
        "sets": {name: list(members) for name, members in suggestion.sets.items()},
        "reused": sorted(suggestion.reused),
        "carried": list(dict.fromkeys(rule.id for rule in suggestion.carried.denies)),
        "at_least": suggestion.at_least,
        "fewest": suggestion.at_least == len(suggestion.rules),
        "triples": len(evidence.traces),
        "counts": dict(sorted(evidence.counts.items())),
        "left_out": [
            {"why": why, "records": times, "decision_id": example}
            for why, (times, example) in sorted(evidence.left_out.items())
        ],
        "notes": notes(suggestion, evidence, present),
    }


def notes(suggestion: Suggestion, evidence: UsageEvidence, present: Present) -> list[str]:
    """Return what a reader must know of the suggestion as a whole, most important first."""
    counts = evidence.counts
    found = [
        f"{_count(times, 'record')} left out: {why} (such as decision {shown(example)})"
        for why, (times, example) in sorted(evidence.left_out.items())
    ]
    if counts["unreadable"]:
        found.append(
            f"{_count(counts['unreadable'], 'line')} that cannot be read as records; run `sidecar audit verify`"
        )
    widened = (f"{rule.id} is widened by {_some(rule.widened)}" for rule in suggestion.rules if rule.widened)
    found += dict.fromkeys(widened)
    if counts["denied-by-rule"]:
        found.append(
            f"{_count(counts['denied-by-rule'], 'call')} that a deny rule forbids: not taken, whatever became of them"
        )
    if counts["no-rule"]:
        found.append(
            f"{_count(counts['no-rule'], 'call')} refused for want of a rule; `--include denied` takes them too"
        )
    if counts[GONE]:
        found.append(
            f"{_count(counts[GONE], 'call')} that the present policy no longer allows: not taken; "
            "`--drop-terms` takes them too"
        )
    beyond = sum(trace.uses for trace in evidence.traces.values() if trace.without_rule)
    if beyond:
        found.append(f"rules for {_count(beyond, 'call')} may allow more than the policy that denied some of them")
    if not present.taken and any(trace.rules for trace in evidence.traces.values()):
        found.append("no present policy was given: the conditions, limits and expiries of its rules are not known")
    if suggestion.carried.denies:
        denies = _count(len(suggestion.carried.denies), "row")
        found.append(f"carried over from the present policy: {denies} with the effect deny")
    if evidence.would_deny:
        found.append(
            f"calls that are allowed here would be denied by the shadow rules {_some(sorted(evidence.would_deny))}"
        )
    if counts["query-unknown"]:
        found.append(
            f"{_count(counts['query-unknown'], 'read')} of resources may have had a query, which no record shows: "
            "the URI is allowed without one"
        )
    granted = _grants(suggestion)
    lonely = sorted(f"{subject} on {server}" for subject, server in evidence.sessions.keys() - granted)
    if lonely:
        found.append(f"only sessions were opened, which needs some grant and will be refused: {_some(lonely)}")
    return found


def _grants(suggestion: Suggestion) -> set[tuple[str, str]]:
    """Return which subjects have any grant on which server, as (subject, nhi:<server>)."""
    found: set[tuple[str, str]] = set()
    for rule in suggestion.rules:
        if rule.kind is PermissionKind.AGENT_TO_TOOL:
            servers = {f"nhi:{obj.partition(':')[2].partition('/')[0]}" for obj in rule.objects if "/" in obj}
            servers |= {obj for obj in rule.objects if obj.startswith("nhi:")}
            found |= {(subject, server) for subject in rule.subjects for server in servers}
    return found


def _csv_rule(rule: Suggested, present: Present) -> Iterator[str]:
    for line in _comments(rule, present):
        yield f"# {line}"
    per = "" if rule.terms.per == "subject" else f" per={rule.terms.per}"
    yield f"#: part_of={rule.id}" if rule.part else f'#: id={rule.id}{per} reason="{_reason(rule)}"'
    said = {"sub": rule.subject, "obj": rule.object, "act": "|".join(_actions(rule)), "eft": "allow"}
    said |= _asked(rule.terms)
    yield "p, " + ", ".join(_field(said.get(column, NONE)) for column in present.columns[rule.kind])


def _csv_denies(denies: Sequence[RuleRef], present: Present) -> Iterator[str]:
    before = ""
    for rule in denies:
        notes = f' reason="{_quoted(rule.reason)}"' if rule.reason else ""
        yield f"#: part_of={rule.id}" if rule.id == before else f"#: id={rule.id}{notes}"
        before = rule.id
        said = {"sub": rule.subject, "obj": rule.object, "act": "|".join(_actions(rule)), "eft": "deny"}
        said |= _asked(Terms(rule.when, rule.expires_at))
        yield "p, " + ", ".join(_field(said.get(column, NONE)) for column in present.columns[rule.kind])


def _asked(terms: Terms) -> dict[str, str]:
    """Return the terms by the columns of a row."""
    said = {"when": terms.when} if terms.when else {}
    if terms.limit is not None:
        said["max_calls_per_hour"] = str(terms.limit)
    if terms.expires_at is not None:
        said["expires_at"] = moment(terms.expires_at)
    return said


def _yaml_rule(rule: Suggested) -> Iterator[str]:
    yield f"  - id: {scalar(rule.id)}"
    yield from _yaml_said(rule.kind, rule.subject, rule.object, _actions(rule), rule.terms)
    yield f"    reason: {scalar(_reason(rule))}"


def _yaml_part(rule: Suggested) -> Iterator[str]:
    yield f"  - part_of: {scalar(rule.id)}"
    yield f"    subject: {scalar(rule.subject)}"
    yield f"    object: {scalar(rule.object)}"


def _yaml_denies(denies: Sequence[RuleRef]) -> Iterator[str]:
    before = ""
    for rule in denies:
        if rule.id == before:
            yield from (f"  - part_of: {scalar(rule.id)}", f"    subject: {scalar(rule.subject)}")
            yield f"    object: {scalar(rule.object)}"
            continue
        before = rule.id
        yield f"  - id: {scalar(rule.id)}"
        yield from _yaml_said(rule.kind, rule.subject, rule.object, _actions(rule), Terms(rule.when, rule.expires_at))
        yield "    effect: deny"
        if rule.reason:
            yield f"    reason: {scalar(rule.reason)}"


def _yaml_said(kind: PermissionKind, subject: str, obj: str, actions: Sequence[str], terms: Terms) -> Iterator[str]:
    yield f"    kind: {kind.value}"
    yield f"    subject: {scalar(subject)}"
    yield f"    object: {scalar(obj)}"
    yield f"    actions: [{', '.join(scalar(action) for action in actions)}]"
    if terms.per != "subject":
        yield f"    per: {terms.per}"
    for name, text in _asked(terms).items():
        yield f"    {name}: {text if name == 'max_calls_per_hour' else scalar(text)}"


def _groups(suggestion: Suggestion, row: Literal["g", "g2"]) -> dict[str, tuple[str, ...]]:
    """Return roles or sets with their members, carried-over ones first."""
    said = suggestion.roles if row == "g" else suggestion.sets
    found: dict[str, dict[str, None]] = {}
    for member, container in suggestion.carried.roles if row == "g" else suggestion.carried.sets:
        found.setdefault(container, {})[member] = None
    for name, members in said.items():
        if name not in found:  # else it is there as the present policy writes it
            found[name] = dict.fromkeys(members)
    return {name: tuple(members) for name, members in found.items()}


def _csv_links(suggestion: Suggestion) -> Iterator[str]:
    for row, groups in (("g", _groups(suggestion, "g")), ("g2", _groups(suggestion, "g2"))):
        for name, members in groups.items():
            yield ""
            if name in suggestion.reused:
                yield f"# {name} is in the present policy already, with the same in it."
            for member in members:
                yield f"{row}, {_field(member)}, {_field(name)}"


def _reason(rule: Suggested) -> str:
    """Return the rule's evidence, in one line."""
    cited = ", ".join(_plain(decision) for decision in rule.decisions)
    seen = f"{rule.first} to {rule.last}" if rule.first != rule.last else rule.first
    return f"{_count(rule.uses, 'use')} of {_count(rule.triples, 'triple')}, {_plain(seen)}; decisions {cited}"


def _comments(rule: Suggested, present: Present) -> Iterator[str]:
    """Yield further comments above a rule. Without the source of the present policy, terms are dropped."""
    if "*" in rule.object:
        yield f"fits {_some([name for name in rule.objects if name not in rule.widened])}"
    if rule.widened:
        yield f"WIDENED: also fits {_some(rule.widened)}, which not all of its subjects used so"
    rested = [known for known in rule.rests_on if known in present.terms]
    if rule.terms != PLAIN:
        yield f"as {_some(rested)} asks" if rested else "as the present policy asks"
    for known in () if present.source else rested:
        yield f"rested on {_plain(known)}, whose terms are not carried over: {_plain(present.terms[known])}"


def _actions(rule: Suggested | RuleRef) -> tuple[str, ...]:
    """Return the actions exactly as recorded. `use` only if all its actions were recorded: else it would grant more."""
    if set(rule.actions) == set(grammar.USED):
        return (grammar.USE,)
    return rule.actions


def _rule_data(rule: Suggested, present: Present) -> dict[str, Any]:
    return {
        "id": rule.id,
        "kind": rule.kind.value,
        "subject": rule.subject,
        "object": rule.object,
        "actions": list(_actions(rule)),
        "subjects": list(rule.subjects),
        "objects": list(rule.objects),
        "widened": list(rule.widened),
        "triples": rule.triples,
        "uses": rule.uses,
        "first_seen": rule.first,
        "last_seen": rule.last,
        "decisions": list(rule.decisions),
        "part": rule.part,
        "when": rule.terms.when,
        "max_calls_per_hour": rule.terms.limit,
        "per": rule.terms.per,
        "expires_at": None if rule.terms.expires_at is None else moment(rule.terms.expires_at),
        "rests_on": [{"id": known, "terms": present.terms.get(known, "")} for known in rule.rests_on],
    }


def _some(names: tuple[str, ...] | list[str]) -> str:
    rest = len(names) - MAX_SHOWN
    return ", ".join(_plain(name) for name in names[:MAX_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _plain(text: str) -> str:
    """Return printable ASCII without double quotes, for comments and quoted notes."""
    return text.encode("unicode_escape").decode().replace('"', "'")


def _field(text: str) -> str:
    """Return one field of a row, quoted if necessary."""
    return f'"{_quoted(text)}"' if "," in text or '"' in text else text


def _quoted(text: str) -> str:
    """Escape a text for use between the quotes of a field or a note."""
    return text.replace('"', '""')


def scalar(text: str) -> str:
    """Return a YAML scalar that means exactly this text, which is printable ASCII."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
