"""Stores the samples of one metric so that counting is cheap.

Plain numbers in plain tables, turned into prometheus-client's families at the scrape: an observation costs a tenth of
that library's own children, and a request makes twenty. Labels are looked up as they come, and judged only where that
finds nothing. One event loop writes, any thread may render: a table only grows, and every number in it is replaced in
one step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from itertools import accumulate, product
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

OTHER = "other"
MAX_SERIES = 5_000  # of one metric; its label sets multiply to fewer unless the configuration is very large
Labels = tuple[str, ...]
Row = list[float]
Kind = Literal["counter", "gauge", "histogram"]
Choices = Mapping[str, Container[str]]  # by the label's name, what may stand there
_NO_LABELS: Choices = {}
AS_GIVEN = ()  # of a label that only `SeriesTable.only` sets


class SeriesTable:
    """The numbers of one metric, a row for each set of labels; never more than MAX_SERIES, and one for the rest.

    Whatever is given for a label and is not among its choices becomes `other`. Choices may change: `chosen_anew`.
    A row is one number; of a histogram the counts by bucket, not cumulative, the last bucket open, and then the sum.
    """

    __slots__ = ("_choices", "_found", "bounds", "folded", "help", "kind", "labels", "name", "rows")

    def __init__(
        self,
        kind: Kind,
        name: str,
        help_: str,
        labels: Choices = _NO_LABELS,
        bounds: tuple[float, ...] = (),
    ) -> None:
        self.kind, self.name, self.help, self.bounds = kind, f"sidecar_{name}", help_, bounds
        self.labels, self._choices = tuple(labels), tuple(labels.values())
        self.rows: dict[Labels, Row] = {}
        self.folded = 0
        self._found: dict[Labels, Row] = {}  # rows by labels that are all among the choices; so it has their bound

    def declare(self, *choices: Iterable[str]) -> None:
        """Rows at nought for every combination, so that `rate()` sees the first event."""
        for labels in product(*choices):
            self._row(labels)

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Count."""
        row = self._found.get(labels) or self._find(labels)
        row[0] += amount

    def set(self, labels: Labels, value: float) -> None:
        """The value now."""
        row = self._found.get(labels) or self._find(labels)
        row[0] = value

    def only(self, labels: Labels) -> None:
        """Of all rows this one is 1 and the others are gone: what describes a state (`policy_info`)."""
        self.rows = {labels: [1.0]}

    def keep(self, first: Container[str]) -> None:
        """Drop the rows whose first label is not one of these: a gauge of what is gone would say something false."""
        self.rows = {labels: row for labels, row in self.rows.items() if labels[0] in first}
        self._found.clear()

    def observe(self, labels: Labels, value: float) -> None:
        """One measurement of a histogram."""
        row = self._found.get(labels) or self._find(labels)
        row[bisect_left(self.bounds, value)] += 1
        row[-1] += value

    def chosen_anew(self) -> None:
        """The choices are other ones than before. Rows stay: a counter must not go back."""
        self._found.clear()

    def family(self) -> Metric:
        """As prometheus-client knows it."""
        rows = list(self.rows.items())
        if self.kind == "histogram":
            return self._histogram(rows)
        of_kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = of_kind(self.name, self.help, labels=self.labels)
        for labels, row in rows:
            family.add_metric(labels, row[0])
        return family

    def _histogram(self, rows: list[tuple[Labels, Row]]) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        edges = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        for labels, row in rows:
            *counts, total = tuple(row)
            family.add_metric(labels, list(zip(edges, accumulate(counts), strict=True)), total)
        return family

    def _find(self, labels: Labels) -> Row:
        known = tuple([label if label in of else OTHER for label, of in zip(labels, self._choices, strict=True)])
        row = self._row(known)
        if known == labels and labels in self.rows:
            self._found[labels] = row
        return row

    def _row(self, labels: Labels) -> Row:
        if len(self.rows) >= MAX_SERIES and labels not in self.rows:
            self.folded += 1
            labels = (OTHER,) * len(self.labels)
        return self.rows.setdefault(labels, [0.0] * (len(self.bounds) + 2 if self.bounds else 1))
