"""Reads Casbin matchers, and the rules of rows.

A matcher is parsed in Casbin's way (`&&`, `||` and `!` become Python's operators, `r.sub` the name `r_sub`). An
allow-list of syntax determines what is compiled. pycasbin evaluates everything else (`Expression.foreign` gives the
reason).

pycasbin tries the rows in order, stops when its effect is decided, and refuses the request if an evaluation fails. To
find rows through an index without changing that, the parts of a matcher are classified:

    total     cannot fail: comparisons of texts, roles, functions whose patterns were checked when the policy was loaded
    dynamic   reads attributes or the time, which differ from call to call, or a rule in a row (`eval`)

In each alternative of the matcher (`Alternative`), the total parts before the first part that can fail may be evaluated
in any order: they select the rows for which the whole matcher is evaluated.

Expressions that could take long or grow without bound are refused when the policy is loaded: powers, shifts, formatted
texts, loops and long or deeply nested expressions. So are expressions that pycasbin could never evaluate.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Self

from sidecar.policy.expression import MAX_DEPTH, depth_of, parsed
from sidecar.policy.stock.functions import COMPILED, FUNCTIONS, TEXT_FUNCTIONS, BadPatternError
from sidecar.settings.validation_errors import did_you_mean

MAX_EXPRESSION_CHARS: Final = 32_768
# The values of a request that are texts; all others are attributes, of any type.
Text = Literal["sub", "dom", "obj", "act"]
_WORDS: Final[Mapping[Text, Sequence[Sequence[str]]]] = {  # earlier lists take precedence
    "sub": (("sub", "subject", "user"), ("username", "user_id", "caller", "principal")),
    "dom": (("dom", "domain", "tenant"), ("org", "organization", "namespace")),
    "obj": (("obj", "object"), ("resource", "res", "path", "url", "uri", "data", "thing")),
    "act": (("act", "action"), ("method", "verb", "operation", "op", "permission", "perm")),
}
# Attributes that simpleeval refuses
_PREFIXES: Final = ("_", "func_")
_REFUSED: Final = ("format", "format_map", "mro", "tb_frame", "gi_frame", "ag_frame", "cr_frame", "exec")

Evaluate = Callable[[Sequence[Any], Sequence[str]], Any]
"""Takes the values of a request and of a row, in the order of their definitions. Raises EvaluationError."""


@lru_cache
def text_fields(fields: tuple[str, ...]) -> Mapping[str, Text]:
    """Returns which fields of a request, or columns, are the subject, the domain, the object and the action: for each,
    the first with a usual name."""
    found: dict[str, Text] = {}
    for text, lists in _WORDS.items():
        name = next((name for words in lists for name in fields if name in words), None)
        if name is not None:
            found[name] = text
    return found


def place_of(text: Text, fields: tuple[str, ...]) -> int | None:
    """Returns the position of the field or column that is a text; None if there is none."""
    return next((at for at, name in enumerate(fields) if text_fields(fields).get(name) == text), None)


class EvaluationError(Exception):
    """The evaluation failed, so the request is refused."""


class BadExpressionError(Exception):
    """A matcher or a rule that is not an expression, or that names something that does not exist. `token` is the wrong
    text as written; "" for the whole expression."""

    def __init__(self, message: str, token: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.token, self.hint = message, token, hint


def is_refused(attribute: str) -> bool:
    """Whether pycasbin refuses an attribute of this name."""
    return attribute.startswith(_PREFIXES) or attribute in _REFUSED


class Attributed(str):
    """A value of a request with attributes. In comparisons and functions it is its text; pycasbin reads its attributes
    as those of the object."""

    __slots__ = ("attributes",)
    attributes: Mapping[str, Any]

    def __new__(cls, text: str, attributes: Mapping[str, Any]) -> Self:
        value = super().__new__(cls, text)
        value.attributes = attributes
        return value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.attributes[name]
        except KeyError:
            raise AttributeError(name) from None


class Kind(Enum):
    """The known facts about a value's type."""

    TEXT = "text"
    NUMBER = "number"
    BOOL = "bool"
    LIST = "list"
    ANY = "any"


class Part(NamedTuple):
    """A part of a matcher. `places` are the positions of the request's values that it reads, `columns` those of the
    row's."""

    tree: ast.expr
    kind: Kind
    total: bool = True
    dynamic: bool = False
    places: frozenset[int] = frozenset()
    columns: frozenset[int] = frozenset()


