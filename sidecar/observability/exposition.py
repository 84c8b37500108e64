"""Writes the metric tables in the formats that Prometheus scrapes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics.exposition import (
    CONTENT_TYPE_LATEST as OPENMETRICS,
    generate_latest as generate_openmetrics,
)
from prometheus_client.samples import Exemplar

from sidecar.observability.registry import SeriesTable
from sidecar.observability.worker_series import WorkerSeries, merged, merged_process, process_families, series_of


class Exposition:
    """The metric families of all tables, of the workers, and of the process."""

    def __init__(self, tables: Sequence[SeriesTable], before: Mapping[str, float]) -> None:
        """`before` are the counters of the worker processes that this one replaced, by the name of their family."""
        self._tables, self._before = tables, before

    def series(self) -> WorkerSeries:
        """The numbers of this process, for the other workers."""
        return series_of(self._tables, self._before)

    def collect(self, others: Sequence[WorkerSeries] | None = None) -> Iterator[Metric]:
        """Yields every family of the sidecar, with the numbers of `others`, the other workers, added."""
        tables = [merged(table, others) for table in self._tables] if others else self._tables
        for table in tables:
            yield _family(table)
        folded = CounterMetricFamily(
            "sidecar_metrics_folded_total",
            "Observations counted as `other` because of the bound on series.",
            labels=("metric",),
        )
        for table in tables:
            folded.add_metric((table.name,), table.folded)
        yield folded
        workers = GaugeMetricFamily(
            "sidecar_workers", "Processes of this sidecar that answer, and those that do not.", labels=("state",)
        )
        alive = [other.alive for other in others or ()]
        workers.add_metric(("up",), 1 + alive.count(True))
        workers.add_metric(("down",), alive.count(False))
        yield workers

    def render(self, accept: str, others: Sequence[WorkerSeries] | None = None) -> tuple[str, bytes]:
        """Returns content type and body: OpenMetrics 1.0 if the `Accept` header names it, otherwise text format 0.0.4.
        `others` are the numbers of the other workers; None if the sidecar has one process."""
        registry = CollectorRegistry(auto_describe=False)
        of_process = process_families() if others is None else merged_process(self._before, others)
        registry.register(_Collected([*self.collect(others), *of_process]))
        if "application/openmetrics-text" in accept:
            return OPENMETRICS, generate_openmetrics(registry)  # type: ignore[no-untyped-call]
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)


@dataclass(eq=False)
class _Collected:
    """Families in the form that prometheus-client requires."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


def _family(table: SeriesTable) -> Metric:
    rows = list(table.rows.items())
    if table.kind == "histogram":
        histogram = HistogramMetricFamily(table.name, table.help, labels=table.labels)
        edges = [*(str(float(bound)) for bound in table.bounds), "+Inf"]
        for labels, row in rows:
            *counts, total = tuple(row)
            buckets: list[Any] = list(zip(edges, accumulate(counts), strict=True))
            for at, pair in enumerate(buckets):
                if (known := table.exemplars.get((labels, at))) is not None:
                    buckets[at] = (*pair, Exemplar(dict(known.about), known.value, known.at_s))
            histogram.add_metric(labels, buckets, total)
        return histogram
    of_kind = CounterMetricFamily if table.kind == "counter" else GaugeMetricFamily
    family = of_kind(table.name, table.help, labels=table.labels)
    for labels, row in rows:
        family.add_metric(labels, row[0])
    return family
