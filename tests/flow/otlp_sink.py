"""Where do tests get a receiver of traces and metrics from that nobody here wrote?

`oteltest` reads OTLP over HTTP. It listens on every address by itself, here on loopback alone.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import HTTPServer
from typing import Any

import pytest
from oteltest import sink as otlp

from sidecar.cli.free_ports import free_ports


def plain(value: Any) -> Any:
    """An attribute's value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


def attributes(holder: Any) -> dict[str, Any]:
    return {one.key: plain(one.value) for one in holder.attributes}


@dataclass(frozen=True)
class HeardSpan:
    """One span as it arrived, and the service that sent it."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    facts: dict[str, Any]
    events: dict[str, dict[str, Any]]
    links: tuple[str, ...]
    scope: str
    error: bool
    seconds: float


@dataclass
class Sink:
    """What arrived. `url` is the value of `OTEL_EXPORTER_OTLP_ENDPOINT`."""

    url: str
    spans: list[HeardSpan] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)

    def handle_trace(self, request: Any, headers: Any) -> None:
        for resource in request.resource_spans:
            service = attributes(resource.resource)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [self._span(service, scope.schema_url, span) for span in scope.spans]

    def handle_metrics(self, request: Any, headers: Any) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}

    def _span(self, service: str, schema: str, span: Any) -> HeardSpan:
        return HeardSpan(
            service,
            span.name,
            span.DESCRIPTOR.fields_by_name["kind"]
            .enum_type.values_by_number[span.kind]
            .name.removeprefix("SPAN_KIND_"),
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            attributes(span),
            {event.name: attributes(event) for event in span.events},
            tuple(link.span_id.hex() for link in span.links),
            schema,
            span.status.code == 2,
            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        )


class _Loopback(HTTPServer):
    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        handler.log_message = lambda *_: None
        super().__init__(("127.0.0.1", address[1]), handler)


@contextmanager
def otlp_sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """A receiver, to which sidecars that start meanwhile send at once."""
    (port,) = free_ports(1)
    sink = Sink(f"http://127.0.0.1:{port}")
    monkeypatch.setattr(otlp, "HTTPServer", _Loopback)
    server = otlp.HttpSink(sink, logging.getLogger("tests.otlp_sink"), port)
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    try:
        yield sink
    finally:
        server.stop()
