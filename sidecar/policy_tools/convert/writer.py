"""Writes rows in readable CSV and YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, groupby

from sidecar.policy.grammar import NONE
from sidecar.policy.model import COLUMNS
from sidecar.policy.rows import CsvRow
from sidecar.policy.yaml_links import LINK_NOTES, Columns
from sidecar.policy.yaml_rows import KEY_OF, MAX_ROWS_OF_RULE
from sidecar.policy_tools.convert.csv_content import Content, ContentEntry
from sidecar.settings.yaml_scalars import DoubtfulScalarError, meaning_of
from sidecar.vocabulary import PermissionKind

Value = str | list[str]  # a text that is already formatted, or a list that is not
MAX_WIDTH = 100  # a list on a longer line is split into one line per entry

# Texts that YAML reads as plain strings, also inside [ ] and { }.
_PLAIN = re.compile(r"[A-Za-z0-9_./(](?:[A-Za-z0-9_./:@+()=<>&|!?*'\-]| (?=[^#]))*")
_NOTE_PLAIN = re.compile(r"[^\s\"]+")
_QUOTED_IN_CSV = re.compile(r'[,"]|^[ \t]|[ \t]$')


# --- CSV ------------------------------------------------------------------------------------------------------------


def csv_of(content: Content) -> str:
    """Return the rows as a CSV file."""
    lines = [*content.head, ""] if content.head else []
    for entry in content.entries:
        lines += entry.above
        if entry.row.notes:
            pairs = (f"{key}={_csv_note(field.text)}" for key, field in entry.row.notes.items())
            lines.append("#: " + " ".join(pairs))
        lines.append(", ".join([entry.row.type, *(_csv_field(field.text) for field in entry.row.fields)]))
    lines += content.end
    return "".join(f"{line}\n" for line in _without_double_blanks(lines))


def _csv_field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _QUOTED_IN_CSV.search(text) else text


def _csv_note(text: str) -> str:
    return text if _NOTE_PLAIN.fullmatch(text) else '"' + text.replace('"', '""') + '"'


def _without_double_blanks(lines: Sequence[str]) -> Iterator[str]:
    before = ""
    for line in lines:
        if line or before:
            yield line
        before = line


# --- YAML -----------------------------------------------------------------------------------------------------------


def yaml_of(content: Content, columns: Columns) -> str:
    """Return the rows as one YAML file: rules, then roles, then sets, each in their order."""
    lines = [*content.head, ""] if content.head else []
    lines.append("version: 1")
    rules = [entry for entry in content.entries if entry.row.type == "p"]
    if rules:
        lines += _section("rules", (line for group in _rules(rules) for line in _rule(group, columns)))
    for row_type, section, container, members in (("g", "roles", "role", "members"), ("g2", "sets", "set", "objects")):
        links = [entry for entry in content.entries if entry.row.type == row_type]
        if links:
            lines += _section(section, _links(links, container, members))
    lines += ["", *content.end] if content.end else []
    return "".join(f"{line}\n" for line in _without_double_blanks(lines))


def _section(name: str, lines: Iterator[str]) -> Iterator[str]:
    yield from ("", f"{name}:")
    yield from dropwhile(lambda line: not line, lines)


def _rules(entries: Sequence[ContentEntry]) -> Iterator[list[ContentEntry]]:
    """Group the rows by rule."""
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
    yield from _indented(line for entry in group for line in entry.above)
    blocks = list(_blocks([(row["sub"], row["obj"]) for row in rows]))
    notes = {key: field.text for key, field in first.row.notes.items()}
    said = [("id", notes["id"])] if "id" in notes else []
    said.append(("kind", kind.value))
    pairs: list[tuple[str, Value]] = [(key, scalar(text)) for key, text in said]
    pairs += [("subject", _one_or_list(blocks[0][0])), ("object", _one_or_list(blocks[0][1]))]
    pairs += [*_columns(rows[0], names, kind)]
    pairs += [(key, text if key == "shadow" else scalar(text)) for key, text in notes.items() if key != "id"]
    yield from _item(pairs)
    for subjects, objects in blocks[1:]:
        part = [("part_of", scalar(notes["id"])), ("subject", _one_or_list(subjects))]
        yield from _item([*part, ("object", _one_or_list(objects))])


def _columns(row: Mapping[str, str], names: Sequence[str], kind: PermissionKind) -> Iterator[tuple[str, Value]]:
    yield "actions", [*dict.fromkeys(word.strip() for word in row["act"].split("|"))]
    if row["eft"] != ("deny" if kind is PermissionKind.GUARDRAIL else "allow"):
        yield "effect", row["eft"]
    for name in names:
        if name not in KEY_OF and row[name] != NONE:
            yield name, row[name] if name == "max_calls_per_hour" else scalar(row[name])


def _blocks(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Split the (subject, object) pairs into few runs of all subjects with all objects, in order."""
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
    """Yield a mapping if each container occurs once and without notes; else a list, which can express everything."""
    groups = list(_link_groups(entries))
    keys = [_link_key(group[0].row) for group in groups]
    bare = all(len(key) == 2 and not key[1] for key in keys) and len({key[0] for key in keys}) == len(keys)
    for group, key in zip(groups, keys, strict=True):
        yield from _indented(line for entry in group for line in entry.above)
        names = [entry.row.fields[0].text for entry in group]
        if bare:
            yield from _key(scalar(key[0]), names, "  ")
            continue
        pairs: list[tuple[str, Value]] = [(container, scalar(key[0])), (members, names)]
        pairs += [("domain", scalar(key[2]))] if len(key) == 3 else []
        yield from _item([*pairs, *((name, scalar(text)) for name, text in key[1])])


def _link_groups(entries: Sequence[ContentEntry]) -> Iterator[list[ContentEntry]]:
    """Group adjacent rows of one container, each member once (Casbin's rows may repeat)."""
    for _, same in groupby(entries, key=lambda entry: _link_key(entry.row)):
        group: dict[str, ContentEntry] = {}
        for entry in same:
            name = entry.row.fields[0].text
            if name in group:
                yield [*group.values()]
                group = {}
            group[name] = entry
        yield [*group.values()]


def _link_key(row: CsvRow) -> tuple[str, tuple[tuple[str, str], ...]] | tuple[str, tuple[tuple[str, str], ...], str]:
    """Return what rows of one group have in common: the container, the notes, and the domain if there is one."""
    notes = tuple((name, row.notes[name].text) for name in LINK_NOTES if name in row.notes)
    container = row.fields[1].text
    return (container, notes, row.fields[2].text) if len(row.fields) == 3 else (container, notes)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if line else ""


def _one_or_list(names: list[str]) -> Value:
    return scalar(names[0]) if len(names) == 1 else names


def _item(pairs: Sequence[tuple[str, Value]]) -> Iterator[str]:
    """Yield one list entry, one key per line. Texts are already formatted, lists are not."""
    for number, (key, value) in enumerate(pairs):
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


def scalar(text: str) -> str:
    """Return a text as YAML: plain if it is unambiguous, else quoted."""
    if _PLAIN.fullmatch(text) and ": " not in text and not text.endswith((":", " ")) and _is_text(text):
        return text
    if '"' not in text and "\\" not in text and text.isprintable():
        return f'"{text}"'
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'


def _is_text(text: str) -> bool:
    try:
        return meaning_of(text) == text
    except DoubtfulScalarError:
        return False
