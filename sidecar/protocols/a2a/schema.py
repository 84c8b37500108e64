"""Reads A2A messages strictly, so that all readers see the same content.

A2A's messages are defined once, in Protocol Buffers, and are also sent as JSON (ProtoJSON). `schema_from` makes a
`Schema` from a table of them in this notation, one message to a line:

    Part: 1 text:string/content, 4 data:Value/content, 5 metadata:Struct, 7 media_type:string

number, name, `:` type; `[type]` is a list, `{type}` a map from strings, `/group` says that at most one field of the
group is set, `?` that "absent" differs from "empty", `!` that a field, or one field of the group, must be set, and
`=json` gives the JSON name if it is not the camel case. A line `= Part, Task` takes these messages from another schema.

`read` takes untrusted JSON and returns the canonical form: names in camel case, enumerations by their names, bytes in
padded base64, times in UTC, no unset fields. It refuses a field in both its spellings, two fields of a group, a missing
required field, an unknown name of an enumeration, and every value of another type. Unknown fields are dropped, like in
ProtoJSON readers, so that the agent never sees them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

Json = dict[str, Any]  # a message being built
Read = Mapping[str, Any]  # a message that was read
INT32_MAX: Final = 2**31 - 1
_FIELD = re.compile(r"(\d+) ([a-z0-9_]+)(?:=(\w+))?:(\[?\{?)(\w+)[\]}]?(\?)?(?:/(\w+))?(!)?\Z")
_HUMP = re.compile(r"_([a-z0-9])")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)\Z", re.ASCII)
GOOGLES: Final = frozenset({"Struct", "Value", "Timestamp"})  # messages of Google: absent differs from empty
_INTEGER = re.compile(r"-?\d{1,10}\Z", re.ASCII)


class UnreadableMessage(Exception):
    """A message is not valid: `problem` at the place `pointer`, a JSON Pointer. Neither contains a value of the
    message."""

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"{pointer or '/'} {problem}")
        self.pointer = pointer
        self.problem = problem

    def below(self, step: str | int) -> UnreadableMessage:
        """The same fault, with its place relative to the container that has the message at `step`."""
        return UnreadableMessage(f"/{step}{self.pointer}", self.problem)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field. `many` is "" for a single value, "list" or "map" for several. `presence`: absent differs from
    empty."""

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
    """All messages and enumerations of one version. Without a `package` ("") enumerations have no numbers. `readers` is
    a cache."""

    package: str
    messages: Mapping[str, MessageSpec]
    enums: Mapping[str, tuple[str, ...]]
    readers: dict[tuple[str, bool], MessageReader] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, name: str, given: object, at: str = "", *, defaults: bool = False) -> dict[str, Any]:
        """The canonical form of a message; `name` is its type. With `defaults`, fields that are set but empty are
        retained. Raises UnreadableMessage, with the fault's place below `at`, if it is not valid."""
        try:
            return (self.readers.get((name, defaults)) or self.reader(name, defaults)).read(given)
        except UnreadableMessage as error:
            raise UnreadableMessage(at + error.pointer, error.problem) from None

    def reader(self, name: str, defaults: bool) -> MessageReader:
        reader = self.readers.get((name, defaults))
        if reader is None:
            reader = self.readers[name, defaults] = MessageReader(self, self.messages[name], defaults)
        return reader


def schema_from(
    package: str, text: str, enums: Mapping[str, tuple[str, ...]], shared: Mapping[str, MessageSpec] | None = None
) -> Schema:
    """A schema in the notation above. Lines that begin with `=` take messages from `shared`. Raises ValueError for an
    invalid field or an unknown type."""
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
    """A field's name in ProtoJSON."""
    return _HUMP.sub(lambda match: match[1].upper(), name)


class _FieldReader(NamedTuple):
    """How one spelling of a field is read: values of exactly the type `plain` unchanged, others by `read`. `keeps`: an
    empty value is also retained; `beside` are the other spelling and the group, each "" for none, or None if there is
    neither."""

    json: str
    plain: type | None
    read: Callable[[object], Any]
    keeps: bool
    beside: tuple[str, str] | None


