"""Are the Protocol Buffers of A2A 0.3 read and written as the official compatibility layer does it?"""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb2_03, conversions as sdk, types as sdk_03
from a2a.compat.v0_3.proto_utils import FromProto, ToProto
from a2a.types import a2a_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given, settings, strategies as st

from sidecar.protocols.a2a import operations as op
from sidecar.protocols.a2a.messages import PROTO03, V10
from sidecar.protocols.a2a.operations import Operation
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.a2a.v03 import PROTO_FORM, request_name
from tests.unit.protocols.a2a.test_schema import of, whole
from tests.unit.protocols.a2a.test_v03 import action_of, said_by_both

JUDGED = settings(max_examples=6)


# --- the judge --------------------------------------------------------------------------------------------------------


def theirs_params_10(operation: Operation, said: Any) -> Any:
    """As the official handlers of gRPC and HTTP+JSON read a call."""
    message = ParseDict(said, getattr(pb2_03, request_name(operation, "0.3"))(), ignore_unknown_fields=True)
    if operation in (op.SEND, op.STREAM):
        send = sdk_03.SendMessageRequest(id=0, params=FromProto.message_send_params(message))
        return MessageToDict(sdk.to_core_send_message_request(send))
    if operation is op.GET:
        get = sdk_03.GetTaskRequest(id=0, params=FromProto.task_query_params(message))
        return MessageToDict(sdk.to_core_get_task_request(get))
    if operation is op.PUSH_SET:
        params = FromProto.task_push_notification_config_request(message)
        create = sdk_03.SetTaskPushNotificationConfigRequest(id=0, params=params)
        return MessageToDict(sdk.to_core_create_task_push_notification_config_request(create))
    return {"id": FromProto.task_id_params(message).id}


def theirs_params_03(operation: Operation, canonical: Any) -> Any:
    """As the official transports of gRPC and HTTP+JSON write a call."""
    message = ParseDict(canonical, getattr(a2a_pb2, operation.request)())
    if operation in (op.SEND, op.STREAM):
        send = sdk.to_compat_send_message_request(message, 1).params
        how = ToProto.message_send_configuration(send.configuration) if send.configuration else None
        request, metadata = ToProto.message(send.message), ToProto.metadata(send.metadata)
        return MessageToDict(pb2_03.SendMessageRequest(request=request, configuration=how, metadata=metadata))
    create = sdk.to_compat_create_task_push_notification_config_request(message, 1).params
    config, name = ToProto.task_push_notification_config(create), create.push_notification_config.id
    parent = f"tasks/{message.task_id}"
    return MessageToDict(pb2_03.CreateTaskPushNotificationConfigRequest(parent=parent, config_id=name, config=config))


Convert = Callable[[Any], Any]
RESULTS: dict[str, tuple[Convert, Convert, Convert, Convert]] = {
    "Task": (sdk.to_compat_task, ToProto.task, FromProto.task, sdk.to_core_task),
    "TaskPushNotificationConfig": (
        sdk.to_compat_task_push_notification_config,
        ToProto.task_push_notification_config,
        FromProto.task_push_notification_config,
        sdk.to_core_task_push_notification_config,
    ),
    "StreamResponse": (
        lambda event: sdk.to_compat_stream_response(event).result,
        ToProto.stream_response,
        FromProto.stream_response,
        lambda event: sdk.to_core_stream_response(sdk_03.SendStreamingMessageSuccessResponse(result=event)),
    ),
}


def named(value: Any) -> Any:
    """With ids that can stand in a resource name."""
    for name in ("taskId", "id"):
        if name in value or name == "taskId":
            value[name] = (value.get(name, "") + "x").replace("/", "_")
    return value


@pytest.mark.parametrize("operation", [op.SEND, op.STREAM, op.PUSH_SET], ids=action_of)
@JUDGED
@given(data=st.data())
def test_parameters_of_1_0_are_said_as_the_official_layer_says_them(operation: Operation, data: st.DataObject) -> None:
    canonical = V10.read(operation.request, data.draw(of(V10, operation.request)))
    canonical.pop("tenant", None)  # refused, where the official layer drops it
    if operation is op.PUSH_SET:
        canonical = named({"id": "", **canonical})
    ours, theirs = said_by_both(
        lambda: PROTO03.read(request_name(operation, "0.3"), PROTO_FORM.write_params(operation, canonical)),
        lambda: theirs_params_03(operation, canonical),
    )
    assert whole(ours) == whole(theirs)


