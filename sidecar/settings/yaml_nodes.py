"""Parses YAML into nodes with positions. It reads libyaml's events, so that limits apply before large values exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import AnyStr

import yaml

from sidecar.errors import Fault
from sidecar.settings.yaml_scalars import DoubtfulScalarError, Scalar, meaning_of

MAX_BYTES = 1024 * 1024
"""A megabyte of YAML holds about 10,000 rules; larger files are refused."""
MAX_DEPTH = 32
MAX_FAULTS = 100

# Control characters and line breaks that editors display differently, and marks that reorder text on screen.
_FORBIDDEN = re.compile(
    r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]|\r(?!\n)"
)
# Up to the last @ before a blank: a password may contain one, and masking too much is harmless.
_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^\s\"']+)(?=@)")

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlSpan:
    """A position in `file`, or in a variable (`env SIDECAR_STORE__URL`). Line and column count from 1; line 0 is the
    whole file. `width` is in characters."""

    file: str
    line: int = 0
    column: int = 0
    width: int = 1


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value, its position, and that of its key. A `secret` value is never shown. `shown` is shown instead of the
    value: `${VAR}`, not expanded."""

    value: Scalar | dict[str, YamlNode] | list[YamlNode]
    span: YamlSpan
    key: YamlSpan | None = None
    secret: bool = False
    shown: str | None = None

    def child(self, step: str | int) -> YamlNode | None:
        """The node under a key or an index; None if there is none."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and 0 <= step < len(self.value):
            return self.value[step]
        return None

    def below(self, loc: Loc) -> YamlNode | None:
        """The node at exactly this place; None if there is none."""
        node: YamlNode | None = self
        for step in loc:
            node = node.child(step) if node else None
        return node

    def mapped(self, change: Callable[[YamlNode, Loc], YamlNode], loc: Loc = ()) -> YamlNode:
        """The tree with each node replaced by the result of `change`, inner nodes first."""
        if isinstance(self.value, dict):
            entries = {name: node.mapped(change, (*loc, name)) for name, node in self.value.items()}
            return change(replace(self, value=entries), loc)
        if isinstance(self.value, list):
            return change(replace(self, value=[one.mapped(change, (*loc, i)) for i, one in enumerate(self.value)]), loc)
        return change(self, loc)

    def plain(self) -> object:
        """The value in dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def compose(text: str, file: str) -> tuple[YamlNode, list[Fault]]:
    """The tree of one YAML document, and all faults of its text. If there are faults, the tree is incomplete."""
    faults = list(islice(_forbidden_characters(text, file), MAX_FAULTS))
    if faults:
        return YamlNode(None, YamlSpan(file)), faults
    composer = _Composer(file, lines_of(text))
    composer.run(text)
    return composer.root, composer.faults[:MAX_FAULTS]


