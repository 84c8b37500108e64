"""Stores millions of rows compactly.

Rows differ mainly in subject and object. Each distinct text is stored once, in sorted order; a row's other columns form
its `TableShape`, each distinct one stored once; a row is six numbers in arrays, 19 bytes. Notes (`#:`) take memory only
for rows that have them. A `RuleRef` is created on access. Tables are built by one writer and do not change afterwards;
for a large policy, the loading process sends their arrays and lists of texts to the serving one.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Literal, NamedTuple

from sidecar.policy.grammar import NONE, Per
from sidecar.vocabulary import ApprovalTerms, PermissionKind, RuleRef

DENY, SHADOW, ENDS, ASKS, LIMITED = 1, 2, 4, 8, 16  # bits of `flags`
MAX_RULES_KEPT = 4096  # RuleRef objects cached for rows that decide repeatedly


class TableShape(NamedTuple):
    """The columns of a row except subject and object. `use` is expanded; `dom` is "" without domains."""

    act: str
    expires_at: str
    max_calls_per_hour: str
    when: str
    eft: str
    dom: str = ""

    @property
    def flags(self) -> int:
        """The flag bits of such a row, before its notes."""
        said = (self.expires_at, ENDS), (self.when, ASKS), (self.max_calls_per_hour, LIMITED)
        return DENY * (self.eft == "deny") | sum(bit for text, bit in said if text != NONE)

    @property
    def end(self) -> float | None:
        """When such a row expires, in seconds since the epoch; None for never."""
        return None if self.expires_at == NONE else datetime.fromisoformat(self.expires_at).timestamp()


class RowNotes(NamedTuple):
    id: str = ""
    owner: str = ""
    reason: str = ""
    per: Per = "subject"
    shadow: bool = False
    created_at: str = ""
    approval: ApprovalTerms | None = None

    @property
    def flags(self) -> int:
        return SHADOW * self.shadow


class TextPool:
    """Stores every distinct text once, with a number. 0 is the empty text."""

    __slots__ = ("ids", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = [""]
        self.ids: dict[str, int] = {"": 0}

    def id(self, text: str) -> int:
        known = self.ids.get(text)
        if known is None:
            known = self.ids[text] = len(self.texts)
            self.texts.append(text)
        return known

    def sort(self) -> array[int]:
        """Renumbers all texts in sorted order; returns old number → new number."""
        order = sorted(range(len(self.texts)), key=self.texts.__getitem__)
        moved = array("I", bytes(4 * len(order)))
        for new, old in enumerate(order):
            moved[old] = new
        self.texts = [self.texts[old] for old in order]
        self.ids = {text: number for number, text in enumerate(self.texts)}
        return moved


class RuleRows(ABC):
    """Rows as an iterable of `RuleRef`s. Those that `rule` returns are cached."""

    def __init__(self) -> None:
        self._rules: dict[int, RuleRef] = {}

    def rule(self, row: int) -> RuleRef:
        known = self._rules.get(row)
        if known is None:
            if len(self._rules) >= MAX_RULES_KEPT:
                self._rules.clear()
            known = self._rules[row] = self._made(row)
        return known

    def __iter__(self) -> Iterator[RuleRef]:
        return map(self._made, range(len(self)))

    @abstractmethod
    def __len__(self) -> int: ...
    @abstractmethod
    def limited(self) -> Iterator[int]:
        """Yields the rows that have a limit."""

    @abstractmethod
    def ending(self, after_s: float) -> Iterator[tuple[int, float]]:
        """Yields the rows that expire after a time, and when (seconds since the epoch)."""

    @abstractmethod
    def _made(self, row: int) -> RuleRef: ...


class RowTable(RuleRows):
    """The rows of one permission kind, in file order, as arrays, and as an iterable of `RuleRef`s.

    `sub` and `obj` are text numbers, `shape` are shape numbers; `flags` has the bits above; `notes` is by row."""

    def __init__(self, kind: PermissionKind, texts: TextPool, files: list[str]) -> None:
        super().__init__()
        self.kind, self.texts, self.files = kind, texts, files
        self.sub, self.obj, self.shape, self.line = array("I"), array("I"), array("I"), array("I")
        self.file, self.flags = array("H"), array("B")
        self.shapes: list[TableShape] = []
        self.notes: dict[int, RowNotes] = {}
        self.shape_flags: list[int] = []
        self._ends: list[float | None] = []

    def add_shape(self, shape: TableShape) -> int:
        """Returns the number of a new shape. The caller stores the numbers of the shapes that it has added."""
        self.shapes.append(shape)
        self.shape_flags.append(shape.flags)
        self._ends.append(shape.end)
        return len(self.shapes) - 1

    def add(self, sub: int, obj: int, shape: int, flags: int, file: int, line: int) -> None:
        self.sub.append(sub)
        self.obj.append(obj)
        self.shape.append(shape)
        self.flags.append(flags)
        self.file.append(file)
        self.line.append(line)

    def move(self, moved: Sequence[int]) -> None:
        self.sub = array("I", map(moved.__getitem__, self.sub))
        self.obj = array("I", map(moved.__getitem__, self.obj))

    def column(self, name: str) -> array[int]:
        """Returns the text numbers of one column, row by row. Texts that the pool does not have yet are added to it."""
        if name == "sub":
            return self.sub
        if name == "obj":
            return self.obj
        numbers = [self.texts.id(getattr(shape, name)) for shape in self.shapes]
        return array("I", map(numbers.__getitem__, self.shape))

    def text(self, name: str, row: int) -> str:
        if name in ("sub", "obj"):
            return self.texts.texts[self.column(name)[row]]
        text: str = getattr(self.shapes[self.shape[row]], name)
        return text

    def content(self, row: int) -> str:
        """Returns the content of a row, independent of the order of columns and of the row's position."""
        texts = self.texts.texts
        return "\x1f".join((self.kind.value, texts[self.sub[row]], texts[self.obj[row]], *self.shapes[self.shape[row]]))

    def id_of(self, row: int) -> str:
        notes = self.notes.get(row)
        return notes.id if notes is not None and notes.id else content_id(self.content(row))

    def end_of(self, row: int) -> float:
        """Returns when a row with the bit `ENDS` expires, in seconds since the epoch."""
        return self._ends[self.shape[row]] or 0.0

    def effect_of(self, row: int) -> Literal["allow", "deny"]:
        return "deny" if self.flags[row] & DENY else "allow"

    def __len__(self) -> int:
        return len(self.flags)

    def limited(self) -> Iterator[int]:
        return (row for row, bits in enumerate(self.flags) if bits & LIMITED)

    def rows_with(self, text: str) -> Iterator[int]:
        """Yields the rows whose subject or object is this text."""
        number = self.texts.ids.get(text)
        if number is not None:
            for column in (self.sub, self.obj):
                yield from places_of(column, number)

    def ending(self, after_s: float) -> Iterator[tuple[int, float]]:
        shapes = {number for number, end_s in enumerate(self._ends) if end_s is not None and end_s > after_s}
        if shapes:  # otherwise no row needs to be read
            yield from ((row, self.end_of(row)) for row, shape in enumerate(self.shape) if shape in shapes)

    def in_shadow(self) -> Iterator[int]:
        """Yields the rows in shadow mode, which are recorded but do not decide."""
        return (row for row, bits in enumerate(self.flags) if bits & SHADOW)

    def _made(self, row: int) -> RuleRef:
        shape, flags = self.shapes[self.shape[row]], self.flags[row]
        notes = self.notes.get(row, _NO_NOTES)
        return RuleRef(
            notes.id or content_id(self.content(row)),
            self.kind,
            self.texts.texts[self.sub[row]],
            self.texts.texts[self.obj[row]],
            tuple(shape.act.split("|")),
            self.effect_of(row),
            self._ends[self.shape[row]],
            int(shape.max_calls_per_hour) if flags & LIMITED else None,
            shape.when if flags & ASKS else "",
            notes.per,
            notes.shadow,
            notes.owner,
            notes.reason,
            self.files[self.file[row]],
            self.line[row],
            notes.approval,
        )


_NO_NOTES = RowNotes()


def places_of(column: array[int], number: int) -> Iterator[int]:
    """Yields the positions of a number in a column, in order. Searching a million rows takes a millisecond."""
    content, size = column.tobytes(), column.itemsize
    sought = number.to_bytes(size, sys.byteorder)
    at = content.find(sought)
    while at >= 0:
        if at % size == 0:
            yield at // size
        at = content.find(sought, at + 1)


def content_id(content: str) -> str:
    return sha256(content.encode()).hexdigest()[:16]
