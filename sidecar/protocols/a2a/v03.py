"""Converts messages of A2A 0.3 to 1.0, and back.

0.3 has two forms. Both share the tree of messages; each class below has the parts that only its form has.

- JSON-RPC has JSON that distinguishes its objects by `kind`, writes states and roles in lower case, and requires
  members. It is read as strictly as 1.0. `kind` may be missing, as it is with the oldest peers: the type then follows
  from the members. A wrong `kind` is refused.
- HTTP+JSON and gRPC have Protocol Buffers, in which tasks and configurations have resource names (`tasks/{id}`), a
  message's parts are `content`, and a file is a message of its own.

The official compatibility layer is the reference, with its peculiarities: the bytes of a file in Protocol Buffers are
the *text* of their base64, and members that 0.3 lacks (a text's media type, a device flow) are not converted. Two
things that both versions have are retained, although the official layer loses them: the pages of a list, and the
default of `blocking` in a call that does not set it. An id with a slash is refused if it would be part of a resource
name, because the agent would read another id in that name. A tenant, which the official layer drops, is refused: rules
and audit records use it, but an agent of 0.3 would treat all tenants alike.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from sidecar.protocols.a2a import cards03
from sidecar.protocols.a2a.messages import JSON03, JSON_STATES, PROTO03, STATES, STATES_03, V10
from sidecar.protocols.a2a.operations import Operation, Version
from sidecar.protocols.a2a.schema import Json, Read, Schema, UnreadableMessage

# Terminal states, and those that wait for the caller: 1.0 ends a stream there, and 0.3 marks its last event.
LAST: Final = frozenset(STATES) - {"TASK_STATE_UNSPECIFIED", "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}

# A data part of 0.3 is an object. Another value of 1.0 is wrapped in one, and this member of the metadata marks it.
_PACKED: Final = "data_part_compat"
_TASK: Final = re.compile(r"tasks/([^/]+)\Z")
_CONFIG: Final = re.compile(r"tasks/([^/]+)/pushNotificationConfigs/([^/]+)\Z")
_NO_ID: Final = "-"  # in the resource name of a configuration without an id

Convert = Callable[[Read, str], Json]  # a message and its place


class V03Params(NamedTuple):
    """The type of an operation's parameters in 0.3, and the conversions in both directions."""

    name: str
    to_10: Callable[[Read], Json]
    to_03: Callable[[Read], Json]


class V03Object(NamedTuple):
    """A type in results and events: its member in 1.0, its type in `JSON03`, and the conversions."""

    member: str
    name: str
    to_10: Convert
    to_03: Convert


def packed(value: Any, metadata: Json | None) -> tuple[Json, Json | None]:
    """A value as the object that 0.3 requires, and the metadata that mark it. An object that already has the mark is
    also packed; otherwise its reader would unpack it and get a value other than the decided one."""
    if isinstance(value, dict) and not (metadata or {}).get(_PACKED):
        return value, metadata
    return {"value": value}, {**(metadata or {}), _PACKED: True}


def unpacked(data: Json, metadata: Json | None, at: str) -> tuple[Any, Json | None]:
    """The value of an object, unpacked if the metadata mark it, and the remaining metadata. Raises UnreadableMessage if
    a marked object has no value."""
    rest = dict(metadata or {})
    if not rest.pop(_PACKED, False):
        return data, rest or None
    if "value" not in data:
        raise UnreadableMessage(f"{at}/value", "is missing")
    return data["value"], rest or None


