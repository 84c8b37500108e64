"""Decides requests by the rows of a Casbin policy, with pycasbin's results.

Work that takes long for many rows is done once, in the process that reads the policy: `in_order`, `CompactRows.of` and
`index_of_rules`. Building `Rules` from the results takes a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import groupby, islice
from typing import Any, Final

from sidecar.policy.link_decision import RowsDecision
from sidecar.policy.stock.compiler import read_expression
from sidecar.policy.stock.expression import EvaluationError, Expression, place_of
from sidecar.policy.stock.model import Effect, StockModel, definitions_of
from sidecar.policy.stock.roles import PLAIN_ROLES, RoleOptions, role_graphs
from sidecar.policy.stock.row_index import AlternativeIndex, CompactRows, IndexBuilder, IndexSearch, Row

MAX_REASONS: Final = 256  # rows that a decision names
MAX_OPENING: Final = 8  # rows that `Rules.opening` returns
MAX_OPENING_TRIED: Final = 10_000

RuleIndex = tuple[AlternativeIndex, ...]


def index_of_rules(model: StockModel, rows: CompactRows, options: Mapping[str, RoleOptions] = {}) -> RuleIndex:
    """Builds the index of rows, which must be in the order in which they are tried. The index can be pickled. Raises
    BadExpressionError."""
    plain = [key for key in model.roles if options.get(key, PLAIN_ROLES).match is None]
    subject = place_of("sub", model.request)
    expression = read_expression(model.matcher, definitions_of(model), {})
    builder = IndexBuilder(rows, plain, subject)
    return tuple(map(builder.index, expression.alternatives))


class Rules:
    """The rows of one model, in the order in which they are tried. Rows in decisions are positions in
    `rows`."""

    def __init__(
        self,
        model: StockModel,
        rows: Sequence[Row] | CompactRows,
        links: Mapping[str, Sequence[Row]],
        options: Mapping[str, RoleOptions] = {},
        index: RuleIndex | None = None,
    ) -> None:
        """Compact rows are already in order; an index must be that of the same rows. Raises BadExpressionError for an
        invalid matcher, and ValueError for rows without an order."""
        self.model = model
        self.roles = role_graphs(model.roles, links, options)
        holds = {key: graph.holds for key, graph in self.roles.items()}
        self.expression: Expression = read_expression(model.matcher, definitions_of(model), holds)
        if not isinstance(rows, CompactRows):
            rows = CompactRows.of(in_order(model, rows, links), len(model.columns))
        self._effect_column = _place(model, "eft")
        if not rows and not self.expression.reads_rows:  # Casbin then evaluates the matcher once
            implied = CompactRows.of([("",) * len(model.columns)], len(model.columns))
            index, self._effect_column = index_of_rules(model, implied, options), None
            self.rows = implied
        else:
            index = index if index is not None else index_of_rules(model, rows, options)
            self.rows = rows
        self._searches = [
            IndexSearch(*both, self.rows, self.roles) for both in zip(self.expression.alternatives, index, strict=True)
        ]
        every = self.expression.alternatives if self.expression.total else ()
        self._asked = [one.asked for one in every if one.is_asked and one.asked is not None]
        later = (place_of("obj", model.request), place_of("act", model.request))
        self._unknown = frozenset(at for at in later if at is not None)

    def decide(self, request: Sequence[Any]) -> RowsDecision:
        """Decides one request, its values in the order of the model's definition."""
        try:
            if any(asked(request, ()) for asked in self._asked):
                return self._of_every_row
            return self._decision((at, self._effect(row)) for at, row in self._matching(request))
        except EvaluationError as error:
            return RowsDecision(False, (), _reason(error))

    @cached_property
    def _of_every_row(self) -> RowsDecision:
        """Returns the decision for the case that every row matches."""
        return self._decision((at, self._effect(row)) for at, row in enumerate(self.rows))

    def _decision(self, words: Iterable[tuple[int, str]]) -> RowsDecision:
        """Returns the decision of matching rows, given with their effects."""
        effect, allows, found = self.model.effect, False, list[int]()
        for at, word in words:
            if word == "deny":
                if effect is not Effect.ALLOW_OVERRIDE:
                    return RowsDecision(False, (at,))
            elif word == "allow":
                allows = True
                if len(found) < MAX_REASONS:
                    found.append(at)
                if effect in (Effect.ALLOW_OVERRIDE, Effect.PRIORITY, Effect.SUBJECT_PRIORITY):
                    break
        return RowsDecision(allows or effect.allows_by_default, tuple(found))

    def matching(self, request: Sequence[Any]) -> tuple[tuple[int, ...], str]:
        """Returns all matching rows, in order, and why the evaluation of a row failed, after which no row is tried; ""
        if none failed."""
        found: list[int] = []
        try:
            for at, _ in self._matching(request):
                found.append(at)
        except EvaluationError as error:
            return tuple(found), _reason(error)
        return tuple(found), ""

    def opening(self, request: Sequence[Any]) -> tuple[int, ...]:
        """Returns some rows with the effect allow that can concern the subject of a request, whatever its object and
        action. Returns at least one if one exists among the first MAX_OPENING_TRIED of its rows; none if the evaluation
        of its roles fails."""
        found: set[int] = set()
        try:
            for at in islice(self._of_subject(request), MAX_OPENING_TRIED):
                if len(found) == MAX_OPENING:
                    break
                if self._effect(self.rows[at]) == "allow":
                    found.add(at)
        except EvaluationError:
            return ()
        return tuple(sorted(found))

    def may_match(self, request: Sequence[Any]) -> bool:
        """Whether a call with the names of a request, whatever its other values, may match a row. True if more than
        MAX_OPENING_TRIED rows would have to be tried."""
        static, rows = self.expression.static, self.rows
        if static is None:
            return True
        tried = enumerate(self._candidates(request))
        return any(number == MAX_OPENING_TRIED or static(request, rows[at]) for number, at in tried)

    def _matching(self, request: Sequence[Any]) -> Iterator[tuple[int, Row]]:
        run, rows = self.expression.run, self.rows
        assert run is not None, "pycasbin decides this model"
        for at in self._candidates(request):
            row = rows[at]
            if run(request, row):
                yield at, row

    def _effect(self, row: Row) -> str:
        return "allow" if self._effect_column is None else row[self._effect_column]

    def _of_subject(self, request: Sequence[Any]) -> Iterator[int]:
        if self.expression.run is None:  # pycasbin decides: any row can concern the subject
            yield from range(len(self.rows))
        for search in self._searches:
            yield from search.of_subject(request, self._unknown)

    def _candidates(self, request: Sequence[Any]) -> Iterable[int]:
        found = [search.rows(request) for search in self._searches]
        if len(found) == 1:
            return found[0]
        if any(isinstance(rows, range) for rows in found):
            return range(len(self.rows))
        return (at for at, _ in groupby(merge(*found)))


def _reason(error: EvaluationError) -> str:
    return str(error) or "failed"


def in_order(model: StockModel, rows: Sequence[Row], links: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Returns the rows in pycasbin's order: by the subject's level in the roles, then by priority. Raises ValueError if
    only some priorities are numbers."""
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
    """Returns the level of each name in the hierarchy of roles, in its domain: members before their roles. Raises
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
