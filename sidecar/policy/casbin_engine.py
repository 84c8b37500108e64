"""Decides requests with pycasbin's own enforcer.

This is the only module that decides by Casbin. A `CasbinEngine` is an enforcer over the rows of one policy, with the
model's own matcher and effect. It is the reference for compiled models, and decides for models that are not compiled
and where `policy.engine` demands it. An error of pycasbin denies, and so does an enforcer whose enforcement is
disabled.

The sidecar's own code looks up roles (`RoleGraph`, `RolePaths`), because it knows the roles that tokens grant;
pycasbin's role managers store every name that they look up. The functions are pycasbin's, except those that use regular
expressions (keyMatch2 to keyMatch5, keyGet2, keyGet3, regexMatch, globMatch): these are the sidecar's, whose time is
linear in the texts that callers choose. A pattern that they do not accept denies. Attributes come from the request only
(`attribute_of`); without this, pycasbin would take `r.sub.title` for a method of Python's str.

`OwnRows` gives an engine the rows of the sidecar's own models. `live` and `holds` then get the time and the outcomes of
the conditions from the request's context (`RowContext`).
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final

import casbin
from casbin.core_enforcer import EnforceContext
from casbin.model import Model as CasbinModel
from casbin.util import SimpleEval, key_get

from sidecar.policy.compiler import RowTest
from sidecar.policy.conditions import lets_match
from sidecar.policy.grammar import NONE, expires_at
from sidecar.policy.link_decision import RowsDecision
from sidecar.policy.model import Model
from sidecar.policy.patterns import glob, globs, who
from sidecar.policy.roles import RolePaths
from sidecar.policy.stock.compiler import attribute_of
from sidecar.policy.stock.expression import is_refused
from sidecar.policy.stock.functions import COMPILED, MAX_REQUEST_PATTERNS
from sidecar.policy.stock.model import Effect, StockModel, model_of
from sidecar.policy.stock.row_index import Row
from sidecar.policy.table import SHADOW, RowTable

HasRole = Callable[..., bool]
"""Whether a member has a role, in a domain if that is the third argument."""

_EVERY: Final = "every"  # the rows, and the matcher, of `CasbinEngine.matching`
_PATTERNS: Final = frozenset(COMPILED) - {"keyMatch", "keyGet", "ipMatch"}

# Casbin logs every denial with its values at WARNING, and a logging configuration can enable its loggers. This logger
# has no parent and is disabled.
_SILENT: Final = logging.Logger("casbin, silenced", logging.CRITICAL + 1)
_SILENT.disabled = True


class CasbinEngine:
    """Decides by the rows of one policy, with the interface of `Rules`. Safe to use from several threads."""

    def __init__(
        self,
        model: StockModel,
        rows: Iterable[Row],
        roles: Mapping[str, HasRole],
        functions: Mapping[str, Callable[..., Any]] = {},
        *,
        reads_rows: bool = True,
        idle: Iterable[int] = (),
    ) -> None:
        """`rows` are in the order in which they are tried. `reads_rows` is false if the matcher reads no column. The
        rows in `idle` match but do not decide."""
        suffix, every = model.suffix, [list(row) for row in rows]
        idle = frozenset(idle)
        deciding = [row for at, row in enumerate(every) if at not in idle]
        self._numbers = {id(row): at for at, row in enumerate(every)}
        self._effect = model.effect
        self._word = model.columns.index("eft") if "eft" in model.columns else None
        self._has_rows, self._is_asked = bool(every), bool(deciding) or not reads_rows
        kept = len(every) + MAX_REQUEST_PATTERNS
        ours = {name: _function(COMPILED[name], kept) for name in _PATTERNS}
        self._enforcer = _enforcer(model, roles, {"keyGet": key_get, "who": who, **ours, **functions})
        parts = self._enforcer.model
        parts["p"][f"p{suffix}"].policy = deciding
        parts["p"][_EVERY] = SimpleNamespace(tokens=parts["p"][f"p{suffix}"].tokens, policy=every)
        parts["m"][_EVERY] = SimpleNamespace(value=f"seen(({parts['m'][f'm{suffix}'].value}))")
        self._own = EnforceContext(f"r{suffix}", f"p{suffix}", "e", f"m{suffix}")
        self._collecting = EnforceContext(f"r{suffix}", _EVERY, "e", _EVERY)
        self._lock = Lock()  # `seen` is replaced for each request

    def decide(self, request: Sequence[Any]) -> RowsDecision:
        """Decides one request, its values in the order of the model's definition."""
        if not self._is_asked:  # with no rows, Casbin evaluates the matcher over empty texts
            return RowsDecision(self._effect.allows_by_default)
        try:
            with self._lock:
                allowed, row = self._enforced(self._own, request)
        except Exception as error:  # pycasbin raises what its expressions raise
            return RowsDecision(False, (), type(error).__name__)
        return RowsDecision(allowed, (self._numbers[id(row)],) if row and self._decides(row, allowed) else ())

    def matching(self, request: Sequence[Any]) -> tuple[Sequence[int], str]:
        """Returns the rows that match, up to the first whose evaluation failed, and the name of that exception; "" if
        none failed."""
        if not self._has_rows:
            return (), ""
        seen = _Seen()
        try:
            with self._lock:
                self._enforcer.add_function("seen", seen)
                self._enforced(self._collecting, request)
        except Exception as error:
            return seen.rows, type(error).__name__
        return seen.rows, ""

    def _decides(self, row: Sequence[str], allowed: bool) -> bool:
        """Whether a decision depends on the last matched row, which pycasbin names."""
        word = "allow" if self._word is None else row[self._word]
        return word == "allow" if allowed else word == "deny" and self._effect is not Effect.ALLOW_OVERRIDE

    def _enforced(self, context: EnforceContext, request: Sequence[Any]) -> tuple[bool, Sequence[str]]:
        if not self._enforcer.enabled:  # a disabled enforcer allows everything
            raise RuntimeError("Casbin's enforcement was switched off")
        decision: tuple[bool, Sequence[str]] = self._enforcer.enforce_ex(context, *request)
        return decision


