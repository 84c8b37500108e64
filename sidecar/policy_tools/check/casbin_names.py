"""Lints for the names in requests to Casbin models.

A side of a request (subject, domain, object, action) is checked only if the matcher compares it with columns by `==` or
by a role definition without patterns, and does not read it elsewhere: then only names in rows and roles can match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.policy.faults import meant, shown
from sidecar.policy.grammar import ACTIONS
from sidecar.policy.stock.compiler import read_expression
from sidecar.policy.stock.expression import BadExpressionError, ColumnTest, text_fields
from sidecar.policy.stock.model import definitions_of
from sidecar.policy.stock.names import name_pattern
from sidecar.policy.stock.reading import StockSource
from sidecar.policy.stock.table import StockTable
from sidecar.policy_tools.catalogue import server_of
from sidecar.policy_tools.check.linted_policy import LintedPolicy, PolicyFinding
from sidecar.policy_tools.check.matching import MAX_NEAR, some
from sidecar.settings.policy import CasbinNames, CasbinSettings

_TABLES: Final[Mapping[str, str]] = {"sub": "subjects", "dom": "domains", "obj": "objects", "act": "actions"}
_BEGINNINGS: Final[Mapping[str, Sequence[str]]] = {
    # for the sidecar's own names, which an entry for all of them maps to themselves
    "subjects": ("user:", "nhi:"),
    "objects": ("tool:", "prompt:", "resource:", "nhi:"),
    "roles": ("role:",),
}
_CAPTURE: Final = re.compile(r"\*[1-9]?")


@dataclass(frozen=True)
class _ComparedSide:
    """The names in rows on one side of a request, `sub`, `dom`, `obj` or `act` (`text`). `columns` are those that it is
    compared with, `links` are the (member, role) pairs of the role definitions by which it is compared."""

    table: StockTable
    text: str
    columns: Sequence[int]
    links: Sequence[tuple[str, str]]

    @property
    def known(self) -> set[str]:
        found = {name for column in self.columns for name, _ in self.names_in(column)}
        return found | {name for link in self.links for name in link}

    def names_in(self, column: int) -> Iterator[tuple[str, int]]:
        """Yields the distinct names of a column, each with the number that stands for it in the columns of the rows."""
        rows = self.table.source.rows
        return ((rows.texts[number], number) for number in set(rows.columns[column]))


def maps_to_nothing(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P671: an entry of `policy.names` maps to an exact name that no row has."""
    for side in _sides(policy):
        known = side.known
        for ours, theirs in _results(policy.source.casbin.names, side.text):
            if "*" not in theirs and theirs not in known:
                table = f"policy.names.{_TABLES[side.text]}"
                message = f"{table} has {shown(theirs)} for {shown(ours)}, and no row names it"
                near = meant(theirs, sorted(known)[:MAX_NEAR])
                yield PolicyFinding("P671", message, near, file=_file(policy, side.table), part=ours)


