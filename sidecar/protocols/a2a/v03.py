"""Converts A2A 0.3 JSON messages to 1.0, and back.

0.3 distinguishes its objects by `kind`, writes states and roles in lower case, and has `blocking` where 1.0 has
`returnImmediately`. It is read as strictly as 1.0: every value by its type, every enumeration by its list, one content
to a part, and all members that the official models require. What 1.0 has and 0.3 has not (a text's media type, a device
flow) is not converted; the official compatibility layer, which is the reference for all of this, does the same. A
tenant, which it drops as well, is refused before (`forms.py`).

`kind` may be missing, as it is with the oldest peers: the type then follows from the members. A wrong `kind` is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sidecar.protocols.a2a import cards03
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import Operation
from sidecar.protocols.a2a.schema import Json, MessageSpec, Read, Schema, UnreadableMessage, schema_from

STATES: Final[Mapping[str, str]] = {
    "unknown": "TASK_STATE_UNSPECIFIED",
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELED",
    "input-required": "TASK_STATE_INPUT_REQUIRED",
    "rejected": "TASK_STATE_REJECTED",
    "auth-required": "TASK_STATE_AUTH_REQUIRED",
}
ROLES: Final[Mapping[str, str]] = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_STATES_03: Final = {state: word for word, state in STATES.items()}
# Terminal, or waiting for the caller: 1.0 ends a stream there, and 0.3 marks the last event.
LAST: Final = frozenset(STATES.values()) - {"TASK_STATE_UNSPECIFIED", "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}

# A data part of 0.3 is an object. Another value of 1.0 is wrapped in one, and this mark in the metadata says so.
_PACKED: Final = "data_part_compat"

# The field numbers are not used: this form has no Protocol Buffers.
V03: Final[Schema] = schema_from(
    "",
    """
MessageSendParams: 1 message:Message, 2 configuration:MessageSendConfiguration, 3 metadata:Struct
MessageSendConfiguration: 1 accepted_output_modes:[string], 2 blocking:bool, 3 history_length:int32,
    4 push_notification_config:PushNotificationConfig
PushNotificationConfig: 1 id:string, 2 url:string, 3 token:string, 4 authentication:AuthenticationInfo
AuthenticationInfo: 1 schemes:[string], 2 credentials:string
TaskPushNotificationConfig: 1 task_id:string, 2 push_notification_config:PushNotificationConfig
TaskQueryParams: 1 id:string, 2 history_length:int32
TaskIdParams: 1 id:string, 2 metadata:Struct
GetConfigParams: 1 id:string, 2 push_notification_config_id:string
DeleteConfigParams: 1 id:string, 2 push_notification_config_id:string
ListTasksParams: 1 context_id:string, 2 status:string, 3 page_size:int32, 4 page_token:string, 5 history_length:int32,
    6 status_timestamp_after:Timestamp, 7 include_artifacts:bool
ListTasksResult: 1 tasks:[Task], 2 next_page_token:string, 3 page_size:int32, 4 total_size:int32
Nothing:
Part: 1 kind:string, 2 text:string/content, 3 file:File/content, 4 data:Struct/content, 5 metadata:Struct
File: 1 bytes:bytes/content, 2 uri:string/content, 3 mime_type:string, 4 name:string
Message: 1 kind:string, 2 message_id:string, 3 context_id:string, 4 task_id:string, 5 role:string, 6 parts:[Part],
    7 metadata:Struct, 8 extensions:[string], 9 reference_task_ids:[string]
Artifact: 1 artifact_id:string, 2 name:string, 3 description:string, 4 parts:[Part], 5 metadata:Struct,
    6 extensions:[string]
TaskStatus: 1 state:string, 2 message:Message, 3 timestamp:Timestamp
Task: 1 kind:string, 2 id:string, 3 context_id:string, 4 status:TaskStatus, 5 artifacts:[Artifact],
    6 history:[Message], 7 metadata:Struct
