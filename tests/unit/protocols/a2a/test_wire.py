"""Are our bytes of Protocol Buffers those of the official SDK, and its bytes read as ours?"""

from collections.abc import Callable
from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given, settings, strategies as st

from sidecar.protocols.a2a.messages import PROTO03, V10
from sidecar.protocols.a2a.schema import Schema, UnreadableMessage
from sidecar.protocols.a2a.wire import WIRES, ProtobufWire
from tests.unit.protocols.a2a.test_schema import of, whole

DEPTH = 50
NAMES = ("SendMessageRequest", "StreamResponse", "AgentCard")
LINES: list[tuple[ProtobufWire, Schema, Any, str]] = [
    *((WIRES["1.0"], V10, a2a_pb2, name) for name in (*NAMES, "ListTasksRequest")),
    *((WIRES["0.3"], PROTO03, a2a_v0_3_pb2, name) for name in (*NAMES, "CreateTaskPushNotificationConfigRequest")),
]


@pytest.mark.parametrize(("wire", "schema", "official", "name"), LINES, ids=lambda one: one if type(one) is str else "")
@settings(max_examples=6)
@given(data=st.data())
def test_our_bytes_are_theirs(
    wire: ProtobufWire, schema: Schema, official: Any, name: str, data: st.DataObject
) -> None:
    canonical = schema.read(name, data.draw(of(schema, name)))
    message = ParseDict(canonical, getattr(official, name)())
    assert getattr(official, name).FromString(wire.encode(name, canonical)) == message
    read = schema.read(name, MessageToDict(message))
    assert wire.decode(name, message.SerializeToString(), DEPTH) == read
    assert whole(read) == whole(canonical)


def test_every_message_of_both_versions_has_the_official_shape() -> None:
    only_ours = {"ListTasksRequest", "ListTasksResponse"}  # named in the text of 0.3, defined nowhere
    for schema, official, more in ((V10, a2a_pb2, set()), (PROTO03, a2a_v0_3_pb2, only_ours)):
        described = official.DESCRIPTOR
        assert (schema.package, schema.messages.keys() - more) == (
            described.package,
            set(described.message_types_by_name),
        )
        for name, theirs in described.message_types_by_name.items():
            ours = WIRES["1.0" if schema is V10 else "0.3"]._classes[name].DESCRIPTOR
            assert shape(ours) == shape(theirs)
            assert ours.file.pool is not Default()
        for name, words in schema.enums.items():
            values = described.enum_types_by_name[name].values
            assert words == tuple(word.name for word in sorted(values, key=lambda word: word.number))


def shape(message: Any) -> Any:
    plain = ("name", "number", "json_name", "type", "is_repeated", "has_presence")
    return {
        (
            *(getattr(field, name) for name in plain),
            field.containing_oneof.name if field.containing_oneof else None,
            field.message_type.full_name if field.message_type else None,
        )
        for field in message.fields
    }


# --- bytes that nobody should send ------------------------------------------------------------------------------------


def struct(depth: int) -> a2a_pb2.SendMessageRequest:
    message = a2a_pb2.SendMessageRequest()
    inner: Any = 1
    for _ in range(depth):
        inner = {"a": inner}
    message.metadata.update({"a": inner})
    return message


INFINITE = a2a_pb2.SendMessageRequest()
INFINITE.metadata["a"] = float("inf")


