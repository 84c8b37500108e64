"""Shared OpenAPI components: responses, refusals, headers and schemas."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, NotRequired, get_args, get_origin, get_type_hints

from sidecar.errors import ANSWERS, Reason
from sidecar.gateway.error_responses import JSON, PROBLEM_JSON, McpError, plain_status

PRIVATE: Final = "`no-store`: it is this caller's"
_WORDS: Final[Mapping[object, Mapping[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
CORRELATION: Final[tuple[Mapping[str, Any], ...]] = tuple(
    {
        "name": name,
        "in": "header",
        "description": "for the audit: recorded if it is 1 to 128 characters of A-Z a-z 0-9 . _ : -, and overlooked if "
        "not; never used to decide",
        "schema": {"type": "string"},
    }
    for name in ("X-Run-Id", "X-Thread-Id")
)


def taken(model: type) -> dict[str, Any]:
    """A request body."""
    return {"required": True, "content": {JSON: {"schema": ref(model)}}}


def good(told: str, model: type, headers: Mapping[str, Any]) -> dict[str, Any]:
    """A successful response."""
    answer = {"description": told, "content": {JSON: {"schema": ref(model)}}}
    return {**answer, "headers": headers} if headers else answer


def bad(reasons: Collection[Reason], also: Mapping[int, str] = {}) -> dict[str, Any]:
    """Refusals by status, in order. `also` maps a status to a further sentence of its description."""
    by_status: dict[int, list[Reason]] = {}
    for reason in Reason:
        if reason in reasons:
            by_status.setdefault(plain_status(ANSWERS[reason]), []).append(reason)
    return {str(status): _refused(status, by_status[status], also.get(status)) for status in sorted(by_status)}


def header(told: str, *names: str, required: bool = False, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Headers with the same description."""
    described = {"description": told, "required": required, "schema": dict(schema or {"type": "string"})}
    return dict.fromkeys(names, described)


def query(name: str, told: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """An optional query parameter."""
    return {"name": name, "in": "query", "description": told, "schema": schema}


def whole(least: int, most: int, default: int) -> dict[str, Any]:
    """An integer."""
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


def ref(model: type) -> dict[str, str]:
    """A reference to a model's schema."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def schema_of(model: type, models: Collection[type]) -> dict[str, Any]:
    """The JSON Schema of a dataclass or a TypedDict, which may refer to others of `models`."""
    members = list(members_of(model))
    shape = {
        "type": "object",
        "description": inspect.getdoc(model),
        "properties": {
            one.name: {**_shape(one.hint, models), **one.bounds, "description": one.told} for one in members
        },
        "required": [one.name for one in members if one.needed],
    }
    if model is McpError:  # narrowed by status
        return shape
    return {**shape, "additionalProperties": False}


class SchemaMember(NamedTuple):
    """One member of a model."""

    name: str
    hint: object
    told: str
    needed: bool
    bounds: Mapping[str, Any]


def members_of(model: type) -> Iterator[SchemaMember]:
    """The members of a dataclass or a TypedDict. Members of a dataclass with a default are optional, and left out when
    None."""
    hints = get_type_hints(model, include_extras=True)
    defaults = {each.name: each.default for each in fields(model)} if is_dataclass(model) else {}
    for name, hint in hints.items():
        needed = get_origin(hint) is not NotRequired
        inner, told, *bounds = get_args(hint if needed else get_args(hint)[0])
        default = defaults.get(name, MISSING)
        if default is None:
            inner = get_args(inner)[0]
        yield SchemaMember(name, inner, told, needed and default is MISSING, bounds[0] if bounds else {})


def _refused(status: int, reasons: list[Reason], also: str | None) -> dict[str, Any]:
    words = [reason.value for reason in reasons]
    if any(ANSWERS[reason].status == "permission_denied" for reason in reasons):
        words.append("denied")  # with `answers.disclosure: kind`
    told = [f"`{reason}`: {ANSWERS[reason].message}." for reason in reasons]
    if also:
        told.append(also)
    codes = dict.fromkeys(ANSWERS[reason].seed for reason in reasons)
    narrowed = {"status": {"const": status}, "error_code": {"enum": [*codes]}, "reason": {"enum": words}}
    schema = {"allOf": [ref(McpError), {"properties": narrowed}]}
    answer = {"description": " ".join(told), "content": {PROBLEM_JSON: {"schema": schema}}}
    headers = _headers(status)
    return {**answer, "headers": headers} if headers else answer


def _headers(status: int) -> dict[str, Any]:
    if status in (401, 403):
        return header("how to authenticate, or for which scope", "WWW-Authenticate", required=status == 401)
    if status not in (429, 503):
        return {}
    whole = {"type": "string", "pattern": "^[0-9]+$"}
    headers = header("when to come again, in seconds", "Retry-After", required=True, schema=whole)
    if status == 429:
        headers |= header("where the limit stands", "RateLimit", "RateLimit-Policy")
    return headers


def _shape(hint: object, models: Collection[type]) -> dict[str, Any]:
    if hint in _WORDS:
        return dict(_WORDS[hint])
    if isinstance(hint, type) and hint in models:
        return dict(ref(hint))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [word.value for word in hint]}
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inside)}
    if origin is UnionType:  # a | None
        return _or_null(_shape(inside[0], models))
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object"} | ({"additionalProperties": _WORDS[inside[1]]} if inside[1] in _WORDS else {})
    return {"type": "array", "items": _shape(inside[0], models)}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"oneOf": [schema, {"type": "null"}]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}
