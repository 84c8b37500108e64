"""Parses Casbin matchers into trees.

A matcher is parsed once, in Casbin's way (`&&`, `||` and `!` become Python's operators, `r.sub` becomes a name), and
converted to the sidecar's own nodes. An allow-list defines what a matcher may contain, so that new syntax is refused by
default. An expression that Casbin can evaluate but that is not compiled becomes a `ForeignNode`; pycasbin then
evaluates the whole matcher.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# The sidecar's functions and their argument counts; `g` may take a domain.
FUNCTIONS: Mapping[str, tuple[int, ...]] = {
    "who": (3,),
    "glob": (2,),
    "globs": (2,),
    "live": (2,),
    "holds": (3,),
    "g": (2, 3),
    "g2": (2,),
}
PARSE_ATTEMPTS = 5
MAX_DEPTH = 60  # levels of Python's tree; the trees are walked by recursion, also in decisions
# Casbin rewrites `r.`, `p.`, `!`, `&&` and `||` inside literals too; these characters contain none of them.
_LITERAL = re.compile(r"[A-Za-z0-9_:/*@-]{1,256}")


@dataclass(frozen=True, slots=True)
class Name:
    """`r.sub` is Name("r", "sub")."""

    side: str
    field: str


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class Equality:
    left: Name | Literal
    right: Name | Literal


@dataclass(frozen=True, slots=True)
class FunctionCall:
    function: str
    arguments: tuple[Name | Literal, ...]


@dataclass(frozen=True, slots=True)
class ForeignNode:
    """An expression in Casbin's form that is not compiled, and its names."""

    text: str
    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


Node = Equality | FunctionCall | ForeignNode | Not | And | Or


class ExpressionError(NamedTuple):
    """One part that a matcher must not contain. `token` is the text to point at, if any."""

    message: str
    hint: str = ""
    token: str = ""


def read_matcher(matcher: str) -> tuple[Node | None, list[ExpressionError]]:
    """Returns the tree, as far as it could be built, and all forbidden parts of the matcher."""
    if "#" in matcher or ";" in matcher or not matcher.isascii():
        return None, [ExpressionError("a matcher must be ASCII text without comments")]
    try:
        # The literals as written: Casbin rewrites them with the rest of the matcher.
        literals = [one or other for one, other in _QUOTED.findall(matcher)]
        reader = _ExpressionReader([_bad_literal(text) for text in literals if not _LITERAL.fullmatch(text)])
        # Casbin's Python form of a matcher (CoreEnforcer._get_expression, util.escape_assertion)
        text = re.sub(r"\b([pr])\.", r"\1_", matcher).replace("&&", " and ").replace("||", " or ")
        tree = parsed(re.sub(r"!(?!=)", " not ", text).strip())
        if depth_of(tree) > MAX_DEPTH:
            return None, [ExpressionError(f"a matcher is nested at most {MAX_DEPTH} deep")]
        return reader.node(tree), reader.bad
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, [ExpressionError("this is not an expression", "check the brackets and operators")]


def parsed(text: str) -> ast.expr:
    """Parses a Python expression. CPython 3.11 has one recursion count for all threads: while another thread parses, it
    can raise SystemError for valid text, so the text is parsed again. Raises SyntaxError, ValueError, RecursionError or
    MemoryError for invalid text."""
    for _ in range(PARSE_ATTEMPTS - 1):
        try:
            return ast.parse(text, mode="eval").body
        except SystemError:
            continue
    return ast.parse(text, mode="eval").body


def depth_of(tree: ast.AST) -> int:
    """Returns the number of levels of a tree, without recursion."""
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def conjuncts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, And) else (node,)


def disjuncts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Or) else (node,)


def nodes_in(node: Node) -> Iterator[Node]:
    yield node
    match node:
        case Not(part):
            yield from nodes_in(part)
        case And(parts) | Or(parts):
            for part in parts:
                yield from nodes_in(part)


def names_in(tree: Node) -> Iterator[Name]:
    for node in nodes_in(tree):
        match node:
            case Equality(left, right):
                yield from (term for term in (left, right) if isinstance(term, Name))
            case FunctionCall(_, arguments):
                yield from (term for term in arguments if isinstance(term, Name))
            case ForeignNode(_, names):
                yield from names


def calls_in(tree: Node) -> Iterator[FunctionCall]:
    return (node for node in nodes_in(tree) if isinstance(node, FunctionCall))