StatusUpdate: 1 kind:string, 2 task_id:string, 3 context_id:string, 4 status:TaskStatus, 5 metadata:Struct,
    6 final:bool
ArtifactUpdate: 1 kind:string, 2 task_id:string, 3 context_id:string, 4 artifact:Artifact, 5 append:bool,
    6 last_chunk:bool, 7 metadata:Struct
""",
    {},
)
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "MessageSendParams": ("message",),
    "PushNotificationConfig": ("url",),
    "AuthenticationInfo": ("schemes",),
    "TaskPushNotificationConfig": ("taskId", "pushNotificationConfig"),
    "TaskQueryParams": ("id",),
    "TaskIdParams": ("id",),
    "GetConfigParams": ("id",),
    "DeleteConfigParams": ("id", "pushNotificationConfigId"),
    "ListTasksResult": ("tasks",),
    "Message": ("messageId", "role", "parts"),
    "Artifact": ("artifactId", "parts"),
    "TaskStatus": ("state",),
    "Task": ("id", "contextId", "status"),
    # `final` is required too, but follows from the state.
    "StatusUpdate": ("taskId", "contextId", "status"),
    "ArtifactUpdate": ("taskId", "contextId", "artifact"),
}
_CONTENTS: Final = ("text", "file", "data")
_WORDS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("Message", "kind"): frozenset({"message"}),
    ("Message", "role"): frozenset(ROLES),
    ("Part", "kind"): frozenset(_CONTENTS),
    ("TaskStatus", "state"): frozenset(STATES),
    ("ListTasksParams", "status"): frozenset(STATES),
    ("Task", "kind"): frozenset({"task"}),
    ("StatusUpdate", "kind"): frozenset({"status-update"}),
    ("ArtifactUpdate", "kind"): frozenset({"artifact-update"}),
}


# --- values other than objects ----------------------------------------------------------------------------------------


def packed(value: Any, metadata: Json | None) -> tuple[Json, Json | None]:
    """A value as the object that 0.3 requires, and the metadata that mark it. An object that bears the mark already is
    packed as well: otherwise its reader would unpack it and get another value than the one that was decided on.
    """
    if isinstance(value, dict) and not (metadata or {}).get(_PACKED):
        return value, metadata
    return {"value": value}, {**(metadata or {}), _PACKED: True}


def unpacked(data: Json, metadata: Json | None, at: str) -> tuple[Any, Json | None]:
    """The value of a packed object, and the remaining metadata. Raises UnreadableMessage."""
    rest = dict(metadata or {})
    if not rest.pop(_PACKED, False):
        return data, rest or None
    if "value" not in data:
        raise UnreadableMessage(f"{at}/value", "is missing")
    return data["value"], rest or None


# --- reading 0.3 ------------------------------------------------------------------------------------------------------


def _read(name: str, given: object, at: str = "") -> Json:
    """A message of 0.3, checked completely; empty members are kept."""
    try:
        read = V03.read(name, given, defaults=True)
        _check(V03.messages[name], read, "")
    except UnreadableMessage as wrong:
        raise UnreadableMessage(at + wrong.pointer, wrong.problem) from None
    return read


def _check(message: MessageSpec, read: Read, at: str) -> None:
    for name in _REQUIRED.get(message.name, ()):
        if name not in read:
            raise UnreadableMessage(f"{at}/{name}", "is missing")
    if message.name == "Part":
        _check_part(read, at)
    if message.name == "File" and not {"bytes", "uri"} & read.keys():
        raise UnreadableMessage(f"{at}/bytes", "is missing, and so is a uri")
    for one in message.fields:
        if one.json not in read:
            continue
        words = _WORDS.get((message.name, one.json))
        if words is not None and read[one.json] not in words:
            raise UnreadableMessage(f"{at}/{one.json}", "is no word of A2A 0.3")
        inner = V03.messages.get(one.type)
        if inner is None:
            continue
        if one.many:
            for index, value in enumerate(read[one.json]):
                _check(inner, value, f"{at}/{one.json}/{index}")
        else:
            _check(inner, read[one.json], f"{at}/{one.json}")


def _check_part(part: Read, at: str) -> None:
    held = next((content for content in _CONTENTS if content in part), None)
    if held is None:
        raise UnreadableMessage(at, "holds no text, no file and no data")
    if part.get("kind", held) != held:
        raise UnreadableMessage(f"{at}/kind", "is not what the part holds")
    if held == "data":
        unpacked(part["data"], part.get("metadata"), f"{at}/data")


# --- 0.3 to 1.0: what is None or empty is left out by the reader of 1.0 -----------------------------------------------


def _part_10(part: Read) -> Json:
    metadata = part.get("metadata")
    if "text" in part:
        return {"text": part["text"], "metadata": metadata}
    if "file" in part:
        file: Read = part["file"]
        content = {"raw": file["bytes"]} if "bytes" in file else {"url": file["uri"]}
        return {**content, "mediaType": file.get("mimeType"), "filename": file.get("name"), "metadata": metadata}
    data, metadata = unpacked(part["data"], metadata, "")
    return {"data": data, "metadata": metadata}


def _message_10(message: Read) -> Json:
    return {
        **message,
        "role": ROLES[message["role"]],
        "parts": [_part_10(part) for part in message["parts"]],
        "metadata": message.get("metadata") or None,
    }


def _status_10(status: Read) -> Json:
    message = status.get("message")
    return {
        "state": STATES[status["state"]],
        "message": None if message is None else _message_10(message),
        "timestamp": status.get("timestamp"),
    }


def _artifact_10(artifact: Read) -> Json:
    return {
        **artifact,
        "parts": [_part_10(part) for part in artifact["parts"]],
        "metadata": artifact.get("metadata") or None,
    }


def _task_10(task: Read) -> Json:
    return {
        **task,
        "status": _status_10(task["status"]),
        "history": [_message_10(message) for message in task.get("history", ())],
        "artifacts": [_artifact_10(artifact) for artifact in task.get("artifacts", ())],
        "metadata": task.get("metadata") or None,
    }


def _status_update_10(event: Read) -> Json:
    return {**event, "status": _status_10(event["status"]), "metadata": event.get("metadata") or None}


def _artifact_update_10(event: Read) -> Json:
    return {**event, "artifact": _artifact_10(event["artifact"]), "metadata": event.get("metadata") or None}


def _config_10(config: Read) -> Json:
    authentication = config.get("authentication")
    if authentication is not None:
        # 1.0 has one scheme; the first is the one that 0.3 prefers.
        scheme = next(iter(authentication["schemes"]), None)
        authentication = {"scheme": scheme, "credentials": authentication.get("credentials")}
    return {**config, "authentication": authentication}


def _task_config_10(config: Read) -> Json:
    return {**_config_10(config["pushNotificationConfig"]), "taskId": config["taskId"]}


def _send_10(params: Read) -> Json:
    configuration = params.get("configuration")
    return {
        "message": _message_10(params["message"]),
        "configuration": None if configuration is None else _configuration_10(configuration),
        "metadata": params.get("metadata") or None,
    }


def _configuration_10(configuration: Read) -> Json:
    config = configuration.get("pushNotificationConfig")
    return {
        "acceptedOutputModes": configuration.get("acceptedOutputModes"),
        "taskPushNotificationConfig": None if config is None else _config_10(config),
        "historyLength": configuration.get("historyLength") or None,  # in 0.3, unset and 0 both mean all of it
        "returnImmediately": not configuration.get("blocking", True),
    }


def _query_10(params: Read) -> Json:
    return {**params, "historyLength": params.get("historyLength") or None}


def _cancel_10(params: Read) -> Json:
    return {**params, "metadata": params.get("metadata") or None}


def _config_ids_10(params: Read) -> Json:
    return {"taskId": params["id"], "id": params.get("pushNotificationConfigId")}


def _list_10(params: Read) -> Json:
    status = params.get("status")
    return {**_query_10(params), "status": None if status is None else STATES[status]}


# --- 1.0 to 0.3 -------------------------------------------------------------------------------------------------------


def said(**members: Any) -> Json:
    """The members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def _part_03(part: Read, at: str) -> Json:
    metadata = part.get("metadata")
    if "text" in part:
        return said(kind="text", text=part["text"], metadata=metadata)
    if "data" in part:
        data, metadata = packed(part["data"], metadata)
        return said(kind="data", data=data, metadata=metadata)
    if "raw" not in part and "url" not in part:
        raise UnreadableMessage(at, "holds nothing, which A2A 0.3 cannot say")
    file = said(bytes=part.get("raw"), uri=part.get("url"), mimeType=part.get("mediaType"), name=part.get("filename"))
    return said(kind="file", file=file, metadata=metadata)


