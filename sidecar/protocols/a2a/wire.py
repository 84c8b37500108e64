"""Encodes and decodes Protocol Buffers messages.

Descriptors are made from the same table as the JSON reader, so no code is generated. They are in a separate pool: the
official SDK, which registers the same names in the default pool, can be in the same process. The schema reads a decoded
message like any other JSON, so unknown enumeration values and invalid times are refused in one place only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import Error as NotJsonError, MessageToDict, ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sidecar.protocols.a2a.messages import PROTO03, V10
from sidecar.protocols.a2a.operations import Version
from sidecar.protocols.a2a.schema import GOOGLES, FieldSpec, MessageSpec, Schema, UnreadableMessage
from sidecar.protocols.jsonrpc import MAX_VALUES

_GOOGLE: Final = (struct_pb2.DESCRIPTOR, timestamp_pb2.DESCRIPTOR)
# An object within an object is three messages on the wire and two calls of the writer; readers stop at 100 messages.
_MAX_WRITTEN: Final = 66
_MAX_FIELDS: Final = 64  # of one message that `text_in` reads; a list has one for each entry
_SCALARS: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


class ProtobufWire:
    """The bytes of one schema's messages. The name "" stands for an empty message, as in the answer to a deletion."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._classes = message_classes(schema)

    def encode(self, name: str, canonical: Mapping[str, Any]) -> bytes:
        """The bytes of a message; `canonical` is its JSON by this schema. A number in a Struct or Value becomes a
        double. Raises UnreadableMessage for values that the bytes cannot express, such as a lone surrogate, and for
        nesting beyond the limit of readers."""
        if not name:
            return b""
        message = self._classes[name]()
        try:
            ParseDict(dict(canonical), message, max_recursion_depth=_MAX_WRITTEN)
        except (NotJsonError, ValueError, OverflowError):
            raise UnreadableMessage("", "cannot be represented in Protocol Buffers") from None
        return bytes(message.SerializeToString())

    def decode(self, name: str, data: bytes, max_depth: int, max_values: int = MAX_VALUES) -> dict[str, Any]:
        """The JSON of a message, read by this schema. Raises UnreadableMessage for invalid bytes, and for a message
        that has more than `max_values` values, or whose JSON is nested deeper than `max_depth`. The caller bounds the
        length of `data`; the values are bounded because one of two bytes takes a hundred bytes as JSON."""
        if not name:
            return {}
        message = self._classes[name]()
        try:
            message.ParseFromString(data)
            if _holds_more(message, max_values):
                raise UnreadableMessage("", f"has more than {max_values} values")
            given = MessageToDict(message)
        except (DecodeError, NotJsonError, ValueError, RecursionError):
            # Invalid bytes, or values that JSON cannot express: an infinite number, a time without a year.
            raise UnreadableMessage("", f"is not a {name}") from None
        if _is_deeper(given, max_depth):
            raise UnreadableMessage("", "is nested too deep")
        return self._schema.read(name, given)

    def text_in(self, name: str, data: bytes, field: str) -> str:
        """One text field of a message; "" if it is absent, or if the bytes are invalid or have more than `_MAX_FIELDS`
        fields. Used before the caller is authenticated, so nothing else is decoded."""
        number, found = self._schema.messages[name].spelled[field].number, b""
        try:
            for each, held in _pieces(data):
                found = held if each == number else found
            return found.decode()
        except (ValueError, IndexError):
            return ""


