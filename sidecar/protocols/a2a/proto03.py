"""Converts A2A 0.3 Protocol Buffers messages to 1.0, and back.

These are the messages of 0.3 over gRPC, and their ProtoJSON is that of its HTTP+JSON. They are close to those of 1.0;
the differences are that tasks and configurations have resource names (`tasks/{id}`), a message's parts are `content`,
and a file is a message of its own.

The official compatibility layer is the reference here too, with its peculiarities: the bytes of a file are the *text*
of their base64. Members that both versions have, but that it loses, are kept: the pages of a list, and `blocking` of a
call that does not set it. An id with a slash is refused if it would be part of a resource name, because parsing that
name would give another task.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sidecar.protocols.a2a import cards03
from sidecar.protocols.a2a.messages import ROLES, STATES, V10
from sidecar.protocols.a2a.operations import Operation
from sidecar.protocols.a2a.schema import Json, Read, Schema, UnreadableMessage, schema_from
from sidecar.protocols.a2a.v03 import LAST, V03Params, packed, said, unpacked

STATES_03: Final = tuple("TASK_STATE_CANCELLED" if state == "TASK_STATE_CANCELED" else state for state in STATES)
_TO_STATE_03: Final = dict(zip(STATES, STATES_03, strict=True))
_TO_STATE_10: Final = dict(zip(STATES_03, STATES, strict=True))
_TASK: Final = re.compile(r"tasks/([^/]+)\Z")
_CONFIG: Final = re.compile(r"tasks/([^/]+)/pushNotificationConfigs/([^/]+)\Z")
_NO_ID: Final = "-"  # for a configuration whose id its agent does not send

PROTO03: Final[Schema] = schema_from(
    "a2a.v1",
    """
SendMessageConfiguration: 1 accepted_output_modes:[string], 2 push_notification:PushNotificationConfig,
    3 history_length:int32, 4 blocking:bool
Task: 1 id:string, 2 context_id:string, 3 status:TaskStatus, 4 artifacts:[Artifact], 5 history:[Message],
    6 metadata:Struct
TaskStatus: 1 state:TaskState, 2 update=message:Message, 3 timestamp:Timestamp
Part: 1 text:string/part, 2 file:FilePart/part, 3 data:DataPart/part, 4 metadata:Struct
FilePart: 1 file_with_uri:string/file, 2 file_with_bytes:bytes/file, 3 mime_type:string, 4 name:string
DataPart: 1 data:Struct
Message: 1 message_id:string, 2 context_id:string, 3 task_id:string, 4 role:Role, 5 content:[Part],
    6 metadata:Struct, 7 extensions:[string]
Artifact: 1 artifact_id:string, 3 name:string, 4 description:string, 5 parts:[Part], 6 metadata:Struct,
    7 extensions:[string]
TaskStatusUpdateEvent: 1 task_id:string, 2 context_id:string, 3 status:TaskStatus, 4 final:bool, 5 metadata:Struct
TaskArtifactUpdateEvent: 1 task_id:string, 2 context_id:string, 3 artifact:Artifact, 4 append:bool,
    5 last_chunk:bool, 6 metadata:Struct
PushNotificationConfig: 1 id:string, 2 url:string, 3 token:string, 4 authentication:AuthenticationInfo
AuthenticationInfo: 1 schemes:[string], 2 credentials:string
AgentInterface: 1 url:string, 2 transport:string
AgentCard: 16 protocol_version:string, 1 name:string, 2 description:string, 3 url:string,
    14 preferred_transport:string, 15 additional_interfaces:[AgentInterface], 4 provider:AgentProvider,
    5 version:string, 6 documentation_url:string, 7 capabilities:AgentCapabilities,
    8 security_schemes:{SecurityScheme}, 9 security:[Security], 10 default_input_modes:[string],
    11 default_output_modes:[string], 12 skills:[AgentSkill], 13 supports_authenticated_extended_card:bool,
    17 signatures:[AgentCardSignature], 18 icon_url:string
AgentProvider: 1 url:string, 2 organization:string
AgentCapabilities: 1 streaming:bool, 2 push_notifications:bool, 3 extensions:[AgentExtension]
AgentExtension: 1 uri:string, 2 description:string, 3 required:bool, 4 params:Struct
AgentSkill: 1 id:string, 2 name:string, 3 description:string, 4 tags:[string], 5 examples:[string],
    6 input_modes:[string], 7 output_modes:[string], 8 security:[Security]
