"""Maps offsets in YAML scalars to file positions.

A scalar may be quoted, escaped, folded over several lines, or be one of a list that becomes one field. `ScalarOffsets`
record where its runs of characters begin, so that a fault inside a condition points at the character itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.policy.faults import SourceLine
from sidecar.policy.rows import CsvField

_ESCAPED = {"x": 4, "u": 6, "U": 10}  # the length of \xNN, \uNNNN and \UNNNNNNNN; all others have two characters


class ScalarOffsets(NamedTuple):
    """The characters of a text from `offset` on are in `line` from `column` on, which counts from 1."""

    offset: int
    line: SourceLine
    column: int


@dataclass(frozen=True, slots=True)
class YamlField(CsvField):
    """A field that knows the lines of its characters."""

    places: tuple[ScalarOffsets, ...] = ()

    def column_of(self, offset: int) -> int:
        """Return the column of the character at `offset` of the text, in `line_of(offset)`."""
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


def places_of(text: str, line: SourceLine, column: int, following: Iterable[SourceLine]) -> tuple[ScalarOffsets, ...]:
    """Return the places of a scalar that begins (with its quote or `|`) at `column` of `line`."""
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
    """Map `|` and `>`: each line continues where the previous one ended."""
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
    """Map plain and quoted scalars: a new run begins after each escape and in each line."""
    yield ScalarOffsets(0, line, column)
    source, at = line.text.rstrip(), column - 1
    for offset, character in enumerate(text):
        if at >= len(source):  # the line break that reads as a blank
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
