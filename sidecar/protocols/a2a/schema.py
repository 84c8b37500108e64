"""Reads A2A messages strictly, so that all readers see the same content.

A2A's messages are defined once, in Protocol Buffers, and travel as JSON too (ProtoJSON). A `Schema` is a table of them
in a notation of its own, one message to a line:

    Part: 1 text:string/content, 4 data:Value/content, 5 metadata:Struct, 7 media_type:string

number, name, `:` type; `[type]` is a list, `{type}` a map from strings, `/group` says that at most one field of the
group is set, `?` that "absent" differs from "empty", `!` that a field, or one field of the group, must be set, and
`=json` gives the JSON name if it is not the camel case. A line `= Part, Task` takes these messages from another schema.

`read` takes untrusted JSON and gives the canonical form: names in camel case, enumerations by their names, bytes in
padded base64, times in UTC, no unset fields. Refused are a field in both its spellings, two fields of a group, an
unknown name of an enumeration, and every value of another type (threats P15). Unknown fields are dropped, as ProtoJSON
readers do, so that the agent never sees them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

Json = dict[str, Any]  # a message being built
Read = Mapping[str, Any]  # a message that was read
INT32_MAX: Final = 2**31 - 1
_FIELD = re.compile(r"(\d+) ([a-z0-9_]+)(?:=(\w+))?:(\[?\{?)(\w+)[\]}]?(\?)?(?:/(\w+))?(!)?\Z")
_HUMP = re.compile(r"_([a-z0-9])")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)\Z")
GOOGLES: Final = frozenset({"Struct", "Value", "Timestamp"})  # absent differs from empty, as for any message
_INTEGER = re.compile(r"-?\d{1,10}\Z")


class UnreadableMessage(Exception):
    """What is wrong with a message, and the place (a JSON Pointer); never a value of it."""

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"{pointer or '/'} {problem}")
        self.pointer = pointer
        self.problem = problem


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field. `many` is "" for one, "list" or "map" for more."""

    number: int
    name: str
    json: str
    type: str
    many: str = ""
    presence: bool = False
    group: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """One message. `spelled` finds a field by either of its names in JSON."""

    name: str
    fields: tuple[FieldSpec, ...]
    spelled: Mapping[str, FieldSpec] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """All messages and enumerations of one version. Without a `package` ("") enumerations have no numbers."""

    package: str
    messages: Mapping[str, MessageSpec]
    enums: Mapping[str, tuple[str, ...]]

    def read(self, name: str, given: object, at: str = "", *, defaults: bool = False) -> dict[str, Any]:
        """The canonical form of the message at the place `at`. With `defaults`, fields that are set but empty are kept.
        Raises UnreadableMessage."""
        return _SchemaReader(self, defaults).message(self.messages[name], given, at)


def schema_from(
    package: str, text: str, enums: Mapping[str, tuple[str, ...]], shared: Mapping[str, MessageSpec] | None = None
) -> Schema:
    """A schema in the notation above. Raises ValueError for invalid notation."""
    messages: dict[str, MessageSpec] = {}
    for line in re.sub(r"\n\s+", " ", text.strip()).split("\n"):
        if line.startswith("= "):
            messages |= {name: (shared or {})[name] for name in line[2:].split(", ")}
        else:
            message = _message(line)
            messages[message.name] = message
    known = messages.keys() | enums.keys() | _SCALARS.keys()
    for message in messages.values():
        for one in message.fields:
            if one.type not in known:
                raise ValueError(f"{message.name}.{one.name} has the unknown type {one.type}")
    return Schema(package, messages, enums)


def _message(line: str) -> MessageSpec:
    name, _, rest = line.partition(":")
    fields = tuple(_field(text.strip()) for text in rest.split(",") if text.strip())
    spelled = {spelling: one for one in fields for spelling in (one.json, one.name)}
    return MessageSpec(name, fields, spelled)


def _field(text: str) -> FieldSpec:
    match = _FIELD.match(text)
    if match is None:
        raise ValueError(f"no field: {text!r}")
    number, name, json, bracket, type_, presence, group, required = match.groups()
    many = {"": "", "[": "list", "{": "map"}[bracket]
    there = bool(presence or group) or (not many and type_ in GOOGLES)
    return FieldSpec(int(number), name, json or camel(name), type_, many, there, group or "", bool(required))


def camel(name: str) -> str:
    """A field's name as ProtoJSON writes it."""
    return _HUMP.sub(lambda match: match[1].upper(), name)


