"""Parses policy CSV files.

Casbin's own parser drops lines that it does not understand (apache/casbin-pycasbin#204). In this strict parser a row is
either valid or a fault with file, line and column. Fields are separated by commas and trimmed of blanks and tabs; a
field with a comma or a double quote is quoted as in RFC 4180; a row is one line. A byte order mark and CRLF are
accepted. `#` begins a comment line; `#:` describes the row on the next line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sidecar.policy.faults import Faults, SourceLine, meant, shown
from sidecar.policy.grammar import REQUIRED
from sidecar.settings.yaml_nodes import place_in

MAX_FILE_BYTES = 256 * 1024 * 1024  # two million rows, in the form that programs write
MAX_LINE_CHARS = 8 * 1024
ROW_TYPES = ("p", "g", "g2")
APPROVAL_NOTES = ("approval", "within", "valid", "approval_reason")
NOTES = ("id", "owner", "reason", "shadow", "per", "created_at", "part_of", *APPROVAL_NOTES)

Plain = Callable[[str, int], bool]

BLANKS = " \t"
_QUOTES = 'quote the whole field and double its quotes: "args.x == ""y"""'
_FIELD = re.compile(r'[ \t]*(?:(?P<quoted>"(?:[^"]|"")*"(?!"))[ \t]*|(?P<plain>(?![ \t"])[^,]*))')
_NOTE = re.compile(r'([A-Za-z_]+)=("(?:[^"]|"")*"|[^\s"]+)(?=\s|$)')


@dataclass(frozen=True, slots=True)
class CsvField:
    """One trimmed, unquoted field. `column` counts from 1 and `width` is in characters, both as written in the line."""

    text: str
    column: int
    width: int
    quoted: bool = False

    def column_of(self, offset: int) -> int:
        doubled = self.text[:offset].count('"') if self.quoted else 0
        return self.column + offset + doubled + int(self.quoted)

    def line_of(self, offset: int = 0) -> SourceLine | None:
        """Returns the line of the character at `offset`; None if it is the row's own line (or its `#:` line)."""
        return None


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row: its type (`p`, `g`, `g2`), the fields after it, and its `#:` notes."""

    type: str
    fields: tuple[CsvField, ...]
    line: SourceLine
    notes: Mapping[str, CsvField] = field(default_factory=dict)
    notes_line: SourceLine | None = None


def decoded(raw: bytes, file: str, faults: Faults) -> str | None:
    """Returns the text of a policy file, or None (with a fault) when it is not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = place_in(raw, error.start)
        faults.error("P005", "not UTF-8", SourceLine(file, line, ""), column, hint="save the file as UTF-8")
        return None


def parse_rows(file: str, text: str, faults: Faults, plain: Plain | None = None) -> Iterator[CsvRow]:
    """Yields every well-formed row, in order; every other line except blank lines and comments is a fault.

    `plain` receives each line without a `#:` line above it. A line that it accepts is not parsed further."""
    notes: tuple[SourceLine, dict[str, CsvField]] | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        if plain is not None and notes is None and plain(raw, number):
            continue
        line = SourceLine(file, number, raw.removesuffix("\r")[:MAX_LINE_CHARS])
        content = line.text.strip(BLANKS)
        described, notes = notes, None
        if len(raw) > MAX_LINE_CHARS:
            faults.error("P110", f"longer than {MAX_LINE_CHARS} characters", SourceLine(file, number, ""))
        elif hidden_character(line, faults):
            pass
        elif content.startswith("#:"):
            notes = (line, _notes(line, faults))
        elif content and not content.startswith("#"):
            row = _read_row(line, described, faults)
            if row is not None:
                yield row
            described = None
        if described is not None:
            _stray_notes(described[0], faults)
    if notes is not None:
        _stray_notes(notes[0], faults)


def _stray_notes(line: SourceLine, faults: Faults) -> None:
    faults.error("P109", "#: is above no row", line, hint="it describes the row on the next line")


