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


def _routes(*routes: OperationRoute) -> tuple[OperationRoute, ...]:
    return routes


_CONFIGS: Final = "/tasks/{task}/pushNotificationConfigs"
_ONE_CONFIG: Final = _CONFIGS + "/{config}"

SEND: Final = Operation(
    "message/send",
    "SendMessageRequest",
    "SendMessageResponse",
    "SendMessage",
    "message/send",
    "SendMessage",
    _routes(OperationRoute("POST", "/message:send", True)),
    _routes(OperationRoute("POST", "/v1/message:send", True)),
)
STREAM: Final = Operation(
    "message/stream",
    "SendMessageRequest",
    "StreamResponse",
    "SendStreamingMessage",
    "message/stream",
    "SendStreamingMessage",
    _routes(OperationRoute("POST", "/message:stream", True)),
    _routes(OperationRoute("POST", "/v1/message:stream", True)),
    streams=True,
)
GET: Final = Operation(
    "tasks/get",
    "GetTaskRequest",
    "Task",
    "GetTask",
    "tasks/get",
    "GetTask",
    _routes(OperationRoute("GET", "/tasks/{task}")),
    _routes(OperationRoute("GET", "/v1/tasks/{task}")),
)
LIST: Final = Operation(
    "tasks/list",
    "ListTasksRequest",
    "ListTasksResponse",
    "ListTasks",
    "tasks/list",
    "",
    _routes(OperationRoute("GET", "/tasks")),
    _routes(OperationRoute("GET", "/v1/tasks")),
)
CANCEL: Final = Operation(
    "tasks/cancel",
    "CancelTaskRequest",
    "Task",
    "CancelTask",
    "tasks/cancel",
    "CancelTask",
    _routes(OperationRoute("POST", "/tasks/{task}:cancel", True)),
    _routes(OperationRoute("POST", "/v1/tasks/{task}:cancel", True)),
)
# The specification's text says POST, its Protocol Buffers GET; the official SDK takes both.
RESUBSCRIBE: Final = Operation(
    "tasks/resubscribe",
    "SubscribeToTaskRequest",
    "StreamResponse",
    "SubscribeToTask",
    "tasks/resubscribe",
    "TaskSubscription",
    _routes(OperationRoute("GET", "/tasks/{task}:subscribe"), OperationRoute("POST", "/tasks/{task}:subscribe", True)),
    _routes(
        OperationRoute("GET", "/v1/tasks/{task}:subscribe"), OperationRoute("POST", "/v1/tasks/{task}:subscribe", True)
    ),
    streams=True,
)
PUSH_SET: Final = Operation(
    "push/set",
    "TaskPushNotificationConfig",
    "TaskPushNotificationConfig",
    "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/set",
    "CreateTaskPushNotificationConfig",
    _routes(OperationRoute("POST", _CONFIGS, True)),
    _routes(OperationRoute("POST", "/v1" + _CONFIGS, True)),
)
PUSH_GET: Final = Operation(
    "push/get",
    "GetTaskPushNotificationConfigRequest",
    "TaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get",
    "GetTaskPushNotificationConfig",
    _routes(OperationRoute("GET", _ONE_CONFIG)),
    _routes(OperationRoute("GET", "/v1" + _ONE_CONFIG)),
)
PUSH_LIST: Final = Operation(
    "push/list",
    "ListTaskPushNotificationConfigsRequest",
    "ListTaskPushNotificationConfigsResponse",
    "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/list",
    "ListTaskPushNotificationConfig",
    _routes(OperationRoute("GET", _CONFIGS)),
    _routes(OperationRoute("GET", "/v1" + _CONFIGS)),
)
PUSH_DELETE: Final = Operation(
    "push/delete",
    "DeleteTaskPushNotificationConfigRequest",
    "",
    "DeleteTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/delete",
    "DeleteTaskPushNotificationConfig",
    _routes(OperationRoute("DELETE", _ONE_CONFIG)),
    _routes(OperationRoute("DELETE", "/v1" + _ONE_CONFIG)),
)
CARD: Final = Operation(
    "card/extended",
    "GetExtendedAgentCardRequest",
    "AgentCard",
    "GetExtendedAgentCard",
    "agent/getAuthenticatedExtendedCard",
    "GetAgentCard",
    _routes(OperationRoute("GET", "/extendedAgentCard")),
    _routes(OperationRoute("GET", "/v1/card")),
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
