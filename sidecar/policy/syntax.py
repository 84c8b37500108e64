"""Finds the inputs that a CEL expression reads.

CEL's compiler returns its checked syntax tree as `cel.expr.CheckedExpr` in protobuf's wire form. Only five facts of it
are needed, so the tree is walked in that form: field numbers are those of google/cel-spec `syntax.proto` and
`checked.proto`, a published, stable format.

A read is a path from a variable: `args.repo` and `args['repo']` are ("args", "repo"); a computed key ends a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Path = tuple[str, ...]

# cel.expr.CheckedExpr, SourceInfo
_CHECKED_EXPR, _SOURCE_INFO, _POSITIONS = 4, 5, 4
# cel.expr.Expr
_ID, _CONST, _IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 2, 3, 4, 5, 6, 7, 8, 9
_STRING_VALUE = 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class ReadPath:
    """One read of a variable. `offset` is its position in the text, in characters; `looped` is true inside a macro's
    body, `ranged` if a macro iterates over it.
    """

    path: Path
    offset: int
    looped: bool
    ranged: bool


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """One call of a function or method. `first_argument` is what its receiver or first argument reads; `dynamic` is
    true if any argument after that is not a constant.
    """

    function: str
    first_argument: tuple[Path, ...]
    dynamic: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Syntax:
    """The facts found. `sought` are the keys that `in` looks for; `inner` the names that macros read of their items;
    `loops` is the nesting depth of macros; `loop_nodes` and `range_nodes` are the numbers of nodes inside their bodies
    and inside their ranges.
    """

    reads: tuple[ReadPath, ...]
    sought: tuple[Path, ...]
    inner: frozenset[str]
    calls: tuple[CalledFunction, ...]
    loops: int
    loop_nodes: int
    range_nodes: int


def syntax_of(serialized: bytes) -> Syntax:
    """Parse `Expression.serialize()`, an `Any` that holds a CheckedExpr."""
    checked = _only(dict(_fields(serialized)), 2)
    parts = list(_fields(checked))
    source = next((value for number, value in parts if number == _SOURCE_INFO), b"")
    walk = _Walk(_positions(_bytes(source)))
    walk.visit(_bytes(next(value for number, value in parts if number == _CHECKED_EXPR)), frozenset(), 0)
    return Syntax(
        tuple(walk.reads),
        tuple(walk.sought),
        frozenset(walk.inner),
        tuple(walk.calls),
        walk.loops,
        walk.loop_nodes,
        walk.range_nodes,
    )


class _Walk:
    """One pass over the tree. `bound` are the names that macros have bound at this point, `depth` their nesting."""

    def __init__(self, positions: dict[int, int]) -> None:
        self._positions = positions
        self.reads: list[ReadPath] = []
        self.sought: list[Path] = []
        self.inner: set[str] = set()
        self.calls: list[CalledFunction] = []
        self.loops = 0
        self.loop_nodes = 0
        self.range_nodes = 0
        self._ranges = 0

    def visit(self, expr: bytes, bound: frozenset[str], depth: int) -> None:
        self.loop_nodes += int(depth > 0)
        self.range_nodes += int(self._ranges > 0)
        fields = dict(_fields(expr))
        path = _path(expr)
        if path is not None:
            if path[0] in bound:
                self.inner.update(path[1:])
            else:
                self.reads.append(ReadPath(path, self._offset(fields), depth > 0, self._ranges > 0))
        elif _SELECT in fields:
            self.visit(_only(dict(_fields(_only(fields, _SELECT))), 1), bound, depth)
        elif _CALL in fields:
            self._visit_call(fields, bound, depth)
        elif _COMPREHENSION in fields:
            self._visit_comprehension(dict(_fields(_only(fields, _COMPREHENSION))), bound, depth)
        elif _LIST in fields:
            for number, element in _fields(_only(fields, _LIST)):
                if number == 1:
                    self.visit(_bytes(element), bound, depth)
        elif _STRUCT in fields:
            self._visit_struct(_only(fields, _STRUCT), bound, depth)

    def _visit_call(self, fields: dict[int, bytes | int], bound: frozenset[str], depth: int) -> None:
        parts = list(_fields(_only(fields, _CALL)))
        arguments = [_bytes(value) for number, value in parts if number == 3]
        function = next((_bytes(value).decode() for number, value in parts if number == 2), "")
        arguments = [_bytes(value) for number, value in parts if number == 1] + arguments
        before, first = len(self.reads), tuple[Path, ...]()
        for index, argument in enumerate(arguments):
            self.visit(argument, bound, depth)
            if index == 0:
                first = tuple(read.path for read in self.reads[before:])
        if function == "@in" and (sought := _sought(arguments)) is not None:
            self.sought.append(sought)
        dynamic = any(_CONST not in dict(_fields(argument)) for argument in arguments[1:])
        self.calls.append(CalledFunction(function, first, dynamic, self._offset(fields)))

    def _visit_comprehension(self, parts: dict[int, bytes | int], bound: frozenset[str], depth: int) -> None:
        names = {_bytes(parts[number]).decode() for number in (1, 3, 8) if number in parts}
        self.loops = max(self.loops, depth + 1)
        self._ranges += 1
        self.visit(_only(parts, 2), bound, depth)
        self._ranges -= 1
        self.visit(_only(parts, 4), bound, depth)  # the start value: outside the loop
        for number in (5, 6, 7):  # condition, step, result
            self.visit(_only(parts, number), bound | names, depth + 1)

    def _visit_struct(self, struct: bytes, bound: frozenset[str], depth: int) -> None:
        for number, entry in _fields(struct):
            if number == 2:
                for key, value in _fields(_bytes(entry)):
                    if key in (3, 4):  # map_key, value
                        self.visit(_bytes(value), bound, depth)

    def _offset(self, fields: dict[int, bytes | int]) -> int:
        number = fields.get(_ID, 0)
        return self._positions.get(number, 0) if isinstance(number, int) else 0


def _path(expr: bytes) -> Path | None:
    """Return the path that an expression denotes, as far as it is one: a variable, its fields, its constant string
    keys.
    """
    fields = dict(_fields(expr))
    if _IDENT in fields:
        return (_bytes(dict(_fields(_only(fields, _IDENT))).get(1, b"")).decode().lstrip("."),)
    if _SELECT in fields:
        select = dict(_fields(_only(fields, _SELECT)))
        below = _path(_only(select, 1))
        return None if below is None else (*below, _bytes(select.get(2, b"")).decode())
    if _CALL in fields:
        return _indexed(list(_fields(_only(fields, _CALL))))
    return None


def _indexed(parts: list[tuple[int, bytes | int]]) -> Path | None:
    function = next((value for number, value in parts if number == 2), b"")
    arguments = [_bytes(value) for number, value in parts if number == 3]
    if function != b"_[_]" or len(arguments) != 2:
        return None
    below, key = _path(arguments[0]), dict(_fields(arguments[1])).get(_CONST)
    text = dict(_fields(key)).get(_STRING_VALUE) if isinstance(key, bytes) else None
    return (*below, text.decode()) if below is not None and isinstance(text, bytes) else None


def _sought(arguments: list[bytes]) -> Path | None:
    """Return the path of a constant text that is looked for in a map."""
    if len(arguments) != 2:
        return None
    below, key = _path(arguments[1]), dict(_fields(arguments[0])).get(_CONST)
    text = dict(_fields(key)).get(_STRING_VALUE) if isinstance(key, bytes) else None
    return (*below, text.decode()) if below is not None and isinstance(text, bytes) else None


def _positions(source: bytes) -> dict[int, int]:
    positions = {}
    for number, entry in _fields(source):
        if number == _POSITIONS:
            pair = dict(_fields(_bytes(entry)))
            key, value = pair.get(1, 0), pair.get(2, 0)
            if isinstance(key, int) and isinstance(value, int):
                positions[key] = value
    return positions


# --- protobuf's wire form (protobuf.dev, "Encoding") ----------------------------------------------------------------


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value


def _only(fields: dict[int, bytes | int], number: int) -> bytes:
    return _bytes(fields.get(number, b""))
