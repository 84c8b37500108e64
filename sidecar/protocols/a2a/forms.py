"""The form of parameters and results in each version and binding.

    1.0             ProtoJSON of its Protocol Buffers, which is the canonical form (`messages.py`)
    0.3, JSON-RPC   a separate JSON
    0.3, gRPC       ProtoJSON of the Protocol Buffers of 0.3
    0.3, HTTP+JSON  the same, except for cards, which are in the JSON of JSON-RPC

Reading converts a message to the canonical form, and writing converts it back. `v03.py` has the conversions of 0.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import CARD, Binding, Operation, Version
from sidecar.protocols.a2a.v03 import JSON_FORM, PROTO_FORM, JsonForm, ProtoForm

Params = dict[str, Any]


class CanonicalForm:
    """The form of 1.0. Reading checks a message, and raises UnreadableMessage; writing returns it unchanged."""

    def read_params(self, operation: Operation, given: object) -> Params:
        name = operation.request
        return (V10.readers.get((name, False)) or V10.reader(name, defaults=False)).read(given)

    def write_params(self, operation: Operation, params: Params) -> Params:
        return params

    def read_result(self, operation: Operation, given: object) -> Params:
        if not (name := operation.response):
            return {}
        return (V10.readers.get((name, True)) or V10.reader(name, defaults=True)).read(given)

    def write_result(self, operation: Operation, result: Params) -> Any:
        return result


class HttpJsonForm(ProtoForm):
    """Like `ProtoForm`, but cards are in the JSON of 0.3, as in the official SDK."""

    def read_result(self, operation: Operation, given: object) -> Params:
        return (JSON_FORM if operation is CARD else PROTO_FORM).read_result(operation, given)

    def write_result(self, operation: Operation, result: Mapping[str, Any]) -> Any:
        return (JSON_FORM if operation is CARD else PROTO_FORM).write_result(operation, result)


WireForm = CanonicalForm | JsonForm | ProtoForm
_CANONICAL: Final = CanonicalForm()
FORMS: Final[Mapping[tuple[Version, Binding], WireForm]] = {
    ("1.0", "jsonrpc"): _CANONICAL,
    ("1.0", "http_json"): _CANONICAL,
    ("1.0", "grpc"): _CANONICAL,
    ("0.3", "jsonrpc"): JSON_FORM,
    ("0.3", "http_json"): HttpJsonForm(),
    ("0.3", "grpc"): PROTO_FORM,
}
