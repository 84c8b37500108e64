"""Decides requests by the rows of a Casbin policy, as pycasbin does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sidecar.policy.stock.expression import Alternative, ColumnTest, EvaluationError, Expression, read_expression
from sidecar.policy.stock.functions import FUNCTIONS
from sidecar.policy.stock.model import Effect, StockModel, definitions_of
from sidecar.policy.stock.roles import RoleGraph, RoleOptions, role_graphs

MAX_LOOKUPS: Final = 4_096  # of one alternative; beyond it, the rows of fewer facets are tried

Row = tuple[str, ...]


class RowsDecision(NamedTuple):
    """A decision and the rows that it rests on. `failed` says why the evaluation of a row failed; "" if none did."""

    allowed: bool
    rows: tuple[int, ...] = ()
    failed: str = ""


class Rules:
    """The rows of one model, in the order in which they are tried."""

    def __init__(
        self,
        model: StockModel,
        rows: Sequence[Row],
        links: Mapping[str, Sequence[Row]],
        options: Mapping[str, RoleOptions] = {},
    ) -> None:
        """Raises BadExpressionError for a matcher that is none."""
        self.model = model
        self.roles = role_graphs(model.roles, links, options)
        holds = {key: graph.holds for key, graph in self.roles.items()}
        self.expression: Expression = read_expression(model.matcher, definitions_of(model), holds)
        self.rows = in_order(model, rows, links)
        self._effect_column = _place(model, "eft")
        if not self.rows and not self.expression.reads_rows:  # Casbin then evaluates the matcher once
            self.rows, self._effect_column = [("",) * len(model.columns)], None
        self._indexes = [_RowIndex(one, self.rows, self.roles) for one in self.expression.alternatives]

    def decide(self, request: Sequence[Any]) -> RowsDecision:
        """Decide one request, its values in the order of the model's definition."""
        run = self.expression.run
        assert run is not None, "pycasbin decides this model"
        effect, allows, found = self.model.effect, False, []
        try:
            for at in self._candidates(request):
                if not run(request, self.rows[at]):
                    continue
                word = "allow" if self._effect_column is None else self.rows[at][self._effect_column]
                if word == "deny":
                    if effect is not Effect.ALLOW_OVERRIDE:
                        return RowsDecision(False, (at,))
                elif word == "allow":
                    allows = True
                    found.append(at)
                    if effect in (Effect.ALLOW_OVERRIDE, Effect.PRIORITY, Effect.SUBJECT_PRIORITY):
                        break
        except EvaluationError as error:
            return RowsDecision(False, (), str(error) or "failed")
        return RowsDecision(allows or effect.allows_by_default, tuple(found))

    def matching(self, request: Sequence[Any]) -> tuple[Sequence[int], str]:
        run, found = self.expression.run, list[int]()
        assert run is not None
        try:
            found.extend(at for at in self._candidates(request) if run(request, self.rows[at]))
        except EvaluationError as error:
            return found, str(error) or "failed"
        return found, ""

    def opening(self, request: Sequence[Any]) -> tuple[int, ...]:
        return tuple(range(min(8, len(self.rows))))

    def _candidates(self, request: Sequence[Any]) -> Sequence[int]:
        indexes = self._indexes
        if len(indexes) == 1:
            return indexes[0].rows(request)
        found: set[int] = set()
        for index in indexes:
            rows = index.rows(request)
            if len(rows) == len(self.rows):
                return rows
            found.update(rows)
        return sorted(found)


