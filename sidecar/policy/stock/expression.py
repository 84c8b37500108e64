"""Compiles Casbin matchers to Python functions.

A matcher is parsed in Casbin's way (`&&`, `||` and `!` become Python's operators, `r.sub` the name `r_sub`). An
allow-list of syntax decides what is compiled; all else is left to pycasbin (`Expression.foreign` says why). The
compiled function computes what simpleeval computes, because it is made of the same operators in the same order; only
attributes, functions and what can grow without bound become calls of ours.

pycasbin tries the rows in order, stops when its effect is decided, and refuses the request if an evaluation fails. To
find rows through an index without changing that, the parts of a matcher are told apart:

    total     cannot fail: comparisons of texts, roles, functions whose patterns were checked when the policy was loaded
    dynamic   reads attributes or the time, which differ from call to call, or a rule in a row (`eval`)

Of each alternative of the matcher (`Alternative`), the total parts before the first one that can fail may be asked in
any order: they choose the rows for which the whole matcher is evaluated.

What could take long or grow without bound is refused when the policy is loaded: powers, shifts, formatted texts, loops
and long or deeply nested expressions. What pycasbin could never evaluate is refused there too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from sidecar.policy import patterns
from sidecar.policy.expression import parsed
from sidecar.policy.stock.functions import (
    COMPILED,
    FUNCTIONS,
    MAX_REQUEST_PATTERNS,
    TEXT_FUNCTIONS,
    BadPatternError,
    BadValueError,
    time_match,
)
from sidecar.settings.validation_errors import did_you_mean

MAX_EXPRESSION_CHARS: Final = 32_768
MAX_DEPTH: Final = 60  # of nested parts and brackets
MAX_TEXT_CHARS: Final = 100_000  # of a text that an expression builds, as in simpleeval
MAX_NUMBER_BITS: Final = 8_192  # of a product
MAX_RULES: Final = 16_384  # compiled texts of `eval` that are kept
# The values of a request that are texts; all others are attributes, of any type.
SUBJECTS: Final = ("sub", "subject", "user")
OBJECTS: Final = ("obj", "object")
ACTIONS: Final = ("act", "action")
DOMAINS: Final = ("dom", "domain", "tenant")
TEXTS: Final = frozenset((*SUBJECTS, *OBJECTS, *ACTIONS, *DOMAINS))
_PREFIXES: Final = ("_", "func_")  # of attributes that simpleeval refuses

Evaluate = Callable[[Sequence[Any], Sequence[str]], Any]
"""Takes the values of a request and of a row, in the order of their definitions. Raises EvaluationError."""


class EvaluationError(Exception):
    """The evaluation failed, and so the request is refused."""


class BadExpressionError(Exception):
    """A matcher or a rule that is no expression, or names what does not exist. `token` is the text at fault, as it is
    written there; "" if it is the whole."""

    def __init__(self, message: str, token: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.token, self.hint = message, token, hint


class Attributed(str):
    """A value of a request with attributes: in comparisons and functions it is its text. pycasbin reads the attributes
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
    """What is known of a value's type."""

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
    `domain` is the position of the domain in which roles are asked."""

    place: int
    column: int
    function: str
    domain: int | None = None


class Alternative(NamedTuple):
    """One part of a disjunction. A row can make it true, or make it fail, only if `asked`, which reads the request
    alone, is true, and the row has fitting values for each of `facets`. `places` are the positions of the values that
    `asked` reads."""

    facets: tuple[ColumnTest, ...]
    asked: Evaluate | None
    places: frozenset[int] = frozenset()


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
    """A matcher. `run` evaluates it whole; it is None where pycasbin has to, because of `foreign`. `reads_rows` is
    false if it reads no column."""

    alternatives: tuple[Alternative, ...]
    run: Evaluate | None
    total: bool
    dynamic: bool
    reads_rows: bool
    patterns: tuple[tuple[str, int], ...]
    """The functions whose pattern is a column, with that column: their patterns are checked when rows are loaded."""
    rules: tuple[int, ...]
    """The columns that hold rules for `eval`."""
    foreign: str = ""
    static: Evaluate | None = None
    """False for a row that matches in no call, whatever is dynamic; None if that cannot be told."""


class NotCompiledError(Exception):
    """Valid for pycasbin, but not compiled here."""


def read_expression(text: str, names: Definitions, roles: Mapping[str, Callable[..., bool]]) -> Expression:
    """Compile a matcher. `roles` decide `g`, `g2`…. Raises BadExpressionError."""
    reader = _MatcherReader(names, text)
    tree = reader.tree()
    try:
        node = reader.node(tree)
    except NotCompiledError as why:
        columns = {at for at, name in enumerate(names.columns) if _is_read(tree, f"p{names.suffix}_{name}")}
        return Expression((), None, False, True, bool(columns), (), (), str(why))
    compiler = _MatcherCompiler(names, roles, reader)
    return Expression(
        alternatives=tuple(compiler.alternative(part) for part in _parts(node, ast.Or, reader)),
        run=compiler.whole(node),
        total=node.total,
        dynamic=node.dynamic,
        reads_rows=bool(node.columns),
        patterns=tuple(dict.fromkeys(reader.patterns)),
        rules=tuple(dict.fromkeys(reader.rules)),
        static=compiler.static(node),
    )


def uncompiled_rule(text: str, names: Definitions) -> str:
    """Return why a rule for `eval` is not compiled; "" if it is. Raises BadExpressionError."""
    reader = _MatcherReader(names, text, rule=True)
    try:
        reader.node(reader.tree())
    except NotCompiledError as why:
        return str(why)
    return ""


def _in_python(text: str, *, rule: bool) -> str:
    """Return an expression as pycasbin hands it to Python's parser (`util.escape_assertion`, `util.remove_comments`,
    `CoreEnforcer._get_expression`)."""
    for side in ("p", "r"):
        if found := re.search(rf"\b{side}(\d*)\.", text):
            text = re.sub(rf"\b{side}{found[1]}\.", f"{side}{found[1]}_", text)
    if not rule:
        text = text.partition("#")[0]
    return re.sub(r"!(?!=)", "not ", text.replace("&&", "and").replace("||", "or")).strip()


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


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
# Methods of texts that are compiled, with the most arguments that they take, and the kind of their value.
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
# Calls that are conditions of their own beside the matcher: they read these columns and `ctx`.
_BESIDE: Mapping[str, tuple[str, ...]] = {"live": ("expires_at",), "holds": ("when", "eft")}


class _MatcherReader:
    """Checks the tree of an expression and tells what each part may do."""

    def __init__(self, names: Definitions, text: str, *, rule: bool = False) -> None:
        self.names = names
        self.patterns: list[tuple[str, int]] = []
        self.rules: list[int] = []
        self._text, self._is_rule, self._python = text, rule, _in_python(text, rule=rule)
        self._places = {f"r{names.suffix}_{name}": at for at, name in enumerate(names.request)}
        self._columns = {f"p{names.suffix}_{name}": at for at, name in enumerate(names.columns)}

    def tree(self) -> ast.expr:
        """Parse the expression. Raises BadExpressionError for what neither pycasbin nor we evaluate."""
        if len(self._text) > MAX_EXPRESSION_CHARS:
            raise BadExpressionError(f"an expression has at most {MAX_EXPRESSION_CHARS} characters")
        try:
            tree = parsed(self._python)
            if self._is_rule:  # pycasbin puts it in brackets, where no comment may end it
                parsed(f"({self._python})")
        except SyntaxError as error:
            raise self._syntax_error(error) from None
        except (ValueError, RecursionError, MemoryError):
            raise BadExpressionError("this is no expression, or nested too deeply") from None
        if _depth(tree) > MAX_DEPTH:
            raise BadExpressionError(f"an expression is nested at most {MAX_DEPTH} deep")
        tree = self._without_calls_beside(tree)
        self._check(tree)
        return tree

    def _syntax_error(self, error: SyntaxError) -> BadExpressionError:
        word = re.match(r"\s*(\w+|\S?)", self._python[error.offset - 1 :] if error.offset else "")
        reason = "" if error.msg.startswith("invalid syntax") else f": {error.msg}"
        token = self._token(word[1] if word is not None else "")
        return BadExpressionError(f"this is no expression{reason[:100]}", token, "check the brackets and operators")

    def _token(self, word: str) -> str:
        """Return a word of the Python form as it stands in the text."""
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
        """Raise BadExpressionError for names that do not exist, and for what is never evaluated."""
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
                case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
                    raise BadExpressionError("a formatted text is refused: it can grow without bound", "%")
            if not isinstance(node, _ALLOWED):
                name = _NAMES.get(type(node), type(node).__name__)
                raise BadExpressionError(f"{name} is refused in expressions", self._segment(node))

    def _segment(self, node: ast.AST) -> str:
        return self._token(self._whole(node)) if isinstance(node, ast.expr) else ""

    def _unknown(self, name: str) -> BadExpressionError:
        dotted, suffix = re.sub(r"^([pr]\d*)_", r"\1.", name), self.names.suffix
        known = [
            *(f"r{suffix}.{one}" for one in self.names.request),
            *(f"p{suffix}.{one}" for one in self.names.columns),
        ]
        return BadExpressionError(f"{dotted} is no name here", self._token(name), did_you_mean(dotted, known))

    def _check_function(self, tree: ast.Call, name: str) -> None:
        roles = self.names.roles
        takes = roles.get(name, _ARGUMENTS_OF.get(name))
        if name in _BESIDE and takes is None:
            raise BadExpressionError(f"{name} stands beside the rest of the matcher: … && {name}(…)", name)
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
                return _joined(tree, kinds.pop() if len(kinds) == 1 else Kind.ANY, parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _joined(tree, Kind.BOOL, [self.node(operand)])
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                part = self.node(operand)
                return _joined(tree, Kind.NUMBER, [part], total=part.kind is Kind.NUMBER)
            case ast.BinOp(op=operator) if isinstance(operator, _ARITHMETIC):
                return self._arithmetic(tree)
            case ast.Compare():
                return self._compared(tree)
            case ast.Tuple(elts=values) | ast.List(elts=values):
                return _joined(tree, Kind.LIST, [self.node(value) for value in values])
            case ast.IfExp(test=test, body=body, orelse=other):
                parts = [self.node(body), self.node(other)]
                kind = parts[0].kind if parts[0].kind is parts[1].kind else Kind.ANY
                return _joined(tree, kind, [self.node(test), *parts])
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return self._method(tree, self.node(value), name)
            case ast.Call(func=ast.Name(id=name)):
                return self._call(tree, name)
        raise NotCompiledError(f"{type(tree).__name__} is not compiled")

    def _name(self, tree: ast.Name, name: str) -> Part:
        if (place := self._places.get(name)) is not None:
            is_text = self.names.request[place] in TEXTS
            kind = Kind.TEXT if is_text else Kind.ANY
            return Part(tree, kind, dynamic=not is_text, places=frozenset({place}))
        if (column := self._columns.get(name)) is not None:
            return Part(tree, Kind.TEXT, columns=frozenset({column}))
        raise self._unknown(name)

    def _attribute(self, tree: ast.Attribute) -> Part:
        inner = self.node(tree.value)
        if not isinstance(tree.value, ast.Name | ast.Attribute) or not inner.places or inner.columns:
            raise NotCompiledError("an attribute of something else than a value of the request is not compiled")
        if hasattr(str, tree.attr) or tree.attr.startswith(_PREFIXES):
            raise NotCompiledError(f"the attribute {tree.attr} is one of Python's texts")
        return inner._replace(tree=tree, kind=Kind.ANY, total=False, dynamic=True)

    def _arithmetic(self, tree: ast.BinOp) -> Part:
        left, right = parts = self.node(tree.left), self.node(tree.right)
        kinds = {left.kind, right.kind}
        if kinds == {Kind.TEXT} and isinstance(tree.op, ast.Add):
            return _joined(tree, Kind.TEXT, parts)
        if left.kind is Kind.TEXT and isinstance(tree.op, ast.Mod):
            raise NotCompiledError("the formatting of texts is not compiled")
        numbers = kinds == {Kind.NUMBER} and not isinstance(tree.op, ast.Div | ast.FloorDiv | ast.Mod)
        return _joined(tree, Kind.NUMBER if numbers else Kind.ANY, parts, total=numbers)

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
        return _joined(tree, Kind.BOOL, parts, total=total)

    def _method(self, tree: ast.Call, text: Part, name: str) -> Part:
        counts, kind = _METHODS[name]
        if len(tree.args) not in counts:
            raise BadExpressionError(f"{name} takes at most {counts[-1]} arguments, at least {counts[0]}", name)
        parts = [text, *map(self.node, tree.args)]
        return _joined(tree, kind, parts, total=all(part.kind is Kind.TEXT for part in parts))

    def _call(self, tree: ast.Call, name: str) -> Part:
        if name == "eval":
            return self._rule(tree)
        parts = [self.node(argument) for argument in tree.args]
        texts = all(part.kind is Kind.TEXT for part in parts)
        if name == "timeMatch" or name in self.names.conditional:
            return _joined(tree, Kind.BOOL, parts, total=False)._replace(dynamic=True)
        if name in self.names.roles or name == "who":
            return _joined(tree, Kind.BOOL, parts, total=texts)
        kind = Kind.TEXT if name in TEXT_FUNCTIONS else Kind.BOOL
        total = texts and self._is_checked(name, parts[1]) and (name in TEXT_FUNCTIONS or FUNCTIONS[name].total)
        return _joined(tree, kind, parts, total=total)

    def _is_checked(self, function: str, pattern: Part) -> bool:
        """Whether a pattern is known when the policy is loaded. Raises BadExpressionError for a bad one."""
        match pattern.tree:
            case ast.Constant(value=str(text)):
                try:
                    COMPILED[function](text)
                except BadPatternError as error:
                    raise BadExpressionError(f"the pattern of {function}: {error}", self._token(text)) from None
            case ast.Name() if pattern.columns:
                self.patterns.append((function, min(pattern.columns)))
            case _:
                return function in _ANY_PATTERN
        return True

    def _rule(self, tree: ast.Call) -> Part:
        self.rules.extend(self.node(tree.args[0]).columns)
        every = frozenset(range(len(self.names.columns)))
        return Part(tree, Kind.ANY, False, True, frozenset(range(len(self.names.request))), every)


def _joined(tree: ast.expr, kind: Kind, parts: Sequence[Part], *, total: bool = True) -> Part:
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


def _combined(operator: ast.boolop, parts: Sequence[Part]) -> Part:
    return (
        parts[0] if len(parts) == 1 else _joined(ast.BoolOp(operator, [part.tree for part in parts]), Kind.BOOL, parts)
    )


def _parts(node: Part, operator: type[ast.boolop], reader: _MatcherReader) -> Iterator[Part]:
    """Yield the parts of a disjunction or conjunction, in order."""
    if isinstance(node.tree, ast.BoolOp) and isinstance(node.tree.op, operator):
        for value in node.tree.values:
            yield from _parts(reader.node(value), operator, reader)
    else:
        yield node


class _MatcherCompiler:
    """Turns checked trees into functions."""

    def __init__(self, names: Definitions, roles: Mapping[str, Callable[..., bool]], reader: _MatcherReader) -> None:
        self.names = names
        self._reader = reader
        self._rules: dict[str, Evaluate] = {}
        self._globals: dict[str, Any] = {
            "__builtins__": {}, **_EVERY_FUNCTION, **roles, "_attribute": _attribute, "_method": _method,
            "_eval": self._eval, "_times": _times, "_plus": _plus, "_modulo": _modulo,
        }  # fmt: skip

    def whole(self, node: Part) -> Evaluate:
        """Return the function of a matcher, whose value is a bool."""
        function = self.function(node)
        if node.kind is Kind.BOOL:
            return function
        return lambda r, p: _truth(function(r, p))

    def function(self, node: Part) -> Evaluate:
        rewritten = _Rewriter(self.names).visit(_copied(node.tree))
        source = ast.Expression(ast.Lambda(args=_ARGUMENTS, body=rewritten))
        function: Evaluate = eval(compile(ast.fix_missing_locations(source), "<matcher>", "eval"), self._globals)  # noqa: S307 - of an allow-list
        if node.total:
            return function

        def guarded(r: Sequence[Any], p: Sequence[str]) -> Any:
            try:
                return function(r, p)
            except EvaluationError:
                raise
            except Exception as error:  # of operators on values of any type
                raise EvaluationError(type(error).__name__) from None

        return guarded

    def static(self, node: Part) -> Evaluate | None:
        alternatives: list[Part] = []
        for alternative in _parts(node, ast.Or, self._reader):
            parts = [part for part in _parts(alternative, ast.And, self._reader) if part.total and not part.dynamic]
            if not parts:
                return None
            alternatives.append(_combined(ast.And(), parts))
        return self.function(_combined(ast.Or(), alternatives))

    def alternative(self, node: Part) -> Alternative:
        facets: list[ColumnTest] = []
        asked: list[Part] = []
        for part in _parts(node, ast.And, self._reader):
            if not part.total or part.dynamic:
                break
            if not part.columns:
                asked.append(part)
            elif (facet := self._facet(part)) is not None and facet.column not in [one.column for one in facets]:
                facets.append(facet)
        if not asked:
            return Alternative(tuple(facets), None)
        every = _combined(ast.And(), asked)
        return Alternative(tuple(facets), self.function(every), every.places)

    def _facet(self, part: Part) -> ColumnTest | None:
        if len(part.columns) != 1:
            return None
        (column,), places = part.columns, part.places
        place = next(iter(places), 0)
        match part.tree:
            case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Name()]) if len(places) == 1:
                return ColumnTest(place, column, "")
            case ast.Call(func=ast.Name(id=name), args=[ast.Name() as text, ast.Name() as other, *rest]) if (
                name in self.names.roles or name in FUNCTIONS
            ):
                first, second = self._reader.node(text), self._reader.node(other)
                if not first.places or not second.columns:
                    return None
                domain = [self._reader.node(one).places for one in rest]
                if any(len(one) != 1 for one in domain):
                    return None
                return ColumnTest(next(iter(first.places)), column, name, next(iter(domain[0])) if domain else None)
        return None

    def _eval(self, rule: str, r: Sequence[Any], p: Sequence[str]) -> Any:
        run = self._rules.get(rule)
        if run is None:
            if len(self._rules) >= MAX_RULES:
                self._rules.clear()
            run = self._rules[rule] = self._rule(rule)
        return run(r, p)

    def _rule(self, rule: str) -> Evaluate:
        reader = _MatcherReader(self.names, rule, rule=True)
        try:
            return self.function(reader.node(reader.tree()))
        except (BadExpressionError, NotCompiledError) as error:
            raise EvaluationError(str(error)) from None


_ARGUMENTS = ast.arguments(
    posonlyargs=[], args=[ast.arg("r"), ast.arg("p")], kwonlyargs=[], kw_defaults=[], defaults=[]
)  # fmt: skip
_OURS: Mapping[type[ast.operator], str] = {ast.Mult: "_times", ast.Add: "_plus", ast.Mod: "_modulo"}


def _copied(tree: ast.expr) -> ast.expr:
    """Copy a tree, because compiling changes it."""
    copied: ast.expr = ast.parse(ast.unparse(tree), mode="eval").body
    return copied


class _Rewriter(ast.NodeTransformer):
    def __init__(self, names: Definitions) -> None:
        self._names = {f"r{names.suffix}_{name}": ("r", at) for at, name in enumerate(names.request)}
        self._names |= {f"p{names.suffix}_{name}": ("p", at) for at, name in enumerate(names.columns)}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        side, at = self._names[node.id]
        return ast.Subscript(ast.Name(side, ast.Load()), ast.Constant(at), ast.Load())

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return _calls("_attribute", self.visit(node.value), ast.Constant(node.attr))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        ours = _OURS.get(type(node.op))
        return _calls(ours, left, right) if ours else ast.BinOp(left, node.op, right)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = self._variant(node.func.id, node) if isinstance(node.func, ast.Name) else ""
        arguments = [self.visit(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute):
            return _calls("_method", self.visit(node.func.value), ast.Constant(node.func.attr), *arguments)
        if name == "eval":
            return _calls("_eval", *arguments, ast.Name("r", ast.Load()), ast.Name("p", ast.Load()))
        return _calls(name, *arguments)

    def _variant(self, name: str, node: ast.Call) -> str:
        """Return the function, or that for patterns which requests give."""
        if name not in COMPILED:
            return name
        read = [each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)]
        return f"_requested_{name}" if any(self._names[each][0] == "r" for each in read) else name


def _calls(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _called(name: str, compiled: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    takes_any = name in ("keyMatch", "keyGet", "ipMatch")

    def call(text: Any, pattern: str, *others: str) -> Any:
        if not isinstance(text, str):
            if not takes_any:
                raise EvaluationError(f"{name} takes texts")
            if name == "keyMatch":
                return _key_of_any(text, pattern)
        try:
            return compiled(pattern)(text, *others)
        except (BadPatternError, BadValueError) as error:
            raise EvaluationError(str(error)) from None

    return call


def _key_of_any(value: Any, pattern: str) -> bool:
    """keyMatch of an attribute that is no text."""
    head, star, _ = pattern.partition("*")
    return bool((value[: len(head)] if len(value) > len(head) else value) == head if star else value == pattern)


def _all_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of expressions, and those that keep few patterns, for patterns that requests give."""
    yield "who", patterns.who
    yield "timeMatch", time_match
    for name, compiled in COMPILED.items():
        yield name, _called(name, compiled)
        anew: Callable[[str], Callable[..., Any]] = getattr(compiled, "__wrapped__", compiled)
        yield f"_requested_{name}", _called(name, lru_cache(MAX_REQUEST_PATTERNS)(anew))


