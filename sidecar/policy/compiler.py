"""Splits a matcher into indexed lookups and tests of single rows.

A matcher is a conjunction. A conjunct that only compares one request field with one column, by `==`, `who`, `glob`, `g`
or `g2` or a disjunction of them, is a `Facet`: the texts that a matching row can have in that column are found without
looking at rows. Up to two facets form an index. Every other conjunct is compiled into a closure that tests the rows
found by the index. A matcher with a part that cannot be compiled is evaluated by pycasbin as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from sidecar.policy.expression import (
    And,
    Equality,
    ForeignNode,
    FunctionCall,
    Literal,
    Name,
    Node,
    Not,
    Or,
    disjuncts,
    nodes_in,
)
from sidecar.policy.model import DOMAIN, Model
from sidecar.policy.patterns import glob, globs, who
from sidecar.policy.roles import RolePaths
from sidecar.policy.table import RowTable

_INDEXED = ("sub", "obj", "act", DOMAIN)  # the order in which facets are taken into the index


class RowTest(NamedTuple):
    """One request as a matcher reads it. `roles` are all roles of `sub` in its own domain, from rows and token."""

    sub: str
    obj: str
    act: str
    dom: str
    roles: frozenset[str]


Check = Callable[[RowTest, int], bool]
_Term = Callable[[RowTest, int], str]


@dataclass(frozen=True, slots=True)
class Facet:
    """The comparison of one request field with one column. `groups` are the role definitions used; `globs` is true if
    patterns are matched; `strict` is true if the conjunct must be tested again for `anonymous`, which `who` matches
    only by that exact name."""

    node: Node
    field: str
    column: str
    groups: tuple[str, ...]
    globs: bool
    strict: bool


@dataclass(frozen=True, slots=True)
class MatcherPlan:
    """How a matcher is evaluated: first `index`, then `checks` on the rows that it finds. `foreign` are the parts that
    are not compiled; if there are any, pycasbin decides."""

    index: tuple[Facet, ...]
    checks: tuple[Node, ...]
    foreign: tuple[Node, ...]

    @property
    def is_compiled(self) -> bool:
        return not self.foreign


def plan_of(model: Model) -> MatcherPlan:
    facets = [facet for part in dict.fromkeys(model.asks) if (facet := _facet(part)) is not None]
    index: list[Facet] = []
    for facet in sorted(facets, key=lambda facet: _INDEXED.index(facet.field)):
        if len(index) < 2 and all(facet.field != other.field and facet.column != other.column for other in index):
            index.append(facet)
    rest = [part for part in model.asks if part not in [facet.node for facet in index]]
    foreign = tuple(part for part in rest if any(isinstance(node, ForeignNode) for node in nodes_in(part)))
    return MatcherPlan(tuple(index), tuple(part for part in rest if part not in foreign), foreign)


def _facet(part: Node) -> Facet | None:
    atoms = disjuncts(part)
    read = [_atom(atom) for atom in atoms]
    if None in read or len(set(read)) != 1 or read[0] is None:
        return None
    names = [atom.function if isinstance(atom, FunctionCall) else "" for atom in atoms]
    groups = tuple(name for name in names if name in ("g", "g2"))
    return Facet(part, *read[0], groups, globs=bool({"glob", "who"} & set(names)), strict="who" in names)


def _atom(atom: Node) -> tuple[str, str] | None:
    """Returns the field and the column that an atom compares; None if it is not such a comparison."""
    match atom:
        case (
            Equality(Name("r", field), Name("p", column))
            | Equality(Name("p", column), Name("r", field))
            | FunctionCall("glob" | "g" | "g2", (Name("r", field), Name("p", column)))
            | FunctionCall("g", (Name("r", field), Name("p", column), Name("r", "dom")))
            | FunctionCall("who", (Name("r", field), Name("p", column), Name("p", "eft")))
        ):
            return field, column
    return None


def compiled(node: Node, table: RowTable, ways: Mapping[str, RolePaths]) -> Check:
    match node:
        case Equality(left, right):
            one, other = _term(left, table), _term(right, table)
            return lambda asked, row: one(asked, row) == other(asked, row)
        case FunctionCall():
            return _call(node, table, ways)
        case Not(part):
            inner = compiled(part, table, ways)
            return lambda asked, row: not inner(asked, row)
        case And(parts):
            wanted = [compiled(part, table, ways) for part in parts]
            return lambda asked, row: all(part(asked, row) for part in wanted)
        case Or(parts):
            enough = [compiled(part, table, ways) for part in parts]
            return lambda asked, row: any(part(asked, row) for part in enough)
    raise TypeError(node)


def _term(term: Name | Literal, table: RowTable) -> _Term:
    if isinstance(term, Literal):
        text = term.text
        return lambda asked, row: text
    if term.side == "r":
        value: Callable[[RowTest], str] = attrgetter(term.field)
        return lambda asked, row: value(asked)
    column = term.field
    return lambda asked, row: table.text(column, row)


def _call(call: FunctionCall, table: RowTable, ways: Mapping[str, RolePaths]) -> Check:
    if call.function in ("g", "g2"):
        return _linked(call, table, ways)
    functions: Mapping[str, Callable[..., bool]] = {"who": who, "glob": glob, "globs": globs}
    function = functions[call.function]
    terms = [_term(argument, table) for argument in call.arguments]
    if len(terms) == 2:
        one, other = terms
        return lambda asked, row: function(one(asked, row), other(asked, row))
    return lambda asked, row: function(*(term(asked, row) for term in terms))


def _linked(call: FunctionCall, table: RowTable, ways: Mapping[str, RolePaths]) -> Check:
    """Compiles `g` or `g2`: true for equal or linked names. The caller's roles in its own domain are already known."""
    linked = ways[call.function]
    member, container = (_term(argument, table) for argument in call.arguments[:2])
    domain = _term(call.arguments[2], table) if len(call.arguments) == 3 else None
    is_caller = call.function == "g" and call.arguments[0] == Name("r", "sub")

    def check(asked: RowTest, row: int) -> bool:
        name, wanted = member(asked, row), container(asked, row)
        if name == wanted:
            return True
        where = "" if domain is None else domain(asked, row)
        if is_caller and where in ("", asked.dom):
            return wanted in asked.roles
        return linked.holds(name, wanted, where)

    return check