def _present(**members: Any) -> Json:
    """The members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def _scheme_10(config: Read) -> Json:
    """A push configuration with the first of its authentication schemes: 1.0 has one only, and 0.3 prefers the
    first."""
    authentication = config.get("authentication")
    if authentication is not None:
        scheme = next(iter(authentication.get("schemes", ())), None)
        authentication = {"scheme": scheme, "credentials": authentication.get("credentials")}
    return {**config, "authentication": authentication}


class _Form03:
    """The common parts of both forms. `…_10` converts to 1.0, and `…_03` to 0.3; the reader of 1.0 omits members that
    are None or empty."""

    schema: Schema
    states: ClassVar[Mapping[str, str]]
    roles: ClassVar[Mapping[str, str]]
    parts = "parts"  # the member of a message with its parts
    push_config: str  # the member of a call's configuration with a push configuration
    blocks: bool  # whether a call waits for its task by default
    params: Mapping[str, V03Params]  # of each request of 1.0

    def __init__(self) -> None:
        self._states_03 = {state: word for word, state in self.states.items()}
        self._roles_03 = {role: word for word, role in self.roles.items()}
        self.objects = (
            V03Object("task", "Task", self.task_10, self.task_03),
            V03Object("message", "Message", self.message_10, self.message_03),
            V03Object("statusUpdate", "StatusUpdate", self.status_update_10, self.status_update_03),
            V03Object("artifactUpdate", "ArtifactUpdate", self.artifact_update_10, self.artifact_update_03),
        )

    def read_params(self, operation: Operation, given: object) -> Json:
        """The canonical form of a caller's parameters; None means none. Raises UnreadableMessage if they are not
        valid."""
        form = self.params[operation.request]
        return V10.read(operation.request, form.to_10(self._read(form.name, {} if given is None else given)))

    def write_params(self, operation: Operation, params: Read) -> Json:
        """Canonical parameters in the form of 0.3, for an agent. Raises UnreadableMessage for a tenant, and for values
        that 0.3 cannot express."""
        if params.get("tenant"):
            raise UnreadableMessage("/tenant", "means nothing in A2A 0.3")
        return self.params[operation.request].to_03(params)

    def _read(self, name: str, given: object, at: str = "") -> Json:
        """A message of the type `name` of 0.3, checked completely. `at` is its place."""
        raise NotImplementedError

    def _made(self, name: str, members: Json) -> Json:
        """A message of the type `name` of 0.3 ("" for one without a type in the schema) with these members; None is
        absent."""
        raise NotImplementedError

    def part_10(self, part: Read, at: str) -> Json:
        raise NotImplementedError

    def part_03(self, part: Read, at: str) -> Json:
        raise NotImplementedError

    # --- 0.3 to 1.0 ---

    def message_10(self, message: Read, at: str) -> Json:
        return {
            **message,
            "role": self.roles.get(message.get("role", ""), "ROLE_AGENT"),
            "parts": _each(self.part_10, message, self.parts, at),
            "metadata": message.get("metadata") or None,
        }

    def artifact_10(self, artifact: Read, at: str) -> Json:
        parts = _each(self.part_10, artifact, "parts", at)
        return {**artifact, "parts": parts, "metadata": artifact.get("metadata") or None}

    def status_10(self, status: Read, at: str) -> Json:
        message = self.message_10(status["message"], f"{at}/message") if "message" in status else None
        return {**status, "state": self.states.get(status.get("state", "")), "message": message}

    def task_10(self, task: Read, at: str) -> Json:
        return {
            **task,
            "status": self.status_10(task.get("status", {}), f"{at}/status"),
            "history": _each(self.message_10, task, "history", at),
            "artifacts": _each(self.artifact_10, task, "artifacts", at),
            "metadata": task.get("metadata") or None,
        }

    def status_update_10(self, event: Read, at: str) -> Json:
        status = self.status_10(event.get("status", {}), f"{at}/status")
        return {**event, "status": status, "metadata": event.get("metadata") or None}

    def artifact_update_10(self, event: Read, at: str) -> Json:
        artifact = self.artifact_10(event.get("artifact", {}), f"{at}/artifact")
        return {**event, "artifact": artifact, "metadata": event.get("metadata") or None}

    def send_10(self, params: Read) -> Json:
        configuration = params.get("configuration")
        return {
            "message": self.message_10(params["message"], "/message") if "message" in params else None,
            "configuration": None if configuration is None else self._configuration_10(configuration),
            "metadata": params.get("metadata") or None,
        }

    def _configuration_10(self, configuration: Read) -> Json:
        config = configuration.get(self.push_config)
        return {
            "acceptedOutputModes": configuration.get("acceptedOutputModes"),
            "taskPushNotificationConfig": None if config is None else _scheme_10(config),
            "historyLength": configuration.get("historyLength") or None,  # in 0.3, unset and 0 both mean all of it
            "returnImmediately": not configuration.get("blocking", self.blocks),
        }

    # --- 1.0 to 0.3 ---

    def message_03(self, message: Read, at: str) -> Json:
        members = {**message, self.parts: _each(self.part_03, message, "parts", at)}
        members["role"] = self._roles_03["ROLE_USER" if message.get("role") == "ROLE_USER" else "ROLE_AGENT"]
        return self._made("Message", {**members, "metadata": message.get("metadata") or None})

    def artifact_03(self, artifact: Read, at: str) -> Json:
        return self._made("Artifact", {**artifact, "parts": _each(self.part_03, artifact, "parts", at)})

    def status_03(self, status: Read, at: str) -> Json:
        message = self.message_03(status["message"], f"{at}/message") if "message" in status else None
        state = self._states_03.get(status.get("state", STATES[0]))
        return self._made("TaskStatus", {**status, "state": state, "message": message})

    def task_03(self, task: Read, at: str) -> Json:
        members = {
            **task,
            "status": self.status_03(task.get("status", {}), f"{at}/status"),
            "history": _each(self.message_03, task, "history", at) or None,
            "artifacts": _each(self.artifact_03, task, "artifacts", at) or None,
        }
        return self._made("Task", members)

    def status_update_03(self, event: Read, at: str) -> Json:
        status = event.get("status", {})
        members = {"status": self.status_03(status, f"{at}/status"), "final": status.get("state") in LAST}
        return self._made("StatusUpdate", {**event, **members})

    def artifact_update_03(self, event: Read, at: str) -> Json:
        artifact = self.artifact_03(event.get("artifact", {}), f"{at}/artifact")
        return self._made("ArtifactUpdate", {"append": False, "lastChunk": False, **event, "artifact": artifact})

    def config_03(self, config: Read) -> Json:
        authentication = config.get("authentication")
        if authentication is not None:
            schemes = [authentication["scheme"]] if "scheme" in authentication else []
            members = {"schemes": schemes, "credentials": authentication.get("credentials")}
            authentication = self._made("AuthenticationInfo", members)
        members = {name: config.get(name) for name in ("id", "url", "token")}
        return self._made("PushNotificationConfig", {**members, "authentication": authentication})

    def send_03(self, params: Read) -> Json:
        configuration = params.get("configuration")
        return _present(
            message=self.message_03(params.get("message", {}), "/message"),
            configuration=None if configuration is None else self._configuration_03(configuration),
            metadata=params.get("metadata"),
        )

    def _configuration_03(self, configuration: Read) -> Json:
        config = configuration.get("taskPushNotificationConfig")
        members = {
            "acceptedOutputModes": configuration.get("acceptedOutputModes"),
            self.push_config: None if config is None else self.config_03(config),
            "historyLength": configuration.get("historyLength"),
            "blocking": not configuration.get("returnImmediately", False),
        }
        return self._made("", members)

    def list_03(self, params: Read) -> Json:
        members = {name: value for name, value in params.items() if name != "tenant"}
        return members | ({"status": self._states_03[params["status"]]} if "status" in params else {})


def _each(convert: Convert, holder: Read, member: str, at: str) -> list[Json]:
    return [convert(one, f"{at}/{member}/{index}") for index, one in enumerate(holder.get(member, ()))]


class JsonForm(_Form03):
    """The form of JSON-RPC. Reading retains empty members, and writing includes required strings and lists of
    strings."""

    schema = JSON03
    states: ClassVar = dict(zip(JSON_STATES, STATES, strict=True))
    roles: ClassVar = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
    push_config = "pushNotificationConfig"
    blocks = True
    _kinds: ClassVar = {
        "Task": "task",
        "Message": "message",
        "StatusUpdate": "status-update",
        "ArtifactUpdate": "artifact-update",
    }

    def __init__(self) -> None:
        super().__init__()
        task_id = self._task_id_03
        self.params = {
            "SendMessageRequest": V03Params("MessageSendParams", self.send_10, self.send_03),
            "GetTaskRequest": V03Params("TaskQueryParams", self._query_10, self._query_03),
            "ListTasksRequest": V03Params("ListTasksParams", self._list_10, self.list_03),
            "CancelTaskRequest": V03Params("TaskIdParams", self._cancel_10, self._cancel_03),
            "SubscribeToTaskRequest": V03Params("TaskIdParams", dict, lambda params: {"id": params.get("id", "")}),
            "TaskPushNotificationConfig": V03Params(
                "TaskPushNotificationConfig", self._task_config_10, self._task_config_03
            ),
            "GetTaskPushNotificationConfigRequest": V03Params("GetConfigParams", self._ids_10, self._get_config_03),
            "ListTaskPushNotificationConfigsRequest": V03Params("TaskIdParams", self._ids_10, task_id),
            "DeleteTaskPushNotificationConfigRequest": V03Params(
                "DeleteConfigParams",
                self._ids_10,
                lambda params: {**task_id(params), "pushNotificationConfigId": params.get("id", "")},
            ),
            "GetExtendedAgentCardRequest": V03Params("Nothing", dict, lambda _: {}),
        }

    def _read(self, name: str, given: object, at: str = "") -> Json:
        return self.schema.read(name, given, at, defaults=True)

    def _made(self, name: str, members: Json) -> Json:
        made: Json = {"kind": self._kinds[name]} if name in self._kinds else {}
        for one in self.schema.messages[name].fields if name else ():
            if one.required and one.type == "string":
                made[one.json] = [] if one.many else ""
        return made | _present(**members)

    def part_10(self, part: Read, at: str) -> Json:
        metadata = part.get("metadata")
        held = next(content for content in ("text", "file", "data") if content in part)
        if part.get("kind", held) != held:
            raise UnreadableMessage(f"{at}/kind", "is not what the part holds")
        if held == "data":
            data, metadata = unpacked(part["data"], metadata, f"{at}/data")
            return {"data": data, "metadata": metadata}
        if held == "text":
            return {"text": part["text"], "metadata": metadata}
        file: Read = part["file"]
        content = {"raw": file["bytes"]} if "bytes" in file else {"url": file["uri"]}
        return {**content, "mediaType": file.get("mimeType"), "filename": file.get("name"), "metadata": metadata}

    def part_03(self, part: Read, at: str) -> Json:
        metadata = part.get("metadata")
        if "text" in part:
            return _present(kind="text", text=part["text"], metadata=metadata)
        if "data" in part:
            data, metadata = packed(part["data"], metadata)
            return _present(kind="data", data=data, metadata=metadata)
        if "raw" not in part and "url" not in part:
            raise UnreadableMessage(at, "holds nothing, which A2A 0.3 cannot say")
        file = {"bytes": part.get("raw"), "uri": part.get("url")}
        file |= {"mimeType": part.get("mediaType"), "name": part.get("filename")}
        return _present(kind="file", file=_present(**file), metadata=metadata)

    def _query_10(self, params: Read) -> Json:
        return {**params, "historyLength": params.get("historyLength") or None}

    def _query_03(self, params: Read) -> Json:
        return _present(id=params.get("id", ""), historyLength=params.get("historyLength"))

    def _list_10(self, params: Read) -> Json:
        return {**self._query_10(params), "status": self.states.get(params.get("status", ""))}

    def _cancel_10(self, params: Read) -> Json:
        return {**params, "metadata": params.get("metadata") or None}

    def _cancel_03(self, params: Read) -> Json:
        return _present(id=params.get("id", ""), metadata=params.get("metadata"))

    def _ids_10(self, params: Read) -> Json:
        return {"taskId": params["id"], "id": params.get("pushNotificationConfigId")}

    def _task_id_03(self, params: Read) -> Json:
        return {"id": params.get("taskId", "")}

    def _get_config_03(self, params: Read) -> Json:
        return self._task_id_03(params) | _present(pushNotificationConfigId=params.get("id"))

    def _task_config_10(self, config: Read) -> Json:
        return {**_scheme_10(config["pushNotificationConfig"]), "taskId": config["taskId"]}

    def _task_config_03(self, config: Read) -> Json:
        return {"taskId": config.get("taskId", ""), "pushNotificationConfig": self.config_03(config)}

    def read_result(self, operation: Operation, given: object) -> Json:
        """The canonical result of an agent, or the `StreamResponse` of one event. Raises UnreadableMessage."""
        name = operation.response
        match name:
            case "SendMessageResponse" | "StreamResponse":
                one = self._object(given, self.objects if operation.streams else self.objects[:2])
                converted: Json = {one.member: one.to_10(self._read(one.name, given), "")}
            case "Task":
                converted = self.task_10(self._read("Task", given), "")
            case "ListTasksResponse":
                listed = self._read("ListTasksResult", given)
                converted = {**listed, "tasks": _each(self.task_10, listed, "tasks", "")}
            case "TaskPushNotificationConfig":
                converted = self._task_config_10(self._read(name, given))
            case "ListTaskPushNotificationConfigsResponse":
                if not isinstance(given, list):
                    raise UnreadableMessage("", "must be a list")
                one_name = "TaskPushNotificationConfig"
                configs = [self._read(one_name, one, f"/{index}") for index, one in enumerate(given)]
                converted = {"configs": [self._task_config_10(config) for config in configs]}
            case "AgentCard":
                return cards03.from_json(given)
            case _:  # a deletion has no result
                if given is not None and given != {}:
                    raise UnreadableMessage("", "must be null")
                return {}
        return V10.read(name, converted)

    def write_result(self, operation: Operation, result: Read) -> Any:
        """A result or an event for a caller. Raises UnreadableMessage for values that 0.3 cannot express."""
        if not operation.response:
            return None
        canonical = V10.read(operation.response, result)  # 0.3 omits the members that an agent of 1.0 sent empty
        match operation.response:
            case "Task":
                return self.task_03(canonical, "")
            case "ListTasksResponse":
                return {**canonical, "tasks": _each(self.task_03, canonical, "tasks", "")}
            case "TaskPushNotificationConfig":
                return self._task_config_03(canonical)
            case "ListTaskPushNotificationConfigsResponse":
                return [self._task_config_03(config) for config in canonical.get("configs", ())]
            case "AgentCard":
                return cards03.to_json(canonical)
        for one in self.objects:
            if one.member in canonical:
                return one.to_03(canonical[one.member], f"/{one.member}")
        raise UnreadableMessage("", "holds nothing, which A2A 0.3 cannot say")

    def _object(self, given: object, among: tuple[V03Object, ...]) -> V03Object:
        if not isinstance(given, dict):
            raise UnreadableMessage("", "must be an object")
        kind = given.get("kind")
        for one in among:
            if kind == self._kinds[one.name] if kind is not None else one is self._without_kind(given):
                return one
        raise UnreadableMessage("/kind", "is not a kind of result that belongs here")

    def _without_kind(self, given: Mapping[str, object]) -> V03Object | None:
        """The first type whose required members an object without `kind` has; None if there is none."""
        for one in self.objects:
            message = self.schema.messages[one.name]
            members = {message.spelled[key].json for key in given if key in message.spelled}
            if members >= {field.json for field in message.fields if field.required}:
                return one
        return None


class ProtoForm(_Form03):
    """The form of HTTP+JSON and gRPC, in which empty and absent are the same."""

    schema = PROTO03
    states: ClassVar = dict(zip(STATES_03, STATES, strict=True))
    roles: ClassVar = {"ROLE_USER": "ROLE_USER", "ROLE_AGENT": "ROLE_AGENT"}
    parts = "content"
    push_config = "pushNotification"
    blocks = False

    def __init__(self) -> None:
        super().__init__()
        self.params = {
            "SendMessageRequest": V03Params("SendMessageRequest", self.send_10, self.send_03),
            "GetTaskRequest": V03Params("GetTaskRequest", self._query_10, self._query_03),
            "ListTasksRequest": V03Params("ListTasksRequest", self._list_10, self.list_03),
            "CancelTaskRequest": V03Params("CancelTaskRequest", self._query_10, self._id_03),
            "SubscribeToTaskRequest": V03Params("TaskSubscriptionRequest", self._query_10, self._id_03),
            "TaskPushNotificationConfig": V03Params(
                "CreateTaskPushNotificationConfigRequest", self._created_config_10, self._created_config_03
            ),
            "GetTaskPushNotificationConfigRequest": V03Params(
                "GetTaskPushNotificationConfigRequest", self._ids_10, self._ids_03
            ),
            "ListTaskPushNotificationConfigsRequest": V03Params(
                "ListTaskPushNotificationConfigRequest", self._configs_of_10, self._configs_of_03
            ),
            "DeleteTaskPushNotificationConfigRequest": V03Params(
                "DeleteTaskPushNotificationConfigRequest", self._ids_10, self._ids_03
            ),
            "GetExtendedAgentCardRequest": V03Params("GetAgentCardRequest", dict, lambda _: {}),
        }
        self._results: Mapping[str, tuple[Convert, Convert]] = {
            "Task": (self.task_10, self.task_03),
            "TaskPushNotificationConfig": (self._task_config_10, self._task_config_03),
            "SendMessageResponse": (self._held_10, self._held_03),
            "StreamResponse": (self._held_10, self._held_03),
            "ListTasksResponse": (
                lambda page, at: self._page("tasks", self.task_10, page, at),
                lambda page, at: self._page("tasks", self.task_03, page, at),
            ),
            "ListTaskPushNotificationConfigsResponse": (
                lambda page, at: self._page("configs", self._task_config_10, page, at),
                lambda page, at: self._page("configs", self._task_config_03, page, at),
            ),
            "AgentCard": (lambda card, _: cards03.from_proto(card), lambda card, _: cards03.to_proto(card)),
        }

    def _read(self, name: str, given: object, at: str = "") -> Json:
        return self.schema.read(name, given, at)

    def _made(self, name: str, members: Json) -> Json:
        known = self.schema.messages[name].spelled if name in ("Message", "TaskStatus") else members
        return {one: value for one, value in members.items() if (value or isinstance(value, dict)) and one in known}

    def part_10(self, part: Read, at: str) -> Json:
        metadata = part.get("metadata") or None
        if "text" in part:
            return {"text": part["text"], "metadata": metadata}
        if "data" in part:
            value, rest = unpacked(part["data"].get("data", {}), metadata, f"{at}/data/data")
            return {"data": value, "metadata": rest}
        file: Read = part.get("file", {})
        if "fileWithUri" in file:
            content = {"url": file["fileWithUri"]}
        elif "fileWithBytes" in file:
            content = {"raw": base64.b64decode(file["fileWithBytes"]).decode("latin-1")}  # text; the reader checks it
        else:
            raise UnreadableMessage(at, "holds no text, no file and no data")
        return {**content, "mediaType": file.get("mimeType"), "filename": file.get("name"), "metadata": metadata}

    def part_03(self, part: Read, at: str) -> Json:
        metadata = part.get("metadata")
        if "text" in part:
            return _present(text=part["text"], metadata=metadata)
        if "data" in part:
            data, metadata = packed(part["data"], metadata)
            return _present(data={"data": data}, metadata=metadata)
        if "raw" not in part and "url" not in part:
            raise UnreadableMessage(at, "holds nothing, which A2A 0.3 cannot say")
        raw = base64.b64encode(part["raw"].encode()).decode() if "raw" in part else None
        file = {"fileWithBytes": raw, "fileWithUri": part.get("url")}
        file |= {"mimeType": part.get("mediaType"), "name": part.get("filename")}
        return _present(file=_present(**file), metadata=metadata)

    def _query_10(self, params: Read) -> Json:
        return {"id": _ids(params, "name", _TASK)[0], "historyLength": params.get("historyLength")}

    def _query_03(self, params: Read) -> Json:
        return self._made("", {**self._id_03(params), "historyLength": params.get("historyLength")})

    def _id_03(self, params: Read) -> Json:
        return {"name": _name(params.get("id", ""))}

    def _list_10(self, params: Read) -> Json:
        return {**params, "status": self.states.get(params.get("status", ""))}

    def _ids_10(self, params: Read) -> Json:
        task, config = _ids(params, "name", _CONFIG)
        return {"taskId": task, "id": config}

    def _ids_03(self, params: Read) -> Json:
        return {"name": _name(params.get("taskId", ""), params.get("id", ""))}

    def _configs_of_10(self, params: Read) -> Json:
        return {**params, "taskId": _ids(params, "parent", _TASK)[0]}

    def _configs_of_03(self, params: Read) -> Json:
        parent = _name(params.get("taskId", ""), at="/taskId")
        return _present(parent=parent, pageSize=params.get("pageSize"), pageToken=params.get("pageToken"))

    def _created_config_10(self, params: Read) -> Json:
        found = _scheme_10(params.get("config", {}).get("pushNotificationConfig", {}))
        return {**found, "id": found.get("id") or params.get("configId"), "taskId": _ids(params, "parent", _TASK)[0]}

    def _created_config_03(self, params: Read) -> Json:
        parent = _name(params.get("taskId", ""), at="/taskId")
        return _present(parent=parent, configId=params.get("id"), config=self._task_config_03(params, ""))

    def _task_config_10(self, config: Read, at: str) -> Json:
        task, _ = _ids(config, "name", _CONFIG, at)
        return {**_scheme_10(config.get("pushNotificationConfig", {})), "taskId": task}

    def _task_config_03(self, config: Read, at: str) -> Json:
        name = _name(config.get("taskId", ""), config.get("id", _NO_ID), f"{at}/taskId")
        return {"name": name, "pushNotificationConfig": self.config_03(config)}

    def _page(self, member: str, convert: Convert, page: Read, at: str) -> Json:
        return self._made("", {**page, member: _each(convert, page, member, at)})

    def _held_10(self, answer: Read, at: str) -> Json:
        return self._held(answer, lambda one: one.to_10(answer[one.member], f"{at}/{one.member}"))

    def _held_03(self, answer: Read, at: str) -> Json:
        return self._held(answer, lambda one: one.to_03(answer[one.member], f"{at}/{one.member}"))

    def _held(self, answer: Read, convert: Callable[[V03Object], Json]) -> Json:
        for one in self.objects:
            if one.member in answer:
                return {one.member: convert(one)}
        raise UnreadableMessage("", "holds nothing")

    def read_result(self, operation: Operation, given: object) -> Json:
        """The canonical result of an agent, or the `StreamResponse` of one event. Raises UnreadableMessage."""
        if not operation.response:
            return {}  # a deletion has an empty result
        to_10, _ = self._results[operation.response]
        return V10.read(operation.response, to_10(self._read(response_name(operation, "0.3"), given), ""))

    def write_result(self, operation: Operation, result: Read) -> Json:
        """A result or an event for a caller. Raises UnreadableMessage for values that 0.3 cannot express."""
        if not operation.response:
            return {}
        _, to_03 = self._results[operation.response]
        return to_03(V10.read(operation.response, result), "")  # without the members that an agent of 1.0 sent empty


def _ids(read: Read, field: str, pattern: re.Pattern[str], at: str = "") -> tuple[str, ...]:
    match = pattern.match(read.get(field, ""))
    if match is None:
        raise UnreadableMessage(f"{at}/{field}", "is not such a resource name")
    return match.groups()


def _name(task: Any, config: Any = None, at: str = "/id") -> str:
    for one in (task, config):
        if one is not None and (not one or "/" in one):
            raise UnreadableMessage(at, "cannot be part of a resource name of A2A 0.3")
    return f"tasks/{task}" if config is None else f"tasks/{task}/pushNotificationConfigs/{config}"


JSON_FORM: Final = JsonForm()
PROTO_FORM: Final = ProtoForm()


def request_name(operation: Operation, version: Version) -> str:
    """The name of the Protocol Buffers message with an operation's parameters."""
    return operation.request if version == "1.0" else PROTO_FORM.params[operation.request].name


def response_name(operation: Operation, version: Version) -> str:
    """The name of the Protocol Buffers message with an operation's result or event; "" for none."""
    return operation.response if version == "1.0" else operation.response.replace("ConfigsResponse", "ConfigResponse")