def _parts_03(holder: Read, at: str) -> list[Json]:
    return [_part_03(part, f"{at}/parts/{index}") for index, part in enumerate(holder.get("parts", ()))]


def _message_03(message: Read, at: str) -> Json:
    return said(
        kind="message",
        messageId=message.get("messageId", ""),
        role="user" if message.get("role") == "ROLE_USER" else "agent",
        contextId=message.get("contextId"),
        taskId=message.get("taskId"),
        referenceTaskIds=message.get("referenceTaskIds"),
        metadata=message.get("metadata") or None,
        extensions=message.get("extensions"),
        parts=_parts_03(message, at),
    )


def _status_03(status: Read, at: str) -> Json:
    message = status.get("message")
    return said(
        state=_STATES_03.get(status.get("state", ""), "unknown"),
        message=None if message is None else _message_03(message, f"{at}/message"),
        timestamp=status.get("timestamp"),
    )


def _artifact_03(artifact: Read, at: str) -> Json:
    return said(
        artifactId=artifact.get("artifactId", ""),
        name=artifact.get("name"),
        description=artifact.get("description"),
        parts=_parts_03(artifact, at),
        metadata=artifact.get("metadata"),
        extensions=artifact.get("extensions"),
    )


def _task_03(task: Read, at: str) -> Json:
    history = [_message_03(one, f"{at}/history/{index}") for index, one in enumerate(task.get("history", ()))]
    artifacts = [_artifact_03(one, f"{at}/artifacts/{index}") for index, one in enumerate(task.get("artifacts", ()))]
    return said(
        kind="task",
        id=task.get("id", ""),
        contextId=task.get("contextId", ""),
        status=_status_03(task.get("status", {}), f"{at}/status"),
        history=history or None,
        artifacts=artifacts or None,
        metadata=task.get("metadata"),
    )


