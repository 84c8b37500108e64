"""Stores the samples of one metric in a form that makes counting cheap.

Numbers are in plain dictionaries and become prometheus-client's families at a scrape (`exposition.py`): an observation
costs a tenth of the library's own. One event loop writes, any thread may render: rows are removed only by replacing the
whole dictionary, and every number is replaced in one step.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import product
from operator import add
from typing import Final, Literal, NamedTuple

OTHER = "other"
MAX_SERIES = 5_000  # of one metric; label sets multiply to fewer unless the configuration is very large
Labels = tuple[str, ...]
Row = list[float]
Kind = Literal["counter", "gauge", "histogram"]
Across = Literal["sum", "max", "min"]
"""How the values of a gauge in several workers are combined."""
AS_GIVEN: Final = ()  # for a label that only `SeriesTable.only` sets


class Exemplar(NamedTuple):
    """One measurement of a bucket, at `at_s` seconds since the epoch. `about` are the labels that name its trace."""

    about: Mapping[str, str]
    value: float
    at_s: float


def add_all(row: Row, bounds: tuple[float, ...], values: Iterable[float]) -> None:
    """Adds measurements, at least one, to a row of a histogram."""
    ordered, before = sorted(values), 0
    bucket = bisect_left(bounds, ordered[0])
    while before < len(ordered):
        upto = bisect_right(ordered, bounds[bucket]) if bucket < len(bounds) else len(ordered)
        row[bucket] += upto - before
        bucket, before = bucket + 1, upto
    row[-1] += sum(ordered)


class SeriesTable:
    """The numbers of one metric, a row for each set of labels; at most MAX_SERIES, and one for the rest. A label value
    that is not among its choices becomes `other`. A row is a list of one number; for a histogram it has the counts by
    bucket, not cumulative, with an open last bucket, and then the sum. `exemplars` has at most one for each bucket of a
    row. `folded` counts the events of sets of labels beyond MAX_SERIES."""

    __slots__ = (
        "_choices", "_found", "_late", "across", "bounds", "exemplars", "folded", "help", "kind", "labels", "name",
        "rows",
    )  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        name: str,
        help_: str,
        /,
        *,
        bounds: tuple[float, ...] = (),
        late: bool = False,
        across: Across = "sum",
        **labels: Collection[str],
    ) -> None:
        """`labels` are the choices of each label, by its name; a set that changes is followed by `chosen_anew`. The
        rows of `late` tables are created by `declare` or by events, those of others for all choices by
        `chosen_anew`."""
        self.kind, self.name, self.help, self.bounds = kind, f"sidecar_{name}", help_, bounds
        self.labels, self._choices, self._late = tuple(labels), tuple(labels.values()), late
        self.across = across
        self.rows: dict[Labels, Row] = {}
        self.folded = 0
        self.exemplars: dict[tuple[Labels, int], Exemplar] = {}
        self._found: dict[Labels, Row] = {}  # rows whose labels are all choices, which bound it

    def declare(self, *choices: Iterable[str]) -> None:
        """Creates rows at zero for every combination of label values, so that `rate()` sees the first event. `choices`
        are those of each label, in order."""
        for labels in product(*choices):
            self._row(labels)

    def row(self, *labels: str) -> Row:
        """The row of these labels, with `other` for values that are not choices. Until `chosen_anew`, `keep` or
        `remove`, the caller may add to it, unless the table `is_full`."""
        return self._found.get(labels) or self._find(labels)

    @property
    def is_full(self) -> bool:
        """Whether further sets of labels share one row. `folded` then counts each of their events."""
        return len(self.rows) >= MAX_SERIES

    def set(self, labels: Labels, value: float) -> None:
        row = self._found.get(labels) or self._find(labels)
        row[0] = value

    def count(self, *labels: str, amount: float = 1) -> None:
        row = self._found.get(labels) or self._find(labels)
        row[0] += amount

    def put(self, value: float) -> None:
        """Sets a gauge without labels."""
        self.set((), value)

    def put_at(self, label: str, value: float) -> None:
        """Sets a gauge with one label."""
        self.set((label,), value)

    def time(self, value_s: float) -> None:
        """Adds one measurement to a histogram without labels."""
        self.observe((), value_s)

    def time_at(self, label: str, value_s: float) -> None:
        """Adds one measurement to a histogram with one label."""
        self.observe((label,), value_s)

    def each(self, choices: Iterable[str], values: Mapping[str, float], *before: str) -> None:
        """Sets a gauge for each choice of its last label; 0 for a choice without a value. `before` are the first
        labels."""
        for choice in choices:
            self.set((*before, choice), values.get(choice, 0))

    def only(self, *labels: str) -> None:
        """Sets the row of these labels to 1 and removes all others, for a metric that describes a state
        (`policy_info`)."""
        self.rows = {labels: [1.0]}

    def keep(self, first: Container[str]) -> None:
        """Removes the rows whose first label is not in `first`. The gauge of an object that no longer exists would be
        wrong."""
        self.rows = {labels: row for labels, row in self.rows.items() if labels[0] in first}
        self._found.clear()

    def remove(self, is_gone: Callable[[Labels], bool]) -> list[tuple[Labels, Row]]:
        """Removes the rows whose labels are gone, and returns their labels and numbers. Additions to a row that a
        caller of `row` still holds are lost."""
        gone = [(labels, row) for labels, row in self.rows.items() if is_gone(labels)]
        self.rows = {labels: row for labels, row in self.rows.items() if not is_gone(labels)}
        self._found.clear()
        return gone

    def observe(self, labels: Labels, value: float) -> None:
        row = self._found.get(labels) or self._find(labels)
        row[bisect_left(self.bounds, value)] += 1
        row[-1] += value

    def exemplify(self, labels: Labels, value: float, about: Mapping[str, str]) -> None:
        """Stores a measurement as the example of its bucket, replacing the previous one. Does nothing if there is no
        row of these labels."""
        known = self._known(labels)
        if known in self.rows:
            self.exemplars[known, bisect_left(self.bounds, value)] = Exemplar(about, value, time.time())

    def copied(self) -> "SeriesTable":
        """A copy to which rows of other workers can be added. It shares the exemplars."""
        table = SeriesTable(self.kind, "", self.help, bounds=self.bounds, late=True, across=self.across)
        table.name, table.labels, table.folded = self.name, self.labels, self.folded
        table.rows = {labels: list(row) for labels, row in list(self.rows.items())}
        table.exemplars = self.exemplars
        return table

    def add_row(self, labels: Labels, numbers: Sequence[float]) -> None:
        """Adds the numbers of another worker to the row of these labels; those of a gauge are combined by `across`."""
        if self.is_full and labels not in self.rows:
            labels = (OTHER,) * len(self.labels)
        if (row := self.rows.get(labels)) is None:
            self.rows[labels] = list(numbers)
        elif self.kind == "gauge" and self.across != "sum":
            row[0] = (max if self.across == "max" else min)(row[0], numbers[0])
        else:
            row[:] = map(add, row, numbers)

    def chosen_anew(self) -> None:
        """Applies changed choices: creates the rows of a table that is not `late`. No row is removed, because a counter
        must not decrease."""
        self._found.clear()
        if not self._late:
            self.declare(*self._choices)

    def _find(self, labels: Labels) -> Row:
        known = self._known(labels)
        row = self._row(known)
        if known == labels and labels in self.rows:
            self._found[labels] = row
        return row

    def _known(self, labels: Labels) -> Labels:
        return tuple([label if label in of else OTHER for label, of in zip(labels, self._choices, strict=True)])

    def _row(self, labels: Labels) -> Row:
        if self.is_full and labels not in self.rows:
            self.folded += 1
            labels = (OTHER,) * len(self.labels)
        return self.rows.setdefault(labels, [0.0] * (len(self.bounds) + 2 if self.bounds else 1))