def in_order(model: StockModel, rows: Sequence[Row], links: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return the rows as pycasbin sorts them: by the subject's level in the roles, then by priority. Raises ValueError
    for priorities of which some are numbers and some are not."""
    found = list(rows)
    if model.effect is Effect.SUBJECT_PRIORITY:
        levels, domain = _levels(links.get("g", ())), _place(model, "dom")
        found.sort(key=lambda row: levels.get((row[domain] if domain is not None else "", row[0]), 0))
    priority = _place(model, "priority")
    if priority is None:
        return found
    texts = [row[priority] for row in found]
    if all(text.isdigit() for text in texts):
        return sorted(found, key=lambda row: int(row[priority]))
    if any(text.isdigit() for text in texts):
        raise ValueError("some priorities are numbers and some are not")
    return sorted(found, key=lambda row: row[priority])


def _place(model: StockModel, name: str) -> int | None:
    return model.columns.index(name) if name in model.columns else None


def _levels(links: Sequence[Row]) -> dict[tuple[str, str], int]:
    """Return the level of each name in the hierarchy of roles, in its domain: members before their roles. Raises
    ValueError for a cycle."""
    pairs = [
        ((link[2] if len(link) > 2 else "", link[0]), (link[2] if len(link) > 2 else "", link[1])) for link in links
    ]
    left = {name for pair in pairs for name in pair}
    levels: dict[tuple[str, str], int] = {}
    level = 0
    while pairs:
        lowest = left - {parent for _, parent in pairs}
        if not lowest:
            raise ValueError("a cycle in the roles")
        levels |= dict.fromkeys(lowest, level)
        pairs = [pair for pair in pairs if pair[0] not in lowest]
        left, level = left - lowest, level + 1
    return levels | dict.fromkeys(left, level)


class _RowIndex:
    """Finds the rows that one alternative of a matcher can concern."""

    def __init__(self, alternative: Alternative, rows: Sequence[Row], roles: Mapping[str, RoleGraph]) -> None:
        self._asked, self._all = alternative.asked, range(len(rows))
        self._keys = [_IndexKey(facet, rows, roles) for facet in alternative.facets if _is_indexed(facet, roles)]
        self._keys.sort(key=lambda key: key.is_pattern)
        self._tree: dict[str, Any] = {}
        for at, row in enumerate(rows) if self._keys else ():
            branch = self._tree
            for key in self._keys[:-1]:
                branch = branch.setdefault(key.of_row(row), {})
            branch.setdefault(self._keys[-1].of_row(row), []).append(at)

    def rows(self, request: Sequence[Any]) -> Sequence[int]:
        if self._asked is not None and not self._asked(request, ()):
            return ()
        keys = self._keys
        if not keys:
            return self._all
        branches: list[Any] = [self._tree]
        for key in keys:
            values = key.of_request(request)
            branches = [branch[value] for branch in branches for value in values if value in branch]
            if not branches:
                return ()
        found = [at for rows in branches for at in rows]
        found.sort()
        return found


class _IndexKey:
    """One facet of an index: the texts that a fitting row may have there."""

    def __init__(self, facet: ColumnTest, rows: Sequence[Row], roles: Mapping[str, RoleGraph]) -> None:
        self.facet = facet
        self._graph = roles.get(facet.function)
        self.is_pattern = facet.function in FUNCTIONS
        self._lengths: Sequence[int] = ()
        if self.is_pattern:
            self._lengths = sorted({len(self.of_row(row)) for row in rows})

    def of_row(self, row: Row) -> str:
        text = row[self.facet.column]
        return FUNCTIONS[self.facet.function].prefix(text) if self.is_pattern else text

    def of_request(self, request: Sequence[Any]) -> Iterator[str] | Sequence[str]:
        value, graph = request[self.facet.place], self._graph
        if graph is not None:
            domain = "" if self.facet.domain is None else request[self.facet.domain]
            return (value, *graph.containers(value, domain))
        if not self.is_pattern:
            return (value,)
        most = bisect_left(self._lengths, len(value) + 1)
        return [value[:length] for length in self._lengths[:most]]


def _is_indexed(facet: ColumnTest, roles: Mapping[str, RoleGraph]) -> bool:
    """Whether the rows of a facet can be looked up: not where names match patterns of roles."""
    graph = roles.get(facet.function)
    return graph is None or graph.options.match is None