def _status_update_03(event: Read, at: str) -> Json:
    status = _status_03(event.get("status", {}), f"{at}/status")
    return said(
        kind="status-update",
        taskId=event.get("taskId", ""),
        contextId=event.get("contextId", ""),
        status=status,
        final=event.get("status", {}).get("state") in LAST,
        metadata=event.get("metadata"),
    )


def _artifact_update_03(event: Read, at: str) -> Json:
    return said(
        kind="artifact-update",
        taskId=event.get("taskId", ""),
        contextId=event.get("contextId", ""),
        artifact=_artifact_03(event.get("artifact", {}), f"{at}/artifact"),
        append=event.get("append", False),
        lastChunk=event.get("lastChunk", False),
        metadata=event.get("metadata"),
    )


def _config_03(config: Read) -> Json:
    authentication = config.get("authentication")
    if authentication is not None:
        schemes = [authentication["scheme"]] if "scheme" in authentication else []
        authentication = said(schemes=schemes, credentials=authentication.get("credentials"))
    return said(
        url=config.get("url", ""), id=config.get("id"), token=config.get("token"), authentication=authentication
    )


def _task_config_03(config: Read, _at: str = "") -> Json:
    return {"taskId": config.get("taskId", ""), "pushNotificationConfig": _config_03(config)}


