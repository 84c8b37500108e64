"""The errors of A2A in each binding.

There is one row for each error of A2A 1.0, 5.4, of which 0.3 has the first seven, then the errors of JSON-RPC. An error
keeps its `reason` when it passes from one binding to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

DOMAIN: Final = "a2a-protocol.org"
ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"


class AgentErrorKind(NamedTuple):
    """One kind of error: the `reason` of `google.rpc.ErrorInfo`, the codes of JSON-RPC, HTTP and gRPC, and the message
    for errors that have none of their own."""

    reason: str
    code: int
    http: int
    grpc: str
    message: str

    @property
    def name(self) -> str:
        """The name in 0.3. Over gRPC, 0.3 identifies an error only by this name in the message: `TaskNotFoundError:
        …`."""
        words = self.reason.removesuffix("_ERROR").split("_")
        return _NAMES.get(self.reason) or "".join(word.capitalize() for word in words) + "Error"


_NAMES: Final[Mapping[str, str]] = {
    "PARSE_ERROR": "JSONParseError",
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": "AuthenticatedExtendedCardNotConfiguredError",
}
KINDS: Final[tuple[AgentErrorKind, ...]] = (
    AgentErrorKind("TASK_NOT_FOUND", -32001, 404, "NOT_FOUND", "Task not found"),
    AgentErrorKind("TASK_NOT_CANCELABLE", -32002, 400, "FAILED_PRECONDITION", "Task cannot be canceled"),
    AgentErrorKind(
        "PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400, "FAILED_PRECONDITION", "Push notifications are not supported"
    ),
    AgentErrorKind("UNSUPPORTED_OPERATION", -32004, 400, "FAILED_PRECONDITION", "This operation is not supported"),
    AgentErrorKind("CONTENT_TYPE_NOT_SUPPORTED", -32005, 400, "INVALID_ARGUMENT", "Incompatible content types"),
    AgentErrorKind("INVALID_AGENT_RESPONSE", -32006, 500, "INTERNAL", "Invalid agent response"),
    AgentErrorKind(
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED", -32007, 400, "FAILED_PRECONDITION", "No extended card is configured"
    ),
    AgentErrorKind(
        "EXTENSION_SUPPORT_REQUIRED", -32008, 400, "FAILED_PRECONDITION", "A required extension is not supported"
    ),
    AgentErrorKind("VERSION_NOT_SUPPORTED", -32009, 400, "FAILED_PRECONDITION", "This version is not supported"),
    AgentErrorKind("PARSE_ERROR", -32700, 400, "INVALID_ARGUMENT", "Invalid JSON payload"),
    AgentErrorKind("INVALID_REQUEST", -32600, 400, "INVALID_ARGUMENT", "Request payload validation error"),
    AgentErrorKind("METHOD_NOT_FOUND", -32601, 404, "UNIMPLEMENTED", "Method not found"),
    AgentErrorKind("INVALID_PARAMS", -32602, 400, "INVALID_ARGUMENT", "Invalid parameters"),
    AgentErrorKind("INTERNAL_ERROR", -32603, 500, "INTERNAL", "Internal error"),
)
BY_REASON: Final[Mapping[str, AgentErrorKind]] = {kind.reason: kind for kind in KINDS}
BY_CODE: Final[Mapping[int, AgentErrorKind]] = {kind.code: kind for kind in KINDS}
BY_NAME: Final[Mapping[str, AgentErrorKind]] = {
    **{kind.name: kind for kind in KINDS},
    "ExtendedAgentCardNotConfiguredError": BY_REASON["EXTENDED_AGENT_CARD_NOT_CONFIGURED"],  # SDK 1.x, using 0.3
}
OF_03: Final = frozenset(kind.reason for kind in KINDS[:7]) | {kind.reason for kind in KINDS[9:]}


class AgentError(NamedTuple):
    """An agent's error as received. `code` is that of JSON-RPC, also for other bindings; `data` are its details,
    objects with `@type` as in 1.0."""

    code: int
    message: str
    data: tuple[Mapping[str, Any], ...] = ()

    @property
    def kind(self) -> AgentErrorKind:
        """Its kind; INTERNAL_ERROR for a code that A2A does not define."""
        return BY_CODE.get(self.code, BY_REASON["INTERNAL_ERROR"])
