"""Encodes and decodes the details of a gRPC status.

`grpc-status-details-bin` holds a `google.rpc.Status` with a `google.rpc.ErrorInfo` in it (A2A 1.0, 5.4). Only the
fields that are used here are written and read; others are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from sidecar.protocols.a2a.errors import ERROR_INFO
from sidecar.protocols.a2a.schema import schema_from
from sidecar.protocols.a2a.wire import message_classes

DETAILS: Final = "grpc-status-details-bin"
_NAMES: Final = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
    "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS "
    "UNAUTHENTICATED"
)
CODES: Final[Mapping[str, int]] = {name: number for number, name in enumerate(_NAMES.split())}
MAX_BYTES: Final = 16 * 1024
Info = Mapping[str, Any]
# `google.protobuf.Any` has the two fields of `Detail`.
_CLASSES: Final = message_classes(
    schema_from(
        "google.rpc",
        """
Status: 1 code:int32, 2 message:string, 3 details:[Detail]
Detail: 1 type_url:string, 2 value:bytes
ErrorInfo: 1 reason:string, 2 domain:string, 3 metadata:{string}
""",
        {},
    )
)


def encode_status(code: str, message: str, infos: list[Info]) -> bytes:
    """The bytes of a status. `code` is the name of a gRPC code; of the details, only each `ErrorInfo` is written."""
    status = _CLASSES["Status"](code=CODES[code], message=message)
    for info in infos:
        if info.get("@type") == ERROR_INFO:
            metadata = {str(name): str(value) for name, value in info.get("metadata", {}).items()}
            named = {name: str(info.get(name, "")) for name in ("reason", "domain")}
            value = _CLASSES["ErrorInfo"](**named, metadata=metadata).SerializeToString()
            status.details.add(type_url=ERROR_INFO, value=value)
    return bytes(status.SerializeToString())


def infos_in(raw: bytes) -> list[dict[str, Any]]:
    """Every `ErrorInfo` in the first MAX_BYTES of a status, in its JSON form; empty if the status cannot be read."""
    try:
        details = _CLASSES["Status"].FromString(raw[:MAX_BYTES]).details
        infos = [_CLASSES["ErrorInfo"].FromString(one.value) for one in details if one.type_url == ERROR_INFO]
    except DecodeError:
        return []
    return [
        {"@type": ERROR_INFO, "reason": info.reason, "domain": info.domain, "metadata": dict(info.metadata)}
        for info in infos
    ]