def _send_03(params: Read) -> Json:
    configuration = params.get("configuration")
    return said(
        message=_message_03(params.get("message", {}), "/message"),
        configuration=None if configuration is None else _configuration_03(configuration),
        metadata=params.get("metadata"),
    )


def _configuration_03(configuration: Read) -> Json:
    config = configuration.get("taskPushNotificationConfig")
    return said(
        acceptedOutputModes=configuration.get("acceptedOutputModes"),
        pushNotificationConfig=None if config is None else _config_03(config),
        historyLength=configuration.get("historyLength"),
        blocking=not configuration.get("returnImmediately", False),
    )


def _query_03(params: Read) -> Json:
    return said(id=params.get("id", ""), historyLength=params.get("historyLength"))


def _cancel_03(params: Read) -> Json:
    return said(id=params.get("id", ""), metadata=params.get("metadata"))


def _id_03(params: Read) -> Json:
    return {"id": params.get("id", "")}


def _task_id_03(params: Read) -> Json:
    return {"id": params.get("taskId", "")}


def _got_config_03(params: Read) -> Json:
    return said(id=params.get("taskId", ""), pushNotificationConfigId=params.get("id"))


def _deleted_config_03(params: Read) -> Json:
    return {"id": params.get("taskId", ""), "pushNotificationConfigId": params.get("id", "")}


def _list_03(params: Read) -> Json:
    members = {name: value for name, value in params.items() if name != "tenant"}
    return members | ({"status": _STATES_03[params["status"]]} if "status" in params else {})


# --- the operations ---------------------------------------------------------------------------------------------------


class V03Params(NamedTuple):
    """The type of an operation's parameters in 0.3, and the conversions in both directions."""

    name: str
    to_10: Callable[[Read], Json]
    to_03: Callable[[Read], Json]


_PARAMS: Final[Mapping[str, V03Params]] = {
    "SendMessageRequest": V03Params("MessageSendParams", _send_10, _send_03),
    "GetTaskRequest": V03Params("TaskQueryParams", _query_10, _query_03),
    "ListTasksRequest": V03Params("ListTasksParams", _list_10, _list_03),
    "CancelTaskRequest": V03Params("TaskIdParams", _cancel_10, _cancel_03),
    "SubscribeToTaskRequest": V03Params("TaskIdParams", _id_03, _id_03),
    "TaskPushNotificationConfig": V03Params("TaskPushNotificationConfig", _task_config_10, _task_config_03),
    "GetTaskPushNotificationConfigRequest": V03Params("GetConfigParams", _config_ids_10, _got_config_03),
    "ListTaskPushNotificationConfigsRequest": V03Params("TaskIdParams", _config_ids_10, _task_id_03),
    "DeleteTaskPushNotificationConfigRequest": V03Params("DeleteConfigParams", _config_ids_10, _deleted_config_03),
    "GetExtendedAgentCardRequest": V03Params("Nothing", dict, lambda _: {}),
}


class _Object(NamedTuple):
    """A result type: its `kind`, its message of 0.3, its member in 1.0."""

    kind: str
    name: str
    member: str
    to_10: Callable[[Read], Json]
    to_03: Callable[[Read, str], Json]


_OBJECTS: Final = (
    _Object("task", "Task", "task", _task_10, _task_03),
    _Object("message", "Message", "message", _message_10, _message_03),
    _Object("status-update", "StatusUpdate", "statusUpdate", _status_update_10, _status_update_03),
    _Object("artifact-update", "ArtifactUpdate", "artifactUpdate", _artifact_update_10, _artifact_update_03),
)
_BY_KIND: Final[Mapping[str, _Object]] = {one.kind: one for one in _OBJECTS}