def hidden_character(line: SourceLine, faults: Faults, value: str | None = None, column: int = 1) -> bool:
    """Whether a line, or a value in it that begins at `column`, holds a character that a reviewer cannot see: a
    control, format or unassigned character, or a separator other than blank and tab. Reports a fault if so."""
    text = line.text if value is None else value
    if text.isascii() and text.isprintable():
        return False
    for offset, character in enumerate(text):
        if character not in "\t " and unicodedata.category(character)[0] in "CZ":
            name = unicodedata.name(character, "a control character")
            message, hint = f"U+{ord(character):04X} ({name}) is not allowed here", "remove it: reviewers cannot see it"
            if character == "\n":
                message = f"a line break inside {shown(text)}"
                hint = "begin the text with >- to fold its lines into one"
            faults.error("P110", message, line, offset + 1 if value is None else column, hint=hint)
            return True
    return False


def _read_row(
    line: SourceLine, described: tuple[SourceLine, dict[str, CsvField]] | None, faults: Faults
) -> CsvRow | None:
    fields = _fields(line, faults)
    if fields is None:
        return None
    head, *rest = fields
    if head.text not in ROW_TYPES:
        hint = meant(head.text.lower(), ROW_TYPES) or "a row begins with p, g or g2"
        if len(fields) == 1:
            hint = "fields are separated by commas"
        faults.error("P101", f"row type {shown(head.text)} is unknown", line, head.column, max(1, head.width), hint)
        return None
    above, notes = described or (None, {})
    return CsvRow(head.text, tuple(rest), line, notes, above)


def _fields(line: SourceLine, faults: Faults) -> list[CsvField] | None:
    text, at, fields = line.text, 0, []
    while True:
        found = _FIELD.match(text, at)
        if found is None:  # the field begins with a quote and has no closing one
            start = len(text) - len(text[at:].lstrip(BLANKS))
            message, width = "the quoted field does not end on its line", len(text) - start
            faults.error("P102", message, line, start + 1, width, _QUOTES)
            return None
        group = "quoted" if found["plain"] is None else "plain"
        raw, column, end = found[group].rstrip(BLANKS), found.start(group) + 1, found.end()
        if group == "quoted":
            fields.append(CsvField(raw[1:-1].replace('""', '"'), column, len(raw), quoted=True))
        elif '"' in raw:
            faults.error("P102", "a double quote inside an unquoted field", line, column + raw.index('"'), hint=_QUOTES)
            return None
        else:
            fields.append(CsvField(raw, column, len(raw)))
        if end == len(text):
            return fields
        if text[end] != ",":
            faults.error("P102", "only a comma may follow a quoted field", line, end + 1)
            return None
        at = end + 1


def _notes(line: SourceLine, faults: Faults) -> dict[str, CsvField]:
    at, notes = line.text.index("#:") + 2, dict[str, CsvField]()
    while True:
        while at < len(line.text) and line.text[at] in BLANKS:
            at += 1
        if at == len(line.text):
            return notes
        match = _NOTE.match(line.text, at)
        if match is None:
            hint = 'write key=value, with the value in double quotes if it contains blanks: reason="Runbook 12"'
            faults.error("P109", "this is not key=value", line, at + 1, len(line.text) - at, hint)
            return notes
        _keep_note(match, line, notes, faults)
        at = match.end()


def _keep_note(match: re.Match[str], line: SourceLine, notes: dict[str, CsvField], faults: Faults) -> None:
    key, raw = match[1], match[2]
    if key not in NOTES:
        hint = meant(key, NOTES) or f"known are {', '.join(NOTES)}"
        faults.error("P109", f"{shown(key)} is unknown here", line, match.start() + 1, len(key), hint)
    elif key in notes:
        faults.error("P109", f"{key} is there twice", line, match.start() + 1, len(key))
    else:
        value = raw[1:-1].replace('""', '"') if raw.startswith('"') else raw
        notes[key] = CsvField(value, match.start(2) + 1, len(raw), quoted=raw.startswith('"'))


def with_approval_reason(notes: Mapping[str, CsvField]) -> Mapping[str, CsvField]:
    """Returns the notes of a row, with `reason=required` of an approval under its own name."""
    reason = notes.get("reason")
    if reason is None or reason.text != REQUIRED or "approval" not in notes or "approval_reason" in notes:
        return notes
    return {key: field for key, field in notes.items() if key != "reason"} | {"approval_reason": reason}
