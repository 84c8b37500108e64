"""Compiles checked expressions to Python functions.

A compiled function computes the same value as simpleeval, because it uses the same operators in the same order. Only
attributes, functions and operations that can grow without bound become calls of the sidecar's functions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, product
from typing import Any, Final

from sidecar.policy import patterns
from sidecar.policy.stock.expression import (
    Alternative,
    Attributed,
    BadExpressionError,
    ColumnTest,
    Definitions,
    Evaluate,
    EvaluationError,
    Expression,
    Kind,
    MatcherReader,
    NotCompiledError,
    Part,
    joined,
)
from sidecar.policy.stock.functions import (
    COMPILED,
    FUNCTIONS,
    MAX_REQUEST_PATTERNS,
    BadPatternError,
    BadValueError,
    time_match,
)

MAX_TEXT_CHARS: Final = 100_000  # of a text that an expression builds, as in simpleeval
MAX_NUMBER_BITS: Final = 8_192  # of a product
MAX_ALTERNATIVES: Final = 8  # of each part of a matcher's disjunction; each has an index
MAX_RULES: Final = 16_384  # compiled texts of `eval` that are cached


def read_expression(text: str, names: Definitions, roles: Mapping[str, Callable[..., bool]]) -> Expression:
    """Compiles a matcher. `roles` decide `g`, `g2`…. Raises BadExpressionError."""
    reader = MatcherReader(names, text)
    try:
        node = reader.read()
    except NotCompiledError as why:
        return Expression(
            (), None, False, True, reader.reads_rows, tuple(reader.patterns), tuple(reader.rules), str(why)
        )
    compiler = _MatcherCompiler(names, roles, reader)
    return Expression(
        alternatives=tuple(one for part in _parts(node, ast.Or, reader) for one in compiler.alternatives(part)),
        run=compiler.whole(node),
        total=node.total,
        dynamic=node.dynamic,
        reads_rows=reader.reads_rows,
        patterns=tuple(reader.patterns),
        rules=tuple(reader.rules),
        static=compiler.static(node),
    )


def uncompiled_rule(text: str, names: Definitions) -> str:
    """Returns why a rule for `eval` is not compiled; "" if it is compiled. Raises BadExpressionError."""
    reader = MatcherReader(names, text, rule=True)
    try:
        reader.read()
    except NotCompiledError as why:
        return str(why)
    return ""


def _combined(operator: ast.boolop, parts: Sequence[Part]) -> Part:
    return (
        parts[0] if len(parts) == 1 else joined(ast.BoolOp(operator, [part.tree for part in parts]), Kind.BOOL, parts)
    )


def _parts(node: Part, operator: type[ast.boolop], reader: MatcherReader) -> Iterator[Part]:
    """Yields the parts of a disjunction or conjunction, in order."""
    if isinstance(node.tree, ast.BoolOp) and isinstance(node.tree.op, operator):
        for value in node.tree.values:
            yield from _parts(reader.node(value), operator, reader)
    else:
        yield node


class _MatcherCompiler:
    """Turns checked trees into functions."""

    def __init__(self, names: Definitions, roles: Mapping[str, Callable[..., bool]], reader: MatcherReader) -> None:
        self.names = names
        self._reader = reader
        self._rules: dict[str, Evaluate] = {}
        self._globals: dict[str, Any] = {
            "__builtins__": {}, **_EVERY_FUNCTION, **roles, "_attribute": attribute_of, "_method": _method,
            "_eval": self._eval, "_times": _times, "_plus": _plus, "_modulo": _modulo,
        }  # fmt: skip

    def whole(self, node: Part) -> Evaluate:
        """Returns the function of a matcher, whose value is a bool."""
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
            except Exception as error:  # operators accept values of any type and can raise anything
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

    def alternatives(self, node: Part) -> Iterator[Alternative]:
        """Yields the alternatives of one part of a disjunction; more than one if it has disjunctions of its own, as in
        `r.sub == p.sub && (r.obj == p.obj || p.obj == "*")`."""
        chosen_of: list[list[list[Part]]] = []
        count = 1
        for part in _parts(node, ast.And, self._reader):
            if not part.total or part.dynamic:
                break
            choices = [list(_parts(choice, ast.And, self._reader)) for choice in _parts(part, ast.Or, self._reader)]
            are_used = all(any(not one.columns or self._facet(one) for one in choice) for choice in choices)
            if not are_used or count * len(choices) > MAX_ALTERNATIVES:
                choices = [[part]]
            count *= len(choices)
            chosen_of.append(choices)
        for chosen in product(*chosen_of):
            is_asked = node.total and not node.dynamic and not node.columns
            yield self._alternative(list(chain.from_iterable(chosen)), is_asked=is_asked)

    def _alternative(self, parts: Sequence[Part], *, is_asked: bool) -> Alternative:
        facets: list[ColumnTest] = []
        asked: list[Part] = []
        for part in parts:
            if not part.columns:
                asked.append(part)
            elif (facet := self._facet(part)) is not None and facet.column not in [one.column for one in facets]:
                facets.append(facet)
        if not asked:
            return Alternative(tuple(facets), None)
        every = _combined(ast.And(), asked)
        return Alternative(tuple(facets), self.function(every), every.places, is_asked)

    def _facet(self, part: Part) -> ColumnTest | None:
        if len(part.columns) != 1:
            return None
        (column,), places = part.columns, part.places
        place = next(iter(places), 0)
        match part.tree:
            case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Name()]) if len(places) == 1:
                return ColumnTest(place, column, "")
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) if not places:
                for one, other in ((left, right), (right, left)):
                    if isinstance(one, ast.Name) and isinstance(other, ast.Constant) and isinstance(other.value, str):
                        return ColumnTest(-1, column, "", constant=other.value)
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
        reader = MatcherReader(self.names, rule, rule=True)
        try:
            return self.function(reader.read())
        except (BadExpressionError, NotCompiledError) as error:
            raise EvaluationError(str(error)) from None


_ARGUMENTS = ast.arguments(
    posonlyargs=[], args=[ast.arg("r"), ast.arg("p")], kwonlyargs=[], kw_defaults=[], defaults=[]
)  # fmt: skip
_OURS: Mapping[type[ast.operator], str] = {ast.Mult: "_times", ast.Add: "_plus", ast.Mod: "_modulo"}


def _copied(tree: ast.expr) -> ast.expr:
    """Copies a tree, because compiling changes it."""
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
        """Returns the function, or its variant for patterns from requests."""
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
    """keyMatch for an attribute that is not text."""
    head, star, _ = pattern.partition("*")
    return bool((value[: len(head)] if len(value) > len(head) else value) == head if star else value == pattern)


def _all_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the functions of expressions, and those that cache few patterns, for patterns from requests."""
    yield "who", patterns.who
    yield "timeMatch", time_match
    for name, compiled in COMPILED.items():
        yield name, _called(name, compiled)
        anew: Callable[[str], Callable[..., Any]] = getattr(compiled, "__wrapped__", compiled)
        yield f"_requested_{name}", _called(name, lru_cache(MAX_REQUEST_PATTERNS)(anew))


_EVERY_FUNCTION: Mapping[str, Callable[..., Any]] = dict(_all_functions())


def attribute_of(value: Any, name: str) -> Any:
    """Returns an attribute of a value of the request, or of an attribute. Raises EvaluationError if there is none."""
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
    """Returns the outcome of a matcher in pycasbin's terms."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value != 0
    raise EvaluationError("a matcher must return true or false")
