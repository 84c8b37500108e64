"""Encodes audit lines as OpenTelemetry logs and decodes a receiver's response.

It encodes by hand the few OTLP 1.x messages that an export needs (opentelemetry/proto/logs/v1/logs.proto,
collector/logs/v1/logs_service.proto). A log's body is the unchanged line, so its seal can be checked anywhere;
searchable fields are repeated as attributes.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import orjson

SCOPE: Final = "sidecar.audit"
ATTRIBUTES: Final = ("instance", "seq", "hash", "decision_id", "agent_id", "object", "status", "reason")
INFO, WARN = (9, "INFO"), (13, "WARN")  # SeverityNumber
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Rejected(NamedTuple):
    """How many records a receiver rejected, and why."""

    records: int
    message: str


def export_request(lines: Sequence[bytes], resource: Mapping[str, str]) -> bytes:
    """Encode lines, each with or without its newline, as an ExportLogsServiceRequest."""
    of_resource = b"".join(_attribute(1, name, value) for name, value in resource.items())
    scope = _text(1, SCOPE)
    records = b"".join(_field(2, _log(line.rstrip(b"\n"))) for line in lines)
    return _field(1, _field(1, of_resource) + _field(2, _field(1, scope) + records))


def rejected(media_type: str, body: bytes) -> Rejected:
    """Decode the body of a 2xx response. Raises ValueError if it is not an ExportLogsServiceResponse."""
    if not body:
        return Rejected(0, "")
    if media_type == "application/json":
        return _rejected_json(body)
    if media_type != "application/x-protobuf":
        raise ValueError("the answer is not one of OTLP")
    found = Rejected(0, "")
    for number, partial in _fields(body):
        if number == 1 and isinstance(partial, bytes):
            said = dict(_fields(partial))
            count, message = said.get(1, 0), said.get(2, b"")
            if not isinstance(count, int) or not isinstance(message, bytes):
                raise ValueError("the answer is not one of OTLP")
            found = Rejected(count, message.decode("utf-8", "replace"))
    return found


def _rejected_json(body: bytes) -> Rejected:
    try:
        said = orjson.loads(body).get("partialSuccess") or {}
        return Rejected(int(said.get("rejectedLogRecords", 0)), str(said.get("errorMessage", "")))
    except (AttributeError, TypeError, ValueError):
        raise ValueError("the answer is not one of OTLP") from None


def _log(line: bytes) -> bytes:
    record: dict[str, Any] = orjson.loads(line)
    at = _nanoseconds(record["timestamp"])
    number, word = INFO if record["status"] in (None, "success") else WARN
    parts = [_fixed64(1, at), _fixed64(11, at), _number(2, number), _text(3, word), _field(5, _field(1, line))]
    parts += [_attribute(6, f"sidecar.{name}", record[name]) for name in ATTRIBUTES if record[name] is not None]
    if _TRACE_ID.fullmatch(record["trace_id"] or ""):
        parts.append(_field(9, bytes.fromhex(record["trace_id"])))
    parts.append(_text(12, f"sidecar.audit.{record['event']}"))
    return b"".join(parts)


def _nanoseconds(timestamp: str) -> int:
    return (datetime.fromisoformat(timestamp) - _EPOCH) // timedelta(microseconds=1) * 1000


def _attribute(number: int, name: str, value: str | int) -> bytes:
    any_value = _number(3, value) if isinstance(value, int) else _text(1, value)
    return _field(number, _text(1, name) + _field(2, any_value))


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _fixed64(number: int, value: int) -> bytes:
    return _varint(number << 3 | _FIXED64) + value.to_bytes(8, "little")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and value of each field. Raises ValueError for a malformed message."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("this is no Protocol Buffers message")
        if at + size > len(message):
            raise ValueError("this message is cut off")
        yield tag >> 3, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("this message is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("this is no Protocol Buffers message")