AgentCardSignature: 1 protected:string, 2 signature:string, 3 header:Struct
TaskPushNotificationConfig: 1 name:string, 2 push_notification_config:PushNotificationConfig
StringList: 1 list:[string]
Security: 1 schemes:{StringList}
SecurityScheme: 1 api_key_security_scheme:APIKeySecurityScheme/scheme,
    2 http_auth_security_scheme:HTTPAuthSecurityScheme/scheme, 3 oauth2_security_scheme:OAuth2SecurityScheme/scheme,
    4 open_id_connect_security_scheme:OpenIdConnectSecurityScheme/scheme,
    5 mtls_security_scheme:MutualTlsSecurityScheme/scheme
APIKeySecurityScheme: 1 description:string, 2 location:string, 3 name:string
HTTPAuthSecurityScheme: 1 description:string, 2 scheme:string, 3 bearer_format:string
OAuth2SecurityScheme: 1 description:string, 2 flows:OAuthFlows, 3 oauth2_metadata_url:string
OpenIdConnectSecurityScheme: 1 description:string, 2 open_id_connect_url:string
MutualTlsSecurityScheme: 1 description:string
OAuthFlows: 1 authorization_code:AuthorizationCodeOAuthFlow/flow,
    2 client_credentials:ClientCredentialsOAuthFlow/flow, 3 implicit:ImplicitOAuthFlow/flow,
    4 password:PasswordOAuthFlow/flow
AuthorizationCodeOAuthFlow: 1 authorization_url:string, 2 token_url:string, 3 refresh_url:string, 4 scopes:{string}
ClientCredentialsOAuthFlow: 1 token_url:string, 2 refresh_url:string, 3 scopes:{string}
ImplicitOAuthFlow: 1 authorization_url:string, 2 refresh_url:string, 3 scopes:{string}
PasswordOAuthFlow: 1 token_url:string, 2 refresh_url:string, 3 scopes:{string}
SendMessageRequest: 1 request=message:Message, 2 configuration:SendMessageConfiguration, 3 metadata:Struct
GetTaskRequest: 1 name:string, 2 history_length:int32
CancelTaskRequest: 1 name:string
GetTaskPushNotificationConfigRequest: 1 name:string
DeleteTaskPushNotificationConfigRequest: 1 name:string
CreateTaskPushNotificationConfigRequest: 1 parent:string, 2 config_id:string, 3 config:TaskPushNotificationConfig
TaskSubscriptionRequest: 1 name:string
ListTaskPushNotificationConfigRequest: 1 parent:string, 2 page_size:int32, 3 page_token:string
GetAgentCardRequest:
SendMessageResponse: 1 task:Task/payload, 2 msg=message:Message/payload
StreamResponse: 1 task:Task/payload, 2 msg=message:Message/payload, 3 status_update:TaskStatusUpdateEvent/payload,
    4 artifact_update:TaskArtifactUpdateEvent/payload
ListTaskPushNotificationConfigResponse: 1 configs:[TaskPushNotificationConfig], 2 next_page_token:string
ListTasksRequest: 2 context_id:string, 3 status:TaskState, 4 page_size:int32?, 5 page_token:string,
    6 history_length:int32?, 7 status_timestamp_after:Timestamp, 8 include_artifacts:bool?
