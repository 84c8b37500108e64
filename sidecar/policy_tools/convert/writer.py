"""Writes rows in readable CSV and YAML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, groupby
from typing import NamedTuple

from sidecar.policy.grammar import NONE, REQUIRED
from sidecar.policy.model import COLUMNS
from sidecar.policy.rows import APPROVAL_NOTES, CsvField
from sidecar.policy.yaml_links import LINK_NOTES, Columns
from sidecar.policy.yaml_rows import APPROVAL_KEYS, KEY_OF, MAX_ROWS_OF_RULE
from sidecar.policy_tools.convert.content import Content, ContentEntry
from sidecar.policy_tools.rule_text import csv_field, csv_quoted, scalar
from sidecar.vocabulary import PermissionKind

Value = str | list[str]  # a text that is already formatted, or a list that is not
MAX_WIDTH = 100  # of a list on one line; a longer one has a line for each entry

_NOTE_PLAIN = re.compile(r"[^\s\"]+")


def csv_of(content: Content) -> str:
    lines = [*content.head, ""] if content.head else []
    for entry in content.entries:
        lines += entry.above
        if entry.row.notes:
            texts = ((key, field.text) for key, field in _short(entry.row.notes).items())
            pairs = (f"{key}={text if _NOTE_PLAIN.fullmatch(text) else csv_quoted(text)}" for key, text in texts)
            lines.append("#: " + " ".join(pairs))
        lines.append(", ".join([entry.row.type, *(csv_field(field.text) for field in entry.row.fields)]))
    return _text([*lines, "", *content.end] if content.end else lines)


def _short(notes: Mapping[str, CsvField]) -> Mapping[str, CsvField]:
    """Returns the notes with the short form `reason=required` of `approval_reason=required`, unless there is another
    reason."""
    required = notes.get("approval_reason")
    if required is None or required.text != REQUIRED or "reason" in notes:
        return notes
    return {"reason" if key == "approval_reason" else key: field for key, field in notes.items()}


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for before, line in zip(["", *lines], lines, strict=False) if line or before)


def yaml_of(content: Content, columns: Columns) -> str:
    """Returns the rows as one YAML file: rules, then roles, then sets, each in their order."""
    lines = [*content.head, ""] if content.head else []
    lines.append("version: 1")
    rules = [entry for entry in content.entries if entry.row.type == "p"]
    if rules:
        lines += _section("rules", (line for group in _rules(rules) for line in _rule(group, columns)))
    for row_type, section, container, members in (("g", "roles", "role", "members"), ("g2", "sets", "set", "objects")):
        links = [entry for entry in content.entries if entry.row.type == row_type]
        if links:
            lines += _section(section, _links(links, container, members))
    return _text([*lines, "", *content.end] if content.end else lines)


def _section(name: str, lines: Iterator[str]) -> Iterator[str]:
    yield from ("", f"{name}:")
    yield from dropwhile(lambda line: not line, lines)


def _rules(entries: Sequence[ContentEntry]) -> Iterator[list[ContentEntry]]:
    group: list[ContentEntry] = []
    for entry in entries:
        if group and "part_of" not in entry.row.notes:
            yield group
            group = []
        group.append(entry)
    yield group


def _rule(group: Sequence[ContentEntry], columns: Columns) -> Iterator[str]:
    first = group[0]
    kind = first.kind or PermissionKind.AGENT_TO_TOOL
    names = columns.get(kind, COLUMNS)
    rows = [dict(zip(names, (field.text for field in entry.row.fields), strict=True)) for entry in group]
    yield from _comments(group)
    (subject, obj), *parts = (
        tuple(scalar(side[0]) if len(side) == 1 else side for side in block)
        for block in _blocks([(row["sub"], row["obj"]) for row in rows])
    )
    notes = {key: field.text for key, field in first.row.notes.items()}
    item: dict[str, Value] = {"id": scalar(notes["id"])} if "id" in notes else {}
    item |= {"kind": kind.value, "subject": subject, "object": obj}
    item["actions"] = [*dict.fromkeys(word.strip() for word in rows[0]["act"].split("|"))]
    if rows[0]["eft"] != ("deny" if kind is PermissionKind.GUARDRAIL else "allow"):
        item["effect"] = rows[0]["eft"]
    asked = {name: text for name, text in rows[0].items() if name not in KEY_OF and text != NONE}
    item |= {key: text if key == "max_calls_per_hour" else scalar(text) for key, text in asked.items()}
    if "approval" in notes:
        terms = (f"{key}: {scalar(notes[note])}" for key, note in APPROVAL_KEYS.items() if note in notes)
        item["approval"] = f"{{{', '.join(terms)}}}"
    rest = {key: text for key, text in notes.items() if key != "id" and key not in APPROVAL_NOTES}
    item |= {key: text if key == "shadow" else scalar(text) for key, text in rest.items()}
    yield from _item(item)
    for subject, obj in parts:
        yield from _item({"part_of": scalar(notes["id"]), "subject": subject, "object": obj})


def _blocks(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Splits the (subject, object) pairs, in order, into few blocks of subjects and objects, of which each subject is
    paired with each object."""
    at = 0
    while at < len(pairs):
        subject = pairs[at][0]
        objects: dict[str, None] = {}
        while at < len(pairs) and pairs[at][0] == subject and pairs[at][1] not in objects:
            objects[pairs[at][1]] = None
            at += 1
            if len(objects) == MAX_ROWS_OF_RULE:
                break
        subjects = {subject: None}
        while (len(subjects) + 1) * len(objects) <= MAX_ROWS_OF_RULE:
            following = pairs[at : at + len(objects)]
            wanted = [(following[0][0], obj) for obj in objects] if following else []
            if not following or following != wanted or following[0][0] in subjects:
                break
            subjects[following[0][0]] = None
            at += len(objects)
        yield [*subjects], [*objects]