class ColumnTest(NamedTuple):
    """A comparison of one value of the request with one column: by `==`, a role definition, or a pattern function.
    `domain` is the position of the domain in which roles are asked. A `constant` replaces the value."""

    place: int
    column: int
    function: str
    domain: int | None = None
    constant: str | None = None


class Alternative(NamedTuple):
    """One part of a disjunction. A row can make it true, or make it fail, only if `asked`, which reads only the
    request, is true, and the row has fitting values for each of `facets`. `places` are the positions of the values that
    `asked` reads. If it `is_asked`, it reads only the request, so it is true for every row or for none."""

    facets: tuple[ColumnTest, ...]
    asked: Evaluate | None
    places: frozenset[int] = frozenset()
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class Definitions:
    """The names that an expression may use: `r.<request>`, `p.<columns>`, and the role definitions with their number of
    arguments, of which some are `conditional`. `suffix` is that of `r2`, `p2` and so on."""

    request: tuple[str, ...]
    columns: tuple[str, ...]
    roles: Mapping[str, int]
    suffix: str = ""
    conditional: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Expression:
    """A matcher. `run` evaluates it as a whole; None if pycasbin must evaluate it, because of `foreign`. `reads_rows`
    is false if it reads no column."""

    alternatives: tuple[Alternative, ...]
    run: Evaluate | None
    total: bool
    dynamic: bool
    reads_rows: bool
    patterns: tuple[tuple[str, int], ...]
    """The functions whose pattern is a column, with that column. Their patterns are checked when rows are loaded."""
    rules: tuple[int, ...]
    """The columns that hold rules for `eval`."""
    foreign: str = ""
    static: Evaluate | None = None
    """Returns false for a row that matches in no call, whatever the dynamic parts yield; None if that is unknown."""


class NotCompiledError(Exception):
    """Valid for pycasbin, but not compiled here."""


def _in_python(text: str, *, rule: bool) -> str:
    """Returns an expression in the form that pycasbin passes to Python's parser (`util.escape_assertion`,
    `util.remove_comments`, `CoreEnforcer._get_expression`)."""
    for side in ("p", "r"):
        if found := re.search(rf"\b{side}(\d*)\.", text):
            text = re.sub(rf"\b{side}{found[1]}\.", f"{side}{found[1]}_", text)
    if not rule:
        text = text.partition("#")[0]
    return re.sub(r"!(?!=)", "not ", text.replace("&&", "and").replace("||", "or")).strip()


def _is_read(tree: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


_ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_CONSTANTS: Mapping[type, Kind] = {
    str: Kind.TEXT, bool: Kind.BOOL, int: Kind.NUMBER, float: Kind.NUMBER, type(None): Kind.ANY,
}  # fmt: skip
_ALLOWED = (
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Attribute, ast.Name, ast.Constant, ast.Tuple),
    *(ast.List, ast.Dict, ast.Set, ast.IfExp, ast.Subscript, ast.Slice, ast.boolop, ast.unaryop, ast.cmpop, ast.Load),
    *(*_ARITHMETIC, ast.BitAnd, ast.BitOr, ast.BitXor),
)
_NAMES: Mapping[type[ast.AST], str] = {
    ast.Pow: "a power", ast.LShift: "a shift", ast.RShift: "a shift", ast.JoinedStr: "a formatted text",
    ast.ListComp: "a loop", ast.GeneratorExp: "a loop", ast.DictComp: "a loop", ast.SetComp: "a loop",
    ast.keyword: "a named argument",
}  # fmt: skip
# Methods of texts that are compiled, with their possible numbers of arguments and the kind of their value.
_METHODS: Mapping[str, tuple[range, Kind]] = {
    "startswith": (range(1, 2), Kind.BOOL), "endswith": (range(1, 2), Kind.BOOL), "lower": (range(1), Kind.TEXT),
    "upper": (range(1), Kind.TEXT), "casefold": (range(1), Kind.TEXT), "strip": (range(2), Kind.TEXT),
    "lstrip": (range(2), Kind.TEXT), "rstrip": (range(2), Kind.TEXT), "removeprefix": (range(1, 2), Kind.TEXT),
    "removesuffix": (range(1, 2), Kind.TEXT), "isdigit": (range(1), Kind.BOOL), "isalpha": (range(1), Kind.BOOL),
    "isalnum": (range(1), Kind.BOOL),
}  # fmt: skip
_ARGUMENTS_OF: Mapping[str, int] = {
    **dict.fromkeys(FUNCTIONS, 2),
    **{name: function.arguments for name, function in TEXT_FUNCTIONS.items()},
    "who": 3,
    "timeMatch": 2,
}
# Calls that are conditions in addition to the matcher. They read these columns and `ctx`.
_BESIDE: Mapping[str, tuple[str, ...]] = {"live": ("expires_at",), "holds": ("when", "eft")}


