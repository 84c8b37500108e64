"""Writes suggestions as files and data, each rule with its evidence in a comment.

Text from a record either is a valid name or is escaped here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sidecar.policy.faults import SourceLine, shown
from sidecar.policy.grammar import NONE
from sidecar.policy.rows import CsvField, CsvRow
from sidecar.policy_tools.catalogue import server_of
from sidecar.policy_tools.convert.content import Content, ContentEntry
from sidecar.policy_tools.convert.writer import csv_of
from sidecar.policy_tools.rule_text import approval_notes, columns, cut, moment
from sidecar.policy_tools.suggest.evidence import UsageEvidence
from sidecar.policy_tools.suggest.suggestion import Suggested, Suggestion
from sidecar.policy_tools.suggest.terms import GONE, PLAIN, Present
from sidecar.vocabulary import PermissionKind, RuleRef

ROLES_FILE = "roles.csv"
MAX_SHOWN = 12  # names in one comment
_TITLES = {
    "user_to_nhi": "Which users may use which NHI: send it messages, or lend it authority (delegate).",
    "nhi_to_nhi": "Which NHI may call which other one, or lend it the authority that it carries (delegate).",
    "agent_to_tool": "Who may use which tool, prompt, resource or MCP server.",
    "guardrail": "What is forbidden, regardless of what other rows allow.",
}
_FILES = {PermissionKind.GUARDRAIL: "guardrails.csv"}
_CARRIED = "Rows that deny, carried over from the current policy."
_ORIGIN = "Suggested from recorded calls by `sidecar policy suggest`. Read it as you would read a colleague's."


def csv_files(suggestion: Suggestion, present: Present) -> dict[str, str]:
    """Returns the files of a suggestion by name, in the layout of `policies/`. Deny rows come first, in case the order
    decides."""
    files: dict[str, str] = {}
    rules = list(_rules(suggestion, present))
    for kind in PermissionKind:
        entries = tuple(entry for entry in rules if entry.kind is kind)
        if entries:
            head = [_TITLES[kind.value], _ORIGIN, "", ", ".join(present.columns[kind])]
            files[_FILES.get(kind, f"{kind.value}.csv")] = csv_of(Content(entries, _commented(head)))
    links = tuple(_links(suggestion))
    if links:
        head = ["Who is in which role (g), and what is in which set (g2)."]
        files[ROLES_FILE] = csv_of(Content(links, _commented(head)))
    return files


def _commented(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"# {line}".rstrip() for line in lines)


def one_text(files: Mapping[str, str]) -> str:
    return "\n".join(f"# ---- {name} ----\n{text}" for name, text in files.items())


def _rules(suggestion: Suggestion, present: Present) -> Iterator[ContentEntry]:
    before, begun = "", set[PermissionKind]()
    for rule in suggestion.carried.denies:
        notes = {"part_of": rule.id} if rule.id == before else {"id": rule.id, "reason": rule.reason}
        above = () if rule.kind in begun else ("", *_commented([_CARRIED]))
        yield _entry(rule._replace(max_calls_per_hour=None), notes, above, present)
        before = rule.id
        begun.add(rule.kind)
    for one in suggestion.rules:
        kept = one.terms
        rule = RuleRef(
            one.id, one.kind, one.subject, one.object, one.actions, "allow", kept.expires_at, kept.limit, kept.when
        )
        per = {} if kept.per == "subject" else {"per": kept.per}
        asks = {} if kept.approval is None else approval_notes(kept.approval)
        notes = {"part_of": one.id} if one.part else {"id": one.id, **per, **asks, "reason": _reason(one)}
        yield _entry(rule, notes, ("", *_commented(_comments(one, present))), present)


def _entry(rule: RuleRef, notes: Mapping[str, str], above: tuple[str, ...], present: Present) -> ContentEntry:
    said = columns(rule)
    fields = [said.get(column, NONE) for column in present.columns[rule.kind]]
    return ContentEntry(rule.kind, _row("p", fields, {key: text for key, text in notes.items() if text}), above)


def _row(row_type: str, fields: Sequence[str], notes: Mapping[str, str]) -> CsvRow:
    noted = {key: CsvField(text, 1, 1) for key, text in notes.items()}
    return CsvRow(row_type, tuple(CsvField(text, 1, 1) for text in fields), SourceLine("", 1, ""), noted)


def _links(suggestion: Suggestion) -> Iterator[ContentEntry]:
    """Yields the rows of roles, then those of sets; first those that are carried over from the present policy."""
    carried = suggestion.carried
    for row_type, kept, groups in (("g", carried.roles, suggestion.roles), ("g2", carried.sets, suggestion.sets)):
        there = {container for _, container in kept}
        links = [*kept, *((each, name) for name, members in groups.items() if name not in there for each in members)]
        by_container: dict[str, dict[str, None]] = {}
        for member, container in links:
            by_container.setdefault(container, {})[member] = None
        for name, members in by_container.items():
            reused = [f"{name} is already in the current policy, with the same members."]
            above: tuple[str, ...] = ("", *_commented(reused if name in suggestion.reused else []))
            for member in members:
                yield ContentEntry(None, _row(row_type, (member, name), {}), above)
                above = ()


def _reason(rule: Suggested) -> str:
    cited = ", ".join(_plain(decision) for decision in rule.decisions)
    seen = f"{rule.first} to {rule.last}" if rule.first != rule.last else rule.first
    return f"{_count(rule.uses, 'use')} of {_count(rule.triples, 'triple')}, {_plain(seen)}; decisions {cited}"


def _comments(rule: Suggested, present: Present) -> Iterator[str]:
    if "*" in rule.object:
        yield f"fits {_some([name for name in rule.objects if name not in rule.widened])}"
    if rule.widened:
        yield f"WIDENED: also fits {_some(rule.widened)}, which not all of its subjects used so"
    if rule.terms != PLAIN:
        yield f"as {_some([known for known in rule.rests_on if known in present.asking]) or 'the current policy'} asks"


def as_data(suggestion: Suggestion, evidence: UsageEvidence, present: Present) -> dict[str, Any]:
    return {
        "rules": [_rule_data(rule) for rule in suggestion.rules],
        "roles": {name: list(members) for name, members in suggestion.roles.items()},
        "sets": {name: list(members) for name, members in suggestion.sets.items()},
        "reused": sorted(suggestion.reused),
        "carried": list(dict.fromkeys(rule.id for rule in suggestion.carried.denies)),
        "fewest": suggestion.fewest,
        "triples": len(evidence.traces),
        "counts": dict(sorted(evidence.counts.items())),
        "left_out": [
            {"why": why, "records": times, "decision_id": example}
            for why, (times, example) in sorted(evidence.left_out.items())
        ],
        "notes": notes(suggestion, evidence, present),
    }


def _rule_data(rule: Suggested) -> dict[str, Any]:
    ends = rule.terms.expires_at
    same = (
        "id", "subject", "object", "actions", "subjects", "objects", "widened", "triples", "uses", "part", "decisions",
        "rests_on",
    )  # fmt: skip
    return {name: list(said) if isinstance(said := getattr(rule, name), tuple) else said for name in same} | {
        "kind": rule.kind.value,
        "first_seen": rule.first,
        "last_seen": rule.last,
        "when": rule.terms.when,
        "max_calls_per_hour": rule.terms.limit,
        "per": rule.terms.per,
        "approval": None if rule.terms.approval is None else rule.terms.approval._asdict(),
        "expires_at": None if ends is None else moment(ends),
    }


def notes(suggestion: Suggestion, evidence: UsageEvidence, present: Present) -> list[str]:
    """Returns the notes on the whole suggestion for the user, the most important ones first."""
    counts, traces, denies = evidence.counts, evidence.traces.values(), suggestion.carried.denies
    found = [
        f"{_count(times, 'record')} left out: {why} (such as decision {shown(example)})"
        for why, (times, example) in sorted(evidence.left_out.items())
    ]

    def tell(number: int, word: str, text: str) -> None:
        if number:
            found.append(text.format(_count(number, word)))

    tell(counts["unreadable"], "line", "{} that cannot be read as records; run `sidecar audit verify`")
    widened = (f"{rule.id} is widened by {_some(rule.widened)}" for rule in suggestion.rules if rule.widened)
    found += dict.fromkeys(widened)
    tell(counts["denied-by-rule"], "call", "{} that a deny rule forbids: not taken, whatever became of them")
    tell(counts["no-rule"], "call", "{} refused for want of a rule; `--include denied` takes them too")
    tell(counts[GONE], "call", "{} that the current policy no longer allows: not taken")
    beyond = sum(trace.uses for trace in traces if trace.without_rule)
    tell(beyond, "call", "rules for {} may allow more than the policy that denied some of them")
    if not present.taken and any(trace.rules for trace in traces):
        found.append(
            "no current policy was given: the conditions, limits, expiries and approvals of its rules are not known"
        )
    tell(len(denies), "row", "carried over from the current policy: {} with the effect deny")
    if shadows := sorted(evidence.would_deny):
        found.append(f"calls that are allowed here would be denied by the shadow rules {_some(shadows)}")
    query = "{} of resources may have had a query, which no record shows: the URI is allowed without one"
    tell(counts["query-unknown"], "read", query)
    granted = _grants(suggestion)
    lonely = sorted(f"{subject} on {server}" for subject, server in evidence.sessions.keys() - granted)
    if lonely:
        found.append(f"only sessions were opened, which needs some grant and will be refused: {_some(lonely)}")
    return found


def _grants(suggestion: Suggestion) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for rule in suggestion.rules:
        if rule.kind is PermissionKind.AGENT_TO_TOOL:
            servers = {f"nhi:{server_of(obj)}" for obj in rule.objects if "/" in obj}
            servers |= {obj for obj in rule.objects if obj.startswith("nhi:")}
            found |= {(subject, server) for subject in rule.subjects for server in servers}
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(_plain, cut(names, MAX_SHOWN)))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _plain(text: str) -> str:
    """Returns printable ASCII without double quotes, for comments and quoted notes."""
    return text.encode("unicode_escape").decode().replace('"', "'")