_EVERY_FUNCTION: Mapping[str, Callable[..., Any]] = dict(_all_functions())


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute of a value of the request, or of an attribute. Raises EvaluationError if there is none."""
    attributes = value.attributes if isinstance(value, Attributed) else value
    if isinstance(attributes, Mapping) and name in attributes:
        return attributes[name]
    raise EvaluationError(f"there is no attribute {name}")


def _method(text: Any, name: str, *arguments: Any) -> Any:
    if not isinstance(text, str):
        raise EvaluationError(f"{name} is a method of texts")
    return getattr(str, name)(text, *arguments)


def _times(one: Any, other: Any) -> Any:
    for value, count in ((one, other), (other, one)):
        if hasattr(value, "__len__") and count * len(value) > MAX_TEXT_CHARS:
            raise EvaluationError("too long")
    if isinstance(one, int) and isinstance(other, int) and one.bit_length() + other.bit_length() > MAX_NUMBER_BITS:
        raise EvaluationError("too large")
    return one * other


def _plus(one: Any, other: Any) -> Any:
    if hasattr(one, "__len__") and hasattr(other, "__len__") and len(one) + len(other) > MAX_TEXT_CHARS:
        raise EvaluationError("too long")
    return one + other


def _modulo(one: Any, other: Any) -> Any:
    if isinstance(one, str):
        raise EvaluationError("texts are not formatted here")
    return one % other


def _truth(value: Any) -> bool:
    """Return the outcome of a matcher as pycasbin takes it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value != 0
    raise EvaluationError("a matcher gives true or false")