class _SchemaReader:
    __slots__ = ("_defaults", "_schema")

    def __init__(self, schema: Schema, defaults: bool) -> None:
        self._schema = schema
        self._defaults = defaults

    def message(self, message: MessageSpec, given: object, at: str) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise UnreadableMessage(at, "must be an object")
        found: dict[str, tuple[FieldSpec, str, object]] = {}
        for key, value in given.items():
            one = message.spelled.get(key)
            if one is None or (value is None and one.type != "Value"):
                continue  # ProtoJSON: null is absent
            if one.name in found:
                raise UnreadableMessage(f"{at}/{key}", "is there in both its spellings")
            found[one.name] = (one, key, value)
        groups: set[str] = set()
        read: dict[str, Any] = {}
        for one in message.fields:
            if one.name not in found:
                if one.required and not one.group:
                    raise UnreadableMessage(f"{at}/{one.json}", "is missing")
                continue
            _, key, value = found[one.name]
            place = f"{at}/{key}"
            if one.group:
                if one.group in groups:
                    raise UnreadableMessage(place, f"stands beside another {one.group}")
                groups.add(one.group)
            said = self._many(one, value, place)
            if self._defaults or one.presence or said or (one.type in self._schema.messages and not one.many):
                read[one.json] = said
        for one in message.fields:
            if one.required and one.group and one.group not in groups:
                raise UnreadableMessage(at, f"holds no {one.group}")
        return read

    def _many(self, one: FieldSpec, given: object, at: str) -> Any:
        if one.many == "list":
            if not isinstance(given, list):
                raise UnreadableMessage(at, "must be a list")
            return [self._value(one.type, value, f"{at}/{index}") for index, value in enumerate(given)]
        if one.many == "map":
            if not isinstance(given, dict):
                raise UnreadableMessage(at, "must be an object")
            return {key: self._value(one.type, value, f"{at}/{key}") for key, value in given.items()}
        return self._value(one.type, given, at)

    def _value(self, type_: str, given: object, at: str) -> Any:
        message = self._schema.messages.get(type_)
        if message is not None:
            return self.message(message, given, at)
        scalar = _SCALARS.get(type_)
        if scalar is not None:
            return scalar(given, at)
        return self._word(type_, given, at)

    def _word(self, enum: str, given: object, at: str) -> str:
        words = self._schema.enums[enum]
        if isinstance(given, str) and given in words:
            word = given
        elif self._schema.package and type(given) is int and 0 <= given < len(words):
            word = words[given]
        else:
            raise UnreadableMessage(at, f"is no word of {enum}")
        return word if self._defaults or word != words[0] else ""


def _typed(type_: type, problem: str) -> Callable[[object, str], Any]:
    """A reader of values of one type of JSON."""

    def read(given: object, at: str) -> Any:
        if not isinstance(given, type_):
            raise UnreadableMessage(at, problem)
        return given

    return read


_string = _typed(str, "must be a string")


def _int32(given: object, at: str) -> int:
    if isinstance(given, str) and _INTEGER.match(given):
        given = int(given)
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not -INT32_MAX - 1 <= given <= INT32_MAX:
        raise UnreadableMessage(at, "must be an integer of 32 bits")
    return given


def _bytes(given: object, at: str) -> str:
    """Padded base64 of the standard alphabet; read in either alphabet, with or without padding (ProtoJSON)."""
    try:
        text = _string(given, at).rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64encode(base64.b64decode(text + "=" * (-len(text) % 4), validate=True)).decode()
    except (binascii.Error, ValueError):
        raise UnreadableMessage(at, "must be base64") from None


def _timestamp(given: object, at: str) -> str:
    """RFC 3339 in UTC, with 0, 3, 6 or 9 digits of a second, as needed."""
    match = _TIME.match(given) if isinstance(given, str) else None
    try:
        if match is None:
            raise ValueError
        moment, digits, zone = match.groups()
        utc = datetime.fromisoformat(moment + ("+00:00" if zone == "Z" else zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UnreadableMessage(at, "must be a time as RFC 3339 writes it") from None
    fraction = (digits or "").rstrip("0")
    fraction += "0" * (-len(fraction) % 3)
    return utc.strftime(f"{utc.year:04}-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") + "Z"


_SCALARS: Final[Mapping[str, Callable[[object, str], Any]]] = {
    "string": _string,
    "bool": _typed(bool, "must be true or false"),
    "int32": _int32,
    "bytes": _bytes,
    "Timestamp": _timestamp,
    "Struct": _typed(dict, "must be an object"),
    "Value": lambda given, at: given,
}