ListTasksResponse: 1 tasks:[Task], 2 next_page_token:string, 3 page_size:int32, 4 total_size:int32
""",
    {"TaskState": STATES_03, "Role": ROLES},
)


# --- names ------------------------------------------------------------------------------------------------------------


def _ids(read: Read, field: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    match = pattern.match(read.get(field, ""))
    if match is None:
        raise UnreadableMessage(f"/{field}", "is not such a resource name")
    return match.groups()


def _name(task: Any, config: Any = None, at: str = "/id") -> str:
    for one in (task, config):
        if one is not None and (not one or "/" in one):
            raise UnreadableMessage(at, "cannot stand in a resource name of A2A 0.3")
    return f"tasks/{task}" if config is None else f"tasks/{task}/pushNotificationConfigs/{config}"


# --- 0.3 to 1.0: what is None or empty is left out by the reader of 1.0 -----------------------------------------------


def _part_10(part: Read, at: str) -> Json:
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


def _parts_10(parts: list[Json], at: str) -> list[Json]:
    return [_part_10(part, f"{at}/{index}") for index, part in enumerate(parts)]


def _message_10(message: Read, at: str) -> Json:
    return {
        **message,
        "role": message.get("role", "ROLE_AGENT"),
        "parts": _parts_10(message.get("content", []), f"{at}/content"),
        "metadata": message.get("metadata") or None,
    }


def _status_10(status: Read, at: str) -> Json:
    return {
        **status,
        "state": _TO_STATE_10.get(status.get("state", "")),
        "message": _message_10(status["message"], f"{at}/message") if "message" in status else None,
    }


def _artifact_10(artifact: Read, at: str) -> Json:
    parts = _parts_10(artifact.get("parts", []), f"{at}/parts")
    return {**artifact, "parts": parts, "metadata": artifact.get("metadata") or None}


def _task_10(task: Read, at: str) -> Json:
    return {
        **task,
        "status": _status_10(task.get("status", {}), f"{at}/status"),
        "history": [_message_10(one, f"{at}/history/{index}") for index, one in enumerate(task.get("history", ()))],
        "artifacts": [
            _artifact_10(one, f"{at}/artifacts/{index}") for index, one in enumerate(task.get("artifacts", ()))
        ],
        "metadata": task.get("metadata") or None,
    }


def _status_update_10(event: Read, at: str) -> Json:
    status = _status_10(event.get("status", {}), f"{at}/status")
    return {**event, "status": status, "metadata": event.get("metadata") or None}


def _artifact_update_10(event: Read, at: str) -> Json:
    artifact = _artifact_10(event.get("artifact", {}), f"{at}/artifact")
    return {**event, "artifact": artifact, "metadata": event.get("metadata") or None}


def _config_10(config: Read) -> Json:
    authentication = config.get("authentication")
    if authentication is not None:
        scheme = next(iter(authentication.get("schemes", ())), None)
        authentication = {"scheme": scheme, "credentials": authentication.get("credentials")}
    return {**config, "authentication": authentication}


def _task_config_10(config: Read, at: str = "") -> Json:
    try:
        task, _ = _ids(config, "name", _CONFIG)
    except UnreadableMessage as wrong:
        raise UnreadableMessage(at + wrong.pointer, wrong.problem) from None
    return {**_config_10(config.get("pushNotificationConfig", {})), "taskId": task}


def _send_10(params: Read) -> Json:
    configuration = params.get("configuration")
    return {
        "message": _message_10(params["message"], "/message") if "message" in params else None,
        "configuration": None if configuration is None else _configuration_10(configuration),
        "metadata": params.get("metadata") or None,
    }


def _configuration_10(configuration: Read) -> Json:
    config = configuration.get("pushNotification")
    return {
        "acceptedOutputModes": configuration.get("acceptedOutputModes"),
        "taskPushNotificationConfig": None if config is None else _config_10(config),
        "historyLength": configuration.get("historyLength"),  # 0 is unset here, and means all of it
        "returnImmediately": not configuration.get("blocking", False),
    }


def _query_10(params: Read) -> Json:
    return {"id": _ids(params, "name", _TASK)[0], "historyLength": params.get("historyLength")}


def _id_10(params: Read) -> Json:
    return {"id": _ids(params, "name", _TASK)[0]}


def _created_config_10(params: Read) -> Json:
    config = params.get("config", {}).get("pushNotificationConfig", {})
    found = _config_10(config)
    return {**found, "id": found.get("id") or params.get("configId"), "taskId": _ids(params, "parent", _TASK)[0]}


def _config_ids_10(params: Read) -> Json:
    task, config = _ids(params, "name", _CONFIG)
    return {"taskId": task, "id": config}


def _configs_of_10(params: Read) -> Json:
    return {**params, "taskId": _ids(params, "parent", _TASK)[0]}


def _list_10(params: Read) -> Json:
    return {**params, "status": _TO_STATE_10.get(params.get("status", ""))}


# --- 1.0 to 0.3 -------------------------------------------------------------------------------------------------------


def _part_03(part: Read, at: str) -> Json:
    metadata = part.get("metadata")
    if "text" in part:
        return said(text=part["text"], metadata=metadata)
    if "data" in part:
        data, metadata = packed(part["data"], metadata)
        return said(data={"data": data}, metadata=metadata)
    if "raw" not in part and "url" not in part:
        raise UnreadableMessage(at, "holds nothing, which A2A 0.3 cannot say")
    raw = base64.b64encode(part["raw"].encode()).decode() if "raw" in part else None
    file = said(
        fileWithBytes=raw, fileWithUri=part.get("url"), mimeType=part.get("mediaType"), name=part.get("filename")
    )
    return said(file=file, metadata=metadata)


def _parts_03(holder: Read, at: str) -> list[Json] | None:
    return [_part_03(part, f"{at}/parts/{index}") for index, part in enumerate(holder.get("parts", ()))] or None


def _message_03(message: Read, at: str) -> Json:
    return said(
        messageId=message.get("messageId"),
        contextId=message.get("contextId"),
        taskId=message.get("taskId"),
        role="ROLE_USER" if message.get("role") == "ROLE_USER" else "ROLE_AGENT",
        content=_parts_03(message, at),
        metadata=message.get("metadata") or None,
        extensions=message.get("extensions"),
    )


def _status_03(status: Read, at: str) -> Json:
    return said(
        state=_TO_STATE_03.get(status.get("state", "")),
        message=_message_03(status["message"], f"{at}/message") if "message" in status else None,
        timestamp=status.get("timestamp"),
    )


def _artifact_03(artifact: Read, at: str) -> Json:
    return said(**{**artifact, "parts": _parts_03(artifact, at)})


def _task_03(task: Read, at: str) -> Json:
    history = [_message_03(one, f"{at}/history/{index}") for index, one in enumerate(task.get("history", ()))]
    artifacts = [_artifact_03(one, f"{at}/artifacts/{index}") for index, one in enumerate(task.get("artifacts", ()))]
    status = _status_03(task.get("status", {}), f"{at}/status")
    return said(**{**task, "status": status, "history": history or None, "artifacts": artifacts or None})


def _status_update_03(event: Read, at: str) -> Json:
    status = _status_03(event.get("status", {}), f"{at}/status")
    final = event.get("status", {}).get("state") in LAST or None
    return said(**{**event, "status": status, "final": final})


def _artifact_update_03(event: Read, at: str) -> Json:
    return {**event, "artifact": _artifact_03(event.get("artifact", {}), f"{at}/artifact")}


def _config_03(config: Read) -> Json:
    authentication = config.get("authentication")
    if authentication is not None:
        schemes = [authentication["scheme"]] if "scheme" in authentication else None
        authentication = said(schemes=schemes, credentials=authentication.get("credentials"))
    return said(id=config.get("id"), url=config.get("url"), token=config.get("token"), authentication=authentication)


def _task_config_03(config: Read, at: str = "") -> Json:
    name = _name(config.get("taskId", ""), config.get("id", _NO_ID), f"{at}/taskId")
    return {"name": name, "pushNotificationConfig": _config_03(config)}


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
        pushNotification=None if config is None else _config_03(config),
        historyLength=configuration.get("historyLength") or None,
        blocking=not configuration.get("returnImmediately", False) or None,
    )


def _query_03(params: Read) -> Json:
    return said(name=_name(params.get("id", "")), historyLength=params.get("historyLength") or None)


def _id_03(params: Read) -> Json:
    return {"name": _name(params.get("id", ""))}


def _created_config_03(params: Read) -> Json:
    parent = _name(params.get("taskId", ""), at="/taskId")
    return said(parent=parent, configId=params.get("id"), config=_task_config_03(params))


def _config_ids_03(params: Read) -> Json:
    return {"name": _name(params.get("taskId", ""), params.get("id", ""))}


def _configs_of_03(params: Read) -> Json:
    parent = _name(params.get("taskId", ""), at="/taskId")
    return said(parent=parent, pageSize=params.get("pageSize"), pageToken=params.get("pageToken"))


def _list_03(params: Read) -> Json:
    members = {name: value for name, value in params.items() if name != "tenant"}
    return said(**{**members, "status": _TO_STATE_03.get(params.get("status", ""))})


# --- the operations ---------------------------------------------------------------------------------------------------


_PARAMS: Final[Mapping[str, V03Params]] = {
    "SendMessageRequest": V03Params("SendMessageRequest", _send_10, _send_03),
    "GetTaskRequest": V03Params("GetTaskRequest", _query_10, _query_03),
    "ListTasksRequest": V03Params("ListTasksRequest", _list_10, _list_03),
    "CancelTaskRequest": V03Params("CancelTaskRequest", _id_10, _id_03),
    "SubscribeToTaskRequest": V03Params("TaskSubscriptionRequest", _id_10, _id_03),
    "TaskPushNotificationConfig": V03Params(
        "CreateTaskPushNotificationConfigRequest", _created_config_10, _created_config_03
    ),
    "GetTaskPushNotificationConfigRequest": V03Params(
        "GetTaskPushNotificationConfigRequest", _config_ids_10, _config_ids_03
    ),
    "ListTaskPushNotificationConfigsRequest": V03Params(
        "ListTaskPushNotificationConfigRequest", _configs_of_10, _configs_of_03
    ),
    "DeleteTaskPushNotificationConfigRequest": V03Params(
        "DeleteTaskPushNotificationConfigRequest", _config_ids_10, _config_ids_03
    ),
    "GetExtendedAgentCardRequest": V03Params("GetAgentCardRequest", dict, lambda _: {}),
}


Translate = Callable[[Read, str], Json]
# The members of an answer or an event; they have the same names in both versions.
_MEMBERS: Final[Mapping[str, tuple[Translate, Translate]]] = {
    "task": (_task_10, _task_03),
    "message": (_message_10, _message_03),
    "statusUpdate": (_status_update_10, _status_update_03),
    "artifactUpdate": (_artifact_update_10, _artifact_update_03),
}


def _held(to: int) -> Translate:
    def translate(answer: Read, at: str) -> Json:
        for member, value in answer.items():
            return {member: _MEMBERS[member][to](value, f"{at}/{member}")}
        raise UnreadableMessage(at, "holds nothing")

    return translate


def _each(member: str, one: Translate) -> Translate:
    def translate(page: Read, at: str) -> Json:
        listed = [one(value, f"{at}/{member}/{index}") for index, value in enumerate(page.get(member, ()))]
        return said(**{**page, member: listed or None})

    return translate


_RESULTS: Final[Mapping[str, tuple[Translate, Translate]]] = {
    "Task": (_task_10, _task_03),
    "TaskPushNotificationConfig": (_task_config_10, _task_config_03),
    "SendMessageResponse": (_held(0), _held(1)),
    "StreamResponse": (_held(0), _held(1)),
    "ListTasksResponse": (_each("tasks", _task_10), _each("tasks", _task_03)),
    "ListTaskPushNotificationConfigsResponse": (_each("configs", _task_config_10), _each("configs", _task_config_03)),
    "AgentCard": (lambda card, _: cards03.from_proto(card), lambda card, _: cards03.to_proto(card)),
}


def request_name(operation: Operation) -> str:
    """The name of the message with an operation's parameters in 0.3."""
    return _PARAMS[operation.request].name