class MessageReader:
    """Reads messages of one type. Its table of fields is made on first use, because messages contain one another."""

    __slots__ = ("_defaults", "_fields", "_message", "_required", "_schema")

    def __init__(self, schema: Schema, message: MessageSpec, defaults: bool) -> None:
        self._schema = schema
        self._message = message
        self._defaults = defaults
        self._fields: dict[str, _FieldReader] = {}
        self._required = [one for one in message.fields if one.required]

    def read(self, given: object) -> dict[str, Any]:
        """The canonical form of a message. Raises UnreadableMessage if it is not valid."""
        if not isinstance(given, dict):
            raise UnreadableMessage("", "must be an object")
        fields = self._fields or self._made()
        read: dict[str, Any] = {}
        groups: tuple[str, ...] = ()
        for key, value in given.items():
            one = fields.get(key)
            if one is None:
                continue
            json, plain, reader, keeps, beside = one
            if type(value) is not plain:
                if value is None and reader is not _any:
                    continue  # ProtoJSON: null is absent
                try:
                    value = reader(value)
                except UnreadableMessage as error:
                    raise error.below(key) from None
            if beside is not None:
                other, group = beside
                if other and given.get(other) is not None:
                    raise UnreadableMessage(f"/{max(key, other, key=[*given].index)}", "is there in both its spellings")
                if group:
                    if group in groups:
                        raise UnreadableMessage(f"/{key}", f"is set together with another {group}")
                    groups += (group,)
            if value or keeps:
                read[json] = value
        if self._required:
            self._refuse_missing(given, groups)
        return read

    def _refuse_missing(self, given: Mapping[str, Any], groups: tuple[str, ...]) -> None:
        for one in self._required:
            if one.group and one.group not in groups:
                raise UnreadableMessage("", f"holds no {one.group}")
            if not one.group and given.get(one.json) is None and given.get(one.name) is None:
                raise UnreadableMessage(f"/{one.json}", "is missing")

    def _made(self) -> dict[str, _FieldReader]:
        self._fields = {
            spelling: self._field_reader(one, spelling)
            for one in self._message.fields
            for spelling in (one.json, one.name)
        }
        return self._fields

    def _field_reader(self, one: FieldSpec, spelling: str) -> _FieldReader:
        schema, plain = self._schema, None if one.many else _PLAIN.get(one.type)
        if one.type in schema.messages:
            read: Callable[[object], Any] = schema.reader(one.type, self._defaults).read
        elif one.type in schema.enums:
            read = _enum(one.type, schema.enums[one.type], numbers=bool(schema.package), defaults=self._defaults)
        else:
            read = _SCALARS[one.type]
        if one.many:
            read = (_list_of if one.many == "list" else _map_of)(read)
        keeps = self._defaults or one.presence or (one.type in schema.messages and not one.many)
        other = "" if one.name == one.json else one.name if spelling == one.json else one.json
        return _FieldReader(one.json, plain, read, keeps, (other, one.group) if other or one.group else None)


def _list_of(read: Callable[[object], Any]) -> Callable[[object], list[Any]]:
    def read_list(given: object) -> list[Any]:
        if not isinstance(given, list):
            raise UnreadableMessage("", "must be a list")
        said: list[Any] = []
        try:
            for value in given:
                said.append(read(value))  # noqa: PERF401 - its length is the place of an error
        except UnreadableMessage as error:
            raise error.below(len(said)) from None
        return said

    return read_list


def _map_of(read: Callable[[object], Any]) -> Callable[[object], dict[str, Any]]:
    def read_map(given: object) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise UnreadableMessage("", "must be an object")
        said: dict[str, Any] = {}
        for key, value in given.items():
            try:
                said[key] = read(value)
            except UnreadableMessage as error:
                raise error.below(key) from None
        return said

    return read_map


def _enum(name: str, words: tuple[str, ...], *, numbers: bool, defaults: bool) -> Callable[[object], str]:
    """A reader of an enumeration, by names and, with `numbers`, by their positions. The first name is the empty value,
    which only readers with `defaults` retain."""
    said = {word: word for word in words} if defaults else {**{word: word for word in words}, words[0]: ""}
    numbered = tuple(said.values()) if numbers else ()

    def read(given: object) -> str:
        if isinstance(given, str) and given in said:
            return said[given]
        if type(given) is int and 0 <= given < len(numbered):
            return numbered[given]
        raise UnreadableMessage("", f"is not a value of {name}")

    return read


def _typed(type_: type, problem: str) -> Callable[[object], Any]:
    """A reader of values of one Python type; `problem` is the fault of all others."""

    def read(given: object) -> Any:
        if not isinstance(given, type_):
            raise UnreadableMessage("", problem)
        return given

    return read


def _any(given: object) -> Any:
    return given


_string = _typed(str, "must be a string")


def _int32(given: object) -> int:
    if isinstance(given, str) and _INTEGER.match(given):
        given = int(given)
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not -INT32_MAX - 1 <= given <= INT32_MAX:
        raise UnreadableMessage("", "must be an integer of 32 bits")
    return given


def _bytes(given: object) -> str:
    """Padded base64 of the standard alphabet; accepts either alphabet, with or without padding (ProtoJSON)."""
    try:
        text = _string(given).rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64encode(base64.b64decode(text + "=" * (-len(text) % 4), validate=True)).decode()
    except (binascii.Error, ValueError):
        raise UnreadableMessage("", "must be base64") from None


def _timestamp(given: object) -> str:
    """RFC 3339 in UTC, with as few of 0, 3, 6 or 9 fractional digits as represent the value."""
    match = _TIME.match(given) if isinstance(given, str) else None
    try:
        if match is None:
            raise ValueError
        moment, digits, zone = match.groups()
        datetime.fromisoformat(moment)
        if zone != "Z":
            utc = datetime.fromisoformat(moment + zone).astimezone(UTC)
            moment = utc.strftime(f"{utc.year:04}-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError):
        raise UnreadableMessage("", "must be a time as RFC 3339 writes it") from None
    fraction = (digits or "").rstrip("0")
    fraction += "0" * (-len(fraction) % 3)
    return f"{moment}.{fraction}Z" if fraction else f"{moment}Z"


_PLAIN: Final[Mapping[str, type]] = {"string": str, "bool": bool, "Struct": dict}
_SCALARS: Final[Mapping[str, Callable[[object], Any]]] = {
    "string": _string,
    "bool": _typed(bool, "must be true or false"),
    "int32": _int32,
    "bytes": _bytes,
    "Timestamp": _timestamp,
    "Struct": _typed(dict, "must be an object"),
    "Value": _any,
}
