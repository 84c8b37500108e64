"""Finds the positions of rules in files. A `RuleRef` has its file and line; columns are searched for when needed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from sidecar.policy.faults import Faults, SourceLine
from sidecar.policy.files import read_text
from sidecar.policy.rows import parse_rows
from sidecar.vocabulary import RuleRef

MAX_YAML_LINES = 60  # of a rule, in which its keys are searched for

# The scalar or the bracketed list that a line continues with
_VALUE = re.compile(r"\[[^\]]*\]|\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^,}#]*")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "sub": ("subject",),
    "obj": ("object", "objects", "capabilities"),
    "act": ("actions", "action"),
    "eft": ("effect",),
}


class RulePlace(NamedTuple):
    """A range in one line. `column` counts from 1; `width` is in characters."""

    line: SourceLine
    column: int = 1
    width: int = 1

    def narrowed(self, part: str) -> Self:
        at = self.line.text.find(part, self.column - 1, self.column - 1 + self.width) if part else -1
        return self if at < 0 else self._replace(column=at + 1, width=len(part))


@dataclass(slots=True)
class RuleSources:
    """The files of one policy, each read once, when it is needed. `columns` are those of rows, by permission kind. A
    file that cannot be read has no lines."""

    columns: Mapping[str, Sequence[str]]
    files: Sequence[Path] = ()
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _links: dict[str, RulePlace] | None = None

    def lines(self, file: str) -> list[str]:
        if file not in self._texts:
            text = read_text(Path(file), Faults())
            self._texts[file] = text.replace("\r\n", "\n").split("\n") if text is not None else []
        return self._texts[file]

    def mention(self, file: str, part: str) -> RulePlace | None:
        for number, text in enumerate(self.lines(file), 1):
            if (at := text.find(part)) >= 0 and not text.lstrip().startswith("#"):
                return RulePlace(self.line(file, number), at + 1, len(part))
        return None

    def line(self, file: str, number: int) -> SourceLine:
        lines = self.lines(file)
        return SourceLine(file, number, lines[number - 1] if 0 < number <= len(lines) else "")

    def rule(self, rule: RuleRef, column: str = "", part: str = "") -> RulePlace:
        """Returns the place of a rule's column, narrowed to a part of it; the rule's line if the column is not
        found."""
        line = self.line(rule.file, rule.line)
        find = self._in_row if rule.file.endswith(".csv") else self._in_list
        place = find(rule, line, column) if column else None
        text = line.text.rstrip()
        start = len(text) - len(text.lstrip())
        return (place or RulePlace(line, start + 1, max(1, len(text) - start))).narrowed(part)

    def note(self, rule: RuleRef, key: str) -> str:
        line = self.line(rule.file, rule.line)
        place = self._in_row(rule, line, key) if rule.file.endswith(".csv") else self._in_yaml(line, key)
        return place.line.text[place.column - 1 :][: place.width].strip("\"' ") if place else ""

    def link(self, name: str) -> RulePlace | None:
        """Returns the place of a name: in the first row that fills it as a role or set, otherwise in the first row that
        has it as a member, otherwise its first mention in a YAML file; None if there is none."""
        if self._links is None:  # of equal names, `dict` retains the last one, so the order is reversed
            files = [str(path) for path in reversed(self.files) if path.suffix == ".csv"]
            columns = (self._column_of_links(file, column) for column in (1, 2) for file in files)
            self._links = dict(chain.from_iterable(columns))
        found = self._links.get(name)
        yaml = (path for path in self.files if found is None and path.suffix != ".csv")
        return found or next((place for path in yaml for place in self._in_text(str(path), name)), None)

    def _column_of_links(self, file: str, column: int) -> Iterator[tuple[str, RulePlace]]:
        lines = self.lines(file)
        for number in range(len(lines), 0, -1):
            parts = lines[number - 1].split(",")
            if len(parts) > column and parts[0].strip() in ("g", "g2"):
                name = parts[column].strip()
                at = len(",".join(parts[:column])) + 1 + len(parts[column]) - len(parts[column].lstrip())
                yield name, RulePlace(SourceLine(file, number, lines[number - 1]), at + 1, max(1, len(name)))

    def _in_text(self, file: str, name: str) -> Iterator[RulePlace]:
        for number, text in enumerate(self.lines(file), start=1):
            match = _alone(name).search(text) if name in text else None
            if match is not None:
                yield RulePlace(SourceLine(file, number, text), match.start() + 1, len(name))

    def _in_row(self, rule: RuleRef, line: SourceLine, column: str) -> RulePlace | None:
        above, columns = self.line(rule.file, rule.line - 1), self.columns.get(rule.kind, ())
        for row in parse_rows(rule.file, f"{above.text if '#:' in above.text else ''}\n{line.text}", Faults()):
            if column in row.notes:
                return RulePlace(above, row.notes[column].column, max(1, row.notes[column].width))
            if column in columns and len(row.fields) == len(columns):
                found = row.fields[columns.index(column)]
                return RulePlace(line, found.column, max(1, found.width))
        return None

    def _in_list(self, rule: RuleRef, line: SourceLine, column: str) -> RulePlace | None:
        """Returns the place of the rule's own subject or object, which may be in a list, otherwise of the value after a
        key."""
        name = {"sub": rule.subject, "obj": rule.object}.get(column, "")
        for here in self._block(line) if len(name) > 1 else ():
            match = _alone(name).search(here.text)
            if match is not None:
                return RulePlace(here, match.start() + 1, len(name))
        return self._in_yaml(line, column)

    def _in_yaml(self, line: SourceLine, column: str) -> RulePlace | None:
        keys = "|".join(_KEYS.get(column, (column,)))
        wanted = re.compile(rf"(?:^|[\s{{,])['\"]?(?:{keys})['\"]?\s*:\s*")
        for here in self._block(line):
            if match := wanted.search(here.text):
                value = _VALUE.match(here.text, match.end())
                return RulePlace(here, match.end() + 1, max(1, len(value[0].rstrip()) if value else 1))
        return None

    def _block(self, line: SourceLine) -> Iterator[SourceLine]:
        """Yields the lines of an entry of a YAML list: its first line, and those below it that are indented more."""
        first = len(line.text) - len(line.text.lstrip())
        yield line
        for number in range(line.number + 1, line.number + MAX_YAML_LINES):
            here = self.line(line.file, number)
            if here.text.strip() and len(here.text) - len(here.text.lstrip()) <= first:
                return
            yield here


def _alone(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![^\s\[{{,'\"]){re.escape(name)}(?![^\s\]}},:'\"])")
