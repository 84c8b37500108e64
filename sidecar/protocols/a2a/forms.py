"""The form of parameters and results in each version and binding.

    1.0                  ProtoJSON of its Protocol Buffers, which is the canonical form (`messages.py`)
    0.3, JSON-RPC        JSON of its own (`v03.py`)
    0.3, everywhere else ProtoJSON of its own Protocol Buffers (`proto03.py`)

A form converts messages to the canonical one when reading, and from it when writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from sidecar.protocols.a2a import proto03, v03
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import CARD, Binding, Operation, Version
from sidecar.protocols.a2a.schema import UnreadableMessage

Params = dict[str, Any]


class WireForm(Protocol):
    """One form. What is read is checked; what is written is not, because the sidecar made it."""

    def read_params(self, operation: Operation, given: object) -> Params:
        """A caller's parameters. Raises UnreadableError."""

    def write_params(self, operation: Operation, params: Params) -> Params:
        """Parameters for an agent."""

    def read_result(self, operation: Operation, given: object) -> Params:
        """An agent's result; of an operation that streams, one event. Raises UnreadableError."""

    def write_result(self, operation: Operation, result: Params) -> Any:
        """A result for a caller; of an operation that streams, one event."""


class Canonical:
    """The form of 1.0."""

    def read_params(self, operation: Operation, given: object) -> Params:
        return V10.read(operation.request, given)

    def write_params(self, operation: Operation, params: Params) -> Params:
        return params

    def read_result(self, operation: Operation, given: object) -> Params:
        if not operation.response:
            return {}
        return V10.read(operation.response, given, defaults=True)

    def write_result(self, operation: Operation, result: Params) -> Any:
        return result


class OfJsonRpc03:
    """The form of 0.3 in JSON-RPC."""

    def read_params(self, operation: Operation, given: object) -> Params:
        return v03.params_from_03(operation, given)

    def write_params(self, operation: Operation, params: Params) -> Params:
        return v03.params_to_03(operation, _below_no_tenant(params))

    def read_result(self, operation: Operation, given: object) -> Params:
        return v03.result_from_03(operation, given, streamed=operation.streams)

    def write_result(self, operation: Operation, result: Params) -> Any:
        return v03.result_to_03(operation, result, streamed=operation.streams)


class OfProto03:
    """The form of 0.3 in HTTP+JSON and in gRPC."""

    def read_params(self, operation: Operation, given: object) -> Params:
        return proto03.params_from_03(operation, given)

    def write_params(self, operation: Operation, params: Params) -> Params:
        return proto03.params_to_03(operation, _below_no_tenant(params))

    def read_result(self, operation: Operation, given: object) -> Params:
        return proto03.result_from_03(operation, given, streamed=operation.streams)

    def write_result(self, operation: Operation, result: Params) -> Any:
        return proto03.result_to_03(operation, result, streamed=operation.streams)


class OfHttpJson03(OfProto03):
    """Like `OfProto03`, but cards are JSON of 0.3, as in the official SDK."""

    def read_result(self, operation: Operation, given: object) -> Params:
        return (_RPC_03 if operation is CARD else _PROTO_03).read_result(operation, given)

    def write_result(self, operation: Operation, result: Params) -> Any:
        return (_RPC_03 if operation is CARD else _PROTO_03).write_result(operation, result)


def _below_no_tenant(params: Params) -> Params:
    """Refuse a tenant: rules and audit records saw it, but an agent of 0.3 would act for any tenant alike."""
    if params.get("tenant"):
        raise UnreadableMessage("/tenant", "means nothing in A2A 0.3")
    return params


_RPC_03: Final = OfJsonRpc03()
_PROTO_03: Final = OfProto03()
_FORMS: Final[Mapping[tuple[Version, Binding], WireForm]] = {
    ("1.0", "jsonrpc"): Canonical(),
    ("1.0", "http_json"): Canonical(),
    ("1.0", "grpc"): Canonical(),
    ("0.3", "jsonrpc"): _RPC_03,
    ("0.3", "http_json"): OfHttpJson03(),
    ("0.3", "grpc"): _PROTO_03,
}


def form_of(version: Version, binding: Binding) -> WireForm:
    """The form of a version and binding."""
    return _FORMS[version, binding]
