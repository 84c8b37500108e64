"""Compiles plain CEL conditions into Python functions.

Most conditions compare a few inputs with constants. Converting values for CEL's runtime costs ten times as much as such
a comparison. A condition is plain if it consists of

    reads           args.a.b, args['a'], principal.id, origin.roles, has(args.a), now
    constants       null, booleans, texts, doubles, integers of at most 53 bits, lists of them, timestamp('…Z')
    comparisons     == != < <= > >= in, startsWith, endsWith, contains, size of an input with an integer
    && || !

A plain condition handles plain inputs: null, booleans, doubles, integers of at most 53 bits, ASCII texts without NUL,
and small lists and maps of them. For all other inputs it returns None, and CEL evaluates the condition. So only simple
semantics are implemented twice; `tests/unit/policy/test_plain_conditions.py` compares the two.

The cost of one run is linear in the size of its inputs, at most `MAX_INSIDE` values each, and is charged to the
decision's budget in the same units as CEL's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sidecar.policy.syntax import (
    CALL,
    CONST,
    LIST,
    SELECT,
    TEST_ONLY,
    UINT64,
    Path,
    WireMessage,
    constants_in,
    expression_of,
    name_of,
    path_of,
)

if TYPE_CHECKING:
    from sidecar.policy.conditions import ConditionContext

UNITS_PER_NODE: Final = 20  # to measure and convert one value
UNITS_PER_CHAR: Final = 0.25
MAX_INSIDE: Final = 256  # values and keys in one list or map
MAX_LEVELS: Final = 16
MAX_INTEGER: Final = 2**53  # doubles are exact up to here
MAX_TIME_S: Final = 2**35  # of `now`, since the epoch; about the year 3000
VARIABLES: Final = ("args", "principal", "origin", "now")

Ran = Literal["true", "false", "error"]
Test = Callable[[Any, Any], Any]
Tests = Mapping[type, Test]
ERROR: Final = object()
"""The value of a failed operation."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_ORDERINGS: Mapping[str, Test] = {
    "_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge
}  # fmt: skip
_COMPARISONS = {**_ORDERINGS, "_==_": operator.eq, "_!=_": operator.ne}
_MIRRORED = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
_EQUALITIES = {"_==_": True, "_!=_": False}
_TEXT_TESTS: Mapping[str, Test] = {
    "startsWith": str.startswith, "endsWith": str.endswith, "contains": operator.contains
}  # fmt: skip
_NUMBERS = frozenset({int, float})
_SIZED = frozenset({str, list, dict})
_RANKS: Mapping[type, int] = {type(None): 0, bool: 1, int: 2, float: 2, str: 3}  # types that can be equal
_ABSENT: Final = object()
_NOW: Final = ("now",)
_SCALAR, _LIST, _ANY = "scalar", "list", "any"  # the form that an input must have; any for `has` and `size`


Inputs = dict[str, Any]
"""The inputs of one run by dotted path, without absent ones."""


class Node(NamedTuple):
    """One test. Its value is True, False or ERROR: `tests[type(value)](value, constant)`, where `value` is the input of
    this name, and ERROR if there is no test for its type. The tests of several inputs and of other nodes have the name
    "" and receive all Inputs."""

    name: str
    tests: Tests
    constant: Any


class Leaf(NamedTuple):
    """One input: its dotted name, its last key, the form that it must have, and the minimum cost of its key and value
    in units."""

    name: str
    key: str
    form: str
    units: float