class _Enforcer(casbin.Enforcer):  # type: ignore[misc]
    """pycasbin's enforcer with the sidecar's attributes."""

    @staticmethod
    def _get_expression(expr: str, functions: Mapping[str, Callable[..., Any]] | None = None) -> SimpleEval:
        expression = casbin.Enforcer._get_expression(expr, functions)
        nodes = list(ast.walk(expression.ast_parsed_value))
        if any(isinstance(node, ast.Attribute) for node in nodes):
            evaluate, called = expression.nodes[ast.Attribute], {id(n.func) for n in nodes if isinstance(n, ast.Call)}

            def attribute(node: ast.Attribute) -> Any:
                if id(node) in called or is_refused(node.attr):  # a method, or an attribute that pycasbin refuses
                    return evaluate(node)
                return attribute_of(expression._eval(node.value), node.attr)

            expression.nodes[ast.Attribute] = attribute
        return expression


class _Seen:
    """The function around the matcher that collects matching rows. It returns false, so that Casbin's effect never ends
    the search."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._row = 0

    def __call__(self, value: object) -> bool:
        if not isinstance(value, bool | float):  # the types that Casbin accepts from a matcher
            raise TypeError("a matcher must return true or false")
        if value:
            self.rows.append(self._row)
        self._row += 1
        return False


def _enforcer(
    model: StockModel, roles: Mapping[str, HasRole], functions: Mapping[str, Callable[..., Any]]
) -> casbin.Enforcer:
    """Returns an enforcer without an adapter, with the sidecar's role managers and functions."""
    made, suffix = CasbinModel(), model.suffix
    made.logger = _SILENT
    made.add_def("r", f"r{suffix}", ", ".join(model.request))
    made.add_def("p", f"p{suffix}", ", ".join(model.columns))
    made.add_def("e", "e", model.effect.value)
    made.add_def("m", f"m{suffix}", model.matcher)
    made["m"].setdefault("m", made["m"][f"m{suffix}"])  # Casbin always looks for this key
    for name, form in model.roles.items():
        parameters = f", ({', '.join('_' * form.parameters)})" if form.parameters else ""
        made.add_def("g", name, ", ".join("_" * (2 + form.by_domain)) + parameters)
    enforcer = _Enforcer(made)
    enforcer.logger = _SILENT
    for name in model.roles:
        manager = SimpleNamespace(has_link=roles[name])
        made["g"][name].rm = made["g"][name].cond_rm = manager
    for name, function in functions.items():
        enforcer.add_function(name, function)
    return enforcer


