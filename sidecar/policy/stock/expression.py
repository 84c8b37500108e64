"""Compiles Casbin matchers to Python functions.

A matcher is parsed in Casbin's way (`&&`, `||` and `!` become Python's operators, `r.sub` the name `r_sub`). An
allow-list of syntax decides what is compiled; all else is left to pycasbin (`Expression.foreign` says why). The
compiled function computes what simpleeval computes, because it is made of the same operators in the same order; only
attributes, functions and what can grow without bound become calls of ours.

pycasbin tries the rows in order, stops when its effect is decided, and refuses the request if an evaluation fails. To
find rows through an index without changing that, the parts of a matcher are told apart:

    total     cannot fail: comparisons of texts, roles, functions whose patterns were checked when the policy was loaded
    dynamic   reads attributes, which differ from call to call, or a rule in a row (`eval`)

Of each alternative of the matcher (`Alternative`), the total parts before the first one that can fail may be asked in
any order: they choose the rows for which the whole matcher is evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Self

from sidecar.policy.expression import parsed
from sidecar.policy.stock.functions import FUNCTIONS, BadPatternError, BadValueError

MAX_TEXT_CHARS: Final = 100_000  # of a text that an expression builds, as in simpleeval
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
    """A matcher or a rule that is no expression, or names what does not exist."""


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
    alone, is true, and the row has fitting values for each of `facets`."""

    facets: tuple[ColumnTest, ...]
    asked: Evaluate | None


@dataclass(frozen=True, slots=True)
class Definitions:
    """The names that an expression may use: `r.<request>`, `p.<columns>`, and the role definitions with their number of
    arguments. `suffix` is that of `r2`, `p2` and so on."""

    request: tuple[str, ...]
    columns: tuple[str, ...]
    roles: Mapping[str, int]
    suffix: str = ""


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


class NotCompiledError(Exception):
    """Valid for pycasbin, but not compiled here."""


def read_expression(text: str, names: Definitions, roles: Mapping[str, Callable[..., bool]]) -> Expression:
    """Compile a matcher. `roles` decide `g`, `g2`…. Raises BadExpressionError."""
    reader = _MatcherReader(names)
    tree = _tree(text, names)
    try:
        node = reader.node(tree)
    except NotCompiledError as why:
        columns = {at for at, name in enumerate(names.columns) if _is_read(tree, f"p{names.suffix}_{name}")}
        return Expression((), None, False, True, bool(columns), (), (), str(why))
    compiler = _MatcherCompiler(names, roles)
    return Expression(
        alternatives=tuple(compiler.alternative(part) for part in _parts(node, ast.Or, reader)),
        run=compiler.whole(node),
        total=node.total,
        dynamic=node.dynamic,
        reads_rows=bool(node.columns),
        patterns=tuple(dict.fromkeys(reader.patterns)),
        rules=tuple(dict.fromkeys(reader.rules)),
    )


def uncompiled_rule(text: str, names: Definitions) -> str:
    """Return why a rule for `eval` is not compiled; "" if it is. Raises BadExpressionError."""
    try:
        _MatcherReader(names).node(_tree(text, names))
    except NotCompiledError as why:
        return str(why)
    return ""