class PlainCondition(NamedTuple):
    """A compiled condition. `test` is for `_decided`; `groups` are the inputs in order, by variable and the keys above
    the last one; `units` is the cost of the variables and all keys, and the minimum cost of all values."""

    test: tuple[bool, tuple[Node, ...]]
    groups: tuple[tuple[str, Path, tuple[Leaf, ...]], ...]
    units: float

    def run(self, scene: ConditionContext, units: float) -> tuple[Ran, Mapping[str, Any], float] | None:
        """Returns the outcome, the inputs by dotted path, and the remaining `units`; None if inputs are not plain."""
        test, groups, own_units = self
        left = units - own_units
        inputs: Inputs = {}
        for name, above, leaves in groups:
            if name == "args":
                whole: Any = scene.args
            elif name == "now":
                if not 0 <= scene.now_s < MAX_TIME_S:
                    return None
                inputs["now"] = scene.variable("now").timestamp()
                continue
            else:
                whole = scene.variable(name)
            for step in above:
                if type(whole) is not dict:
                    return None
                whole = whole.get(step)
            if type(whole) is not dict:
                return None
            for leaf, key, form, leaf_units in leaves:
                value = whole.get(key, _ABSENT)
                if value is _ABSENT:
                    left += leaf_units
                    continue
                inputs[leaf] = value
                kind = type(value)
                if kind is str and form is not _LIST:
                    if not value.isascii() or "\0" in value:
                        return None
                    left -= len(value) * UNITS_PER_CHAR
                elif kind in _RANKS:
                    if form is _LIST or (kind is int and not -MAX_INTEGER <= value <= MAX_INTEGER):
                        return None
                elif (kind is list and form is not _SCALAR) or (kind is dict and form is _ANY):
                    if (inside := _units_inside(value)) is None:
                        return None
                    left -= inside
                else:
                    return None
        value = _decided(inputs, test) if left >= 0 else ERROR
        return "true" if value is True else "false" if value is False else "error", inputs, left


def _units_inside(whole: list[Any] | dict[str, Any]) -> float | None:
    """Returns the units of the content of a list or map; None if it is not plain, too large or too deep."""
    units, count = 0.0, 0
    level: list[Any] = [whole]
    for _ in range(MAX_LEVELS):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is str:
                if not value.isascii() or "\0" in value:
                    return None
                units += len(value) * UNITS_PER_CHAR
            elif kind is list or kind is dict:
                count += len(value)
                if count > MAX_INSIDE:
                    return None
                below += value
                if kind is dict:
                    below += value.values()
            elif kind not in _RANKS or (kind is int and not -MAX_INTEGER <= value <= MAX_INTEGER):
                return None
        if not below:
            return units
        units += len(below) * UNITS_PER_NODE
        level = below
    return None


class _NotPlainError(Exception):
    """The condition has a part that only CEL evaluates."""


def plain_condition(serialized: bytes) -> PlainCondition | None:
    """Compiles `Expression.serialize()`; None if the condition is not plain."""
    compiler = _Compiler()
    try:
        node = compiler.node(expression_of(serialized))
        test = node.constant if node.tests is _DECIDED else (False, (node,))
        return PlainCondition(test, *_grouped(compiler.reads))
    except _NotPlainError:
        return None


def _grouped(reads: Mapping[Path, str]) -> tuple[tuple[tuple[str, Path, tuple[Leaf, ...]], ...], float]:
    """Returns the inputs in groups, and the units of a run in which all of them exist: each key and each value above
    them is a node. Raises _NotPlainError for an input inside another one."""
    between = {path[:size] for path in reads for size in range(1, len(path))}
    if between & reads.keys():
        raise _NotPlainError
    groups = []
    for above, paths in groupby(sorted(reads), lambda path: path[:-1] or path):
        leaves = [
            Leaf(name_of(path), path[-1], reads[path], 2 * UNITS_PER_NODE + len(path[-1]) * UNITS_PER_CHAR)
            for path in paths
        ]
        groups.append((above[0], above[1:], tuple(leaves)))
    keys = [path[-1] for path in between if len(path) > 1]
    nodes, chars = len({path[0] for path in reads}) + 2 * len(keys), sum(map(len, keys))
    own = sum(leaf.units for name, _, leaves in groups if name != "now" for leaf in leaves)  # `now` costs nothing
    return tuple(groups), own + nodes * UNITS_PER_NODE + chars * UNITS_PER_CHAR