def params_from_03(operation: Operation, params: object) -> Json:
    """The canonical parameters. Raises UnreadableMessage."""
    form = _PARAMS[operation.request]
    return V10.read(operation.request, form.to_10(_read(form.name, {} if params is None else params)))


def params_to_03(operation: Operation, canonical: Read) -> Json:
    """The parameters in 0.3's form. Raises UnreadableMessage for what 0.3 cannot express."""
    return _PARAMS[operation.request].to_03(canonical)


def result_from_03(operation: Operation, result: object, *, streamed: bool) -> Json:
    """The canonical result, or the `StreamResponse` of one event of a stream. Raises UnreadableMessage."""
    name = "StreamResponse" if streamed else operation.response
    if name in ("SendMessageResponse", "StreamResponse"):
        one = _object(result, _OBJECTS if name == "StreamResponse" else _OBJECTS[:2])
        return V10.read(name, {one.member: one.to_10(_read(one.name, result))})
    if name == "Task":
        return V10.read(name, _task_10(_read("Task", result)))
    if name == "ListTasksResponse":
        listed = _read("ListTasksResult", result)
        return V10.read(name, {**listed, "tasks": [_task_10(task) for task in listed["tasks"]]})
    if name == "TaskPushNotificationConfig":
        return V10.read(name, _task_config_10(_read(name, result)))
    if name == "ListTaskPushNotificationConfigsResponse":
        if not isinstance(result, list):
            raise UnreadableMessage("", "must be a list")
        configs = [_read("TaskPushNotificationConfig", one, f"/{index}") for index, one in enumerate(result)]
        return V10.read(name, {"configs": [_task_config_10(config) for config in configs]})
    if name == "AgentCard":
        return cards03.from_json(result)
    if result is not None and result != {}:
        raise UnreadableMessage("", "must be null")  # of a deletion
    return {}


def result_to_03(operation: Operation, canonical: Read, *, streamed: bool) -> Any:
    """The result in 0.3's form. Raises UnreadableMessage for what 0.3 cannot express."""
    name = "StreamResponse" if streamed else operation.response
    if name:
        canonical = V10.read(name, canonical)  # 0.3 omits the members that an agent of 1.0 sent empty
    if name in ("SendMessageResponse", "StreamResponse"):
        for one in _OBJECTS:
            if one.member in canonical:
                return one.to_03(canonical[one.member], f"/{one.member}")
        raise UnreadableMessage("", "holds nothing, which A2A 0.3 cannot say")
    if name == "Task":
        return _task_03(canonical, "")
    if name == "ListTasksResponse":
        tasks = [_task_03(task, f"/tasks/{index}") for index, task in enumerate(canonical.get("tasks", ()))]
        return {**canonical, "tasks": tasks}
    if name == "TaskPushNotificationConfig":
        return _task_config_03(canonical)
    if name == "ListTaskPushNotificationConfigsResponse":
        return [_task_config_03(config) for config in canonical.get("configs", ())]
    if name == "AgentCard":
        return cards03.to_json(canonical)
    return None


def _object(given: object, among: tuple[_Object, ...]) -> _Object:
    if not isinstance(given, dict):
        raise UnreadableMessage("", "must be an object")
    kind = given.get("kind")
    found = _guessed(given) if kind is None else _BY_KIND.get(kind) if isinstance(kind, str) else None
    if found is None or found not in among:
        raise UnreadableMessage("/kind", "is no kind of result that belongs here")
    return found


def _guessed(given: Mapping[str, object]) -> _Object | None:
    """The type of an object without `kind`, as the oldest peers send it. No two types require the same members."""
    for one in _OBJECTS:
        spelled = V03.messages[one.name].spelled
        if {spelled[key].json for key in given if key in spelled} >= set(_REQUIRED[one.name]):
            return one
    return None
