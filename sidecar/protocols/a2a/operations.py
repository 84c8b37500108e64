"""The operations of A2A and their names in each version and binding.

There is one row for each operation; policy sees the same action for all of its names. Sources: A2A 1.0, 5.3; A2A 0.3,
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
    `has_body` the parameters are in the body, otherwise in the query; those in the path are in neither."""

    verb: str
    path: str
    has_body: bool = False


class Operation(NamedTuple):
    """One operation. `action` is the canonical name, `request` and `response` the messages of 1.0, "" for no response;
    if it `streams`, each event is a `StreamResponse`. A name is "" if its version and binding lack the operation."""

    action: str
    request: str
    response: str
    rpc10: str
    rpc03: str
    grpc03: str
    http10: tuple[OperationRoute, ...]
    http03: tuple[OperationRoute, ...]
    streams: bool = False

    def rpc(self, version: Version) -> str:
        """The method in JSON-RPC."""
        return self.rpc10 if version == "1.0" else self.rpc03

    def grpc(self, version: Version) -> str:
        """The method in gRPC."""
        return self.rpc10 if version == "1.0" else self.grpc03

    def http(self, version: Version) -> tuple[OperationRoute, ...]:
        """Its addresses in HTTP+JSON; the first is the one that the sidecar uses."""
        return self.http10 if version == "1.0" else self.http03


# Action, request, response, name in 1.0 (JSON-RPC and gRPC), names in 0.3 (JSON-RPC, then gRPC), and the routes of 1.0.
# `=` stands for the action as the name in JSON-RPC, and for the name in 1.0 as that in gRPC; `-` stands for none, and a
# `*` after a path for a body.
_TABLE: Final = """
message/send SendMessageRequest SendMessageResponse SendMessage = = POST /message:send*
message/stream SendMessageRequest StreamResponse SendStreamingMessage = = POST /message:stream*
tasks/get GetTaskRequest Task GetTask = = GET /tasks/{task}
tasks/list ListTasksRequest ListTasksResponse ListTasks = - GET /tasks
tasks/cancel CancelTaskRequest Task CancelTask = = POST /tasks/{task}:cancel*
tasks/resubscribe SubscribeToTaskRequest StreamResponse SubscribeToTask = TaskSubscription
    GET /tasks/{task}:subscribe POST /tasks/{task}:subscribe*
push/set TaskPushNotificationConfig TaskPushNotificationConfig CreateTaskPushNotificationConfig
    tasks/pushNotificationConfig/set = POST /tasks/{task}/pushNotificationConfigs*
push/get GetTaskPushNotificationConfigRequest TaskPushNotificationConfig GetTaskPushNotificationConfig
    tasks/pushNotificationConfig/get = GET /tasks/{task}/pushNotificationConfigs/{config}
push/list ListTaskPushNotificationConfigsRequest ListTaskPushNotificationConfigsResponse ListTaskPushNotificationConfigs
    tasks/pushNotificationConfig/list ListTaskPushNotificationConfig GET /tasks/{task}/pushNotificationConfigs
push/delete DeleteTaskPushNotificationConfigRequest - DeleteTaskPushNotificationConfig
    tasks/pushNotificationConfig/delete = DELETE /tasks/{task}/pushNotificationConfigs/{config}
card/extended GetExtendedAgentCardRequest AgentCard GetExtendedAgentCard agent/getAuthenticatedExtendedCard GetAgentCard
    GET /extendedAgentCard
"""


def _operation(row: str) -> Operation:
    action, request, response, rpc10, rpc03, grpc03, *http = row.split()
    routes = tuple(
        OperationRoute(verb, path.rstrip("*"), path.endswith("*"))
        for verb, path in zip(http[::2], http[1::2], strict=True)
    )
    # In 0.3 the addresses begin with /v1.
    old = tuple(route._replace(path="/v1" + _PATHS_03.get(route.path, route.path)) for route in routes)
    return Operation(
        action,
        request,
        response.replace("-", ""),
        rpc10,
        action if rpc03 == "=" else rpc03,
        {"=": rpc10, "-": ""}.get(grpc03, grpc03),
        routes,
        old,
        streams=response == "StreamResponse",
    )


_PATHS_03: Final = {"/extendedAgentCard": "/card"}
OPERATIONS: Final = tuple(map(_operation, _TABLE.strip().replace("\n    ", " ").split("\n")))
# To resubscribe, the specification's text says POST, its Protocol Buffers GET; the official SDK accepts both.
SEND, STREAM, GET, LIST, CANCEL, RESUBSCRIBE, PUSH_SET, PUSH_GET, PUSH_LIST, PUSH_DELETE, CARD = OPERATIONS
BY_ACTION: Final[Mapping[str, Operation]] = {one.action: one for one in OPERATIONS}
BY_RPC: Final[Mapping[Version, Mapping[str, Operation]]] = {
    version: {one.rpc(version): one for one in OPERATIONS} for version in VERSIONS
}
BY_GRPC: Final[Mapping[Version, Mapping[str, Operation]]] = {
    version: {one.grpc(version): one for one in OPERATIONS if one.grpc(version)} for version in VERSIONS
}


_SAID: Final[Mapping[str, Version]] = {"": "0.3", "0.3": "0.3", "1.0": "1.0"}


def version_meant(said: str) -> Version | None:
    """The version that an `A2A-Version` header or a card states: 0.3 for "", and None for an unsupported one. A patch
    number is ignored."""
    return _SAID.get(said) or _SAID.get(".".join(said.split(".")[:2]))