@pytest.mark.parametrize("operation", [op.GET, op.PUSH_GET, op.STREAM], ids=action_of)
@JUDGED
@given(data=st.data())
def test_results_of_1_0_are_said_as_the_official_layer_says_them(operation: Operation, data: st.DataObject) -> None:
    canonical = V10.read(operation.response, data.draw(of(V10, operation.response)))
    if operation is op.PUSH_GET:
        canonical = named({"id": "", **canonical})
    to_compat, to_proto, _, _ = RESULTS[operation.response]
    message = ParseDict(canonical, getattr(a2a_pb2, operation.response)())
    ours, theirs = said_by_both(
        lambda: PROTO03.read(operation.response, PROTO_FORM.write_result(operation, canonical)),
        lambda: MessageToDict(to_proto(to_compat(message))),
    )
    if ours and "statusUpdate" in ours:  # the official layer does not end a stream that waits for the caller
        ours["statusUpdate"].pop("final", None)
        theirs["statusUpdate"].pop("final", None)
    assert whole(ours) == whole(theirs)


def files_whole(value: Any) -> Any:
    """A file always has its content, and its bytes are base64 as text."""
    if isinstance(value, list):
        return [files_whole(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if "mimeType" in value or "fileWithUri" in value or "fileWithBytes" in value or value == {}:
        if value and "fileWithUri" not in value:
            return {**value, "fileWithBytes": base64.b64encode(b"AP8=").decode()}
        return value
    return {name: files_whole(inner) if name not in ("metadata", "data") else inner for name, inner in value.items()}


@pytest.mark.parametrize("operation", [op.SEND, op.GET, op.CANCEL, op.RESUBSCRIBE, op.PUSH_SET], ids=action_of)
@JUDGED
@given(data=st.data())
def test_parameters_of_0_3_are_read_as_the_official_layer_reads_them(operation: Operation, data: st.DataObject) -> None:
    name = request_name(operation, "0.3")
    said = files_whole(PROTO03.read(name, data.draw(of(PROTO03, name))))
    said |= {"name": "tasks/t-1", "parent": "tasks/t-1"}
    said.setdefault("message", {})
    said.pop("configId", None)
    ours, theirs = said_by_both(
        lambda: PROTO_FORM.read_params(operation, said), lambda: theirs_params_10(operation, said)
    )
    if ours is not None:
        assert whole(ours) == whole(theirs)


@pytest.mark.parametrize("operation", [op.GET, op.PUSH_GET, op.STREAM], ids=action_of)
@JUDGED
@given(data=st.data())
def test_results_of_0_3_are_read_as_the_official_layer_reads_them(operation: Operation, data: st.DataObject) -> None:
    said = files_whole(PROTO03.read(operation.response, data.draw(of(PROTO03, operation.response))))
    if operation is op.PUSH_GET:
        said["name"] = "tasks/t-1/pushNotificationConfigs/c-1"
    _, _, from_proto, to_core = RESULTS[operation.response]
    message = ParseDict(said, getattr(pb2_03, operation.response)())
    ours, theirs = said_by_both(
        lambda: PROTO_FORM.read_result(operation, said), lambda: MessageToDict(to_core(from_proto(message)))
    )
    if ours is not None:
        assert whole(ours) == whole(theirs)


# --- names ------------------------------------------------------------------------------------------------------------

CONFIGS = "tasks/t/pushNotificationConfigs"
NAMED = [
    (op.GET, {"name": "tasks/t", "historyLength": 3}, {"id": "t", "historyLength": 3}),
    (op.CANCEL, {"name": "tasks/t"}, {"id": "t"}),
    (op.RESUBSCRIBE, {"name": "tasks/t"}, {"id": "t"}),
    (op.PUSH_GET, {"name": f"{CONFIGS}/c"}, {"taskId": "t", "id": "c"}),
    (op.PUSH_DELETE, {"name": f"{CONFIGS}/c"}, {"taskId": "t", "id": "c"}),
    (op.PUSH_LIST, {"parent": "tasks/t", "pageToken": "p"}, {"taskId": "t", "pageToken": "p"}),
    (op.CARD, {}, {}),
    (op.LIST, {"status": "TASK_STATE_CANCELLED", "pageSize": 5}, {"status": "TASK_STATE_CANCELED", "pageSize": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "said", "canonical"), NAMED, ids=action_of)
def test_what_goes_by_a_name_is_the_same_call(operation: Operation, said: Any, canonical: Any) -> None:
    assert PROTO_FORM.read_params(operation, said) == canonical
    assert PROTO_FORM.write_params(operation, canonical) == said


@pytest.mark.parametrize("name", ["", "t", "tasks/", "tasks/a/b", "/tasks/a", f"{CONFIGS}/c", 5, None])
def test_no_other_name_is_a_tasks(name: Any) -> None:
    with pytest.raises(UnreadableMessage) as caught:
        PROTO_FORM.read_params(op.GET, {"name": name})
    assert caught.value.pointer == "/name"


@pytest.mark.parametrize("name", ["tasks/t", CONFIGS, f"{CONFIGS}/", f"{CONFIGS}/c/d", f"tasks/{CONFIGS}/c"])
def test_no_other_name_is_a_configurations(name: str) -> None:
    with pytest.raises(UnreadableMessage):
        PROTO_FORM.read_params(op.PUSH_GET, {"name": name})
    with pytest.raises(UnreadableMessage) as caught:
        PROTO_FORM.read_result(op.PUSH_LIST, {"configs": [{"name": name}]})
    assert caught.value.pointer == "/configs/0/name"


@pytest.mark.parametrize(
    ("operation", "canonical"),
    [
        (op.GET, {"id": "a/b"}),
        (op.CANCEL, {}),
        (op.PUSH_GET, {"taskId": "t", "id": "a/b"}),
        (op.PUSH_SET, {"taskId": "a/b"}),
    ],
    ids=action_of,
)
def test_an_id_that_would_name_another_task_is_refused(operation: Operation, canonical: Any) -> None:
    with pytest.raises(UnreadableMessage):
        PROTO_FORM.write_params(operation, canonical)


def test_what_the_official_layer_is_not_asked_is_said_as_the_text_has_it() -> None:
    inside = {"parent": "tasks/t", "configId": "c", "config": {"pushNotificationConfig": {"url": "u"}}}
    assert PROTO_FORM.read_params(op.PUSH_SET, inside) == {"taskId": "t", "id": "c", "url": "u"}
    said = PROTO_FORM.write_result(op.PUSH_GET, {"taskId": "t", "url": "u"})
    assert said["name"] == f"{CONFIGS}/-", "a configuration without an id has a name all the same"
    assert PROTO_FORM.read_result(op.PUSH_GET, said) == {"taskId": "t", "url": "u"}
    assert "configuration" not in PROTO_FORM.write_params(op.SEND, {"message": {"messageId": "m"}})
    assert PROTO_FORM.write_params(op.SEND, {"configuration": {}})["configuration"] == {"blocking": True}
    assert PROTO_FORM.read_params(op.SEND, {"configuration": {}}) == {"configuration": {"returnImmediately": True}}
    assert PROTO_FORM.write_result(op.PUSH_DELETE, {}) == PROTO_FORM.read_result(op.PUSH_DELETE, {}) == {}
    no_text = {"file": {"fileWithBytes": base64.b64encode(b"\xff\x00").decode()}}
    with pytest.raises(UnreadableMessage):
        PROTO_FORM.read_params(op.SEND, {"message": {"content": [no_text]}})
    with pytest.raises(UnreadableMessage):
        PROTO_FORM.read_result(op.SEND, {})
    with pytest.raises(UnreadableMessage):
        PROTO_FORM.write_result(op.STREAM, {})


def test_tasks_are_listed_and_pages_kept() -> None:
    said = {"tasks": [{"id": "t", "status": {"state": "TASK_STATE_CANCELLED"}}], "nextPageToken": "p"}
    read = PROTO_FORM.read_result(op.LIST, said)
    assert read == {"tasks": [{"id": "t", "status": {"state": "TASK_STATE_CANCELED"}}], "nextPageToken": "p"}
    assert PROTO_FORM.write_result(op.LIST, read) == said
    assert PROTO_FORM.write_result(op.PUSH_LIST, {"nextPageToken": "p"}) == {"nextPageToken": "p"}
