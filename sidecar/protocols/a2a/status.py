"""Encodes gRPC status details.

`grpc-status-details-bin` holds a `google.rpc.Status` with a `google.rpc.ErrorInfo` in it (A2A 1.0, 5.4). Only the
fields that are used here are written and read; others are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sidecar.protocols.a2a.errors import ERROR_INFO

DETAILS: Final = "grpc-status-details-bin"
CODES: Final[Mapping[str, int]] = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
MAX_BYTES: Final = 16 * 1024
_BYTES, _VARINT, _FIXED64, _FIXED32 = 2, 0, 1, 5
Info = Mapping[str, Any]


def encode_status(code: str, message: str, infos: list[Info]) -> bytes:
    """A status with its details; only `ErrorInfo` is written."""
    found = bytes([_VARINT | 1 << 3, CODES[code]]) + _piece(2, message.encode())
    for info in infos:
        if info.get("@type") == ERROR_INFO:
            found += _piece(3, _piece(1, ERROR_INFO.encode()) + _piece(2, _info(info)))
    return found


def _info(info: Info) -> bytes:
    said = _piece(1, str(info.get("reason", "")).encode()) + _piece(2, str(info.get("domain", "")).encode())
    for name, value in info.get("metadata", {}).items():
        said += _piece(3, _piece(1, str(name).encode()) + _piece(2, str(value).encode()))
    return said


def _piece(number: int, raw: bytes) -> bytes:
    return bytes([_BYTES | number << 3]) + _varint(len(raw)) + raw


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def infos_in(raw: bytes) -> list[dict[str, Any]]:
    """Every `ErrorInfo` of a status, in its JSON form; empty if the status cannot be read."""
    try:
        details = [part for number, part in pieces(raw[:MAX_BYTES]) if number == 3]
        return [info for part in details if (info := _read(part)) is not None]
    except (ValueError, IndexError):
        return []


def _read(detail: bytes) -> dict[str, Any] | None:
    parts = dict(pieces(detail))
    if parts.get(1, b"").decode() != ERROR_INFO:
        return None
    info: dict[str, Any] = {"@type": ERROR_INFO, "reason": "", "domain": "", "metadata": {}}
    for number, part in pieces(parts.get(2, b"")):
        if number == 1:
            info["reason"] = part.decode()
        elif number == 2:
            info["domain"] = part.decode()
        elif number == 3:
            entry = dict(pieces(part))
            info["metadata"][entry.get(1, b"").decode()] = entry.get(2, b"").decode()
    return info


def pieces(raw: bytes, most: int = MAX_BYTES) -> Iterator[tuple[int, bytes]]:
    """The fields that hold bytes. Raises ValueError or IndexError for bytes that are no message, and for more than
    `most` fields of any kind.
    """
    at = 0
    while at < len(raw):
        if most == 0:
            raise ValueError("too many fields")
        most -= 1
        key, at = _number(raw, at)
        kind = key & 7
        if kind == _BYTES:
            size, at = _number(raw, at)
            if at + size > len(raw):
                raise ValueError("cut off")
            yield key >> 3, raw[at : at + size]
            at += size
        elif kind == _VARINT:
            _, at = _number(raw, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("no wire type")


def _number(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number that does not end")
