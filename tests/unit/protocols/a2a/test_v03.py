"""Is A2A 0.3 read and written as the official compatibility layer does it, and nothing more?"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from a2a.compat.v0_3 import conversions as sdk, types as sdk_03
from a2a.types import a2a_pb2
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import HealthCheck, given, settings, strategies as st
from pydantic import BaseModel

from sidecar.protocols.a2a import operations as op
from sidecar.protocols.a2a.messages import JSON03, V10
from sidecar.protocols.a2a.operations import Operation
from sidecar.protocols.a2a.schema import FieldSpec, UnreadableMessage
from sidecar.protocols.a2a.v03 import JSON_FORM, PROTO_FORM, packed, unpacked
from tests import wire
from tests.unit.protocols.a2a.test_schema import JSON, VALUES, of, whole

JUDGED = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def action_of(operation: Any) -> str:
    return str(getattr(operation, "action", ""))


# --- the judge --------------------------------------------------------------------------------------------------------

# What the official layer calls the conversion of an operation's parameters.
SDK_NAMES = {
    op.SEND: ("send_message", sdk_03.SendMessageRequest),
    op.STREAM: ("send_message", sdk_03.SendMessageRequest),
    op.GET: ("get_task", sdk_03.GetTaskRequest),
    op.CANCEL: ("cancel_task", sdk_03.CancelTaskRequest),
    op.RESUBSCRIBE: ("subscribe_to_task", sdk_03.TaskResubscriptionRequest),
    op.PUSH_SET: ("create_task_push_notification_config", sdk_03.SetTaskPushNotificationConfigRequest),
    op.PUSH_GET: ("get_task_push_notification_config", sdk_03.GetTaskPushNotificationConfigRequest),
    op.PUSH_LIST: ("list_task_push_notification_config", sdk_03.ListTaskPushNotificationConfigRequest),
    op.PUSH_DELETE: ("delete_task_push_notification_config", sdk_03.DeleteTaskPushNotificationConfigRequest),
}
TRANSLATED = list(SDK_NAMES)


def theirs_params_10(operation: Operation, params: Any) -> Any:
    name, model = SDK_NAMES[operation]
    return MessageToDict(getattr(sdk, f"to_core_{name}_request")(model.model_validate({"id": 1, "params": params})))


def theirs_params_03(operation: Operation, canonical: Any) -> Any:
    message = ParseDict(canonical, getattr(a2a_pb2, operation.request)())
    request = getattr(sdk, f"to_compat_{SDK_NAMES[operation][0]}_request")(message, 1)
    return written(request)["params"]


def written(model: BaseModel) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def theirs_result_10(operation: Operation, result: Any, streamed: bool) -> Any:
    model: type[BaseModel]
    if streamed:
        model, convert = sdk_03.SendStreamingMessageSuccessResponse, sdk.to_core_stream_response
    elif operation is op.SEND:
        model, convert = sdk_03.SendMessageResponse, sdk.to_core_send_message_response
    elif operation.response == "Task":
        return MessageToDict(sdk.to_core_task(sdk_03.Task.model_validate(result)))
    else:
        config = sdk_03.TaskPushNotificationConfig.model_validate(result)
        return MessageToDict(sdk.to_core_task_push_notification_config(config))
    return MessageToDict(convert(model.model_validate({"id": 1, "result": result})))


def theirs_result_03(operation: Operation, canonical: Any, streamed: bool) -> Any:
    message = ParseDict(canonical, getattr(a2a_pb2, "StreamResponse" if streamed else operation.response)())
    convert: Callable[[Any], BaseModel] = {
        "Task": sdk.to_compat_task,
        "TaskPushNotificationConfig": sdk.to_compat_task_push_notification_config,
        "SendMessageResponse": sdk.to_compat_send_message_response,
        "ListTaskPushNotificationConfigsResponse": sdk.to_compat_list_task_push_notification_config_response,
        "StreamResponse": sdk.to_compat_stream_response,
    }[message.DESCRIPTOR.name]
    said = written(convert(message))
    return said.get("result", said)


# --- 1.0 to 0.3 -------------------------------------------------------------------------------------------------------


def said_by_both(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Any, Any]:
    """What each says, or None for a refusal."""
    try:
        official = theirs()
    except (ValueError, A2AError):
        official = None
    try:
        return ours(), official
    except UnreadableMessage:
        return None, official


@pytest.mark.parametrize("operation", TRANSLATED, ids=action_of)
@JUDGED
@given(data=st.data())
def test_parameters_of_1_0_are_said_as_the_official_layer_says_them(operation: Operation, data: st.DataObject) -> None:
    canonical = V10.read(operation.request, data.draw(of(V10, operation.request)))
    canonical.pop("tenant", None)  # refused, where the official layer drops it
    ours, theirs = said_by_both(
        lambda: JSON_FORM.write_params(operation, canonical), lambda: theirs_params_03(operation, canonical)
    )
    assert whole(ours) == whole(theirs)


ANSWERED = [(one, False) for one in (op.SEND, op.GET, op.PUSH_SET, op.PUSH_LIST)] + [(op.STREAM, True)]


@pytest.mark.parametrize(("operation", "streamed"), ANSWERED, ids=action_of)
@JUDGED
@given(data=st.data())
def test_results_of_1_0_are_said_in_0_3_as_the_official_layer_says_them(
    operation: Operation, streamed: bool, data: st.DataObject
) -> None:
    canonical = V10.read(operation.response, data.draw(of(V10, operation.response)))
    ours, theirs = said_by_both(
        lambda: JSON_FORM.write_result(operation, canonical), lambda: theirs_result_03(operation, canonical, streamed)
    )
    if operation is op.SEND and not canonical:  # the official layer makes an empty message of an empty answer
        theirs = None
    assert whole(without_final(ours)) == whole(without_final(theirs))


def without_final(said: Any) -> Any:
    """The official layer says `final` at terminal states only; 0.3 also ends a stream that waits for the caller."""
    return {name: value for name, value in said.items() if name != "final"} if isinstance(said, dict) else said


GOES_ON = ("UNSPECIFIED", "SUBMITTED", "WORKING")
ENDS = ("COMPLETED", "FAILED", "CANCELED", "REJECTED", "INPUT_REQUIRED", "AUTH_REQUIRED")


@pytest.mark.parametrize("state", [*GOES_ON, *ENDS])
def test_the_last_event_of_a_stream_says_so(state: str) -> None:
    event = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}}}
    assert JSON_FORM.write_result(op.STREAM, event)["final"] is (state in ENDS)


# --- 0.3 to 1.0 -------------------------------------------------------------------------------------------------------

SCALARS = {**VALUES, "bytes": st.sampled_from(["", "AA==", "AP8="])}
PACKED = st.fixed_dictionaries(
    {"kind": st.just("data"), "data": st.fixed_dictionaries({"value": JSON | st.none()})}
).map(lambda part: {**part, "metadata": {"data_part_compat": True}})


@cache
def of_03(name: str, depth: int = 4) -> st.SearchStrategy[dict[str, Any]]:
    """A message as a peer of 0.3 may write it: in either spelling, with nulls, without `kind`, and with what nobody
    knows."""
    message = JSON03.messages[name]

    def value(one: FieldSpec) -> st.SearchStrategy[Any]:
        words = JSON03.enums.get(one.type)
        if words is not None:
            single: st.SearchStrategy[Any] = st.sampled_from(words)
        elif one.type == "Part":
            single = of_03("Part", depth - 1) | PACKED
        else:
            single = of_03(one.type, depth - 1) if one.type in JSON03.messages else SCALARS[one.type]
        return st.lists(single, max_size=2) if one.many else single

    @st.composite
    def spoken(draw: st.DrawFn) -> dict[str, Any]:
        wanted = {one.json for one in message.fields if one.required and not one.group} | {"final"}
        contents = [one for one in message.fields if one.group]
        chosen = draw(st.sampled_from(contents)) if contents else None
        said: dict[str, Any] = {}
        for one in message.fields:
            if one.group and one is not chosen:
                continue
            there = one.json in wanted or one is chosen or (depth > 0 and draw(st.booleans()))
            if not there:
                continue
            key = draw(st.sampled_from([one.name, one.json]))
            optional = one.json not in wanted and one is not chosen and one.json not in ("kind", "parts")
            said[key] = None if optional and draw(st.integers(0, 5)) == 0 else draw(value(one))
        if "kind" in said and name == "Part" and chosen is not None:
            said["kind"] = chosen.json
        if draw(st.booleans()):
            said["nobodyKnows"] = draw(JSON)
        return said

    return spoken()


@pytest.mark.parametrize("operation", TRANSLATED, ids=action_of)
@JUDGED
@given(data=st.data())
def test_parameters_of_0_3_are_read_as_the_official_layer_reads_them(operation: Operation, data: st.DataObject) -> None:
    said = data.draw(of_03(JSON_FORM.params[operation.request].name))
    assert whole(JSON_FORM.read_params(operation, said)) == whole(theirs_params_10(operation, said))


RESULTS = [
    (op.SEND, False, "Task"),
    (op.SEND, False, "Message"),
    (op.GET, False, "Task"),
    (op.PUSH_GET, False, "TaskPushNotificationConfig"),
    (op.STREAM, True, "Message"),
    (op.RESUBSCRIBE, True, "StatusUpdate"),
    (op.RESUBSCRIBE, True, "ArtifactUpdate"),
]


@pytest.mark.parametrize(("operation", "streamed", "name"), RESULTS, ids=lambda one: getattr(one, "action", str(one)))
@JUDGED
@given(data=st.data())
def test_results_of_0_3_are_read_as_the_official_layer_reads_them(
    operation: Operation, streamed: bool, name: str, data: st.DataObject
) -> None:
    said = data.draw(of_03(name))
    theirs = theirs_result_10(operation, said, streamed)
    assert whole(JSON_FORM.read_result(operation, said)) == whole(theirs)


# --- what no model knows ----------------------------------------------------------------------------------------------


def test_tasks_are_listed_in_0_3_with_its_words() -> None:
    asked = {"contextId": "c", "status": "input-required", "pageSize": 5, "pageToken": "p", "includeArtifacts": False}
    canonical = JSON_FORM.read_params(op.LIST, asked)
    assert canonical == {**asked, "status": "TASK_STATE_INPUT_REQUIRED"}
    assert JSON_FORM.write_params(op.LIST, canonical) == asked
    task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}}
    listed = {"tasks": [task], "nextPageToken": "", "pageSize": 5, "totalSize": 1}
    read = JSON_FORM.read_result(op.LIST, listed)
    assert read["tasks"] == [{"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}]
    assert JSON_FORM.write_result(op.LIST, read)["tasks"] == [task]


def test_the_card_is_asked_for_with_nothing_and_a_deletion_answers_null() -> None:
    assert JSON_FORM.read_params(op.CARD, None) == JSON_FORM.read_params(op.CARD, {"tenant": "x"}) == {}
    assert JSON_FORM.write_params(op.CARD, {}) == {}
    assert JSON_FORM.write_result(op.PUSH_DELETE, {}) is None
    assert JSON_FORM.read_result(op.PUSH_DELETE, None) == {}
    with pytest.raises(UnreadableMessage):
        JSON_FORM.read_result(op.PUSH_DELETE, {"task": 1})


def test_every_operation_is_translated() -> None:
    for form in (JSON_FORM, PROTO_FORM):
        assert {one.request for one in op.OPERATIONS} == form.params.keys()


# --- what is refused --------------------------------------------------------------------------------------------------

TEXT_PART = {"kind": "text", "text": "hi"}


def message(**changed: Any) -> dict[str, Any]:
    said = {"kind": "message", "messageId": "m", "role": "user", "parts": [TEXT_PART], **changed}
    return {"message": {name: value for name, value in said.items() if value is not ...}}


def part(**members: Any) -> dict[str, Any]:
    return message(parts=[TEXT_PART, members])


WRONG = wire.table("a2a_wrong")
WRONG_CALLS = [
    *(([], ""), (None, "/message"), ({}, "/message")),
    *((message(**{name: ...}), f"/message/{name}") for name in ("messageId", "role", "parts")),
    *((message(**changed), where) for changed, where in WRONG["message of 0.3"]),
    *((part(**members), where) for members, where in WRONG["part of 0.3"]),
    *(({**message(), "configuration": config}, where) for config, where in WRONG["configuration of 0.3"]),
]


@pytest.mark.parametrize(("said", "where"), WRONG_CALLS)
def test_a_wrong_call_is_told_with_its_place(said: Any, where: str) -> None:
    with pytest.raises(UnreadableMessage) as caught:
        JSON_FORM.read_params(op.SEND, said)
    assert caught.value.pointer == where


STATUS = {"state": "working"}


@pytest.mark.parametrize(
    ("operation", "result", "where"),
    [
        (op.SEND, None, ""),
        (op.SEND, {}, "/kind"),
        (op.SEND, {"kind": "status-update", "taskId": "t", "contextId": "c", "status": STATUS}, "/kind"),
        (op.SEND, {"kind": ["task"]}, "/kind"),
        (op.SEND, {"kind": "task", "id": "t", "status": STATUS}, "/contextId"),
        (op.GET, {"kind": "message", "id": "t", "contextId": "c", "status": STATUS}, "/kind"),
        (op.GET, {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}, "/status/state"),
        (op.GET, {"id": "t", "contextId": "c", "status": {"state": "done"}}, "/status/state"),
        (op.PUSH_LIST, {}, ""),
        (op.PUSH_LIST, [{"taskId": "t", "pushNotificationConfig": {}}], "/0/pushNotificationConfig/url"),
        (op.LIST, {"tasks": [{"id": "t", "contextId": "c", "status": {}}]}, "/tasks/0/status/state"),
    ],
)
def test_a_wrong_answer_is_told_with_its_place(operation: Operation, result: Any, where: str) -> None:
    with pytest.raises(UnreadableMessage) as caught:
        JSON_FORM.read_result(operation, result)
    assert caught.value.pointer == where


def test_a_part_that_holds_nothing_cannot_be_said_in_0_3() -> None:
    with pytest.raises(UnreadableMessage) as caught:
        JSON_FORM.write_params(op.SEND, {"message": {"parts": [{"text": "a"}, {"filename": "b"}]}})
    assert caught.value.pointer == "/message/parts/1"


@pytest.mark.parametrize("form", [JSON_FORM, PROTO_FORM])
def test_what_an_agent_of_1_0_left_empty_is_not_said_in_0_3(form: Any) -> None:
    task = {"id": "t", "contextId": "", "status": {"state": "TASK_STATE_UNSPECIFIED"}, "history": [], "artifacts": []}
    empty = V10.read("Task", task, defaults=True)
    assert form.write_result(op.GET, empty) == form.write_result(op.GET, {"id": "t", "status": {}})


def test_what_looks_packed_is_not_unpacked_by_who_reads_it() -> None:
    """Else the official compatibility layer would hand an agent the value inside, where rules saw the object."""
    data, metadata = packed({"value": "inside"}, {"data_part_compat": True, "own": 1})
    assert unpacked(data, metadata, "") == ({"value": "inside"}, {"own": 1})
