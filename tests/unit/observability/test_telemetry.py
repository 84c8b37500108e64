"""Is telemetry on exactly when a variable asks for it, and does a variable that cannot be used stop the start?"""

import asyncio
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from sidecar.errors import SettingsError
from sidecar.observability import telemetry
from sidecar.observability.metrics import Metrics
from sidecar.observability.telemetry import Telemetry, exporting

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def metrics() -> Metrics:
    return Metrics(upstreams=["github"])


def begun(environ: Mapping[str, str]) -> Telemetry | None:
    return Telemetry.from_environ(environ, Path("sidecar.yaml"), metrics(), lambda: None)


@pytest.mark.parametrize(
    ("environ", "traces", "measured"),
    [
        ({}, "", ""),
        ({"OTEL_SERVICE_NAME": "gateway", "OTEL_TRACES_SAMPLER": "always_on"}, "", ""),
        (ENDPOINT, "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://a"}, "", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, "OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": " None"}, "", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER", ""),
        ({"OTEL_CONFIG_FILE": "otel.yaml"}, "OTEL_CONFIG_FILE", "OTEL_CONFIG_FILE"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}, "", ""),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "1"}, "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, "", ""),
    ],
)
def test_a_variable_that_names_an_exporter_turns_a_signal_on(
    environ: Mapping[str, str], traces: str, measured: str
) -> None:
    assert (exporting(environ, "TRACES"), exporting(environ, "METRICS")) == (traces, measured)
    if not traces + measured:
        assert begun(environ) is None


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk._configuration", None)
    with pytest.raises(SettingsError) as refused:
        begun(ENDPOINT)
    (fault,) = refused.value.faults
    assert (fault.code, fault.file) == ("S190", "sidecar.yaml")
    assert "extra otel is not installed, which OTEL_EXPORTER_OTLP_ENDPOINT needs" in fault.message
    assert "nhi-sidecar[otel]" in fault.hint


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "carrier-pigeon"}, "carrier-pigeon"),
        ({"OTEL_METRICS_EXPORTER": "carrier-pigeon"}, "carrier-pigeon"),
        ({**ENDPOINT, "OTEL_PYTHON_ID_GENERATOR": "dice"}, "dice"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp_proto_grpc"),
        ({"OTEL_CONFIG_FILE": "otel.yaml"}, "opentelemetry-configuration"),
    ],
)
async def test_what_cannot_be_used_stops_the_start(
    environ: Mapping[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with pytest.raises(SettingsError) as refused:
        begun(environ)
    (fault,) = refused.value.faults
    assert fault.code == "S191"
    assert said in fault.message


async def test_another_context_than_that_of_mcp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:

    class Other:
        fields = frozenset({"b3"})

    monkeypatch.setattr("opentelemetry.propagate.get_global_textmap", Other)
    with pytest.raises(SettingsError, match="OTEL_PROPAGATORS lacks tracecontext"):
        begun(ENDPOINT)


class Hanging:
    """A provider whose receiver never answers."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def shutdown(self) -> None:
        self.go.wait()


async def test_a_receiver_that_does_not_answer_delays_the_end_by_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "FLUSH_S", 0.01)
    provider: Any = Hanging()
    tracer, meter = NoOpTracerProvider().get_tracer("tests"), NoOpMeterProvider().get_meter("tests")
    try:
        await Telemetry(tracer, meter, metrics(), [provider]).close()
        assert not provider.go.is_set()
    finally:
        provider.go.set()


async def test_the_series_are_brought_up_to_date_in_the_loops_thread() -> None:
    measured_in: list[int] = []
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    await asyncio.to_thread(telemetry._measured, loop, lambda: measured_in.append(threading.get_ident()))
    assert measured_in == [here]
    ended = asyncio.new_event_loop()
    ended.close()
    telemetry._measured(ended, lambda: measured_in.append(0))  # at the very end
    assert measured_in == [here]
