"""What does a suggestion look like: as files of a policy, as one text to read, as data?

Every rule says above it what it stands on. Comments never hold anything that a terminal or a reader of rows would
obey: what came from a record was held against the grammar of names, or is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sidecar.policy import grammar
from sidecar.policy.faults import shown
from sidecar.policy.grammar import NONE
from sidecar.vocabulary import PermissionKind
from sidecar.workbench.suggest.evidence import KINDS, Evidence
from sidecar.workbench.suggest.present import Present
from sidecar.workbench.suggest.suggestion import Suggested, Suggestion

YAML_FILE, ROLES_FILE = "suggested.yaml", "roles.csv"
MAX_SHOWN = 12  # names in one comment
_TITLES = {
    "user_to_nhi": "Which users may use which NHI: send it messages, or lend it authority (delegate).",
    "nhi_to_nhi": "Which NHI may call which other one, or lend it the authority that it carries (delegate).",
    "agent_to_tool": "Who may use which tool, prompt, resource or MCP server.",
}
_ORIGIN = "Suggested from recorded calls by `sidecar policy suggest`. Read it as you would read a colleague's."


def csv_files(suggestion: Suggestion, present: Present) -> dict[str, str]:
    """File name → text, in the shape of `policies/`."""
    files: dict[str, str] = {}
    for kind in KINDS:
        rules = [rule for rule in suggestion.rules if rule.kind is kind]
        if rules:
            lines = [f"# {_TITLES[kind.value]}", f"# {_ORIGIN}", "#", "# " + ", ".join(present.columns[kind])]
            for rule in rules:
                lines += ["", *_csv_rule(rule, present)]
            files[f"{kind.value}.csv"] = "\n".join(lines) + "\n"
    links = list(_csv_links(suggestion))
    if links:
        files[ROLES_FILE] = "\n".join(["# Who is in which role (g), and what is in which set (g2).", *links]) + "\n"
    return files


def yaml_text(suggestion: Suggestion, present: Present) -> str:
    """The same in the YAML of CONTRACT 2.1, one file."""
    lines = [f"# {_ORIGIN}", "version: 1", "rules:"]
    for rule in suggestion.rules:
        lines += [f"  # {line}" for line in _comments(rule, present)]
        lines += [
            f"  - id: {scalar(rule.id)}",
            f"    kind: {rule.kind.value}",
            f"    subject: {scalar(rule.subject)}",
            f"    object: {scalar(rule.object)}",
            f"    actions: [{', '.join(scalar(action) for action in _actions(rule))}]",
            f"    reason: {scalar(_reason(rule))}",
        ]
    for title, groups in (("roles", suggestion.roles), ("sets", suggestion.sets)):
        if groups:
            lines.append(f"{title}:")
        for name, members in groups.items():
            lines += [f"  {scalar(name)}:", *(f"    - {scalar(member)}" for member in members)]
    return "\n".join(lines) + "\n"


def one_text(files: Mapping[str, str]) -> str:
    """Several files one after another, each under its name."""
    return "\n".join(f"# ---- {name} ----\n{text}" for name, text in files.items())


def as_data(suggestion: Suggestion, evidence: Evidence, present: Present) -> dict[str, Any]:
    """For programs."""
    return {
        "rules": [_rule_data(rule, present) for rule in suggestion.rules],
        "roles": {name: list(members) for name, members in suggestion.roles.items()},
        "sets": {name: list(members) for name, members in suggestion.sets.items()},
        "reused": sorted(suggestion.reused),
        "at_least": suggestion.at_least,
        "fewest": suggestion.at_least == len(suggestion.rules),
        "triples": len(evidence.traces),
        "counts": dict(sorted(evidence.counts.items())),
        "left_out": [
            {"why": why, "records": times, "decision_id": example}
            for why, (times, example) in sorted(evidence.left_out.items())
        ],
        "notes": notes(suggestion, evidence),
    }


def notes(suggestion: Suggestion, evidence: Evidence) -> list[str]:
    """What a reader must know of the suggestion as a whole, most important first."""
    counts = evidence.counts
    found = [
        f"{_count(times, 'record')} left out: {why} (such as decision {shown(example)})"
        for why, (times, example) in sorted(evidence.left_out.items())
    ]
    if counts["unreadable"]:
        found.append(
            f"{_count(counts['unreadable'], 'line')} that cannot be read as records; run `sidecar audit verify`"
        )
    found += [f"{rule.id} is widened by {_some(rule.widened)}" for rule in suggestion.rules if rule.widened]
    if counts["denied-by-rule"]:
        found.append(
            f"{_count(counts['denied-by-rule'], 'call')} that a deny rule forbids: not taken, whatever became of them"
        )
    if counts["no-rule"]:
        found.append(
            f"{_count(counts['no-rule'], 'call')} refused for want of a rule; `--include denied` takes them too"
        )
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
    """Who has any grant on which server, as (subject, nhi:<server>)."""
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
    yield f'#: id={rule.id} reason="{_reason(rule)}"'
    said = {"sub": rule.subject, "obj": rule.object, "act": "|".join(_actions(rule)), "eft": "allow"}
    yield "p, " + ", ".join(_field(said.get(column, NONE)) for column in present.columns[rule.kind])


def _csv_links(suggestion: Suggestion) -> Iterator[str]:
    for row, groups in (("g", suggestion.roles), ("g2", suggestion.sets)):
        for name, members in groups.items():
            yield ""
            if name in suggestion.reused:
                yield f"# {name} is in the present policy already, with the same in it."
            for member in members:
                yield f"{row}, {_field(member)}, {_field(name)}"


def _reason(rule: Suggested) -> str:
    """What the rule stands on, in one line."""
    cited = ", ".join(_plain(decision) for decision in rule.decisions)
    seen = f"{rule.first} to {rule.last}" if rule.first != rule.last else rule.first
    return f"{_count(rule.uses, 'use')} of {_count(rule.triples, 'triple')}, {_plain(seen)}; decisions {cited}"


def _comments(rule: Suggested, present: Present) -> Iterator[str]:
    """What else a reviewer wants to see above a rule."""
    if "*" in rule.object:
        yield f"fits {_some([name for name in rule.objects if name not in rule.widened])}"
    if rule.widened:
        yield f"WIDENED: also fits {_some(rule.widened)}, which not all of its subjects used so"
    for known in rule.rests_on:
        if known in present.terms:
            yield f"rested on {_plain(known)}, whose terms are not carried over: {_plain(present.terms[known])}"


def _actions(rule: Suggested) -> tuple[str, ...]:
    """Exactly as recorded. `use` only where all that it stands for was recorded: else it would say more."""
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
        "rests_on": [{"id": known, "terms": present.terms.get(known, "")} for known in rule.rests_on],
    }


def _some(names: tuple[str, ...] | list[str]) -> str:
    rest = len(names) - MAX_SHOWN
    return ", ".join(_plain(name) for name in names[:MAX_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _plain(text: str) -> str:
    """Printable ASCII without double quotes: it stands in comments and quoted notes."""
    return text.encode("unicode_escape").decode().replace('"', "'")


def _field(text: str) -> str:
    """One field of a row, quoted where it must be."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def scalar(text: str) -> str:
    """A YAML scalar that means this text and nothing else. All that comes here is printable ASCII."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
