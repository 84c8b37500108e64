"""The message types of A2A 1.0 and of both forms of 0.3.

The messages of 1.0 are the canonical form: policy, limits and audit see them, whatever the version and binding of a
call, and the message for the agent is made from them. 0.3 has Protocol Buffers, whose ProtoJSON is the body of its
HTTP+JSON, and a separate JSON for JSON-RPC; `v03.py` converts both, and `cards03.py` has the cards of that JSON.
Sources: the Protocol Buffers of the A2A specifications 1.0.1 and 0.3, and the JSON Schema of 0.3.
"""

from __future__ import annotations

from typing import Final

from sidecar.protocols.a2a.schema import Schema, schema_from

STATES: Final = (
    "TASK_STATE_UNSPECIFIED", "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED", "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_REJECTED", "TASK_STATE_AUTH_REQUIRED",
)  # fmt: skip
ROLES: Final = ("ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT")
V10: Final[Schema] = schema_from(
    "lf.a2a.v1",
    """
SendMessageConfiguration: 1 accepted_output_modes:[string],
    2 task_push_notification_config:TaskPushNotificationConfig, 3 history_length:int32?, 4 return_immediately:bool
Task: 1 id:string, 2 context_id:string, 3 status:TaskStatus, 4 artifacts:[Artifact], 5 history:[Message],
    6 metadata:Struct
TaskStatus: 1 state:TaskState, 2 message:Message, 3 timestamp:Timestamp
Part: 1 text:string/content, 2 raw:bytes/content, 3 url:string/content, 4 data:Value/content, 5 metadata:Struct,
    6 filename:string, 7 media_type:string
Message: 1 message_id:string, 2 context_id:string, 3 task_id:string, 4 role:Role, 5 parts:[Part], 6 metadata:Struct,
    7 extensions:[string], 8 reference_task_ids:[string]
Artifact: 1 artifact_id:string, 2 name:string, 3 description:string, 4 parts:[Part], 5 metadata:Struct,
    6 extensions:[string]
TaskStatusUpdateEvent: 1 task_id:string, 2 context_id:string, 3 status:TaskStatus, 4 metadata:Struct
TaskArtifactUpdateEvent: 1 task_id:string, 2 context_id:string, 3 artifact:Artifact, 4 append:bool,
    5 last_chunk:bool, 6 metadata:Struct
AuthenticationInfo: 1 scheme:string, 2 credentials:string
AgentInterface: 1 url:string, 2 protocol_binding:string, 3 tenant:string, 4 protocol_version:string
AgentCard: 1 name:string, 2 description:string, 3 supported_interfaces:[AgentInterface], 4 provider:AgentProvider,
    5 version:string, 6 documentation_url:string?, 7 capabilities:AgentCapabilities,
    8 security_schemes:{SecurityScheme}, 9 security_requirements:[SecurityRequirement],
    10 default_input_modes:[string], 11 default_output_modes:[string], 12 skills:[AgentSkill],
    13 signatures:[AgentCardSignature], 14 icon_url:string?
AgentProvider: 1 url:string, 2 organization:string
AgentCapabilities: 1 streaming:bool?, 2 push_notifications:bool?, 3 extensions:[AgentExtension],
    4 extended_agent_card:bool?
AgentExtension: 1 uri:string, 2 description:string, 3 required:bool, 4 params:Struct
AgentSkill: 1 id:string, 2 name:string, 3 description:string, 4 tags:[string], 5 examples:[string],
    6 input_modes:[string], 7 output_modes:[string], 8 security_requirements:[SecurityRequirement]
AgentCardSignature: 1 protected:string, 2 signature:string, 3 header:Struct
TaskPushNotificationConfig: 1 tenant:string, 2 id:string, 3 task_id:string, 4 url:string, 5 token:string,
    6 authentication:AuthenticationInfo
StringList: 1 list:[string]
SecurityRequirement: 1 schemes:{StringList}
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
    4 password:PasswordOAuthFlow/flow, 5 device_code:DeviceCodeOAuthFlow/flow
AuthorizationCodeOAuthFlow: 1 authorization_url:string, 2 token_url:string, 3 refresh_url:string, 4 scopes:{string},
    5 pkce_required:bool
ClientCredentialsOAuthFlow: 1 token_url:string, 2 refresh_url:string, 3 scopes:{string}
ImplicitOAuthFlow: 1 authorization_url:string, 2 refresh_url:string, 3 scopes:{string}
PasswordOAuthFlow: 1 token_url:string, 2 refresh_url:string, 3 scopes:{string}
DeviceCodeOAuthFlow: 1 device_authorization_url:string, 2 token_url:string, 3 refresh_url:string, 4 scopes:{string}
SendMessageRequest: 1 tenant:string, 2 message:Message, 3 configuration:SendMessageConfiguration, 4 metadata:Struct
GetTaskRequest: 1 tenant:string, 2 id:string, 3 history_length:int32?
ListTasksRequest: 1 tenant:string, 2 context_id:string, 3 status:TaskState, 4 page_size:int32?, 5 page_token:string,
    6 history_length:int32?, 7 status_timestamp_after:Timestamp, 8 include_artifacts:bool?
ListTasksResponse: 1 tasks:[Task], 2 next_page_token:string, 3 page_size:int32, 4 total_size:int32
CancelTaskRequest: 1 tenant:string, 2 id:string, 3 metadata:Struct
GetTaskPushNotificationConfigRequest: 1 tenant:string, 2 task_id:string, 3 id:string
DeleteTaskPushNotificationConfigRequest: 1 tenant:string, 2 task_id:string, 3 id:string
SubscribeToTaskRequest: 1 tenant:string, 2 id:string
ListTaskPushNotificationConfigsRequest: 4 tenant:string, 1 task_id:string, 2 page_size:int32, 3 page_token:string
GetExtendedAgentCardRequest: 1 tenant:string
SendMessageResponse: 1 task:Task/payload, 2 message:Message/payload
StreamResponse: 1 task:Task/payload, 2 message:Message/payload, 3 status_update:TaskStatusUpdateEvent/payload,
    4 artifact_update:TaskArtifactUpdateEvent/payload
ListTaskPushNotificationConfigsResponse: 1 configs:[TaskPushNotificationConfig], 2 next_page_token:string
""",
    {"TaskState": STATES, "Role": ROLES},
)