def _pieces(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the numbers and bytes of the fields that hold bytes. Raises ValueError or IndexError for bytes that cannot
    be split into fields, ValueError for more than `_MAX_FIELDS` fields."""
    at = 0
    for _ in range(_MAX_FIELDS):
        if at >= len(raw):
            return
        key, at = _varint(raw, at)
        match key & 7:
            case 0:
                _, at = _varint(raw, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(raw, at)
                if at + size > len(raw):
                    raise ValueError("cut off")
                yield key >> 3, raw[at : at + size]
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError("no wire type")
    if at < len(raw):
        raise ValueError("too many fields")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        number |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:
            return number, at
    raise ValueError("a number that does not end")


def _holds_more(message: Any, most: int) -> bool:
    """Whether a message contains more than this number of values. They are counted before any is converted."""
    waiting, found = [message], 0
    while waiting:
        for field, value in waiting.pop().ListFields():
            held = _held(field, value)
            found += len(held)
            if found > most:
                return True
            if field.message_type is not None:
                waiting.extend(one for one in held if hasattr(one, "ListFields"))
    return False


def _held(field: Any, value: Any) -> Any:
    """The values of a field: those of a map, the entries of a list, otherwise the single one."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return value.values()
    return value if field.is_repeated else (value,)


def _is_deeper(message: dict[str, Any], depth: int) -> bool:
    """Whether objects and lists are nested deeper than `depth`."""
    level: list[Any] = [message]
    for _ in range(depth):
        insides = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for inside in insides for inner in inside if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def message_classes(schema: Schema) -> Mapping[str, Any]:
    """A class of Protocol Buffers for each message, by name. The classes are in a separate pool."""
    pool = DescriptorPool()
    for file in _GOOGLE:
        pool.AddSerializedFile(file.serialized_pb)
    pool.AddSerializedFile(_file(schema).SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{schema.package}.{name}")) for name in schema.messages}


def _file(schema: Schema) -> FileDescriptorProto:
    file = FileDescriptorProto(name=f"sidecar/{schema.package}.proto", package=schema.package, syntax="proto3")
    file.dependency.extend(one.name for one in _GOOGLE)
    for name, words in schema.enums.items():
        enum = file.enum_type.add(name=name)
        for number, word in enumerate(words):
            enum.value.add(name=word, number=number)
    for message in schema.messages.values():
        _describe(schema, message, file.message_type.add(name=message.name))
    return file


def _describe(schema: Schema, message: MessageSpec, described: DescriptorProto) -> None:
    groups = list(dict.fromkeys(one.group for one in message.fields if one.group))
    for group in groups:
        described.oneof_decl.add(name=group)
    for one in message.fields:
        field = described.field.add(name=one.name, number=one.number, json_name=one.json)
        repeated = FieldDescriptorProto.LABEL_REPEATED
        field.label = repeated if one.many else FieldDescriptorProto.LABEL_OPTIONAL
        if one.many == "map":
            entry = described.nested_type.add(name=_entry(one.name))
            entry.options.map_entry = True
            label = FieldDescriptorProto.LABEL_OPTIONAL
            entry.field.add(name="key", number=1, label=label, type=FieldDescriptorProto.TYPE_STRING)
            _type(schema, one.type, entry.field.add(name="value", number=2, label=label))
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{schema.package}.{message.name}.{entry.name}"
            continue
        _type(schema, one.type, field)
        if one.group:
            field.oneof_index = groups.index(one.group)
        elif _is_optional(one):
            field.proto3_optional = True
            field.oneof_index = len(described.oneof_decl)
            described.oneof_decl.add(name=f"_{one.name}")


def _is_optional(one: FieldSpec) -> bool:
    """Whether a field needs the mark `optional`, by which absent differs from empty; for messages it always does."""
    return one.presence and one.type in _SCALARS


def _type(schema: Schema, type_: str, field: FieldDescriptorProto) -> None:
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    elif type_ in schema.enums:
        field.type = FieldDescriptorProto.TYPE_ENUM
        field.type_name = f".{schema.package}.{type_}"
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".google.protobuf.{type_}" if type_ in GOOGLES else f".{schema.package}.{type_}"


def _entry(name: str) -> str:
    """The Protocol Buffers name of the message that is one entry of a map."""
    return "".join(word.capitalize() for word in name.split("_")) + "Entry"


WIRES: Final[Mapping[Version, ProtobufWire]] = {"0.3": ProtobufWire(PROTO03), "1.0": ProtobufWire(V10)}