def _function(compiled: Callable[[str], Callable[..., Any]], kept: int) -> Callable[..., Any]:
    """Returns a function of a text and a pattern. It caches `kept` compiled patterns."""
    compiled = lru_cache(kept)(getattr(compiled, "__wrapped__", compiled))

    def call(text: object, pattern: str, *others: str) -> Any:
        if not isinstance(text, str):
            raise TypeError("a text is needed")
        return compiled(pattern)(text, *others)

    return call


class OwnRows:
    """The rows of one of the sidecar's own models, as pycasbin evaluates them. Rows in shadow mode match but do not
    decide."""

    def __init__(self, model: Model, table: RowTable, ways: Mapping[str, RolePaths]) -> None:
        self._request = model.request
        columns = [table.column(name) if name in ("sub", "obj") else None for name in model.columns]
        texts = table.texts.texts
        rows = [
            tuple(
                texts[column[row]] if column is not None else table.text(name, row)
                for name, column in zip(model.columns, columns, strict=True)
            )
            for row in range(len(table))
        ]
        idle = [row for row, flags in enumerate(table.flags) if flags & SHADOW]
        roles = {name: _has_role(ways[name]) for name in model.groups}
        self._engine = CasbinEngine(_stock_model(model), rows, roles, _OWN_FUNCTIONS, idle=idle)

    def matching(self, asked: RowTest) -> tuple[Sequence[int], str]:
        """Returns the rows that match, ignoring expiry and condition, like `CasbinEngine.matching`."""
        return self._engine.matching(self._values(asked, RowContext(0.0, None)))

    def decide(self, asked: RowTest, outcomes: Mapping[str, object], now_s: float) -> RowsDecision:
        """Decides a request. `outcomes` are the outcomes of conditions, by text, for the rows that match apart from
        their condition."""
        return self._engine.decide(self._values(asked, RowContext(now_s, outcomes)))

    def _values(self, asked: RowTest, context: RowContext) -> list[object]:
        values = {"sub": _Caller.of(asked), "obj": asked.obj, "act": asked.act, "dom": asked.dom, "ctx": context}
        return [values[name] for name in self._request]


class RowContext:
    """The part of a call that `live` and `holds` read. Without `outcomes` every row is live, and every condition
    holds."""

    __slots__ = ("now_s", "outcomes")

    def __init__(self, now_s: float, outcomes: Mapping[str, object] | None) -> None:
        self.now_s, self.outcomes = now_s, outcomes


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


def _has_role(ways: RolePaths) -> HasRole:
    def has_role(name: str, role: str, domain: str = "") -> bool:
        if isinstance(name, _Caller) and domain in ("", name.dom):
            return name == role or role in name.roles
        return ways.holds(name, role, domain)

    return has_role


def _live(end: str, context: RowContext) -> bool:
    return context.outcomes is None or (end_s := expires_at(end)) is None or context.now_s < end_s


def _holds(when: str, effect: str, context: RowContext) -> bool:
    if when == NONE or context.outcomes is None:
        return True
    return lets_match(context.outcomes.get(when, "error"), effect == "deny")


_OWN_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "who": who, "glob": glob, "globs": globs, "live": _live, "holds": _holds
}  # fmt: skip


def _stock_model(model: Model) -> StockModel:
    entries = {"r": ", ".join(model.request), "p": ", ".join(model.columns), "e": model.effect, "m": model.matcher}
    return model_of(entries | {name: "_, _, _" if model.by_domain and name == "g" else "_, _" for name in model.groups})