def response_name(operation: Operation, *, streamed: bool) -> str:
    """The name of the message with a result or an event in 0.3, "" for none."""
    return _result_name(operation, streamed).replace("ConfigsResponse", "ConfigResponse")


def _result_name(operation: Operation, streamed: bool) -> str:
    return "StreamResponse" if streamed else operation.response


def params_from_03(operation: Operation, params: object) -> Json:
    """The canonical parameters. Raises UnreadableMessage."""
    form = _PARAMS[operation.request]
    return V10.read(operation.request, form.to_10(PROTO03.read(form.name, params)))


def params_to_03(operation: Operation, canonical: Read) -> Json:
    """The parameters in 0.3's form. Raises UnreadableMessage for what 0.3 cannot express."""
    return _PARAMS[operation.request].to_03(canonical)


def result_from_03(operation: Operation, result: object, *, streamed: bool) -> Json:
    """The canonical result, or the `StreamResponse` of one event of a stream. Raises UnreadableMessage."""
    name = _result_name(operation, streamed)
    if not name:
        return {}  # a deletion has an empty result
    to_10, _ = _RESULTS[name]
    return V10.read(name, to_10(PROTO03.read(response_name(operation, streamed=streamed), result), ""))


def result_to_03(operation: Operation, canonical: Read, *, streamed: bool) -> Json:
    """The result in 0.3's form. Raises UnreadableMessage for what 0.3 cannot express."""
    name = _result_name(operation, streamed)
    if not name:
        return {}
    _, to_03 = _RESULTS[name]
    return to_03(V10.read(name, canonical), "")  # without the members that an agent of 1.0 sent empty