def _tree(text: str, names: Definitions) -> ast.expr:
    """Parse an expression as Casbin does (`util.escape_assertion`, `CoreEnforcer._get_expression`)."""
    text = text.partition("#")[0].strip()
    for side in ("p", "r"):
        if found := re.search(rf"\b{side}(\d*)\.", text):
            text = re.sub(rf"\b{side}{found[1]}\.", f"{side}{found[1]}_", text)
    text = re.sub(r"!(?!=)", "not ", text.replace("&&", "and").replace("||", "or"))
    try:
        return parsed(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadExpressionError("this is no expression") from None


def _is_read(tree: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


_ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_CONSTANTS: Mapping[type, Kind] = {str: Kind.TEXT, bool: Kind.BOOL, int: Kind.NUMBER, float: Kind.NUMBER}


class _MatcherReader:
    """Checks a tree and tells what each part may do."""

    def __init__(self, names: Definitions) -> None:
        self.names = names
        self.patterns: list[tuple[str, int]] = []
        self.rules: list[int] = []
        self._places = {f"r{names.suffix}_{name}": at for at, name in enumerate(names.request)}
        self._columns = {f"p{names.suffix}_{name}": at for at, name in enumerate(names.columns)}

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
            case ast.Call():
                return self._call(tree)
        raise NotCompiledError(f"{type(tree).__name__} is not compiled")

    def _name(self, tree: ast.Name, name: str) -> Part:
        if (place := self._places.get(name)) is not None:
            is_text = self.names.request[place] in TEXTS
            kind = Kind.TEXT if is_text else Kind.ANY
            return Part(tree, kind, dynamic=not is_text, places=frozenset({place}))
        if (column := self._columns.get(name)) is not None:
            return Part(tree, Kind.TEXT, columns=frozenset({column}))
        known = ", ".join(name.replace("_", ".", 1) for name in (*self._places, *self._columns))
        raise BadExpressionError(f"{name.replace('_', '.', 1)} is no name here; there are {known}")

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

    def _call(self, tree: ast.Call) -> Part:
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        if not name or tree.keywords:
            raise NotCompiledError("methods and named arguments are not compiled")
        if name == "eval":
            return self._rule(tree)
        parts = [self.node(argument) for argument in tree.args]
        texts = all(part.kind is Kind.TEXT for part in parts)
        if name in self.names.roles:
            if len(parts) != self.names.roles[name]:
                raise BadExpressionError(f"{name} takes {self.names.roles[name]} arguments")
            return _joined(tree, Kind.BOOL, parts, total=texts)
        if name not in FUNCTIONS:
            raise BadExpressionError(
                f"function {name} is unknown; there are {', '.join((*FUNCTIONS, *self.names.roles))}"
            )
        if len(parts) != 2:
            raise BadExpressionError(f"{name} takes 2 arguments")
        pattern, known = parts[1], False
        if isinstance(pattern.tree, ast.Constant) and isinstance(pattern.tree.value, str):
            _check_pattern(name, pattern.tree.value)
            known = True
        elif isinstance(pattern.tree, ast.Name) and pattern.columns:
            self.patterns.append((name, next(iter(pattern.columns))))
            known = True
        elif name == "keyMatch":
            known = True
        return _joined(tree, Kind.BOOL, parts, total=texts and known and FUNCTIONS[name].total)

    def _rule(self, tree: ast.Call) -> Part:
        rule = self.node(tree.args[0]) if len(tree.args) == 1 else None
        if rule is None or not isinstance(rule.tree, ast.Name) or not rule.columns:
            raise BadExpressionError("eval takes a column: eval(p.<column>)")
        self.rules.extend(rule.columns)
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


def _check_pattern(function: str, pattern: str) -> None:
    try:
        FUNCTIONS[function].compiled(pattern)
    except BadPatternError as error:
        raise BadExpressionError(f"the pattern of {function}: {error}") from None


def _parts(node: Part, operator: type[ast.boolop], reader: _MatcherReader) -> Iterator[Part]:
    """Yield the parts of a disjunction or conjunction, in order."""
    if isinstance(node.tree, ast.BoolOp) and isinstance(node.tree.op, operator):
        for value in node.tree.values:
            yield from _parts(reader.node(value), operator, reader)
    else:
        yield node


class _MatcherCompiler:
    """Turns checked trees into functions."""

    def __init__(self, names: Definitions, roles: Mapping[str, Callable[..., bool]]) -> None:
        self.names = names
        self._reader = _MatcherReader(names)
        self._rules: dict[str, Evaluate] = {}
        functions = {name: _called(name) for name in FUNCTIONS}
        self._globals: dict[str, Any] = {
            "__builtins__": {}, **functions, **roles, "_attribute": _attribute, "_eval": self._eval, "_times": _times,
            "_plus": _plus, "_modulo": _modulo,
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
        every = (
            asked[0]
            if len(asked) == 1
            else _joined(ast.BoolOp(ast.And(), [part.tree for part in asked]), Kind.BOOL, asked)
        )
        return Alternative(tuple(facets), self.function(every))

    def _facet(self, part: Part) -> ColumnTest | None:
        if len(part.columns) != 1:
            return None
        (column,), places = part.columns, part.places
        place = next(iter(places), 0)
        match part.tree:
            case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Name()]) if len(places) == 1:
                return ColumnTest(place, column, "")
            case ast.Call(func=ast.Name(id=name), args=[ast.Name() as text, ast.Name() as other, *rest]):
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
        try:
            return self.function(self._reader.node(_tree(rule, self.names)))
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
        assert isinstance(node.func, ast.Name)
        arguments = [self.visit(argument) for argument in node.args]
        if node.func.id == "eval":
            return _calls("_eval", *arguments, ast.Name("r", ast.Load()), ast.Name("p", ast.Load()))
        return _calls(node.func.id, *arguments)


def _calls(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _called(name: str) -> Callable[[str, str], bool]:
    compiled = FUNCTIONS[name].compiled

    def call(text: str, pattern: str) -> bool:
        try:
            return compiled(pattern)(text)
        except (BadPatternError, BadValueError) as error:
            raise EvaluationError(str(error)) from None

    return call


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute of a value of the request, or of an attribute. Raises EvaluationError if there is none."""
    attributes = value.attributes if isinstance(value, Attributed) else value
    if isinstance(attributes, Mapping) and name in attributes:
        return attributes[name]
    raise EvaluationError(f"there is no attribute {name}")


def _times(one: Any, other: Any) -> Any:
    for value, count in ((one, other), (other, one)):
        if hasattr(value, "__len__") and count * len(value) > MAX_TEXT_CHARS:
            raise EvaluationError("too long")
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
