"""What would a client generator, or a fuzzer, need to know of the plain addresses?

One OpenAPI 3.1 document. Paths are those of `arrival`, schemas are made from the models that answers are built from,
and statuses with their reasons from the table that refusals are told by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from sidecar import __version__
from sidecar.answers import JSON, PROBLEM_JSON, McpError, plain_status
from sidecar.errors import ANSWERS, Reason
from sidecar.plain.front import ERROR_STATUS
from sidecar.plain.models import McpCall, McpCallResult, McpTool, McpTools

# Of other protocols, other verbs, and nobody's to hear.
ELSEWHERE: Final = frozenset(
    {
        Reason.VERB_NOT_ALLOWED,
        Reason.NOT_ACCEPTABLE,
        Reason.VERSION_UNSUPPORTED,
        Reason.HEADER_MISMATCH,
        Reason.METHOD_UNKNOWN,
        Reason.SESSION_UNKNOWN,
        Reason.TASK_UNKNOWN,
        Reason.TOO_MANY_REFUSALS,
        Reason.CALLER_GONE,
    }
)
# Of a body, of one tool, and of what is charged for it.
OF_CALLS: Final = frozenset(
    {
        Reason.TOO_LARGE,
        Reason.UNSUPPORTED_MEDIA_TYPE,
        Reason.CONDITION_FALSE,
        Reason.TOOL_UNKNOWN,
        Reason.TOOL_DISABLED,
        Reason.PIN_MISMATCH,
        Reason.BAD_ARGUMENTS,
        Reason.SCHEMA_UNAVAILABLE,
        Reason.QUOTA_SPENT,
        Reason.TOO_MANY_CONCURRENT,
    }
)
LISTING: Final = frozenset(Reason) - ELSEWHERE - OF_CALLS
CALLING: Final = frozenset(Reason) - ELSEWHERE
_MODELS: Final = (McpTool, McpTools, McpCall, McpCallResult, McpError)
_WORDS: Final[Mapping[object, Mapping[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}


def document() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sidecar: plain calls",
            "version": __version__,
            "description": "Tools of MCP servers for scripts, under the policy, limits and audit that MCP callers are "
            "under. Paths are taken as they stand: nothing in them may be percent-encoded, and there are no queries.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080", "description": "the data listener"}],
        "security": [{"bearer": []}, {"apiKey": []}, {}],
        "paths": {
            "/mcp/{server}/tools": {"parameters": [_SERVER, *_CORRELATION], "get": _listing()},
            "/mcp/{server}/tools/{tool}": {"parameters": [_SERVER, _TOOL, *_CORRELATION], "post": _calling()},
        },
        "components": {
            "schemas": {model.__name__: _schema_of(model) for model in _MODELS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "a token, or an API key of ours"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _listing() -> dict[str, Any]:
    headers = _header("`no-store`: the list is this caller's", "Cache-Control")
    return {
        "operationId": "listTools",
        "summary": "The tools of a server that the caller may use",
        "responses": {
            "200": _good("all of them", "McpTools", headers),
            **_bad(LISTING),
        },
    }


def _calling() -> dict[str, Any]:
    return {
        "operationId": "callTool",
        "summary": "Call a tool, and wait for its whole result",
        "requestBody": {"required": True, "content": {JSON: {"schema": _ref("McpCall")}}},
        "responses": {"200": _good("the tool's result", "McpCallResult", {}), **_bad(CALLING)},
    }


_SERVER: Final[Mapping[str, Any]] = {
    "name": "server",
    "in": "path",
    "required": True,
    "description": "a server, by its name under `upstreams`",
    "schema": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
}
_TOOL: Final[Mapping[str, Any]] = {
    "name": "tool",
    "in": "path",
    "required": True,
    "description": "a tool, by its name. One with `/` in it is called by the path that this makes, each part beginning "
    "with no dot; OpenAPI has no way to say so",
    "schema": {"type": "string", "pattern": r"^[A-Za-z0-9_\-][A-Za-z0-9_.\-]*$", "maxLength": 128},
}
_CORRELATION: Final[tuple[Mapping[str, Any], ...]] = tuple(
    {
        "name": name,
        "in": "header",
        "description": "for the audit: recorded if it is 1 to 128 characters of A-Z a-z 0-9 . _ : -, and overlooked if "
        "not; never used to decide",
        "schema": {"type": "string"},
    }
    for name in ("X-Run-Id", "X-Thread-Id")
)


def _good(told: str, model: str, headers: Mapping[str, Any]) -> dict[str, Any]:
    answer = {"description": told, "content": {JSON: {"schema": _ref(model)}}}
    return {**answer, "headers": headers} if headers else answer


def _bad(reasons: frozenset[Reason]) -> dict[str, Any]:
    """The refusals by status, in order."""
    by_status: dict[int, list[Reason]] = {}
    for reason in Reason:
        if reason in reasons:
            by_status.setdefault(plain_status(ANSWERS[reason]), []).append(reason)
    return {str(status): _refused(status, by_status[status]) for status in sorted(by_status)}


def _refused(status: int, reasons: list[Reason]) -> dict[str, Any]:
    words = [reason.value for reason in reasons]
    if any(ANSWERS[reason].status == "permission_denied" for reason in reasons):
        words.append("denied")  # with `answers.disclosure: kind`
    told = [f"`{reason}`: {ANSWERS[reason].message}." for reason in reasons]
    if status == ERROR_STATUS:
        told.append("Without a reason: the tool, or its server, answered with an error; it is in `details`.")
    codes = dict.fromkeys(ANSWERS[reason].seed for reason in reasons)
    narrowed = {"status": {"const": status}, "error_code": {"enum": [*codes]}, "reason": {"enum": words}}
    schema = {"allOf": [_ref("McpError"), {"properties": narrowed}]}
    answer = {"description": " ".join(told), "content": {PROBLEM_JSON: {"schema": schema}}}
    headers = _headers(status)
    return {**answer, "headers": headers} if headers else answer


def _headers(status: int) -> dict[str, Any]:
    if status in (401, 403):
        return _header("how to authenticate, or for which scope", "WWW-Authenticate", required=status == 401)
    if status not in (429, 503):
        return {}
    whole = {"type": "string", "pattern": "^[0-9]+$"}
    headers = _header("when to come again, in seconds", "Retry-After", required=True, schema=whole)
    if status == 429:
        headers |= _header("where the limit stands", "RateLimit", "RateLimit-Policy")
    return headers


def _header(told: str, *names: str, required: bool = False, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    header = {"description": told, "required": required, "schema": dict(schema or {"type": "string"})}
    return dict.fromkeys(names, header)


def _ref(model: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model}"}


def _schema_of(model: type) -> dict[str, Any]:
    """The JSON Schema of a dataclass: a field with a default may be missing."""
    hints = get_type_hints(model, include_extras=True)
    properties, needed = {}, []
    for each in fields(model):
        inner, told = get_args(hints[each.name])
        if each.default is None:  # then it is left out
            inner = get_args(inner)[0]
        properties[each.name] = {**_shape(inner), "description": told}
        if each.default is MISSING and model is not McpCall:
            needed.append(each.name)
    shape = {"type": "object", "description": model.__doc__, "properties": properties, "required": needed}
    if model is McpError:  # narrowed by status
        return shape
    return {**shape, "additionalProperties": False}


def _shape(hint: object) -> dict[str, Any]:
    if hint in _WORDS:
        return dict(_WORDS[hint])
    if hint in _MODELS:
        return dict(_ref(hint.__name__))
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inside)}
    if origin is UnionType:  # a | None
        schema = _shape(inside[0])
        return {**schema, "type": [schema["type"], "null"]}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object"}
    return {"type": "array", "items": _shape(inside[0])}