class _Compiler:
    """Compiles one tree. `reads` are the inputs found, each with the form that it must have."""

    def __init__(self) -> None:
        self.reads: dict[Path, str] = {}

    def node(self, expr: WireMessage) -> Node:
        """Compiles an expression whose value is used as a boolean."""
        if expr.one(SELECT).number(TEST_ONLY):
            return _present(self._input(expr, _ANY, is_test=True))
        if path_of(expr) is not None:
            return Node(self._input(expr), {bool: operator.is_}, True)
        call = expr.one(CALL)
        function, operands = call.text(2), call.all(1) + call.all(3)
        if function == "!_":
            return Node("", _OPPOSITE, self.node(operands[0]))
        if len(operands) != 2:
            raise _NotPlainError
        left, right = operands
        match function:
            case "_&&_":
                return _decided_by(False, self.node(left), self.node(right))
            case "_||_":
                return _decided_by(True, self.node(left), self.node(right))
            case "@in":
                return self._membership(left, right)
            case "startsWith" | "endsWith" | "contains":
                return Node(self._input(left), {str: _TEXT_TESTS[function]}, _text(right))
        return self._comparison(function, left, right)

    def _comparison(self, function: str, left: WireMessage, right: WireMessage) -> Node:
        if CONST in left or (path_of(left) is None and CONST not in right):
            left, right, function = right, left, _MIRRORED.get(function, function)
        if function not in _COMPARISONS:
            raise _NotPlainError
        if (call := left.one(CALL)).text(2) == "size":
            measured, size = (call.all(1) + call.all(3))[0], _constant(right)
            if type(size) is not int:
                raise _NotPlainError
            return _sized(_COMPARISONS[function], self._input(measured, _ANY), size)
        if path_of(right) is not None:
            name, other = self._input(left), self._input(right)
            if function in _EQUALITIES:
                return Node("", _SAME, (name, other, _EQUALITIES[function]))
            return Node("", _ORDERED, (_ORDERINGS[function], name, other))
        if path_of(left) == _NOW:
            self.reads[_NOW] = _SCALAR
            name, constant = "now", _seconds(right)
        else:
            name, constant = self._input(left), _constant(right)
        if function in _EQUALITIES:
            return _equal(name, constant, _EQUALITIES[function])
        if type(constant) not in (int, float, str):
            raise _NotPlainError
        return _compare(_ORDERINGS[function], name, constant)

    def _membership(self, sought: WireMessage, container: WireMessage) -> Node:
        if path_of(container) is None:
            return Node(self._input(sought), _AMONG, [_constant(element) for element in _elements(container)])
        name = self._input(container, _LIST)
        if path_of(sought) is None:
            return Node(name, _HOLDS, _constant(sought))
        return Node("", _HOLDS_INPUT, (name, self._input(sought)))

    def _input(self, expr: WireMessage, form: str = _SCALAR, *, is_test: bool = False) -> str:
        """Notes that the condition reads an input; returns its dotted name. A test such as `has(args.a)` has the path
        of `args.a`, and another value."""
        path = path_of(expr)
        if bool(expr.one(SELECT).number(TEST_ONLY)) is not is_test:
            raise _NotPlainError
        if path is None or len(path) == 1 or path[0] not in VARIABLES:
            raise _NotPlainError
        noted = self.reads.get(path, _ANY)
        if len({noted, form, _ANY}) > 2:
            raise _NotPlainError
        self.reads[path] = form if noted is _ANY else noted
        return name_of(path)


def _constant(expr: WireMessage) -> Any:
    found = constants_in(expr)
    if not found or UINT64 in expr.one(CONST) or (isinstance(found[0], int) and abs(found[0]) > MAX_INTEGER):
        raise _NotPlainError
    return found[0]


def _text(expr: WireMessage) -> str:
    constant = _constant(expr)
    if not isinstance(constant, str):
        raise _NotPlainError
    return constant


def _elements(expr: WireMessage) -> list[WireMessage]:
    if LIST not in expr:
        raise _NotPlainError
    return expr.one(LIST).all(1)


def _seconds(expr: WireMessage) -> float:
    call = expr.one(CALL)
    arguments = call.all(3)
    if call.text(2) != "timestamp" or len(arguments) != 1 or not _TIME.fullmatch(text := _text(arguments[0])):
        raise _NotPlainError
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise _NotPlainError from None