def lines_of(text: str) -> list[str]:
    """The lines as libyaml counts them, in a text without the line breaks that `compose` refuses."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def place_in(text: AnyStr, offset: int) -> tuple[int, int]:
    """Line and column, both counted from 1, of an offset in a text."""
    before = text[:offset]
    newline = "\n" if isinstance(before, str) else b"\n"
    return before.count(newline) + 1, offset - before.rfind(newline)


def shown_line(line: str) -> str:
    """A source line for an error message, with the password of a URL replaced by stars of the same width."""
    return _PASSWORD.sub(lambda found: f"{found[1]}:{'*' * len(found[2])}", line)


def _forbidden_characters(text: str, file: str) -> Iterator[Fault]:
    for found in _FORBIDDEN.finditer(text):
        message, hint = f"the character U+{ord(found[0]):04X} is not allowed here", "remove it"
        if found[0] == "\t":
            message, hint = "a tab character", 'use blanks; inside a double-quoted string write "\\t"'
        elif found[0] == "\ufeff" and found.start() == 0:
            message, hint = "the file begins with a byte order mark", "save it as UTF-8 without BOM"
        yield Fault(file, *place_in(text, found.start()), "Y004", message, hint)


@dataclass(slots=True)
class _Frame:
    """A collection in progress. In a mapping, `key` is the key that waits for its value."""

    value: dict[str, YamlNode] | list[YamlNode]
    span: YamlSpan
    key: tuple[str, YamlSpan] | None = None


@dataclass(slots=True)
class _Composer:
    file: str
    lines: list[str]
    faults: list[Fault] = field(default_factory=list)
    root: YamlNode = field(init=False)
    stack: list[_Frame] = field(default_factory=list)
    documents: int = 0

    def __post_init__(self) -> None:
        self.root = YamlNode(None, YamlSpan(self.file))

    def run(self, text: str) -> None:
        try:
            for event in yaml.parse(text, Loader=yaml.CSafeLoader):
                if not self.take(event) or len(self.faults) >= MAX_FAULTS:
                    return
        except yaml.MarkedYAMLError as error:
            self.broken(error)

    def take(self, event: yaml.Event) -> bool:
        """Handles one event. Returns whether to continue."""
        span = self.span(event)
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    self.fault(span, "Y006", "a second document begins here", "a file contains one document: split it")
                    return False
                if event.version or event.tags:
                    self.fault(span, "Y009", "a YAML directive", "remove the line that begins with %")
            case yaml.AliasEvent():
                self.fault(span, "Y008", f"*{event.anchor} is an alias", "write the value out")
                self.add(YamlNode(None, span))
            case yaml.ScalarEvent():
                self.check_properties(event)
                self.add(self.scalar(event))
            case yaml.CollectionStartEvent():
                self.check_properties(event)
                if len(self.stack) >= MAX_DEPTH:
                    self.fault(
                        span, "Y007", f"nested more than {MAX_DEPTH} levels deep", "no file of the sidecar needs this"
                    )
                    return False
                self.stack.append(_Frame({} if isinstance(event, yaml.MappingStartEvent) else [], span))
            case yaml.CollectionEndEvent():
                frame = self.stack.pop()
                self.add(YamlNode(frame.value, frame.span))
        return True

    def check_properties(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        """Refuses anchors, which put a value elsewhere than where it applies, and tags, which override types."""
        if event.anchor is not None:
            self.fault(self.span(event), "Y008", f"&{event.anchor} is an anchor", "write the value where it is needed")
        if event.tag is not None:
            self.fault(self.span(event), "Y009", "a YAML tag", "remove it; the schema knows the type")

    def scalar(self, event: yaml.ScalarEvent) -> YamlNode:
        span = self.span(event)
        if not event.implicit[0]:
            return YamlNode(event.value, span)
        awaits_key = self.stack and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None
        if event.value == "<<" and awaits_key:
            self.fault(span, "Y008", "<< is a merge key", "write the values out")
            return YamlNode("<<", span)
        try:
            return YamlNode(meaning_of(event.value), span)
        except DoubtfulScalarError as doubt:
            self.fault(span, "Y012", doubt.message, doubt.hint)
            return YamlNode(event.value, span)

    def add(self, node: YamlNode) -> None:
        """Adds a finished node to its parent: as the root, a list entry, or a mapping's key or value."""
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        if isinstance(frame.value, list):
            frame.value.append(node)
        elif frame.key is None:
            frame.key = (self.key_text(node), node.span)
        else:
            name, place = frame.key
            frame.key = None
            earlier = frame.value.setdefault(name, replace(node, key=place))
            if earlier.key is not place:
                hint = f"it was first written on line {earlier.key.line if earlier.key else 0}; keep one"
                self.fault(place, "Y010", f'the key "{name}" is set twice', hint)

    def key_text(self, node: YamlNode) -> str:
        if isinstance(node.value, str):
            return node.value
        hint = "write a plain value" if isinstance(node.value, dict | list) else "quote it"
        self.fault(node.span, "Y011", "a key must be a string", hint)
        return f"\0{node.span.line}:{node.span.column}"  # a placeholder, so that reading continues to the next fault

    def span(self, event: yaml.Event) -> YamlSpan:
        start, end = event.start_mark, event.end_mark
        if start is None or end is None:
            return YamlSpan(self.file)
        if start.line >= len(self.lines):  # a missing value ends after the last line: it is reported there
            return YamlSpan(self.file, len(self.lines), len(self.lines[-1]) + 1)
        rest = len(self.lines[start.line].rstrip()) - start.column
        width = end.column - start.column if end.line == start.line else rest
        return YamlSpan(self.file, start.line + 1, start.column + 1, max(1, width))

    def fault(self, span: YamlSpan, code: str, message: str, hint: str) -> None:
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        self.faults.append(Fault(span.file, span.line, span.column, code, message, hint, shown_line(line), span.width))

    def broken(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        span = YamlSpan(self.file) if mark is None else YamlSpan(self.file, mark.line + 1, mark.column + 1)
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        hint = "inside { } and [ ] a text with ${VAR} must be quoted" if "${" in line else ""
        what = ": ".join(part for part in (error.context, error.problem) if part)
        self.fault(span, "Y005", f"not valid YAML: {what}", hint)
