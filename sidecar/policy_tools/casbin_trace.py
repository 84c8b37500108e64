"""Explains the request of a link to a Casbin model, and finds the rows nearest to it."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final, NamedTuple

from sidecar.policy.conditions import ConditionContext
from sidecar.policy.roles import PolicySubject
from sidecar.policy.stock.expression import ColumnTest, EvaluationError, text_fields
from sidecar.policy.stock.functions import FUNCTIONS, BadPatternError, BadValueError
from sidecar.policy.stock.model import StockModel
from sidecar.policy.stock.policy import StockPolicy
from sidecar.policy_tools.nearest_rules import MOST, Misfit, NearestRule
from sidecar.vocabulary import Link, RuleRef

MAX_COMPARED: Final = 100_000  # rows
MAX_ALIKE_CHARS: Final = 256  # of a name, whose similarity to another one is computed
MAX_RULES_READ: Final = 1_000  # rows whose rules are searched for attributes
UNITS: Final = 1e6


class CasbinRequest(NamedTuple):
    """The request of a link: its values by field, and the attributes of the values that the policy reads, None for
    missing ones. `model` is the model's file. `unnamed` is the reason why there is no request, `failed` the reason why
    its evaluation failed, each "" for none. With `compares`, the matcher has tests of single columns, by which nearest
    rows are found."""

    model: str
    values: Mapping[str, Any]
    attributes: Mapping[str, Any]
    unnamed: str = ""
    failed: str = ""
    compares: bool = True


class CasbinTrace:
    """The request of one link, traced to rows. `scene` is the content of the call; None for a recorded call, whose
    arguments and attributes are unknown."""

    def __init__(
        self, policy: StockPolicy, subject: PolicySubject, link: Link, scene: ConditionContext | None, server: str = ""
    ) -> None:
        """`server` is that of a session call, which any row on that server allows; "" for any other call."""
        self._policy, self._model = policy, policy.table.source.model
        reader = policy.reader
        self._texts = reader.caller(subject) if server else reader.texts(subject, link.object, link.action)
        self._values: Sequence[Any] = []
        self.failed, unnamed = "", ""
        if server:
            unnamed = self._unopened(subject, server)
        elif self._texts is None:
            unnamed = reader.unnamed(subject, link.object, link.action)
        else:
            self._values = reader.plain(self._texts)
            if scene is not None and policy.decider.each_call:
                self._evaluate(link, scene)
        asked = {} if unnamed else self._asked(subject if server else None)
        attributes = {} if server or scene is None else self._attributes()
        compares = any(True for _ in self._tests())
        self.request = CasbinRequest(policy.table.source.file, asked, attributes, unnamed, self.failed, compares)

    def _unopened(self, subject: PolicySubject, server: str) -> str:
        reader = self._policy.reader
        if self._texts is None:
            return reader.unnamed(subject, "", "")
        return "" if reader.names_on(server) else f"policy.names.objects has no entry for what is on {server}"

    def _evaluate(self, link: Link, scene: ConditionContext) -> None:
        assert self._texts is not None
        try:
            self._values, _ = self._policy.reader.full(self._texts, link.object, scene)
            self.failed = self._policy.decided(self._values, scene, UNITS)[0].decision.failed
        except EvaluationError as error:
            self.failed = str(error)

    def _asked(self, session: PolicySubject | None) -> dict[str, Any]:
        if session is not None and self._texts is not None:
            return {"sub": self._texts.sub, "dom": self._texts.dom}
        return {
            name: str(value) if isinstance(value, str) else value
            for name, value in zip(self._model.request, self._values, strict=False)
        }

    def _attributes(self) -> dict[str, Any]:
        source = self._policy.table.source
        texts = [" ".join(row) for row in islice(source.rows, MAX_RULES_READ)] if "eval" in self._model.matcher else []
        found: dict[str, Any] = {}
        for name, attribute in attributes_read(self._model, texts):
            if name in self._model.request and self._values:
                value = self._values[self._model.request.index(name)]
                found[f"{name}.{attribute}"] = getattr(value, "attributes", {}).get(attribute)
        return found

    def ways(self, rule: RuleRef) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
        """Returns the roles from the request's subject to the subject of a row, whether a token granted the first of
        them, and the roles from the request's object to the object of the row. A side without roles has none."""
        roles = self._way(rule.subject, "sub")
        granted = self._texts.granted if self._texts is not None else ()
        return roles, bool(roles) and roles[0] in granted, self._way(rule.object, "obj")

    def _way(self, said: str, side: str) -> tuple[str, ...]:
        """Returns the roles from one side of the request, `sub` or `obj`, to `said`, the text of a row; none if no role
        definition leads there."""
        for test in self._tests():
            graph = self._policy.decider.rules.roles.get(test.function)
            name = self._model.request[test.place]
            if graph is None or not self._values or text_fields(self._model.request).get(name) != side:
                continue
            value, domain = self._values[test.place], self._domain(test)
            try:
                way = graph.way(value, said, domain)
            except EvaluationError:
                continue
            if way:
                return way
        return ()

    def _domain(self, test: ColumnTest) -> str:
        return "" if test.domain is None else self._values[test.domain]

    def _tests(self) -> Iterator[ColumnTest]:
        for alternative in self._policy.decider.rules.expression.alternatives:
            yield from alternative.facets

    def nearest(self, most: int = MOST) -> list[NearestRule]:
        """Returns the allow rows, among the first MAX_COMPARED, of which at most one test of a column fails, most
        similar first. If none fails, the rest of the matcher does."""
        table, alternatives = self._policy.table, self._policy.decider.rules.expression.alternatives
        if self._texts is None or not self._values or self.failed:
            return []
        found: list[tuple[float, int, tuple[ColumnTest, ...]]] = []
        for at, row in enumerate(islice(table.source.rows, MAX_COMPARED)):
            if table.text("eft", at) != "allow":
                continue
            missed = [
                tuple(test for test in one.facets if not self._holds(test, row)) for one in alternatives if one.facets
            ]
            least = min(missed, key=len, default=None)
            if least is not None and len(least) <= 1:
                found.append((self._alike(least[0], row) if least else 1.0, -at, least))
        best = heapq.nlargest(most, found, key=lambda one: one[:2])
        return [
            NearestRule(table.rule(-at), tuple(self._misfit(test, table.source.rows[-at]) for test in tests))
            for _, at, tests in best
        ]

    def _holds(self, test: ColumnTest, row: Sequence[str]) -> bool:
        value, text, graph = (
            self._values[test.place],
            row[test.column],
            self._policy.decider.rules.roles.get(test.function),
        )
        try:
            if graph is not None:
                return graph.holds(value, text, self._domain(test))
            return bool(value == text if not test.function else FUNCTIONS[test.function].compiled(text)(value))
        except (EvaluationError, BadPatternError, BadValueError):
            return False

    def _alike(self, test: ColumnTest, row: Sequence[str]) -> float:
        value, said = str(self._values[test.place]), row[test.column]
        return SequenceMatcher(None, value[:MAX_ALIKE_CHARS], said[:MAX_ALIKE_CHARS], autojunk=False).ratio()

    def _misfit(self, test: ColumnTest, row: Sequence[str]) -> Misfit:
        said, value = row[test.column], str(self._values[test.place])
        hint = f"{test.function}({value}, {said}) is false" if test.function else ""
        if test.function in self._policy.decider.rules.roles:
            where = f" in {self._domain(test)}" if test.domain is not None else ""
            hint = f"{value} does not have {said}{where}"
        return Misfit(self._model.columns[test.column], said, hint)


def attributes_read(model: StockModel, texts: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Returns the attributes of a request's values that the matcher and the given texts read, as (field, attribute)."""
    read = re.compile(rf"\br{model.suffix}\.(\w+)\.([A-Za-z_]\w*)")
    return list(dict.fromkeys(found for text in (model.matcher, *texts) for found in read.findall(text)))
