"""Parses JSON with comments and trailing commas, otherwise strictly, with the extent of each part for edits in place.

J001  not valid JSON     J002  a number beyond what others can read     J003  a character that must not be there
J007  nested too deep    J010  a key that appears twice
"""

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import NoReturn

from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.settings.yaml_document import Document
from sidecar.settings.yaml_nodes import Loc, YamlNode, YamlSpan

MAX_BYTES = 8 * 2**20
"""Large, because some clients store their history in the same file."""
MAX_DEPTH = 64
_BOM = "\ufeff"
_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
_MAX_NUMBER_CHARACTERS = 400
_DIGITS_OF_64_BITS = 20


@dataclass(frozen=True, slots=True)
class JsonMember:
    """An entry's offsets into the text: of its key, of its value, and of the comma after it, or -1."""

    start: int
    value: int
    end: int
    comma: int = -1


@dataclass(frozen=True)
class JsonText:
    """A JSON file: its document, its text, and the extents of all entries of objects and lists."""

    document: Document
    text: str
    members: Mapping[Loc, JsonMember]

    def piece(self, loc: Loc) -> str:
        member = self.members[loc]
        return self.text[member.value : member.end]


def read_jsonc(path: Path) -> tuple[JsonText, bytes]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsError([fault_in(path, f"cannot be read: {reason}", code="Y001")]) from None
    return parse_jsonc(raw, path), raw


def parse_jsonc(raw: bytes, path: Path) -> JsonText:
    """Parses bytes already read. Raises SettingsError with the first fault only, because the text after it cannot be
    interpreted."""
    if len(raw) > MAX_BYTES:
        raise SettingsError([fault_in(path, f"larger than {MAX_BYTES} bytes", code="Y002")])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        fault = fault_in(path, "not UTF-8", code="Y003", hint="save it as UTF-8")
        raise SettingsError([replace(fault, line=line, column=column)]) from None
    reader = _JsonReader(text, path)
    # Without the source lines: such files contain tokens, and the place is enough to find a fault.
    return JsonText(Document(path, reader.whole(), ()), text, reader.members)


class _JsonReader:
    def __init__(self, text: str, path: Path) -> None:
        self.text = text
        self.file = str(path)
        self.members: dict[Loc, JsonMember] = {}
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._at = len(_BOM) if text.startswith(_BOM) else 0

    def whole(self) -> YamlNode:
        self._skip()
        if self._at == len(self.text):
            self._refuse("J001", "the file is empty", 'it needs at least: {"mcpServers": {}}')
        node = self._value(())
        self._skip()
        if self._at < len(self.text):
            self._refuse("J001", "there is text after the end", "a file contains one value")
        return node

    def _value(self, loc: Loc) -> YamlNode:
        if len(loc) > MAX_DEPTH:
            self._refuse("J007", f"nested more than {MAX_DEPTH} levels deep")
        start, character = self._at, self.text[self._at : self._at + 1]
        if character == "{":
            return YamlNode(self._object(loc), self._span(start, start + 1))
        if character == "[":
            return YamlNode(self._list(loc), self._span(start, start + 1))
        if character == '"':
            return YamlNode(self._string(), self._span(start, self._at))
        if found := _NUMBER.match(self.text, start):
            return YamlNode(self._number(found), self._span(start, self._at))
        if (found := _WORD.match(self.text, start)) and found[0] in _WORDS:
            self._at = found.end()
            return YamlNode(_WORDS[found[0]], self._span(start, self._at))
        hint = "write strings in double quotes" if character == "'" or found else ""
        return self._refuse("J001", "expected a value", hint)

    def _object(self, loc: Loc) -> dict[str, YamlNode]:
        found: dict[str, YamlNode] = {}
        while not self._closed("}"):
            start = self._at
            if self.text[start : start + 1] != '"':
                self._refuse("J001", "expected a key in double quotes, or }")
            key = self._string()
            span = self._span(start, self._at)
            if key in found:
                line = place.line if (place := found[key].key) else 0
                hint = f"it was first written on line {line}; keep one"
                self._refuse("J010", f'the key "{key}" appears twice', hint, start)
            self._skip()
            if self.text[self._at : self._at + 1] != ":":
                self._refuse("J001", "expected :")
            self._at += 1
            self._skip()
            value = self._at
            found[key] = replace(self._value((*loc, key)), key=span)
            self._ended((*loc, key), start, value, "}")
        return found

    def _list(self, loc: Loc) -> list[YamlNode]:
        found: list[YamlNode] = []
        while not self._closed("]"):
            start = self._at
            here = (*loc, len(found))
            found.append(self._value(here))
            self._ended(here, start, start, "]")
        return found

    def _closed(self, bracket: str) -> bool:
        """Skips the opening bracket or the separator before the next entry. Returns whether the end is reached."""
        if self.text[self._at] in "{[,":
            self._at += 1
        self._skip()
        if self.text[self._at : self._at + 1] != bracket:
            return False
        self._at += 1
        return True

    def _ended(self, loc: Loc, start: int, value: int, bracket: str) -> None:
        end = self._at
        self._skip()
        character = self.text[self._at : self._at + 1]
        if character not in (",", bracket):
            self._refuse("J001", f"expected a comma, or {bracket}")
        self.members[loc] = JsonMember(start, value, end, self._at if character == "," else -1)

    def _string(self) -> str:
        start = self._at
        try:
            text: str
            text, self._at = scanstring(self.text, start + 1, True)
        except json.JSONDecodeError as error:
            code = "J003" if error.msg.startswith("Invalid control") else "J001"
            self._refuse(
                code,
                "a string that does not end, or contains a character that must be escaped",
                error.msg.lower(),
                error.pos,
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._refuse("J003", "half a surrogate pair is not a character", "", start)
        return text

    def _number(self, found: re.Match[str]) -> int | float:
        self._at = found.end()
        if _WORD.match(self.text, self._at):
            self._refuse("J001", "this is not a number", "", found.start())
        whole = found[1] is None and found[2] is None
        if len(found[0]) > (_DIGITS_OF_64_BITS if whole else _MAX_NUMBER_CHARACTERS):
            self._refuse("J002", "this number is too long", "", found.start())
        if whole:
            return int(found[0])
        number = float(found[0])
        if math.isinf(number):
            self._refuse("J002", "this number is too large", "", found.start())
        return number

    def _skip(self) -> None:
        if blank := _BLANK.match(self.text, self._at):
            self._at = blank.end()
        if self.text.startswith("/*", self._at):
            self._refuse("J001", "a comment that does not end", "end it with */")

    def _span(self, start: int, end: int) -> YamlSpan:
        line = bisect_right(self._starts, start)
        return YamlSpan(self.file, line, start - self._starts[line - 1] + 1, max(1, end - start))

    def _refuse(self, code: str, message: str, hint: str = "", at: int | None = None) -> NoReturn:
        span = self._span(self._at if at is None else at, 0)
        raise SettingsError([Fault(self.file, span.line, span.column, code, message, hint)])
