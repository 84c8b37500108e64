"""JSON Schemas of the models, and checks of requests against them.

A model is a TypedDict or a dataclass whose members are `Annotated[<type>, <description>, <bounds>]`. Unknown members of
queries and bodies are refused, so that no program, argument or variable is set by an unexpected name.
"""

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, NotRequired, get_args, get_origin, get_type_hints

from jsonschema_rs import Draft202012Validator

from sidecar.admin.models import CALLER, OBJECT, PLAIN, PRINCIPAL, SLUG
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import malformed

Schema = Mapping[str, Any]

_WORDS: Final[Mapping[object, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
_PATTERNS: Final[Mapping[str, str]] = {
    PLAIN["pattern"]: "one line of text",
    SLUG["pattern"]: "lower-case letters and digits, parts joined by single hyphens",
    PRINCIPAL["pattern"]: "user:<id> or nhi:<id>",
    CALLER["pattern"]: "user:<id>, nhi:<id> or anonymous",
    OBJECT["pattern"]: "tool:<server>/<tool>, prompt:…, resource:… or nhi:…",
}
_TYPES: Final = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "object": "an object"}


class SchemaMember(NamedTuple):
    name: str
    hint: object
    told: str
    needed: bool
    bounds: Schema


def members_of(model: type) -> Iterator[SchemaMember]:
    """The members of a model. A member of a dataclass with a default is optional; if the default is None, it is omitted
    instead of null."""
    hints = get_type_hints(model, include_extras=True)
    defaults = {each.name: each.default for each in fields(model)} if is_dataclass(model) else {}
    for name, hint in hints.items():
        needed = get_origin(hint) is not NotRequired
        inner, told, *bounds = get_args(hint if needed else get_args(hint)[0])
        default = defaults.get(name, MISSING)
        if default is None:
            inner = get_args(inner)[0]
        yield SchemaMember(name, inner, told, needed and default is MISSING, bounds[0] if bounds else {})


def whole_number(least: int, most: int, default: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


def ref(model: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def schema_of(model: type, models: Collection[type] = ()) -> dict[str, Any]:
    """The JSON Schema of a model. It refers to the schemas of `models` in the OpenAPI document."""
    members = list(members_of(model))
    return {
        "type": "object",
        "description": inspect.getdoc(model),
        "properties": {
            one.name: {**_shape(one.hint, models), **one.bounds, "description": one.told} for one in members
        },
        "required": [one.name for one in members if one.needed],
        "additionalProperties": False,
    }


def _shape(hint: object, models: Collection[type]) -> Schema:
    if hint in _WORDS:
        return _WORDS[hint]
    if isinstance(hint, type) and hint in models:
        return ref(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [word.value for word in hint]}
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inside)}
    if origin is UnionType and inside[-1] is not NoneType:  # two literals
        return {"type": [_WORDS[one]["type"] for one in inside]}
    if origin is UnionType:  # a | None
        return _or_null(_shape(inside[0], models))
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object"} | ({"additionalProperties": _WORDS[inside[1]]} if inside[1] in _WORDS else {})
    return {"type": "array", "items": _shape(inside[0], models)}


def _or_null(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"oneOf": [schema, {"type": "null"}]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def order_in(raw: bytes, model: type) -> dict[str, Any]:
    """A body as an object of the model; a missing body is an empty object. Raises Refusal(MALFORMED_CALL)."""
    return check_body(jsonrpc.parse_json(raw) if raw.strip() else {}, model)


def query_in(raw_path: str, parameters: Mapping[str, Schema]) -> dict[str, Any]:
    """The parameters of a query, by name. Raises Refusal(MALFORMED_CALL)."""
    try:
        query = http.query_of(raw_path.partition("?")[2])
    except UnreadableMessage as error:
        raise malformed(str(error)) from None
    if not query.keys() <= parameters.keys():
        known = f"besides {', '.join(parameters)}" if parameters else "where none is defined"
        raise malformed(f"the query has a parameter {known}")
    return {name: check_parameter(name, text, parameters[name]) for name, text in query.items()}


def check_body(body: object, model: type) -> dict[str, Any]:
    """The body, if it fits the model. Raises Refusal(MALFORMED_CALL), which names the place and never a value."""
    if not isinstance(body, dict):
        raise malformed("the body must be an object")
    schema, validator = _compiled(model)
    properties = schema["properties"]
    for fault in validator.iter_errors(body):
        match fault.schema_path:
            case ["properties", member, *_]:
                raise malformed(f"{member} must be {described(properties[member])}")
            case ["additionalProperties"]:
                known = f"besides {', '.join(properties)}" if properties else "where none is defined"
                raise malformed(f"the body has a member {known}")
        raise malformed(f'the key "{next(name for name in schema["required"] if name not in body)}" is missing')
    return body


@cache
def _compiled(model: type) -> tuple[dict[str, Any], Draft202012Validator]:
    schema = schema_of(model)
    return schema, Draft202012Validator(schema)


def check_parameter(name: str, text: str, schema: Schema) -> Any:
    """The value of a query parameter. Raises Refusal(MALFORMED_CALL) if it does not fit the schema."""
    value: Any = text
    match schema.get("type"):
        case "boolean":
            value = {"true": True, "false": False}.get(text)
        case "integer":
            value = int(text) if text.isascii() and text.isdigit() and len(text) <= 8 else None
    if not Draft202012Validator(dict(schema)).is_valid(value):
        raise malformed(f"{name} must be {described(schema)}")
    return value


def described(schema: Schema) -> str:
    """The requirements of a member's schema, as text."""
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    words = _PATTERNS.get(schema.get("pattern", ""), _TYPES.get(kind, "a string"))
    if kind == "object" and "additionalProperties" in schema:
        words += " of strings"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        words += f" from {least} to {most}"
    elif "maxLength" in schema:
        words += f" of {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    return words