class MatcherReader:
    """Checks an expression and determines what each part may do. `patterns`, `rules` and `reads_rows` are those of
    `Expression`."""

    def __init__(self, names: Definitions, text: str, *, rule: bool = False) -> None:
        self.names = names
        self.patterns: dict[tuple[str, int], None] = {}
        self.rules: dict[int, None] = {}
        self.reads_rows = False
        self._text, self._is_rule, self._python = text, rule, _in_python(text, rule=rule)
        self._places = {f"r{names.suffix}_{name}": at for at, name in enumerate(names.request)}
        self._columns = {f"p{names.suffix}_{name}": at for at, name in enumerate(names.columns)}

    def read(self) -> Part:
        """Reads the expression. Raises BadExpressionError, and NotCompiledError for an expression that only pycasbin
        evaluates; its patterns and rules are still checked."""
        tree = self._tree()
        try:
            return self.node(tree)
        except NotCompiledError:
            for node in ast.walk(tree):
                if isinstance(node, ast.Mod):  # `%` also formats texts of attributes
                    raise self._formatted() from None
                if isinstance(node, ast.Call):
                    with suppress(NotCompiledError):
                        self.node(node)
            raise

    def _tree(self) -> ast.expr:
        """Parses the expression. Raises BadExpressionError for a text that neither pycasbin nor the sidecar
        evaluates."""
        if len(self._text) > MAX_EXPRESSION_CHARS:
            raise BadExpressionError(f"an expression has at most {MAX_EXPRESSION_CHARS} characters")
        try:
            tree = parsed(self._python)
            if self._is_rule:  # pycasbin puts it in parentheses, in which a comment would hide the end
                parsed(f"({self._python})")
        except SyntaxError as error:
            raise self._syntax_error(error) from None
        except (ValueError, RecursionError, MemoryError):
            raise BadExpressionError("this is not an expression, or nested too deeply") from None
        if depth_of(tree) > MAX_DEPTH:
            raise BadExpressionError(f"an expression is nested at most {MAX_DEPTH} levels deep")
        tree = self._without_calls_beside(tree)
        self._check(tree)
        self.reads_rows = any(_is_read(tree, column) for column in self._columns)
        return tree

    def _syntax_error(self, error: SyntaxError) -> BadExpressionError:
        word = re.match(r"\s*(\w+|\S?)", self._python[error.offset - 1 :] if error.offset else "")
        reason = "" if error.msg.startswith("invalid syntax") else f": {error.msg}"
        token = self._token(word[1] if word is not None else "")
        return BadExpressionError(f"this is not an expression{reason[:100]}", token, "check the brackets and operators")

    def _token(self, word: str) -> str:
        """Returns the original spelling of a name of the Python form."""
        dotted = re.sub(r"^([pr]\d*)_", r"\1.", word)
        return dotted if dotted in self._text else word if word in self._text else ""

    def _without_calls_beside(self, tree: ast.expr) -> ast.expr:
        parts = list(_conjuncts(tree))
        left = [part for part in parts if not self._is_beside(part)]
        if len(left) == len(parts):
            return tree
        rest = ast.BoolOp(ast.And(), left) if len(left) > 1 else left[0] if left else ast.Constant(True)
        if _is_read(rest, f"r{self.names.suffix}_ctx"):
            message = "r.ctx is the argument of live and holds alone"
            raise BadExpressionError(message, self._token(f"r{self.names.suffix}_ctx"))
        return rest

    def _is_beside(self, tree: ast.expr) -> bool:
        name = _function_of(tree)
        if name not in _BESIDE or not isinstance(tree, ast.Call):
            return False
        suffix = self.names.suffix
        arguments = [*(f"p{suffix}_{column}" for column in _BESIDE[name]), f"r{suffix}_ctx"]
        given = [argument.id if isinstance(argument, ast.Name) else "" for argument in tree.args]
        if given != arguments or not {*self._places, *self._columns}.issuperset(given):
            takes = ", ".join(argument.replace("_", ".", 1) for argument in arguments)
            raise BadExpressionError(f"{name} takes {takes}, which the model has to define", name)
        return True

    def _check(self, tree: ast.expr) -> None:
        """Raises BadExpressionError for names that do not exist, and for parts that are never evaluated."""
        methods = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) if id(node) not in methods and name not in {*self._places, *self._columns}:
                    raise self._unknown(name)
                case ast.Call(func=ast.Name(id=name)):
                    self._check_function(node, name)
                case ast.Call(func=ast.Attribute(attr=name)) if name not in _METHODS:
                    raise BadExpressionError(f"method {name} is refused", name, did_you_mean(name, _METHODS))
                case ast.Call() if not isinstance(node.func, ast.Name | ast.Attribute):
                    raise BadExpressionError("only functions and methods are called")
            if not isinstance(node, _ALLOWED):
                name = _NAMES.get(type(node), type(node).__name__)
                raise BadExpressionError(f"{name} is refused in expressions", self._segment(node))

    def _formatted(self) -> BadExpressionError:
        return BadExpressionError("% formats a text here, and the result can grow without bound", "%")

    def _segment(self, node: ast.AST) -> str:
        return self._token(self._whole(node)) if isinstance(node, ast.expr) else ""

    def _unknown(self, name: str) -> BadExpressionError:
        dotted, suffix = re.sub(r"^([pr]\d*)_", r"\1.", name), self.names.suffix
        known = [
            *(f"r{suffix}.{one}" for one in self.names.request),
            *(f"p{suffix}.{one}" for one in self.names.columns),
        ]
        return BadExpressionError(f"{dotted} is not a name here", self._token(name), did_you_mean(dotted, known))

    def _check_function(self, tree: ast.Call, name: str) -> None:
        roles = self.names.roles
        takes = roles.get(name, _ARGUMENTS_OF.get(name))
        if name in _BESIDE and takes is None:
            raise BadExpressionError(f"{name} is next to the rest of the matcher: … && {name}(…)", name)
        if name == "eval" and not self._is_rule:
            self._check_eval(tree)
        elif takes is None:
            known = [*_ARGUMENTS_OF, *roles, *(() if self._is_rule else ("eval",))]
            raise BadExpressionError(f"function {name} is unknown", name, did_you_mean(name, known))
        elif len(tree.args) != takes:
            raise BadExpressionError(f"{name} takes {takes} arguments", name)

    def _check_eval(self, tree: ast.Call) -> None:
        match tree.args:
            case [ast.Name(id=name)] if name in self._columns and f"eval({name})" == self._whole(tree):
                return
        raise BadExpressionError("eval takes one column, without blanks: eval(p.<column>)", "eval")

    def _whole(self, tree: ast.expr) -> str:
        return ast.get_source_segment(self._python, tree) or ""

    def node(self, tree: ast.expr) -> Part:
        match tree:
            case ast.Name(id=name):
                return self._name(tree, name)
            case ast.Constant(value=value) if type(value) in _CONSTANTS:
                return Part(tree, _CONSTANTS[type(value)])
            case ast.Attribute():
                return self._attribute(tree)
            case ast.BoolOp(values=values):
                parts = [self.node(value) for value in values]
                kinds = {part.kind for part in parts}
                return joined(tree, kinds.pop() if len(kinds) == 1 else Kind.ANY, parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return joined(tree, Kind.BOOL, [self.node(operand)])
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                part = self.node(operand)
                return joined(tree, Kind.NUMBER, [part], total=part.kind is Kind.NUMBER)
            case ast.BinOp(op=operator) if isinstance(operator, _ARITHMETIC):
                return self._arithmetic(tree)
            case ast.Compare():
                return self._compared(tree)
            case ast.Tuple(elts=values) | ast.List(elts=values):
                return joined(tree, Kind.LIST, [self.node(value) for value in values])
            case ast.IfExp(test=test, body=body, orelse=other):
                parts = [self.node(body), self.node(other)]
                kind = parts[0].kind if parts[0].kind is parts[1].kind else Kind.ANY
                return joined(tree, kind, [self.node(test), *parts])
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return self._method(tree, self.node(value), name)
            case ast.Call(func=ast.Name(id=name)):
                return self._call(tree, name)
        raise NotCompiledError(f"{type(tree).__name__} is not compiled")

    def _name(self, tree: ast.Name, name: str) -> Part:
        if (place := self._places.get(name)) is not None:
            is_text = self.names.request[place] in text_fields(self.names.request)
            kind = Kind.TEXT if is_text else Kind.ANY
            return Part(tree, kind, dynamic=not is_text, places=frozenset({place}))
        if (column := self._columns.get(name)) is not None:
            return Part(tree, Kind.TEXT, columns=frozenset({column}))
        raise self._unknown(name)

    def _attribute(self, tree: ast.Attribute) -> Part:
        inner = self.node(tree.value)
        if not isinstance(tree.value, ast.Name | ast.Attribute) or not inner.places or inner.columns:
            raise NotCompiledError("an attribute of something else than a value of the request is not compiled")
        if is_refused(tree.attr):
            raise NotCompiledError(f"pycasbin refuses the attribute {tree.attr}")
        return inner._replace(tree=tree, kind=Kind.ANY, total=False, dynamic=True)

    def _arithmetic(self, tree: ast.BinOp) -> Part:
        left, right = parts = self.node(tree.left), self.node(tree.right)
        kinds = {left.kind, right.kind}
        if kinds == {Kind.TEXT} and isinstance(tree.op, ast.Add):
            return joined(tree, Kind.TEXT, parts)
        if left.kind is Kind.TEXT and isinstance(tree.op, ast.Mod):
            raise self._formatted()
        numbers = kinds == {Kind.NUMBER} and not isinstance(tree.op, ast.Div | ast.FloorDiv | ast.Mod)
        return joined(tree, Kind.NUMBER if numbers else Kind.ANY, parts, total=numbers)

    def _compared(self, tree: ast.Compare) -> Part:
        parts = [self.node(part) for part in (tree.left, *tree.comparators)]
        total = True
        for operator, left, right in zip(tree.ops, parts, parts[1:], strict=False):
            if isinstance(operator, _ORDERINGS):
                total = total and left.kind is right.kind and left.kind in (Kind.TEXT, Kind.NUMBER)
            elif isinstance(operator, ast.In | ast.NotIn):
                total = total and (right.kind is Kind.LIST or left.kind is right.kind is Kind.TEXT)
            elif not isinstance(operator, ast.Eq | ast.NotEq):
                raise NotCompiledError(f"{type(operator).__name__} is not compiled")
        return joined(tree, Kind.BOOL, parts, total=total)

    def _method(self, tree: ast.Call, text: Part, name: str) -> Part:
        counts, kind = _METHODS[name]
        if len(tree.args) not in counts:
            raise BadExpressionError(f"{name} takes at most {counts[-1]} arguments, at least {counts[0]}", name)
        parts = [text, *map(self.node, tree.args)]
        return joined(tree, kind, parts, total=all(part.kind is Kind.TEXT for part in parts))

    def _call(self, tree: ast.Call, name: str) -> Part:
        if name == "eval":
            return self._rule(tree)
        parts = [self.node(argument) for argument in tree.args]
        texts = all(part.kind is Kind.TEXT for part in parts)
        if name == "timeMatch" or name in self.names.conditional:
            return joined(tree, Kind.BOOL, parts, total=False)._replace(dynamic=True)
        if name in self.names.roles or name == "who":
            return joined(tree, Kind.BOOL, parts, total=texts)
        kind = Kind.TEXT if name in TEXT_FUNCTIONS else Kind.BOOL
        total = texts and self._is_checked(name, parts[1]) and (name in TEXT_FUNCTIONS or FUNCTIONS[name].total)
        return joined(tree, kind, parts, total=total)

    def _is_checked(self, function: str, pattern: Part) -> bool:
        """Whether a pattern is known when the policy is loaded. Raises BadExpressionError for an invalid one."""
        match pattern.tree:
            case ast.Constant(value=str(text)):
                try:
                    COMPILED[function](text)
                except BadPatternError as error:
                    raise BadExpressionError(f"the pattern of {function}: {error}", self._token(text)) from None
            case ast.Name() if pattern.columns:
                self.patterns[function, min(pattern.columns)] = None
            case _:
                return function in _ANY_PATTERN
        return True

    def _rule(self, tree: ast.Call) -> Part:
        self.rules |= dict.fromkeys(self.node(tree.args[0]).columns)
        every = frozenset(range(len(self.names.columns)))
        return Part(tree, Kind.ANY, False, True, frozenset(range(len(self.names.request))), every)


def joined(tree: ast.expr, kind: Kind, parts: Sequence[Part], *, total: bool = True) -> Part:
    return Part(
        tree,
        kind,
        total and all(part.total for part in parts),
        any(part.dynamic for part in parts),
        frozenset[int]().union(*[part.places for part in parts]),
        frozenset[int]().union(*[part.columns for part in parts]),
    )


_ANY_PATTERN = ("keyMatch", "keyGet", "glob", "globs")


def _function_of(tree: ast.expr) -> str:
    return tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""


def _conjuncts(tree: ast.expr) -> Iterator[ast.expr]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for value in tree.values:
            yield from _conjuncts(value)
    else:
        yield tree