def written(node: Node) -> str:
    """Returns the expression in Casbin's form with Casbin's internal names (`r_sub`), for Casbin's evaluator."""
    match node:
        case Equality(left, right):
            return f"{_term(left)} == {_term(right)}"
        case FunctionCall(function, arguments):
            return f"{function}({', '.join(map(_term, arguments))})"
        case ForeignNode(text, _):
            return f"({text})"
        case Not(part):
            return f"not ({written(part)})"
        case And(parts):
            return " and ".join(f"({written(part)})" for part in parts)
        case Or(parts):
            return " or ".join(f"({written(part)})" for part in parts)


def _term(term: Name | Literal) -> str:
    return f"{term.side}_{term.field}" if isinstance(term, Name) else f"'{term.text}'"


_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")


def _bad_literal(text: str) -> ExpressionError:
    hint = "Casbin changes such literals: use only letters, digits and _ : / * @ -"
    return ExpressionError("a literal is refused", hint, text)


_OPERATORS = (ast.Compare, ast.BinOp, ast.Add, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_LEAVES = (ast.Name, ast.Constant, ast.Tuple, ast.Load)
_NOTHING = Literal("")


class _ExpressionReader:
    """Converts Python's tree to the sidecar's and collects the forbidden parts of a matcher."""

    def __init__(self, bad: list[ExpressionError]) -> None:
        self.bad = bad

    def node(self, tree: ast.expr) -> Node:
        match tree:
            case ast.BoolOp(op=ast.And(), values=values):
                return And(tuple(part for value in values for part in conjuncts(self.node(value))))
            case ast.BoolOp(op=ast.Or(), values=values):
                return Or(tuple(part for value in values for part in disjuncts(self.node(value))))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Not(self.node(operand))
            case ast.Call():
                return self._call(tree)
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if self._is_term(left):
                return self._compared(tree, left, operator, right)
            case ast.Compare():
                return self._foreign(tree)
        self._refuse(tree)
        return Equality(_NOTHING, _NOTHING)

    def _compared(self, tree: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Node:
        match operator, right:
            case ast.Eq(), ast.Name() | ast.Constant():
                return Equality(self._term(left), self._term(right))
            case ast.NotEq(), ast.Name() | ast.Constant():
                return Not(Equality(self._term(left), self._term(right)))
            case ast.In(), ast.Tuple(elts=[_, _, *_] as choices) if all(map(self._is_term, choices)):
                return Or(tuple(Equality(self._term(left), self._term(choice)) for choice in choices))
        return self._foreign(tree)

    def _is_term(self, tree: ast.expr) -> bool:
        return isinstance(tree, ast.Name | ast.Constant)

    def _term(self, tree: ast.expr) -> Name | Literal:
        if isinstance(tree, ast.Name):
            side, _, field = tree.id.partition("_")
            if side in ("r", "p") and field:
                return Name(side, field)
            self.bad.append(
                ExpressionError(f'"{tree.id}" is not a name here', "names are r.<field> and p.<column>", tree.id)
            )
        elif isinstance(tree, ast.Constant):
            if isinstance(tree.value, str):
                return Literal(tree.value)
            self.bad.append(_bad_literal(str(tree.value)))
        else:
            self._refuse(tree)
        return _NOTHING

    def _call(self, tree: ast.Call) -> FunctionCall:
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        if name not in FUNCTIONS:
            # Casbin's own matching functions match prefixes, and eval executes text from a row.
            self.bad.append(
                ExpressionError(f'function "{name}" is refused', "the functions are " + ", ".join(FUNCTIONS), name)
            )
        elif tree.keywords or len(tree.args) not in FUNCTIONS[name]:
            counts = " or ".join(map(str, FUNCTIONS[name]))
            self.bad.append(ExpressionError(f"{name} takes {counts} arguments", "", name))
        return FunctionCall(name, tuple(map(self._term, tree.args)))

    def _foreign(self, tree: ast.Compare) -> ForeignNode:
        """Converts ordering, membership and string concatenation, which are not compiled, so that pycasbin evaluates
        them."""
        terms = []
        for node in ast.walk(tree):
            if not isinstance(node, _OPERATORS + _LEAVES):
                self._refuse(node)
            elif isinstance(node, ast.Name | ast.Constant):
                terms.append(self._term(node))
        names = tuple(dict.fromkeys(term for term in terms if isinstance(term, Name)))
        return ForeignNode(ast.unparse(tree), names)

    def _refuse(self, tree: ast.AST) -> None:
        self.bad.append(ExpressionError(f"{type(tree).__name__} is refused", "use && || ! == != in and the functions"))
