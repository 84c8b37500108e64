"""Writes what the tables hold in the formats that Prometheus scrapes."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics.exposition import (
    CONTENT_TYPE_LATEST as OPENMETRICS,
    generate_latest as generate_openmetrics,
)
from prometheus_client.samples import Exemplar

from sidecar.observability.registry import SeriesTable


class Exposition:
    """The families of all tables, and of the process."""

    def __init__(self, tables: Sequence[SeriesTable]) -> None:
        self._tables = tables
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yields every family; prometheus-client calls this at a scrape."""
        for table in self._tables:
            yield _family(table)
        folded = CounterMetricFamily(
            "sidecar_metrics_folded_total", "Observations folded into `other` by the cap on series.", labels=("metric",)
        )
        for table in self._tables:
            folded.add_metric((table.name,), table.folded)
        yield folded

    def render(self, accept: str) -> tuple[str, bytes]:
        """Returns content type and body: OpenMetrics 1.0 if it is accepted, otherwise text format 0.0.4."""
        if "application/openmetrics-text" in accept:
            return OPENMETRICS, generate_openmetrics(self._registry)  # type: ignore[no-untyped-call]
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)


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
