"""Encodes audit lines as OpenTelemetry logs and decodes a receiver's response.

A log's body is the unchanged line, so its seal can be checked anywhere; searchable fields are repeated as attributes.
Imported only if an OTLP sink is configured: OTLP's messages take 30 ms to import.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

ATTRIBUTES: Final = ("instance", "seq", "hash", "decision_id", "agent_id", "object", "status", "reason")
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def export_request(lines: Sequence[bytes], resource: Mapping[str, str]) -> bytes:
    """Encodes lines, each with or without its newline, as an ExportLogsServiceRequest."""
    logs = ScopeLogs(scope=InstrumentationScope(name="sidecar.audit"), log_records=map(_log, lines))
    described = Resource(attributes=[_attribute(name, value) for name, value in resource.items()])
    request = ExportLogsServiceRequest(resource_logs=[ResourceLogs(resource=described, scope_logs=[logs])])
    return request.SerializeToString()


def rejected(media_type: str, body: bytes) -> ExportLogsPartialSuccess:
    """Returns how many records a receiver rejected, and why, from its 2xx response. Raises ValueError if the response
    is not OTLP's."""
    response = ExportLogsServiceResponse()
    try:
        if body and media_type == "application/json":
            ParseDict({**orjson.loads(body)}, response, ignore_unknown_fields=True)
        elif body and media_type == "application/x-protobuf":
            response.ParseFromString(body)
        elif body:
            raise ValueError
    except (DecodeError, ParseError, TypeError, ValueError):
        raise ValueError("the answer is not one of OTLP") from None
    return response.partial_success


def _log(line: bytes) -> LogRecord:
    record: dict[str, Any] = orjson.loads(line)
    at = (datetime.fromisoformat(record["timestamp"]) - _EPOCH) // timedelta(microseconds=1) * 1000
    is_good, trace_id = record["status"] in (None, "success"), record["trace_id"] or ""
    return LogRecord(
        time_unix_nano=at,
        observed_time_unix_nano=at,
        severity_number=SeverityNumber.SEVERITY_NUMBER_INFO if is_good else SeverityNumber.SEVERITY_NUMBER_WARN,
        severity_text="INFO" if is_good else "WARN",
        body=AnyValue(string_value=line.rstrip(b"\n").decode()),
        attributes=[_attribute(f"sidecar.{name}", record[name]) for name in ATTRIBUTES if record[name] is not None],
        trace_id=bytes.fromhex(trace_id) if _TRACE_ID.fullmatch(trace_id) else b"",
        event_name=f"sidecar.audit.{record['event']}",
    )


def _attribute(name: str, value: str | int) -> KeyValue:
    shown = AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
    return KeyValue(key=name, value=shown)
