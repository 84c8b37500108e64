"""Finds the inputs that a CEL expression reads.

CEL's compiler returns its checked syntax tree as `cel.expr.CheckedExpr` in protobuf's wire form. Only the facts in
`Syntax` are needed, so the tree is walked in that form: field numbers are those of google/cel-spec `syntax.proto` and
`checked.proto`, a published, stable format. (The parser of `protobuf` refuses trees that are nested 50 deep, as nested
macros are.)

A read is a path from a variable: `args.repo` and `args['repo']` are ("args", "repo"); a computed key ends a path.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

Path = tuple[str, ...]
Constant = str | float | bool | None

# cel.expr.CheckedExpr, SourceInfo
_CHECKED_EXPR, _SOURCE_INFO, _POSITIONS = 4, 5, 4
# cel.expr.Expr
_ID, CONST, _IDENT, SELECT, CALL, LIST, _STRUCT, _COMPREHENSION = 2, 3, 4, 5, 6, 7, 8, 9
TEST_ONLY = 3  # of a selection: `has`
UINT64, _STRING_VALUE = 4, 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class ReadPath:
    """One read of a variable. `offset` is its position in the text, in characters; `looped` is true inside a macro's
    body, `ranged` if a macro iterates over it; `test` is `has`, or the name of a function whose other arguments are
    constants, otherwise ""."""

    path: Path
    offset: int
    looped: bool
    ranged: bool
    test: str


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """One call of a function or method. `first_argument` are the paths that its receiver or first argument reads;
    `dynamic` is true if any argument after that is not a constant."""

    function: str
    first_argument: tuple[Path, ...]
    dynamic: bool
    offset: int


@dataclass(slots=True)
class Syntax:
    """The facts found. `constants` are those of JSON; `sought` are the keys that `in` searches for; `inner` are the
    names that macros read from their items; `loops` is the nesting depth of macros; `loop_nodes` and `range_nodes` are
    the numbers of nodes inside their bodies and inside their ranges."""

    reads: list[ReadPath] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    sought: list[Path] = field(default_factory=list)
    inner: set[str] = field(default_factory=set)
    calls: list[CalledFunction] = field(default_factory=list)
    loops: int = 0
    loop_nodes: int = 0
    range_nodes: int = 0

    def tests(self, path: Path) -> set[str]:
        """Returns the functions that compare a path with constants, and `has`; with "" if anything else reads the path
        or a part of it."""
        reads = [read for read in self.reads if read.path[: len(path)] == path]
        return {read.test if read.path == path else "" for read in reads}


def name_of(path: Path) -> str:
    """Returns the path as a record names it; dots within a step are escaped."""
    return ".".join(step.replace(".", r"\.") for step in path)


def syntax_of(serialized: bytes) -> Syntax:
    """Parses `Expression.serialize()`, an `Any` that holds a CheckedExpr."""
    checked = _checked(serialized)
    positions = {entry.number(1): entry.number(2) for entry in checked.one(_SOURCE_INFO).all(_POSITIONS)}
    walk = _Walk(positions)
    walk.visit(checked.one(_CHECKED_EXPR), frozenset(), 0)
    return walk.found


def expression_of(serialized: bytes) -> WireMessage:
    """Returns the root of the tree, a `cel.expr.Expr`."""
    return _checked(serialized).one(_CHECKED_EXPR)


def _checked(serialized: bytes) -> WireMessage:
    return WireMessage(serialized).one(2)


class _Walk:
    """One pass over the tree. `bound` are the names that macros have bound at this point, `depth` their nesting."""

    def __init__(self, positions: dict[int, int]) -> None:
        self._positions = positions
        self._ranges = 0
        self.found = Syntax()

    def visit(self, expr: WireMessage, bound: frozenset[str], depth: int, test: str = "") -> None:
        found = self.found
        found.loop_nodes += depth > 0
        found.range_nodes += self._ranges > 0
        path = path_of(expr)
        if path is not None:
            if path[0] in bound:
                found.inner.update(path[1:])
            else:
                test = "has" if expr.one(SELECT).number(TEST_ONLY) else test
                found.reads.append(ReadPath(path, self._offset(expr), depth > 0, self._ranges > 0, test))
        elif CONST in expr:
            found.constants += constants_in(expr)
        elif CALL in expr:
            self._visit_call(expr, bound, depth)
        elif _COMPREHENSION in expr:
            self._visit_comprehension(expr.one(_COMPREHENSION), bound, depth)
        else:  # a selection, a list, or a map with its entries' keys and values
            inner = expr.one(SELECT).all(1) + expr.one(LIST).all(1)
            for entry in expr.one(_STRUCT).all(2):
                inner += entry.all(3) + entry.all(4)
            for one in inner:
                self.visit(one, bound, depth)

    def _visit_call(self, expr: WireMessage, bound: frozenset[str], depth: int) -> None:
        call, before, first = expr.one(CALL), len(self.found.reads), tuple[Path, ...]()
        arguments = call.all(1) + call.all(3)
        for index, argument in enumerate(arguments):
            others = arguments[:index] + arguments[index + 1 :]
            if call.text(2) == "@in":
                others = arguments[1].one(LIST).all(1) if index == 0 else []
            test = call.text(2) if others and all(CONST in other for other in others) else ""
            self.visit(argument, bound, depth, test)
            if index == 0:
                first = tuple(read.path for read in self.found.reads[before:])
        if call.text(2) == "@in" and (sought := _keyed(arguments[1:], arguments[:1])) is not None:
            self.found.sought.append(sought)
        dynamic = any(CONST not in argument for argument in arguments[1:])
        self.found.calls.append(CalledFunction(call.text(2), first, dynamic, self._offset(expr)))

    def _visit_comprehension(self, parts: WireMessage, bound: frozenset[str], depth: int) -> None:
        names = {parts.text(number) for number in (1, 3, 8) if number in parts}
        self.found.loops = max(self.found.loops, depth + 1)
        self._ranges += 1
        self.visit(parts.one(2), bound, depth)
        self._ranges -= 1
        self.visit(parts.one(4), bound, depth)  # the start value: outside the loop
        for number in (5, 6, 7):  # condition, step, result
            self.visit(parts.one(number), bound | names, depth + 1)

    def _offset(self, expr: WireMessage) -> int:
        return self._positions.get(expr.number(_ID), 0)


def path_of(expr: WireMessage) -> Path | None:
    """Returns the path that an expression denotes: a variable, its fields, its constant string keys; otherwise None."""
    if _IDENT in expr:
        return (expr.one(_IDENT).text(1).lstrip("."),)
    if SELECT in expr:
        select = expr.one(SELECT)
        below = path_of(select.one(1))
        return None if below is None else (*below, select.text(2))
    call = expr.one(CALL)
    return _keyed(call.all(3)[:1], call.all(3)[1:]) if call.text(2) == "_[_]" else None


def _keyed(container: list[WireMessage], key: list[WireMessage]) -> Path | None:
    """Returns the path of a constant string key in a container; None if the key or the container is something else."""
    if len(container) != 1 or len(key) != 1 or _STRING_VALUE not in key[0].one(CONST):
        return None
    below = path_of(container[0])
    return None if below is None else (*below, key[0].one(CONST).text(_STRING_VALUE))


def constants_in(expr: WireMessage) -> list[Constant]:
    """Returns the constant of an expression; empty for other expressions and for constants that JSON does not have."""
    match expr.one(CONST):
        case {1: [int()]}:
            return [None]
        case {2: [int(flag)]}:
            return [bool(flag)]
        case {3: [int(number)]}:  # in two's complement
            return [number - (number >> 63 << 64)]
        case {4: [int(number)]}:
            return [number]
        case {5: [bytes(number)]}:
            return list(struct.unpack("<d", number))
        case {6: [bytes(text)]}:
            return [text.decode()]
    return []


class WireMessage(dict[int, list[bytes | int]]):
    """The fields of a message by number (protobuf.dev, "Encoding"). Absent fields read as empty."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        at = 0
        while at < len(raw):
            tag, at = _varint(raw, at)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                value, at = _varint(raw, at)
                self.setdefault(number, []).append(value)
                continue
            if wire == _BYTES:
                size, at = _varint(raw, at)
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise ValueError(f"wire type {wire}")
            self.setdefault(number, []).append(raw[at : at + size])
            at += size

    def all(self, number: int) -> list[WireMessage]:
        return [WireMessage(value) for value in self.get(number, ()) if isinstance(value, bytes)]

    def one(self, number: int) -> WireMessage:
        value = self.get(number, (b"",))[-1]
        return WireMessage(value if isinstance(value, bytes) else b"")

    def text(self, number: int) -> str:
        value = self.get(number, (b"",))[-1]
        return value.decode() if isinstance(value, bytes) else ""

    def number(self, number: int) -> int:
        value = self.get(number, (0,))[-1]
        return value if isinstance(value, int) else 0


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
