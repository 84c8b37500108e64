"""The operations of A2A and their names in each version and binding.

One row for each; policy sees the same action under all of its names (CONTRACT 1.4). Source: A2A 1.0, 5.3; A2A 0.3,
3.5.6; and the Protocol Buffers of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Version = Literal["0.3", "1.0"]
Binding = Literal["jsonrpc", "http_json", "grpc"]
VERSIONS: Final[tuple[Version, ...]] = ("0.3", "1.0")
BINDINGS: Final[tuple[Binding, ...]] = ("jsonrpc", "http_json", "grpc")


class OperationRoute(NamedTuple):
    """An address of HTTP+JSON. `{task}` and `{config}` stand for ids; a verb after a colon ends the last segment. With
    `has_body` the parameters are the body, else the query; those in the path are in neither.
    """

    verb: str
    path: str
    has_body: bool = False


class Operation(NamedTuple):
    """One operation. `action` is the canonical name, `request` and `response` the messages of 1.0; if it `streams`,
    each event is a `StreamResponse`. "" means that a version does not have it.
    """

    action: str
    request: str
    response: str
    rpc10: str
    rpc03: str
    grpc03: str
    http10: tuple[OperationRoute, ...]
    http03: tuple[OperationRoute, ...]
    streams: bool = False

    @property
    def grpc10(self) -> str:
        """The method name of 1.0, in JSON-RPC and gRPC alike."""
        return self.rpc10

    def rpc(self, version: Version) -> str:
        """The method in JSON-RPC."""
        return self.rpc10 if version == "1.0" else self.rpc03

    def grpc(self, version: Version) -> str:
        """The method in gRPC."""
        return self.grpc10 if version == "1.0" else self.grpc03

    def http(self, version: Version) -> tuple[OperationRoute, ...]:
        """Its addresses in HTTP+JSON; the first is the one that the sidecar calls."""
        return self.http10 if version == "1.0" else self.http03


def _operation(
    action: str,
    request: str,
    response: str,
    rpc10: str,
    *routes: OperationRoute,
    rpc03: str = "",
    grpc03: str | None = None,
    http03: tuple[OperationRoute, ...] = (),
    streams: bool = False,
) -> Operation:
    """An operation whose names in 0.3 are those of 1.0, but for what is given; its addresses there begin with /v1."""
    old = http03 or tuple(route._replace(path="/v1" + route.path) for route in routes)
    grpc = rpc10 if grpc03 is None else grpc03
    return Operation(action, request, response, rpc10, rpc03 or action, grpc, routes, old, streams)


_CONFIGS: Final = "/tasks/{task}/pushNotificationConfigs"
_ONE_CONFIG: Final = _CONFIGS + "/{config}"

SEND: Final = _operation(
    "message/send",
    "SendMessageRequest",
    "SendMessageResponse",
    "SendMessage",
    OperationRoute("POST", "/message:send", True),
)
STREAM: Final = _operation(
    "message/stream",
    "SendMessageRequest",
    "StreamResponse",
    "SendStreamingMessage",
    OperationRoute("POST", "/message:stream", True),
    streams=True,
)
GET: Final = _operation("tasks/get", "GetTaskRequest", "Task", "GetTask", OperationRoute("GET", "/tasks/{task}"))
LIST: Final = _operation(
    "tasks/list", "ListTasksRequest", "ListTasksResponse", "ListTasks", OperationRoute("GET", "/tasks"), grpc03=""
)
CANCEL: Final = _operation(
    "tasks/cancel", "CancelTaskRequest", "Task", "CancelTask", OperationRoute("POST", "/tasks/{task}:cancel", True)
)
# The specification's text says POST, its Protocol Buffers GET; the official SDK takes both.
RESUBSCRIBE: Final = _operation(
    "tasks/resubscribe",
    "SubscribeToTaskRequest",
    "StreamResponse",
    "SubscribeToTask",
    OperationRoute("GET", "/tasks/{task}:subscribe"),
    OperationRoute("POST", "/tasks/{task}:subscribe", True),
    grpc03="TaskSubscription",
    streams=True,
)
PUSH_SET: Final = _operation(
    "push/set",
    "TaskPushNotificationConfig",
    "TaskPushNotificationConfig",
    "CreateTaskPushNotificationConfig",
    OperationRoute("POST", _CONFIGS, True),
    rpc03="tasks/pushNotificationConfig/set",
)
PUSH_GET: Final = _operation(
    "push/get",
    "GetTaskPushNotificationConfigRequest",
    "TaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    OperationRoute("GET", _ONE_CONFIG),
    rpc03="tasks/pushNotificationConfig/get",
)
PUSH_LIST: Final = _operation(
    "push/list",
    "ListTaskPushNotificationConfigsRequest",
    "ListTaskPushNotificationConfigsResponse",
    "ListTaskPushNotificationConfigs",
    OperationRoute("GET", _CONFIGS),
    rpc03="tasks/pushNotificationConfig/list",
    grpc03="ListTaskPushNotificationConfig",
)
PUSH_DELETE: Final = _operation(
    "push/delete",
    "DeleteTaskPushNotificationConfigRequest",
    "",
    "DeleteTaskPushNotificationConfig",
    OperationRoute("DELETE", _ONE_CONFIG),
    rpc03="tasks/pushNotificationConfig/delete",
)
CARD: Final = _operation(
    "card/extended",
    "GetExtendedAgentCardRequest",
    "AgentCard",
    "GetExtendedAgentCard",
    OperationRoute("GET", "/extendedAgentCard"),
    rpc03="agent/getAuthenticatedExtendedCard",
    grpc03="GetAgentCard",
    http03=(OperationRoute("GET", "/v1/card"),),
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    SEND,
    STREAM,
    GET,
    LIST,
    CANCEL,
    RESUBSCRIBE,
    PUSH_SET,
    PUSH_GET,
    PUSH_LIST,
    PUSH_DELETE,
    CARD,
)
BY_ACTION: Final[Mapping[str, Operation]] = {one.action: one for one in OPERATIONS}
BY_RPC: Final[Mapping[Version, Mapping[str, Operation]]] = {
    version: {one.rpc(version): one for one in OPERATIONS} for version in VERSIONS
}
BY_GRPC: Final[Mapping[Version, Mapping[str, Operation]]] = {
    version: {one.grpc(version): one for one in OPERATIONS if one.grpc(version)} for version in VERSIONS
}


def version_meant(said: str) -> Version | None:
    """The version of an `A2A-Version` header: 0.3 if it is absent; a patch number is ignored. None for one that is not
    supported.
    """
    known: dict[str, Version] = {"": "0.3", "0.3": "0.3", "1.0": "1.0"}
    return known.get(".".join(said.split(".")[:2]))
