"""Does an OTLP export say what a scrape says?"""

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.observability.metrics import Metrics
from sidecar.observability.otlp_metrics import SeriesExporter

SUMMED = ("sidecar_metrics_folded", "sidecar_workers")  # are made for a scrape, of what all workers say
Key = tuple[str, frozenset[tuple[str, Any]]]


class Captured(MetricExporter):
    """Keeps what it is given to export."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[MetricsData] = []
        self.ended = False

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        self.given.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        self.ended = True


def scraped(metrics: Metrics) -> Mapping[Key, float]:
    """The samples of our own series at `/metrics`."""
    _, body = metrics.render("")
    samples = (one for family in parse_text(body.decode()) for one in family.samples)
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for one in samples
        if one.name.startswith("sidecar_") and not one.name.startswith(SUMMED)
    }


def test_each_sample_of_a_scrape_is_exported_under_its_name() -> None:
    metrics, inner = Metrics(upstreams=["github", "files"], limits=["tools:github:rate"]), Captured()
    marks = {"auth": 0.00005, "policy": 0.00035, "upstream": 0.02035}
    measured = SeriesExporter(inner, metrics, metrics.settle)
    for status in ("success", "success", "error"):
        metrics.request_finished("mcp", "github", "tools/call", status, 0.021, marks)
    metrics.request_finished("mcp", "files", "tools/list", "success", 400.0, marks)
    metrics.upstream_stands("github", "ready")  # whose gauge is a Boolean
    own = ResourceMetrics(Resource({"service.name": "gateway"}), [], "")
    assert measured.export(MetricsData([own])) is MetricExportResult.SUCCESS
    (whole,) = inner.given[0].resource_metrics
    assert whole.resource.attributes["service.name"] == "gateway"
    found: dict[Key, float] = {}
    for metric in whole.scope_metrics[-1].metrics:
        data = metric.data
        assert metric.description
        if isinstance(data, Sum):
            assert data.is_monotonic and metric.name.endswith("_total")
        if isinstance(data, Sum | Histogram):
            assert data.aggregation_temporality is AggregationTemporality.CUMULATIVE
        for point in data.data_points:
            labels: dict[str, Any] = dict(point.attributes or {})
            if isinstance(data, Sum | Gauge):
                assert type(point.value) is float
                found[metric.name, frozenset(labels.items())] = point.value
                continue
            edges = [*(str(float(bound)) for bound in point.explicit_bounds), "+Inf"]
            assert len(edges) == len(point.bucket_counts)
            below = 0
            for edge, count in zip(edges, point.bucket_counts, strict=True):
                below += count
                found[f"{metric.name}_bucket", frozenset({**labels, "le": edge}.items())] = below
            found[f"{metric.name}_count", frozenset(labels.items())] = point.count
            found[f"{metric.name}_sum", frozenset(labels.items())] = point.sum
    assert found == scraped(metrics)
    measured.shutdown()
    assert inner.ended
