"""Adds up the series of several workers, so that one address shows them as one process.

A worker passes its numbers as JSON. Its last scraped numbers are stored in a file: a worker that replaces one that died
continues from them, and until it answers, the others add them, so that no counter decreases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sidecar.observability.registry import SeriesTable

VERSION: Final = 1
_OLDEST: Final = "process_start_time_seconds"
_PROCESS_COUNTERS: Final = ("process_cpu_seconds",)


class WorkerSeries(NamedTuple):
    """The numbers of one worker: rows by metric and labels, folded events by metric, and numbers of its process by
    family. If a worker is not `alive`, its gauges are not added."""

    tables: Mapping[str, Sequence[tuple[Sequence[str], Sequence[float]]]]
    folded: Mapping[str, int]
    process: Mapping[str, float]
    alive: bool = True

    def plain(self) -> bytes:
        return orjson.dumps({"v": VERSION, "tables": self.tables, "folded": self.folded, "process": self.process})


NOTHING_KNOWN: Final = WorkerSeries({}, {}, {}, alive=False)


def series_from(raw: bytes, *, alive: bool = True) -> WorkerSeries | None:
    """Parses the numbers of a worker; None if they are unreadable or of another VERSION."""
    try:
        said = orjson.loads(raw)
        if said["v"] != VERSION:
            return None
        return WorkerSeries(said["tables"], said["folded"], said["process"], alive)
    except (ValueError, KeyError, TypeError):
        return None


def series_of(tables: Sequence[SeriesTable], before: Mapping[str, float]) -> WorkerSeries:
    """The numbers of this process. `before` are the counters of the processes that it replaced, by family."""
    rows = {table.name: [(list(labels), list(row)) for labels, row in list(table.rows.items())] for table in tables}
    process = {family.name: _value(family) + before.get(family.name, 0.0) for family in process_families()}
    return WorkerSeries(rows, {table.name: table.folded for table in tables if table.folded}, process)


def process_families() -> list[Metric]:
    return list(ProcessCollector(registry=None).collect())


def resumed(tables: Sequence[SeriesTable], dead: WorkerSeries) -> Mapping[str, float]:
    """Adds the counters and histograms of a worker that died to the tables of the worker that replaces it. Returns the
    counters of its process, by family."""
    for table in tables:
        if table.kind != "gauge":
            for labels, row in dead.tables.get(table.name, ()):
                table.add_row(tuple(labels), row)
            table.folded += dead.folded.get(table.name, 0)
    return {name: value for name, value in dead.process.items() if name in _PROCESS_COUNTERS}


def merged(table: SeriesTable, others: Sequence[WorkerSeries]) -> SeriesTable:
    """A copy of a table, with the numbers of other workers added. The gauges of a worker that is not alive are left
    out."""
    whole = table.copied()
    for other in others:
        if other.alive or table.kind != "gauge":
            for labels, row in other.tables.get(table.name, ()):
                whole.add_row(tuple(labels), row)
            whole.folded += other.folded.get(table.name, 0)
    return whole


def merged_process(before: Mapping[str, float], others: Sequence[WorkerSeries]) -> list[Metric]:
    """The families of all processes: sums, and the start time of the oldest. `before` are the counters of processes
    that this one replaced."""
    found: list[Metric] = []
    for family in process_families():
        values = [_value(family) + before.get(family.name, 0.0)]
        is_counter = family.type == "counter"
        values += [other.process.get(family.name, 0.0) for other in others if other.alive or is_counter]
        of_kind: Any = CounterMetricFamily if is_counter else GaugeMetricFamily
        value = min(filter(None, values), default=0.0) if family.name == _OLDEST else sum(values)
        found.append(of_kind(family.name, family.documentation, value=value))
    return found


def _value(family: Metric) -> float:
    return float(family.samples[0].value) if family.samples else 0.0
