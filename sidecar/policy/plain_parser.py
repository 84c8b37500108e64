"""Parses the texts of plain conditions, so that a policy whose conditions are all plain does not load CEL.

CEL's library takes 10 MB and its start 20 ms. The result has the form in which CEL serialises a checked expression, so
all later steps are the same for both. A text is left to CEL unless it is certainly plain and valid CEL:

    condition   = conjunction ("||" conjunction)*
    conjunction = relation ("&&" relation)*
    relation    = unary [("==" | "!=" | "<" | "<=" | ">" | ">=" | "in") unary]
    unary       = ["!"] member
    member      = "(" condition ")" | constant | "[" [constant ("," constant)*] "]" | "has(" path ")"
                | "timestamp(" text ")" | "size(" path ")" | path ".size()"
                | path ["." ("startsWith" | "endsWith" | "contains") "(" text ")"]
    path        = ("args" | "principal" | "origin" | "now") ("." name | "[" text "]")*

in printable ASCII, without escapes, exponents, and numbers of more than 15 digits before or after the point. CEL
refuses expressions that are nested too deeply, so those of more than MAX_DEPTH levels are left to it too.
`tests/unit/policy/test_plain_parser.py` compares the trees with CEL's.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from sidecar.policy.plain_conditions import VARIABLES

MAX_NESTED: Final = 24  # parentheses; CEL's parser has a limit of 32
MAX_DEPTH: Final = 24  # of the tree; CEL's limit is about 30
_NUMBER = r"-?(?:0|[1-9]\d{0,14})"
_TOKEN: Final = re.compile(
    rf" *(?:(?P<name>[A-Za-z_]\w*)|(?P<double>{_NUMBER}\.\d{{1,15}}(?![\w.]))|(?P<int>{_NUMBER}(?![\w.]))"
    r"|(?P<text>'[^'\\]*'|\"[^\"\\]*\")|(?P<mark>&&|\|\||[=!<>]=|[<>!()\[\],.])|(?P<end>\Z))",
    re.ASCII,
)
_RESERVED: Final = frozenset((
    *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
    *("namespace", "null", "package", "return", "true", "var", "void", "while"),
))  # fmt: skip
_RELATIONS: Final = {mark: f"_{mark}_" for mark in ("==", "!=", "<", "<=", ">", ">=")} | {"in": "@in"}
_METHODS: Final = frozenset({"startsWith", "endsWith", "contains", "size"})
# cel.expr.Expr, Expr.Select, Expr.Call, Constant; CheckedExpr, SourceInfo
_ID, _CONST, _IDENT, _SELECT, _CALL, _LIST = 2, 3, 4, 5, 6, 7
_OPERAND, _FIELD, _TEST_ONLY = 1, 2, 3
_TARGET, _FUNCTION, _ARGUMENT = 1, 2, 3
_NULL, _BOOL, _INT64, _DOUBLE, _STRING = 1, 2, 3, 5, 6
_EXPRESSION, _SOURCE, _POSITIONS = 4, 5, 4


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Tree(NamedTuple):
    """The bytes of a `cel.expr.Expr`, and the number of its levels."""

    raw: bytes
    depth: int


class _Step(NamedTuple):
    """`.name` or `[key]` below a variable; `key` is None for a name."""

    at: int
    name: str
    key: _Tree | None


class _LeftToCelError(Exception):
    """The text is not plain."""


def parsed(text: str) -> bytes | None:
    """Returns a condition in the form of `cel.Expression.serialize()`, without types; None if it is not plain."""
    if not (text.isascii() and text.isprintable()):
        return None
    try:
        parser = _Parser(_tokens(text))
        root = parser.condition(0)
        parser.take("end")
    except _LeftToCelError:
        return None
    positions = b"".join(_inner(_POSITIONS, entry) for entry in parser.positions)
    return _inner(2, _inner(_EXPRESSION, root.raw) + _inner(_SOURCE, positions))


def _tokens(text: str) -> list[_Token]:
    tokens, at, kind = [], 0, ""
    while kind != "end":
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _LeftToCelError
        kind, at = found.lastgroup, found.end()
        tokens.append(_Token(kind, found[kind], found.start(kind)))
    return tokens


class _Parser:
    """Reads the tokens once, by descent."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens, self._next = tokens, 0
        self.positions: list[bytes] = []

    def condition(self, nested: int) -> _Tree:
        if nested > MAX_NESTED:
            raise _LeftToCelError
        operands, places = [self._conjunction(nested)], []
        while self._is("||"):
            places.append(self.take("mark").at)
            operands.append(self._conjunction(nested))
        return self._balanced("_||_", operands, places)

    def take(self, kind: str, text: str | None = None) -> _Token:
        token = self._tokens[self._next]
        if token.kind != kind or text not in (None, token.text):
            raise _LeftToCelError
        self._next += 1
        return token

    def _is(self, text: str) -> bool:
        token = self._tokens[self._next]
        return token.text == text and token.kind in ("mark", "name")

    def _conjunction(self, nested: int) -> _Tree:
        operands, places = [self._relation(nested)], []
        while self._is("&&"):
            places.append(self.take("mark").at)
            operands.append(self._relation(nested))
        return self._balanced("_&&_", operands, places)

    def _balanced(self, function: str, operands: Sequence[_Tree], places: Sequence[int]) -> _Tree:
        """Joins operands like CEL's parser: not from left to right, but as a balanced tree."""
        if not places:
            return operands[0]
        middle = len(places) // 2
        left = self._balanced(function, operands[: middle + 1], places[:middle])
        right = self._balanced(function, operands[middle + 1 :], places[middle + 1 :])
        return self._call(places[middle], function, left, right)

    def _relation(self, nested: int) -> _Tree:
        left, token = self._unary(nested), self._tokens[self._next]
        function = _RELATIONS.get(token.text) if token.kind in ("mark", "name") else None
        if function is None:
            return left
        self._next += 1
        return self._call(token.at, function, left, self._unary(nested))

    def _unary(self, nested: int) -> _Tree:
        if not self._is("!"):
            return self._member(nested)
        at = self.take("mark").at
        return self._call(at, "!_", self._member(nested))

    def _member(self, nested: int) -> _Tree:
        token = self._tokens[self._next]
        match token.kind, token.text:
            case "mark", "(":
                self._next += 1
                inner = self.condition(nested + 1)
                self.take("mark", ")")
                return inner
            case "mark", "[":
                return self._list()
            case "name", "has":
                self._next += 1
                return self._has()
            case "name", "timestamp" | "size" as function:
                self._next += 1
                at = self.take("mark", "(").at
                argument = self._text() if function == "timestamp" else self._read()
                self.take("mark", ")")
                return self._call(at, function, argument)
            case "name", name if name in VARIABLES:
                return self._read()
        return self._constant()

    def _list(self) -> _Tree:
        at, elements = self.take("mark", "[").at, list[_Tree]()
        while not self._is("]"):
            if elements:
                self.take("mark", ",")
            elements.append(self._constant())
        self.take("mark", "]")
        return self._expression(at, _LIST, b"".join(_inner(1, one.raw) for one in elements), *elements)

    def _has(self) -> _Tree:
        at = self.take("mark", "(").at
        variable = self.take("name")
        steps = self._steps(variable)
        self.take("mark", ")")
        if not steps or steps[-1].key:
            raise _LeftToCelError  # CEL refuses it
        return self._field(at, self._path(variable, steps[:-1]), steps[-1].name, _number(_TEST_ONLY, 1))

    def _read(self) -> _Tree:
        variable = self.take("name")
        steps = self._steps(variable)
        if not (steps and steps[-1].name in _METHODS and self._is("(")):
            return self._path(variable, steps)
        target, function = self._path(variable, steps[:-1]), steps[-1].name.encode()
        at = self.take("mark", "(").at
        argument = b"" if function == b"size" else _inner(_ARGUMENT, self._text().raw)
        self.take("mark", ")")
        return self._expression(at, _CALL, _inner(_TARGET, target.raw) + _inner(_FUNCTION, function) + argument, target)

    def _steps(self, variable: _Token) -> list[_Step]:
        if variable.text not in VARIABLES:
            raise _LeftToCelError
        steps: list[_Step] = []
        while self._is(".") or self._is("["):
            mark = self.take("mark")
            if mark.text == ".":
                steps.append(_Step(mark.at, self.take("name").text, None))
            else:
                steps.append(_Step(mark.at, "", self._text()))
                self.take("mark", "]")
        if (steps and variable.text == "now") or any(step.name in _RESERVED for step in steps):
            raise _LeftToCelError
        return steps

    def _path(self, variable: _Token, steps: Sequence[_Step]) -> _Tree:
        path = self._expression(variable.at, _IDENT, _inner(1, variable.text.encode()))
        for at, name, key in steps:
            path = self._field(at, path, name) if key is None else self._call(at, "_[_]", path, key)
        return path

    def _field(self, at: int, operand: _Tree, name: str, test: bytes = b"") -> _Tree:
        parts = _inner(_OPERAND, operand.raw) + _inner(_FIELD, name.encode()) + test
        return self._expression(at, _SELECT, parts, operand)

    def _text(self) -> _Tree:
        token = self.take("text")
        return self._expression(token.at, _CONST, _inner(_STRING, token.text[1:-1].encode()))

    def _constant(self) -> _Tree:
        token = self._tokens[self._next]
        self._next += 1
        match token.kind, token.text:
            case "name", "null":
                constant = _number(_NULL, 0)
            case "name", "true" | "false":
                constant = _number(_BOOL, token.text == "true")
            case "int", digits:
                constant = _number(_INT64, int(digits) % 2**64)
            case "double", digits:
                constant = _varint(_DOUBLE << 3 | 1) + struct.pack("<d", float(digits))
            case "text", quoted:
                constant = _inner(_STRING, quoted[1:-1].encode())
            case _:
                raise _LeftToCelError
        return self._expression(token.at, _CONST, constant)

    def _call(self, at: int, function: str, *arguments: _Tree) -> _Tree:
        parts = _inner(_FUNCTION, function.encode()) + b"".join(_inner(_ARGUMENT, one.raw) for one in arguments)
        return self._expression(at, _CALL, parts, *arguments)

    def _expression(self, at: int, kind: int, content: bytes, *below: _Tree) -> _Tree:
        depth = 1 + max([one.depth for one in below], default=0)
        if depth > MAX_DEPTH:
            raise _LeftToCelError
        expression_id = len(self.positions) + 1
        self.positions.append(_number(1, expression_id) + _number(2, at))
        return _Tree(_number(_ID, expression_id) + _inner(kind, content), depth)


def _inner(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
