"""Reads typed values from policy YAML.

Each reader returns the value with its place, or nothing after a fault, so that all faults of a file are reported
together. A scalar may be quoted, escaped, folded over several lines, or be one of a list that becomes one field.
`ScalarOffsets` records where its runs of characters begin, so that a fault inside a condition points at the exact
character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sidecar.policy.faults import Faults, SourceLine, meant, shown
from sidecar.policy.rows import CsvField, hidden_character
from sidecar.settings.yaml_nodes import YamlNode, YamlSpan

# Keys of other systems and of the original data models.
_OTHERS_SAY: Mapping[str, str] = {
    "principal": "subject",
    "resource": "object",
    "tool": "object",
    "condition": "when",
    "decision": "effect",
}
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("tools", "principals", "budgets", "costs"), "limits belong in budgets.yaml"),
    **dict.fromkeys(("tests", "suite"), "policy tests belong in the folder tests/"),
}

_EMPTY_HINT = "write a value, or remove the key"


_ESCAPED = {"x": 4, "u": 6, "U": 10}  # the length of \xNN, \uNNNN and \UNNNNNNNN; all others have two characters


class ScalarOffsets(NamedTuple):
    """The characters of a text from `offset` on are in `line` from `column` on, which counts from 1."""

    offset: int
    line: SourceLine
    column: int


@dataclass(frozen=True, slots=True)
class YamlField(CsvField):
    places: tuple[ScalarOffsets, ...] = ()

    def column_of(self, offset: int) -> int:
        """Returns the column of the character at `offset` of the text, in `line_of(offset)`."""
        place = self._place(offset)
        return place.column + offset - place.offset

    def line_of(self, offset: int = 0) -> SourceLine:
        return self._place(offset).line

    def _place(self, offset: int) -> ScalarOffsets:
        found = self.places[0]
        for place in self.places:
            if place.offset > offset:
                break
            found = place
        return found


@dataclass(slots=True)
class Values:
    file: str
    lines: Sequence[str]
    faults: Faults
    agent_ids: Mapping[str, str] = field(default_factory=dict)  # agents' names by `a2a.agent_id`
    known: dict[int, SourceLine] = field(default_factory=dict)

    def mapping(
        self, node: YamlNode, what: str, known: Sequence[str], needed: Sequence[str]
    ) -> dict[str, YamlNode] | None:
        """Returns the entries of a mapping, also after faults in its keys; None if it is not a mapping."""
        if not isinstance(node.value, dict):
            self.fault("P501", f"{what} is a mapping of keys to values", node.span, "known are " + ", ".join(known))
            return None
        for key, child in node.value.items():
            if key not in known:
                self.fault("P502", f"{shown(key)} is unknown here", child.key or child.span, _hint_for(key, known))
        missing = [key for key in needed if key not in node.value]
        for key in missing:
            self.fault("P503", f'the key "{key}" is missing', node.span)
        return node.value

    def entries(self, node: YamlNode, what: str, wanted: str = "a list") -> list[YamlNode]:
        """Returns the elements of a list that is not empty; [] after a fault."""
        if isinstance(node.value, list) and node.value:
            return node.value
        empty = node.value is None or node.value in ([], {})
        code, message = ("P506", f"{what} is empty") if empty else ("P501", f"{what} must be {wanted}")
        self.fault(code, message, (node.key or node.span) if empty else node.span, _EMPTY_HINT if empty else "")
        return []

    def texts(self, node: YamlNode | None, what: str) -> list[YamlField] | None:
        """Returns one text or a list of texts without duplicates; None after a fault, or without the key."""
        if node is None:
            return None
        if not isinstance(node.value, list):
            one = self.text(node, what)
            return None if one is None else [one]
        found = [self.text(entry, what) for entry in self.entries(node, what)]
        first: dict[str, YamlField] = {}
        for field_ in found:
            if field_ is not None and first.setdefault(field_.text, field_) is not field_:
                message = f"{shown(field_.text)} is listed twice"
                self.faults.error("P508", message, field_.line_of(), field_.column, field_.width, "keep one")
                return None
        return [*first.values()] if first and None not in found else None

    def text(self, node: YamlNode, what: str) -> YamlField | None:
        if isinstance(node.value, str):
            field_ = self.placed(node.value, node.span)
            return None if hidden_character(field_.line_of(), self.faults, field_.text, field_.column) else field_
        if node.value is None:
            self.fault("P506", f"{what} is empty", node.key or node.span, _EMPTY_HINT)
        elif isinstance(node.value, dict | list):
            self.fault("P501", f"{what} must be text", node.span)
        else:
            written = self.lines[node.span.line - 1][node.span.column - 1 :][: node.span.width]
            self.fault("P501", f"{what} must be text, not {written}", node.span, f'quote it: "{written}"')
        return None

    def word(self, said: Mapping[str, YamlNode], key: str, known: Sequence[str], hint: str) -> YamlField | None:
        """Returns one of the known keywords; None after a fault, or without the key."""
        found = self.text(said[key], key) if key in said else None
        if found is None or found.text in known:
            return found
        self.fault("P505", f"{key} {shown(found.text)} is unknown", said[key].span, meant(found.text, known) or hint)
        return None

    def notes(self, said: Mapping[str, YamlNode], known: Sequence[str]) -> dict[str, CsvField] | None:
        found = {key: self.note(key, node) for key, node in said.items() if key in known}
        notes: dict[str, CsvField] = {key: value for key, value in found.items() if value is not None}
        return notes if len(notes) == len(found) else None

    def note(self, key: str, node: YamlNode) -> CsvField | None:
        if key != "shadow":
            return self.text(node, key)
        if isinstance(node.value, bool):
            return self.implied("true" if node.value else "false", node.span)
        self.fault("P501", "shadow is true or false", node.span, "write true or false without quotes")
        return None

    def placed(self, text: str, span: YamlSpan) -> YamlField:
        line = self.line(span.line)
        mark = line.text[span.column - 1 : span.column]
        if mark and mark in "|>":
            text = text.rstrip("\n")
        following = (self.line(number) for number in range(span.line + 1, len(self.lines) + 1))
        places = places_of(text, line, span.column, following)
        first = places[0]
        if first.line is not line:  # the text begins below its `|` or `>`
            return YamlField(text, first.column, len(first.line.text) - first.column + 1, places=places)
        return YamlField(text, span.column, span.width, places=places)

    def implied(self, text: str, span: YamlSpan) -> YamlField:
        """Returns an implied text, with the place of the text that implies it."""
        place = ScalarOffsets(0, self.line(span.line), span.column)
        return YamlField(text, span.column, span.width, places=(place,))

    def line(self, number: int) -> SourceLine:
        line = self.known.get(number)
        if line is None:
            text = self.lines[number - 1] if 0 < number <= len(self.lines) else ""
            line = self.known[number] = SourceLine(self.file, number, text)
        return line

    def fault(self, code: str, message: str, span: YamlSpan, hint: str = "") -> None:
        self.faults.error(code, message, self.line(span.line), span.column, span.width, hint)


def _hint_for(key: str, known: Sequence[str]) -> str:
    other = _OTHERS_SAY.get(key, "")
    if other in known:
        return f'did you mean "{other}"?'
    elsewhere = _ELSEWHERE.get(key, "") if "rules" in known else ""
    return elsewhere or meant(key, known) or "known are " + ", ".join(known)


def places_of(text: str, line: SourceLine, column: int, following: Iterable[SourceLine]) -> tuple[ScalarOffsets, ...]:
    """Returns the places of a scalar that begins (with its quote or `|`) at `column` of `line`."""
    written = line.text[column - 1 :]
    if written.startswith(text):
        return (ScalarOffsets(0, line, column),)
    mark = written[:1]
    if mark in ("'", '"') and written.startswith(text + mark, 1):
        return (ScalarOffsets(0, line, column + 1),)
    if mark and mark in "|>":
        return tuple(_block(text, following)) or (ScalarOffsets(0, line, column),)
    start = column + 1 if mark in ("'", '"') else column
    return tuple(_flow(text, line, start, mark, iter(following)))


def same_place(found: CsvField, text: str) -> YamlField:
    assert isinstance(found, YamlField)
    return YamlField(text, found.column, found.width, places=found.places[:1])


def _block(text: str, following: Iterable[SourceLine]) -> Iterator[ScalarOffsets]:
    """Maps `|` and `>`: each line continues where the previous one ended."""
    at, indent = 0, -1
    for line in following:
        content = line.text.lstrip(" ")
        if indent < 0:
            indent = len(line.text) - len(content)
        content = line.text[indent:]
        if at > len(text) or not text.startswith(content, at):
            return
        yield ScalarOffsets(at, line, indent + 1)
        at += len(content) + 1


def _flow(
    text: str, line: SourceLine, column: int, mark: str, following: Iterator[SourceLine]
) -> Iterator[ScalarOffsets]:
    """Maps plain and quoted scalars: a new run begins after each escape and in each line."""
    yield ScalarOffsets(0, line, column)
    source, at = line.text.rstrip(), column - 1
    for offset, character in enumerate(text):
        if at >= len(source):  # the line break is read as a blank
            line = next(following, line)
            source, at = line.text.rstrip(), len(line.text) - len(line.text.lstrip())
            yield ScalarOffsets(offset + 1, line, at + 1)
        elif mark == '"' and source[at] == "\\":
            at += _ESCAPED.get(source[at + 1 : at + 2], 2)
            yield ScalarOffsets(offset + 1, line, at + 1)
        elif mark == "'" and character == "'":
            at += 2
            yield ScalarOffsets(offset + 1, line, at + 1)
        elif source[at] == character:
            at += 1
        else:
            return