STATES_03: Final = tuple("TASK_STATE_CANCELLED" if state == "TASK_STATE_CANCELED" else state for state in STATES)
PROTO03: Final[Schema] = schema_from(
    "a2a.v1",
    """
SendMessageConfiguration: 1 accepted_output_modes:[string], 2 push_notification:PushNotificationConfig,
    3 history_length:int32, 4 blocking:bool
TaskStatus: 1 state:TaskState, 2 update=message:Message, 3 timestamp:Timestamp
Part: 1 text:string/part, 2 file:FilePart/part, 3 data:DataPart/part, 4 metadata:Struct
FilePart: 1 file_with_uri:string/file, 2 file_with_bytes:bytes/file, 3 mime_type:string, 4 name:string
DataPart: 1 data:Struct
Message: 1 message_id:string, 2 context_id:string, 3 task_id:string, 4 role:Role, 5 content:[Part],
    6 metadata:Struct, 7 extensions:[string]
Artifact: 1 artifact_id:string, 3 name:string, 4 description:string, 5 parts:[Part], 6 metadata:Struct,
    7 extensions:[string]
TaskStatusUpdateEvent: 1 task_id:string, 2 context_id:string, 3 status:TaskStatus, 4 final:bool, 5 metadata:Struct
= Task, TaskArtifactUpdateEvent, ListTasksResponse
PushNotificationConfig: 1 id:string, 2 url:string, 3 token:string, 4 authentication:AuthenticationInfo
AuthenticationInfo: 1 schemes:[string], 2 credentials:string
TaskPushNotificationConfig: 1 name:string, 2 push_notification_config:PushNotificationConfig
AgentInterface: 1 url:string, 2 transport:string
AgentCard: 16 protocol_version:string, 1 name:string, 2 description:string, 3 url:string,
    14 preferred_transport:string, 15 additional_interfaces:[AgentInterface], 4 provider:AgentProvider,
    5 version:string, 6 documentation_url:string, 7 capabilities:AgentCapabilities,
    8 security_schemes:{SecurityScheme}, 9 security:[Security], 10 default_input_modes:[string],
    11 default_output_modes:[string], 12 skills:[AgentSkill], 13 supports_authenticated_extended_card:bool,
    17 signatures:[AgentCardSignature], 18 icon_url:string
AgentCapabilities: 1 streaming:bool, 2 push_notifications:bool, 3 extensions:[AgentExtension]
AgentSkill: 1 id:string, 2 name:string, 3 description:string, 4 tags:[string], 5 examples:[string],
    6 input_modes:[string], 7 output_modes:[string], 8 security:[Security]
Security: 1 schemes:{StringList}
= AgentProvider, AgentExtension, AgentCardSignature, StringList, SecurityScheme, APIKeySecurityScheme
= HTTPAuthSecurityScheme, OAuth2SecurityScheme, OpenIdConnectSecurityScheme, MutualTlsSecurityScheme
= ClientCredentialsOAuthFlow, ImplicitOAuthFlow, PasswordOAuthFlow
OAuthFlows: 1 authorization_code:AuthorizationCodeOAuthFlow/flow,
    2 client_credentials:ClientCredentialsOAuthFlow/flow, 3 implicit:ImplicitOAuthFlow/flow,
    4 password:PasswordOAuthFlow/flow
AuthorizationCodeOAuthFlow: 1 authorization_url:string, 2 token_url:string, 3 refresh_url:string, 4 scopes:{string}
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
""",
    {"TaskState": STATES_03, "Role": ROLES},
    V10.messages,
)

