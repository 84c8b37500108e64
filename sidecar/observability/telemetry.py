"""Starts OpenTelemetry (extra `otel`): traces, and metrics by OTLP.

The SDK reads every `OTEL_*` variable itself. Nothing of it is imported unless one of them names an exporter, an
endpoint or a configuration file, so that telemetry costs nothing while it is off.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sidecar import __version__
from sidecar.errors import SettingsError, fault_in

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

    from sidecar.observability.metrics import Metrics

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
"""The version of the semantic conventions (open-telemetry/semantic-conventions-genai) whose names are used."""
FLUSH_S: Final = 3.0
MEASURED_WITHIN_S: Final = 1.0
EXTRA: Final = "pip install 'nhi-sidecar[otel]', or unset the variable"
CORRECT: Final = "correct the OTEL_* variables, or set OTEL_SDK_DISABLED=true"
_SIGNALS: Final = ("TRACES", "METRICS")
_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"


def exporting(environ: Mapping[str, str], signal: str) -> str:
    """Returns the name of the variable that requests the export of a signal (TRACES, METRICS); "" for none."""

    def said(name: str) -> str:
        return environ.get(name, "").strip()

    if said("OTEL_SDK_DISABLED").lower() == "true":
        return ""
    if said("OTEL_CONFIG_FILE"):
        return "OTEL_CONFIG_FILE"
    named = f"OTEL_{signal}_EXPORTER"
    if said(named):
        return "" if said(named).lower() == "none" else named
    return next(filter(said, (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")), "")


class Telemetry:
    """The OpenTelemetry SDK of this process. There is at most one instance."""

    def __init__(self, tracer: Tracer, meter: Meter, metrics: Metrics, providers: Sequence[Any]) -> None:
        self.tracer, self.meter, self.metrics, self._providers = tracer, meter, metrics, providers

    @classmethod
    def from_environ(
        cls, environ: Mapping[str, str], path: Path, metrics: Metrics, measure: Callable[[], None]
    ) -> Telemetry | None:
        """Starts the SDK if a variable requests it; returns None if none does. `metrics` are exported too; `measure`
        updates them, and is called in the running event loop. Raises SettingsError, naming the file `path`, if the
        extra is missing or the variables cannot be used."""
        wanted = {signal: variable for signal in _SIGNALS if (variable := exporting(environ, signal))}
        if not wanted:
            return None
        try:
            return cls._begun(environ, wanted, metrics, measure)
        except ImportError as missing:
            variable = next(iter(wanted.values()))
            message = f"the extra otel is not installed, which {variable} needs: {missing.name} is missing"
            raise SettingsError([fault_in(path, message, code="S190", hint=EXTRA)]) from None
        except Exception as error:  # each exporter, sampler and detector has its own errors
            message = f"OpenTelemetry cannot be started: {str(error)[:200]}"
            raise SettingsError([fault_in(path, message, code="S191", hint=CORRECT)]) from None

    @classmethod
    def _begun(
        cls, environ: Mapping[str, str], wanted: Mapping[str, str], metrics: Metrics, measure: Callable[[], None]
    ) -> Telemetry:
        from opentelemetry.metrics import NoOpMeterProvider, Observation, get_meter_provider
        from opentelemetry.propagate import get_global_textmap
        from opentelemetry.sdk._configuration import _OTelSDKConfigurator
        from opentelemetry.trace import NoOpTracerProvider, get_tracer_provider

        from sidecar.observability.otlp_metrics import exporters_of, provider_of

        class Configurator(_OTelSDKConfigurator):
            """The SDK's own configurator, which each distribution subclasses."""

        if "traceparent" not in get_global_textmap().fields:
            raise ValueError("OTEL_PROPAGATORS lacks tracecontext, and MCP carries no other context")
        by_file = "OTEL_CONFIG_FILE" in wanted.values()
        exporters = exporters_of(_exporters(environ, "METRICS")) if "METRICS" in wanted and not by_file else []
        # The protocol is the specification's default; the SDK's default needs another package. Exporters of metrics are
        # made below, because they also receive the series.
        with _environ({_PROTOCOL: environ.get(_PROTOCOL) or "http/protobuf", "OTEL_METRICS_EXPORTER": None}):
            Configurator().configure(**_arguments(environ, wanted))  # type: ignore[no-untyped-call]
        spans: Any = get_tracer_provider()
        measured: Any = get_meter_provider() if by_file else NoOpMeterProvider()
        if exporters:
            update = partial(_measured, asyncio.get_running_loop(), measure)
            measured = provider_of(exporters, spans.resource, metrics, update)
        traces = spans if "TRACES" in wanted else NoOpTracerProvider()
        tracer = traces.get_tracer("sidecar", __version__, schema_url=SCHEMA_URL)
        meter = measured.get_meter("sidecar", __version__, schema_url=SCHEMA_URL)
        began_s = time.monotonic()
        meter.create_observable_gauge("process.uptime", [lambda _: [Observation(time.monotonic() - began_s)]], "s")
        return cls(tracer, meter, metrics, [spans, measured] if "METRICS" in wanted else [spans])

    async def close(self) -> None:
        """Sends the remaining data. A receiver that does not answer delays the end of the process by at most `FLUSH_S`
        seconds."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()
        done = partial(loop.call_soon_threadsafe, sent.set)
        threading.Thread(target=self._shut_down, args=(done,), name="OpenTelemetry's end", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await sent.wait()
        for provider in self._providers:  # they would wait once more at the end of the interpreter
            atexit.unregister(provider.shutdown)

    def _shut_down(self, done: Callable[[], object]) -> None:
        each = [threading.Thread(target=provider.shutdown, daemon=True) for provider in self._providers]
        for one in each:
            one.start()
        for one in each:
            one.join()
        with suppress(RuntimeError):  # the loop has ended
            done()


def _measured(loop: asyncio.AbstractEventLoop, measure: Callable[[], None]) -> None:
    """Calls `measure` in the loop's thread, and waits for it in this one, for at most MEASURED_WITHIN_S seconds."""
    done = threading.Event()

    def measured() -> None:
        measure()
        done.set()

    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(measured)
        done.wait(MEASURED_WITHIN_S)


def _arguments(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments that the SDK needs in addition to its variables: the exporter of traces, if only an
    endpoint is named, and the identity of this replica, so that its series differ from those of others."""
    if "OTEL_CONFIG_FILE" in wanted.values():  # the file has all settings
        return {}
    named = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    about = {"service.version": __version__, "service.instance.id": str(uuid.uuid4())}
    if not environ.get("OTEL_SERVICE_NAME"):
        about["service.name"] = "sidecar"
    given = {part.partition("=")[0].strip() for part in named.split(",")}
    found: dict[str, Any] = {"resource_attributes": {name: value for name, value in about.items() if name not in given}}
    if wanted.get("TRACES", "").endswith("ENDPOINT"):
        found["trace_exporter_names"] = _exporters(environ, "TRACES")
    return found


def _exporters(environ: Mapping[str, str], signal: str) -> list[str]:
    """Returns the names of the exporters of a signal: OTLP, if only an endpoint is named."""
    own, common = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"), environ.get(_PROTOCOL)
    protocol = (own or common or "").strip()
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    named = environ.get(f"OTEL_{signal}_EXPORTER", "") or "otlp"
    return [otlp if (name := part.strip()) == "otlp" else name for part in named.split(",")]


@contextmanager
def _environ(values: Mapping[str, str | None]) -> Iterator[None]:
    """Replaces values of variables for the SDK; None removes one."""
    held = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(held)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