def _fails(_: Any, __: Any) -> Any:
    return ERROR


def _is_so(_: Any, __: Any) -> bool:
    return True


def _is_not_so(_: Any, __: Any) -> bool:
    return False


def _present(name: str) -> Node:
    return Node(name, {**dict.fromkeys((*_RANKS, *_SIZED), _is_so), type(_ABSENT): _is_not_so}, None)


def _sized(comparison: Test, name: str, size: int) -> Node:
    return Node(name, dict.fromkeys(_SIZED, lambda value, size: comparison(len(value), size)), size)


def _opposite(inputs: Inputs, operand: Node) -> Any:
    name, tests, constant = operand
    value = inputs.get(name, _ABSENT) if name else inputs
    value = tests.get(type(value), _fails)(value, constant)
    return ERROR if value is ERROR else not value


def _decided_by(decisive: bool, left: Node, right: Node) -> Node:
    """Compiles `&&` (decided by False) or `||` (by True): the decisive value of any part takes precedence over an error
    of another."""
    parts: list[Node] = []
    for node in (left, right):
        parts += node.constant[1] if node.tests is _DECIDED and node.constant[0] is decisive else (node,)
    return Node("", _DECIDED, (decisive, tuple(parts)))


def _decided(inputs: Inputs, connected: tuple[bool, tuple[Node, ...]]) -> Any:
    decisive, parts = connected
    result: Any = not decisive
    for name, tests, constant in parts:
        value = inputs.get(name, _ABSENT) if name else inputs
        value = tests.get(type(value), _fails)(value, constant)
        if value is decisive:
            return decisive
        if value is ERROR:
            result = ERROR
    return result


def _equal(name: str, constant: Any, wanted: bool) -> Node:
    """Compiles `==` or `!=` with a constant: values of different types are unequal, but integers and doubles are one
    type."""
    kinds = _NUMBERS if type(constant) in _NUMBERS else (type(constant),)
    same, other = (operator.eq, _is_not_so) if wanted else (operator.ne, _is_so)
    return Node(name, {**dict.fromkeys(_RANKS, other), **dict.fromkeys(kinds, same)}, constant)


def _are_same(inputs: Inputs, asked: tuple[str, str, bool]) -> Any:
    name, other, wanted = asked
    if name not in inputs or other not in inputs:
        return ERROR
    return _are_equal(inputs[name], inputs[other]) is wanted


def _are_equal(one: Any, two: Any) -> bool:
    return one == two and _RANKS[type(one)] == _RANKS[type(two)]


def _compare(ordering: Test, name: str, constant: Any) -> Node:
    """Compiles an ordering with a constant. Values of another type are an error."""
    return Node(name, dict.fromkeys(_NUMBERS if type(constant) in _NUMBERS else (str,), ordering), constant)


def _are_in_order(inputs: Inputs, asked: tuple[Test, str, str]) -> Any:
    ordering, name, other = asked
    one, two = inputs.get(name), inputs.get(other)
    rank = _RANKS.get(type(one))
    return ordering(one, two) if rank and rank == _RANKS.get(type(two)) else ERROR


def _is_among(value: Any, constants: list[Any]) -> bool:
    return any(_are_equal(value, constant) for constant in constants)


def _list_holds(values: list[Any], constant: Any) -> bool:
    return any(_are_equal(value, constant) for value in values)


def _list_holds_input(inputs: Inputs, asked: tuple[str, str]) -> Any:
    name, sought = asked
    if name not in inputs or sought not in inputs:
        return ERROR
    return _list_holds(inputs[name], inputs[sought])


_OPPOSITE: Tests = {dict: _opposite}
_DECIDED: Tests = {dict: _decided}
_SAME: Tests = {dict: _are_same}
_ORDERED: Tests = {dict: _are_in_order}
_AMONG: Tests = dict.fromkeys(_RANKS, _is_among)
_HOLDS: Tests = {list: _list_holds}
_HOLDS_INPUT: Tests = {dict: _list_holds_input}