def out_of_reach(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P672: a row with a name that no caller, object or action of the sidecar maps to."""
    for side in _sides(policy):
        reached = _Reached(side, policy.source.casbin.names)
        what = {"sub": "caller", "dom": "namespace", "obj": "object", "act": "action"}[side.text]
        for column in side.columns:
            for name, number in side.names_in(column):
                if not reached.includes(name):
                    message = f"no {what} is {shown(name)} in this policy: this row has no effect"
                    hint = f"write an entry in policy.names.{_TABLES[side.text]}, or remove the row"
                    source = side.table.source
                    at = source.rows.columns[column].index(number)
                    yield PolicyFinding("P672", message, hint, side.table.rule(at), source.model.columns[column])


def never_counts(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P673: an entry of policy.names whose names all match an earlier entry of its table, or an entry of policy.roles
    that no model defines."""
    defined = {key for table in policy.stock for key in table.source.model.roles}
    for key in policy.source.casbin.roles if policy.stock else ():
        if key not in defined:
            hint = meant(key, defined) or "remove it"
            message = f"{shown(key)} never applies in policy.roles: no model defines it"
            yield PolicyFinding("P673", message, hint, file=_file(policy, policy.stock[0]), part=key)
    for table in policy.stock[:1]:
        for name in type(policy.source.casbin.names).model_fields:
            earlier: list[str] = []
            for ours in getattr(policy.source.casbin.names, name):
                first = next((one for one in earlier if name_pattern(one).fullmatch(ours)), None)
                if first is not None:
                    message = (
                        f"{shown(ours)} never applies in policy.names.{name}: {shown(first)} matches all of its names"
                    )
                    yield PolicyFinding("P673", message, "write it above", file=_file(policy, table), part=ours)
                earlier.append(ours)


def on_no_upstream(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P607: an entry of policy.names.objects that no upstream matches."""
    for table in policy.stock[:1]:
        for pattern in policy.source.casbin.names.objects:
            if pattern != "*" and not policy.passes_here(pattern):
                hint = meant(server_of(pattern), policy.names or ()) or f"there are {some(policy.names or ())}"
                message = f"no upstream matches {shown(pattern)}"
                yield PolicyFinding("P607", message, hint, file=_file(policy, table), part=pattern)


def _file(policy: LintedPolicy, table: StockTable) -> str:
    return policy.config_file or table.source.file


def _sides(policy: LintedPolicy) -> Iterator[_ComparedSide]:
    for table in policy.stock:
        yield from _sides_of(table, policy.source.casbin)


def _sides_of(table: StockTable, settings: CasbinSettings) -> Iterator[_ComparedSide]:
    source = table.source
    model = source.model
    try:
        expression = read_expression(model.matcher, definitions_of(model), {})
    except BadExpressionError:
        return
    tests = [test for one in expression.alternatives for test in one.facets]
    if expression.foreign or expression.rules or not tests:
        return
    for place, field in enumerate(model.request):
        text = text_fields(model.request).get(field, "")
        compared = [test for test in tests if test.place == place]
        domains = [test for test in tests if test.domain == place]
        read = re.findall(rf"\br{model.suffix}\.{re.escape(field)}\b", model.matcher)
        exact = not any(_has_patterns(test, settings, "match") for test in compared)
        exact = exact and not any(_has_patterns(test, settings, "match_domain") for test in domains)
        if text and compared and exact and len(read) == len(compared) + len(domains):
            yield _ComparedSide(table, text, [test.column for test in compared], _links(source, compared, domains))


def _has_patterns(test: ColumnTest, settings: CasbinSettings, option: str) -> bool:
    if not test.function.startswith("g") or test.function == "globMatch":
        return bool(test.function)
    said = settings.roles.get(test.function)
    return said is not None and getattr(said, option) is not None


def _links(source: StockSource, compared: Sequence[ColumnTest], domains: Sequence[ColumnTest]) -> list[tuple[str, str]]:
    """Returns the (member, role) pairs on this side. On the domain side, each domain is its own member."""
    found = [(link[0], link[1]) for test in compared for link in source.links.get(test.function, ())]
    return found + [(link[2], link[2]) for test in domains for link in source.links.get(test.function, ())]


def _results(names: CasbinNames, text: str) -> Iterator[tuple[str, str]]:
    """Yields the entries that determine this side, each with its result. An entry for objects may also set the
    action."""
    for ours, theirs in names.objects.items() if text in ("obj", "act") else getattr(names, _TABLES[text]).items():
        if isinstance(theirs, str):
            if text != "act":
                yield ours, theirs
        else:
            yield ours, theirs.obj if text == "obj" else theirs.act
    if text == "act" and any(isinstance(theirs, str) for theirs in names.objects.values()):
        yield from names.actions.items()


class _Reached:
    """The names on one side that some name of the sidecar maps to, and the roles of these names."""

    def __init__(self, side: _ComparedSide, names: CasbinNames) -> None:
        tables = [(_TABLES[side.text], dict(_results(names, side.text)))]
        if side.text == "sub":
            tables.append(("roles", dict(names.roles)))
        self._results = [
            (re.compile(".*".join(map(re.escape, _CAPTURE.split(theirs))), re.DOTALL), table * (ours == theirs == "*"))
            for table, entries in tables
            for ours, theirs in entries.items()
        ]
        self._members: dict[str, list[str]] = {}
        for member, role in side.links:
            if member != role:
                self._members.setdefault(role, []).append(member)

    def includes(self, name: str) -> bool:
        seen, todo = {name}, [name]
        while todo:
            each = todo.pop()
            if any(result.fullmatch(each) and _is_ours(each, table) for result, table in self._results):
                return True
            new = [member for member in self._members.get(each, ()) if member not in seen]
            seen.update(new)
            todo += new
        return False


def _is_ours(name: str, table: str) -> bool:
    """Whether this can be the result of an entry. One that maps `*` to `*` preserves names, so the result must be a
    name of the sidecar in that `table`; "" for any other entry."""
    return name in ACTIONS if table == "actions" else name.startswith(tuple(_BEGINNINGS.get(table, ("",))))
