"""What does Casbin say?

The only module that runs Casbin. One `Judge` per permission kind answers two things about one (subject, object,
action): which rows may match, expiry and condition left aside; and, those being known, whether the call is allowed.

Casbin decides both. The first is asked factor by factor (see model.py), each over the distinct values of the columns
that it reads, with a matcher that ends in `&& seen(…)`: `seen` notes the row and says no, so that Casbin's effect
cannot stop early. The second runs the whole matcher, as written, over the rows that are left, with `live` and `holds`
answering what is known. Casbin is never asked about no rows at all: it would then evaluate the matcher once over
empty strings, and may allow (threats K1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import casbin
from casbin.model import Model as CasbinModel

from sidecar.policy.memo import Memo
from sidecar.policy.model import REQUEST, Factor, Model
from sidecar.policy.patterns import glob, globs, who
from sidecar.policy.roles import Links

MEMO_SIZE = 4096
_ROW = "row"


class Subject(str):
    """A caller's name that knows the roles it has, from rows and token: what `g` is asked about."""

    roles: frozenset[str]
    __slots__ = ("roles",)

    @classmethod
    def of(cls, name: str, roles: frozenset[str]) -> Subject:
        subject = cls(name)
        subject.roles = roles
        return subject


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What is known of the rows of one question, by the text of their columns."""

    live: Mapping[str, bool]
    holds: Mapping[tuple[str, str], bool]


class Judge:
    """Casbin for one model and its rows. `rows` are the texts of `model.columns`, one row each."""

    def __init__(self, model: Model, rows: Sequence[Sequence[str]], sets: Links) -> None:
        self._model = model
        self._rows = [list(row) for row in rows]
        managers = {"g": _RoleWays(), "g2": _SetWays(sets)}
        self._managers = {name: managers[name] for name in model.groups}
        self._factors = [_Survey(factor, model.columns, self._rows, self._managers) for factor in model.factors]
        self._enforcer = _enforcer(REQUEST, model.columns, model.effect, model.matcher, self._managers)
        self._enforcer.add_function("live", lambda text, outcomes: outcomes.live[text])
        self._enforcer.add_function("holds", lambda text, effect, outcomes: outcomes.holds[text, effect])
        self._lock = Lock()  # Casbin's rows are put into place for each question

    def candidates(self, subject: Subject, obj: str, act: str) -> list[int]:
        """The rows that match but for their expiry and condition, in order."""
        asked = {"sub": subject, "obj": obj, "act": act}
        return _indexes(self._matching(self._factors, asked))

    def rows_of(self, subject: Subject) -> list[int]:
        """The rows whose subject is this caller; none where a model never asks for the subject alone."""
        own = [survey for survey in self._factors if survey.factor.reads == ("sub",)]
        return _indexes(self._matching(own, {"sub": subject})) if own else []

    def allows(self, subject: Subject, obj: str, act: str, rows: Sequence[int], outcomes: Outcomes) -> bool:
        """Whether these rows, with these outcomes, allow it. Raises RuntimeError where Casbin cannot be trusted."""
        if not rows or not (subject and obj and act):
            return False  # threats K1
        with self._lock:
            return _ask(self._enforcer, [self._rows[index] for index in rows], subject, obj, act, outcomes)

    def _matching(self, surveys: Sequence[_Survey], asked: Mapping[str, str]) -> int:
        matching = (1 << len(self._rows)) - 1 if all(asked.values()) else 0
        for survey in surveys:
            if matching:
                matching &= survey.rows(asked)
        return matching


class _Survey:
    """One factor over all rows, remembered by the request fields that it reads. Row sets are bits of a number."""

    def __init__(
        self, factor: Factor, columns: tuple[str, ...], rows: Sequence[Sequence[str]], managers: Mapping[str, object]
    ) -> None:
        self.factor = factor
        read = [columns.index(column) for column in factor.columns]
        same: dict[tuple[str, ...], int] = {}
        for index, row in enumerate(rows):
            key = tuple(row[column] for column in read)
            same[key] = same.get(key, 0) | 1 << index
        self._bits = list(same.values())
        self._distinct = [[*key, str(index)] for index, key in enumerate(same)]
        matcher = f"({factor.matcher}) and seen(p_{_ROW}, r_ctx)"
        effect = "some(where (p.eft == allow))"  # nothing is ever allowed here: seen says no
        self._enforcer = _enforcer((*factor.reads, "ctx"), (*factor.columns, _ROW), effect, matcher, managers)
        self._enforcer.add_function("seen", _seen)
        self._lock = Lock()
        self._memo: Memo[tuple[Any, ...], int] = Memo(MEMO_SIZE)

    def rows(self, asked: Mapping[str, str]) -> int:
        values = [asked[name] for name in self.factor.reads]
        key = tuple((value, value.roles) if isinstance(value, Subject) else value for value in values)
        known = self._memo.get(key)
        if known is None:
            known = self._ask(values)
            self._memo.put(key, known)
        return known

    def _ask(self, values: Sequence[str]) -> int:
        found: list[str] = []
        if self._distinct:
            with self._lock:
                _ask(self._enforcer, self._distinct, *values, found)
        bits = 0
        for index in found:
            bits |= self._bits[int(index)]
        return bits


def _seen(row: str, found: list[str]) -> bool:
    found.append(row)
    return False


def _indexes(bits: int) -> list[int]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


class _RoleWays:
    """`g(r.sub, …)`, as Casbin's default role manager answers it, for one caller with the roles of its token."""

    def has_link(self, name: str, role: str, *_domain: str) -> bool:
        return name == role or (isinstance(name, Subject) and role in name.roles)


class _SetWays:
    """`g2(r.obj, …)` over the sets of the policy."""

    def __init__(self, sets: Links) -> None:
        self._sets = sets

    def has_link(self, name: str, container: str, *_domain: str) -> bool:
        return name == container or container in self._sets.closure((name,))


# --- Casbin ---------------------------------------------------------------------------------------------------------

# Casbin logs every denial with its values at WARNING, and whoever configures logging may switch its loggers on
# (threats K17). This one is nobody's child and off.
_SILENT = logging.Logger("casbin, silenced", logging.CRITICAL + 1)
_SILENT.disabled = True


def _enforcer(
    request: Sequence[str], columns: Sequence[str], effect: str, matcher: str, managers: Mapping[str, object]
) -> casbin.Enforcer:
    """A Casbin enforcer without an adapter, with our functions and role managers."""
    model = CasbinModel()
    model.logger = _SILENT
    model.add_def("r", "r", ", ".join(request))
    model.add_def("p", "p", ", ".join(columns))
    model.add_def("e", "e", effect)
    model.add_def("m", "m", matcher)
    for name in managers:
        model.add_def("g", name, "_, _")
    enforcer = casbin.Enforcer(model)
    enforcer.logger = _SILENT
    for name, manager in managers.items():
        model["g"][name].rm = manager
    functions: Mapping[str, Callable[..., bool]] = {"who": who, "glob": glob, "globs": globs}
    for name, function in functions.items():
        enforcer.add_function(name, function)
    return enforcer


def _ask(enforcer: casbin.Enforcer, rows: list[list[str]], *values: object) -> bool:
    if not enforcer.enabled:  # threats K15: a disabled enforcer allows everything
        raise RuntimeError("Casbin's enforcement was switched off")
    enforcer.model["p"]["p"].policy = rows
    return enforcer.enforce(*values) is True