def _links(entries: Sequence[ContentEntry], container: str, members: str) -> Iterator[str]:
    """Yields the lines of a mapping if each container is in one group, without notes and domain; otherwise those of a
    list, which can express everything."""
    groups = list(_link_groups(entries))
    bare = len({key.container for key, _ in groups}) == len(groups)
    bare = bare and not any(key.notes or key.domain is not None for key, _ in groups)
    for key, group in groups:
        yield from _comments(group)
        names: Value = [entry.row.fields[0].text for entry in group]
        if bare:
            yield from _key(scalar(key.container), names, "  ")
            continue
        domain = {"domain": key.domain} if key.domain is not None else {}
        said = {name: scalar(text) for name, text in (domain | dict(key.notes)).items()}
        yield from _item({container: scalar(key.container), members: names, **said})


class _LinkKey(NamedTuple):
    container: str
    notes: tuple[tuple[str, str], ...]
    domain: str | None


def _link_groups(entries: Sequence[ContentEntry]) -> Iterator[tuple[_LinkKey, list[ContentEntry]]]:
    """Yields groups of adjacent rows of one container. A member that is repeated begins another group."""
    for key, same in groupby(entries, key=_link_key):
        group: dict[str, ContentEntry] = {}
        for entry in same:
            name = entry.row.fields[0].text
            if name in group:
                yield key, [*group.values()]
                group = {}
            group[name] = entry
        yield key, [*group.values()]


def _link_key(entry: ContentEntry) -> _LinkKey:
    _, container, *domain = (field.text for field in entry.row.fields)
    notes = entry.row.notes
    noted = tuple((key, notes[key].text) for key in LINK_NOTES if key in notes)
    return _LinkKey(container, noted, domain[0] if domain else None)


def _comments(group: Sequence[ContentEntry]) -> Iterator[str]:
    return (f"  {line}" if line else "" for entry in group for line in entry.above)


def _item(pairs: Mapping[str, Value]) -> Iterator[str]:
    for number, (key, value) in enumerate(pairs.items()):
        yield from _key(key, value, "  - " if number == 0 else "    ")


def _key(key: str, value: Value, indent: str) -> Iterator[str]:
    if isinstance(value, str):
        yield f"{indent}{key}: {value}"
        return
    written = [scalar(text) for text in value]
    line = f"{indent}{key}: [{', '.join(written)}]"
    if len(line) <= MAX_WIDTH:
        yield line
        return
    yield f"{indent}{key}:"
    for text in written:
        yield f"{' ' * len(indent)}  - {text}"
