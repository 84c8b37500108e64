"""Exports the metric series by OTLP, under the names that they have at `/metrics`.

Nothing is counted twice: at each export, the rows of the registry become data points next to those of the SDK's own
instruments. Sums of the registry are cumulative, whatever temporality the exporter prefers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from sidecar import __version__
from sidecar.observability.metrics import Metrics
from sidecar.observability.registry import SeriesTable

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


def exporters_of(names: Sequence[str]) -> list[Callable[[], MetricExporter | MetricReader]]:
    """Returns the exporters with these names, from installed packages. Raises ValueError for a name that no package
    has, ImportError if a package cannot be imported."""
    found = []
    for name in names:
        entry = next(iter(entry_points(group="opentelemetry_metrics_exporter", name=name)), None)
        if entry is None:
            raise ValueError(f"no installed package has the exporter of metrics {name}")
        found.append(entry.load())
    return found


def provider_of(
    exporters: Sequence[Callable[[], MetricExporter | MetricReader]],
    resource: Resource,
    metrics: Metrics,
    measure: Callable[[], None],
) -> MeterProvider:
    """Returns a provider that exports the series in addition to its own instruments. `measure` updates the series and
    is called in another thread. An exporter that is scraped has only the instruments, because the series are at
    `/metrics`."""
    readers: list[MetricReader] = []
    for exporter in exporters:
        made = exporter()
        if isinstance(made, MetricExporter):
            made = PeriodicExportingMetricReader(SeriesExporter(made, metrics, measure))
        readers.append(made)
    return MeterProvider(readers, resource)


class SeriesExporter(MetricExporter):
    """Adds the series to the data that `inner` exports. It is called in the reader's thread."""

    def __init__(self, inner: MetricExporter, metrics: Metrics, measure: Callable[[], None]) -> None:
        super().__init__(inner._preferred_temporality, inner._preferred_aggregation)
        self._inner, self._metrics, self._measure, self._began_ns = inner, metrics, measure, time.time_ns()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **more: Any) -> MetricExportResult:
        self._measure()
        first, *rest = metrics_data.resource_metrics
        series = [self._metric(table, time.time_ns()) for table in self._metrics.tables]
        scope = ScopeMetrics(InstrumentationScope("sidecar.metrics", __version__), series, "")
        whole = ResourceMetrics(first.resource, [*first.scope_metrics, scope], first.schema_url)
        return self._inner.export(MetricsData([whole, *rest]), timeout_millis=timeout_millis, **more)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **more: Any) -> None:
        self._inner.shutdown(timeout_millis, **more)

    def _metric(self, table: SeriesTable, now_ns: int) -> Metric:
        data: Sum | Gauge | Histogram
        if table.kind == "histogram":
            data = Histogram(list(self._distributions(table, now_ns)), _CUMULATIVE)
        elif table.kind == "counter":
            data = Sum(list(self._numbers(table, now_ns)), _CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(list(self._numbers(table, now_ns)))
        return Metric(table.name, table.help, "s" if "_seconds" in table.name else "", data)

    def _numbers(self, table: SeriesTable, now_ns: int) -> Iterator[NumberDataPoint]:
        for labels, row in list(table.rows.items()):
            attributes = dict(zip(table.labels, labels, strict=True))
            yield NumberDataPoint(attributes, self._began_ns, now_ns, float(row[0]))

    def _distributions(self, table: SeriesTable, now_ns: int) -> Iterator[HistogramDataPoint]:
        unknown: Any = None  # the rows have neither a minimum nor a maximum
        for labels, row in list(table.rows.items()):
            *counts, total = row.copy()
            buckets = [int(count) for count in counts]
            yield HistogramDataPoint(
                attributes=dict(zip(table.labels, labels, strict=True)),
                start_time_unix_nano=self._began_ns,
                time_unix_nano=now_ns,
                count=sum(buckets),
                sum=total,
                bucket_counts=buckets,
                explicit_bounds=table.bounds,
                min=unknown,
                max=unknown,
            )
