"""Evaluates with Casbin the parts of a matcher that are not compiled.

This is the only module that runs Casbin. Casbin gets the rows that the compiled parts leave, with a matcher that ends
in `&& seen(…)`: `seen` records the row and returns false, so that Casbin's effect cannot stop early. Casbin's own
conclusion is not used. Casbin is never called with no rows, because it would then evaluate the matcher once over empty
strings (threats K1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

import casbin
from casbin.model import Model as CasbinModel

from sidecar.policy.expression import And, Node, names_in, written
from sidecar.policy.model import ALLOW_OVERRIDE, Model
from sidecar.policy.patterns import glob, globs, who
from sidecar.policy.roles import RolePaths
from sidecar.policy.table import RowTable

if TYPE_CHECKING:
    from sidecar.policy.compiler import RowTest

_ROW = "row"


class CasbinMatcher:
    def __init__(self, model: Model, parts: tuple[Node, ...], table: RowTable, ways: Mapping[str, RolePaths]) -> None:
        self._fields = tuple(field for field in model.request if field != "ctx")
        read = {name.field for part in parts for name in names_in(part) if name.side == "p"}
        self._columns = tuple(column for column in model.columns if column in read)
        self._table = table
        matcher = f"({written(And(parts))}) and seen(p_{_ROW}, r_ctx)"
        managers = {name: _Linked(ways[name]) for name in model.groups}
        self._enforcer = _enforcer((*self._fields, "ctx"), (*self._columns, _ROW), matcher, managers, model.by_domain)
        self._lock = Lock()  # Casbin's rows are replaced for each request

    def matching(self, asked: RowTest, rows: Sequence[int]) -> list[int]:
        """Return the rows that match. Raises RuntimeError where Casbin cannot be trusted."""
        values = [_Caller.of(asked) if field == "sub" else getattr(asked, field) for field in self._fields]
        found: list[str] = []
        texts = [[*(self._table.text(column, row) for column in self._columns), str(row)] for row in rows]
        if rows and all(values):
            with self._lock:
                if not self._enforcer.enabled:  # threats K15: a disabled enforcer allows everything
                    raise RuntimeError("Casbin's enforcement was switched off")
                self._enforcer.model["p"]["p"].policy = texts
                self._enforcer.enforce(*values, found)
        return [int(row) for row in found]


class _Caller(str):
    """A caller's name with its roles, from rows and token, and the domain in which it has them."""

    roles: frozenset[str]
    dom: str
    __slots__ = ("dom", "roles")

    @classmethod
    def of(cls, asked: RowTest) -> _Caller:
        caller = cls(asked.sub)
        caller.roles, caller.dom = asked.roles, asked.dom
        return caller


class _Linked:
    """`g` and `g2` as Casbin's role managers evaluate them."""

    def __init__(self, ways: RolePaths) -> None:
        self._ways = ways

    def has_link(self, name: str, container: str, *domain: str) -> bool:
        if isinstance(name, _Caller) and (not domain or domain[0] == name.dom):
            return name == container or container in name.roles
        return self._ways.holds(name, container, domain[0] if domain else "")


def _seen(row: str, found: list[str]) -> bool:
    found.append(row)
    return False


# Casbin logs every denial with its values at WARNING, and a logging configuration can enable its loggers (threats K17).
# This logger has no parent and is disabled.
_SILENT = logging.Logger("casbin, silenced", logging.CRITICAL + 1)
_SILENT.disabled = True


def _enforcer(
    request: Sequence[str], columns: Sequence[str], matcher: str, managers: Mapping[str, object], by_domain: bool
) -> casbin.Enforcer:
    """Return a Casbin enforcer without an adapter, with our functions and role managers."""
    model = CasbinModel()
    model.logger = _SILENT
    model.add_def("r", "r", ", ".join(request))
    model.add_def("p", "p", ", ".join(columns))
    model.add_def("e", "e", ALLOW_OVERRIDE)
    model.add_def("m", "m", matcher)
    for name in managers:
        model.add_def("g", name, "_, _, _" if by_domain and name == "g" else "_, _")
    enforcer = casbin.Enforcer(model)
    enforcer.logger = _SILENT
    for name, manager in managers.items():
        model["g"][name].rm = manager
    functions: Mapping[str, Callable[..., bool]] = {"who": who, "glob": glob, "globs": globs, "seen": _seen}
    for name, function in functions.items():
        enforcer.add_function(name, function)
    return enforcer