# JSON of 0.3; the numbers of fields are not used.
JSON_STATES: Final = ("unknown", *(state.removeprefix("TASK_STATE_").lower().replace("_", "-") for state in STATES[1:]))
JSON03: Final[Schema] = schema_from(
    "",
    """
MessageSendParams: 1 message:Message!, 2 configuration:MessageSendConfiguration, 3 metadata:Struct
MessageSendConfiguration: 1 accepted_output_modes:[string], 2 blocking:bool, 3 history_length:int32,
    4 push_notification_config:PushNotificationConfig
PushNotificationConfig: 1 id:string, 2 url:string!, 3 token:string, 4 authentication:AuthenticationInfo
AuthenticationInfo: 1 schemes:[string]!, 2 credentials:string
TaskPushNotificationConfig: 1 task_id:string!, 2 push_notification_config:PushNotificationConfig!
TaskQueryParams: 1 id:string!, 2 history_length:int32
TaskIdParams: 1 id:string!, 2 metadata:Struct
GetConfigParams: 1 id:string!, 2 push_notification_config_id:string
DeleteConfigParams: 1 id:string!, 2 push_notification_config_id:string!
ListTasksParams: 1 context_id:string, 2 status:TaskState, 3 page_size:int32, 4 page_token:string,
    5 history_length:int32, 6 status_timestamp_after:Timestamp, 7 include_artifacts:bool
ListTasksResult: 1 tasks:[Task]!, 2 next_page_token:string, 3 page_size:int32, 4 total_size:int32
Nothing:
Part: 1 kind:PartKind, 2 text:string/content!, 3 file:File/content, 4 data:Struct/content, 5 metadata:Struct
File: 1 bytes:bytes/content!, 2 uri:string/content, 3 mime_type:string, 4 name:string
Message: 1 kind:MessageKind, 2 message_id:string!, 3 context_id:string, 4 task_id:string, 5 role:Role!,
    6 parts:[Part]!, 7 metadata:Struct, 8 extensions:[string], 9 reference_task_ids:[string]
Artifact: 1 artifact_id:string!, 2 name:string, 3 description:string, 4 parts:[Part]!, 5 metadata:Struct,
    6 extensions:[string]
TaskStatus: 1 state:TaskState!, 2 message:Message, 3 timestamp:Timestamp
Task: 1 kind:TaskKind, 2 id:string!, 3 context_id:string!, 4 status:TaskStatus!, 5 artifacts:[Artifact],
    6 history:[Message], 7 metadata:Struct
StatusUpdate: 1 kind:StatusUpdateKind, 2 task_id:string!, 3 context_id:string!, 4 status:TaskStatus!,
    5 metadata:Struct, 6 final:bool
ArtifactUpdate: 1 kind:ArtifactUpdateKind, 2 task_id:string!, 3 context_id:string!, 4 artifact:Artifact!,
    5 append:bool, 6 last_chunk:bool, 7 metadata:Struct
""",
    {
        "TaskState": JSON_STATES,
        "Role": ("user", "agent"),
        "PartKind": ("text", "file", "data"),
        "TaskKind": ("task",),
        "MessageKind": ("message",),
        "StatusUpdateKind": ("status-update",),
        "ArtifactUpdateKind": ("artifact-update",),
    },
)