def moment(seconds: int, nanos: int = 0) -> bytes:
    message = a2a_pb2.ListTasksRequest()
    message.status_timestamp_after.seconds, message.status_timestamp_after.nanos = seconds, nanos
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("SendMessageRequest", b"\x00"),
        ("SendMessageRequest", b"\xff" * 20),
        ("SendMessageRequest", b"\x12\x05\x0a"),  # cut off
        ("SendMessageRequest", b"\x0a\x02\xff\xfe"),  # a tenant that is no UTF-8
        ("SendMessageRequest", b"\x12" * 400),
        ("SendMessageRequest", INFINITE.SerializeToString()),
        ("SendMessageRequest", struct(20).SerializeToString()),  # deeper than we read
        ("ListTasksRequest", moment(10**15)),
        ("ListTasksRequest", moment(0, -5)),
        ("ListTasksRequest", b"\x18\x63"),  # a state of number 99
        ("ListTasksRequest", b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),  # and -1
    ],
)
def test_hostile_bytes_are_unreadable(name: str, data: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        WIRES["1.0"].decode(name, data, 16)


def test_nesting_counts_as_in_json() -> None:
    assert WIRES["1.0"].decode("SendMessageRequest", struct(5).SerializeToString(), 7)
    with pytest.raises(UnreadableMessage):
        WIRES["1.0"].decode("SendMessageRequest", struct(5).SerializeToString(), 6)


def test_every_value_counts_wherever_it_stands() -> None:
    wire = WIRES["1.0"]
    data = wire.encode("SendMessageRequest", {"tenant": "t", "message": {"parts": [{"text": "a"}, {}], "taskId": "x"}})
    assert wire.decode("SendMessageRequest", data, 16, 6)  # the tenant, the message, its parts, a text, the id
    with pytest.raises(UnreadableMessage, match="more than 5 values"):
        wire.decode("SendMessageRequest", data, 16, 5)
    values = wire.encode("SendMessageRequest", {"metadata": {str(number): [None] for number in range(50)}})
    with pytest.raises(UnreadableMessage, match="more than 100 values"):
        wire.decode("SendMessageRequest", values, 16, 100)


def test_one_text_is_had_without_the_rest() -> None:
    wire = WIRES["1.0"]
    data = wire.encode("SendMessageRequest", {"tenant": "t", "message": {"parts": [{"text": "a"}]}})
    assert wire.text_in("SendMessageRequest", data, "tenant") == "t"
    assert wire.text_in("SendMessageRequest", data[:-1], "tenant") == ""
    assert wire.text_in("GetTaskRequest", b"", "tenant") == ""


def test_what_protobuf_itself_finds_too_deep_is_unreadable() -> None:
    level = b""
    for _ in range(300):  # a list in a list, by hand: the library would not write it
        value = b"\x32" + length(level) + level
        level = b"\x0a" + length(value) + value
    part = b"\x22" + length(b"\x32" + length(level) + level) + b"\x32" + length(level) + level
    message = b"\x2a" + length(part) + part
    with pytest.raises(UnreadableMessage):
        WIRES["1.0"].decode("Message", message, 1000)


def length(data: bytes) -> bytes:
    size, written = len(data), b""
    while size > 0x7F:
        written, size = written + bytes([size & 0x7F | 0x80]), size >> 7
    return written + bytes([size])


@pytest.mark.parametrize("around", [lambda inner: {"a": inner}, lambda inner: [inner]], ids=["objects", "lists"])
@pytest.mark.parametrize("depth", range(27, 40))
def test_what_is_written_can_be_read(depth: int, around: Callable[[Any], Any]) -> None:
    """By a library with the usual limit; what is deeper is refused before it leaves."""
    inner: Any = 1
    for _ in range(depth):
        inner = around(inner)
    holds = {"parts": [{"data": inner}]}
    task = {"history": [holds], "artifacts": [holds], "status": {"message": holds}}
    try:
        data = WIRES["1.0"].encode("StreamResponse", {"task": task})
    except UnreadableMessage:
        assert depth > 28
        return
    assert WIRES["1.0"].decode("StreamResponse", data, 100) == V10.read("StreamResponse", {"task": task})


@pytest.mark.parametrize("value", ["\ud800", 10**400])
def test_what_has_no_bytes_is_refused(value: Any) -> None:
    with pytest.raises(UnreadableMessage):
        WIRES["1.0"].encode("SendMessageRequest", {"metadata": {"a": value}})


def test_unknown_fields_are_dropped_and_nothing_is_no_bytes() -> None:
    assert WIRES["1.0"].decode("GetTaskRequest", b"\x12\x01t\xfa\x01\x03abc", DEPTH) == {"id": "t"}
    assert WIRES["1.0"].encode("", {}) == b""
    assert WIRES["1.0"].decode("", b"\x0a\x01a", DEPTH) == {}
