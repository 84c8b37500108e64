"""Determines the MCP revision of a message, and checks its headers against its body.

In *session revisions* (2024-11-05 to 2025-11-25), a client sends `initialize` first, and then its `Mcp-Session-Id`. In
*stateless revisions* (2026-07-28), every body names the revision, and headers mirror the method, the name and some
arguments. Decisions use the body, and the forwarded headers are made from it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Notification, Request, malformed

STATELESS_VERSIONS = ("2026-07-28",)
SESSION_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_SET = frozenset(STATELESS_VERSIONS)
ALL_VERSIONS = (*STATELESS_VERSIONS, *reversed(SESSION_VERSIONS))
SESSION_VERSIONS_SET = frozenset(SESSION_VERSIONS)

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"
META_CLIENT = "io.modelcontextprotocol/clientInfo"
META_LEVEL = "io.modelcontextprotocol/logLevel"
META_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
UNSUPPORTED_VERSION, HEADER_MISMATCH = -32022, -32020

VERSION_HEADER = "mcp-protocol-version"
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",  # this and the next two belong to the extension for tasks
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_DECIMAL = re.compile(r"(-?[0-9]{1,20})(?:\.0+)?\Z")  # integers compare as numbers: 42 is 42.0
_CODED_START = "=?base64?"
_CODED = re.compile(r"=\?base64\?(.*)\?=\Z", re.DOTALL)
_MAX_HEADER_CHARS = 8 * 1024
_NO_META: Mapping[str, Any] = {}  # read-only by its type

Headers = Mapping[str, tuple[str, ...]]
"""Every header line, by lower-case name, in the order received."""


class Era(StrEnum):
    SESSION = "session"
    STATELESS = "stateless"


SESSION, STATELESS = Era.SESSION, Era.STATELESS  # finding the members of an enumeration is slow


def version_of(headers: Headers, message: Request | Notification) -> tuple[Era, str]:
    """The kind and revision of one message. `(SESSION, "")` means that the session determines the revision.

    Raises Refusal: HEADER_MISMATCH if the header occurs twice or does not match the body, VERSION_UNSUPPORTED for an
    unknown revision, MALFORMED_CALL if only the header names a stateless revision."""
    lines, meta = headers.get(VERSION_HEADER, ()), message.params.get("_meta", _NO_META)
    named = meta.get(META_VERSION)
    if lines == (named,):
        if named not in STATELESS_SET:
            raise unsupported(named, STATELESS_VERSIONS)
        return STATELESS, named
    if len(lines) > 1:
        raise _ambiguous("MCP-Protocol-Version")
    if META_VERSION in meta:
        raise _mismatch("MCP-Protocol-Version does not match the body's protocolVersion")
    header = lines[0] if lines else None
    if message.method == "initialize":  # the revision is negotiated in its body
        return SESSION, header if header in SESSION_VERSIONS_SET else ""
    if header in STATELESS_SET:  # only the header: MCP 2026-07-28 also requires the metadata
        raise malformed(f"params._meta must name {META_VERSION}", INVALID_PARAMS)
    if header is not None and header not in SESSION_VERSIONS_SET:
        raise unsupported(header)
    return SESSION, header or ""


def names_stateless(headers: Headers, message: Request | Notification) -> bool:
    """Whether the body names any revision, or the header a stateless one: a refusal then has the form of stateless
    revisions."""
    if META_VERSION in message.params.get("_meta", _NO_META):
        return True
    return message.method != "initialize" and not STATELESS_SET.isdisjoint(headers.get(VERSION_HEADER, ()))


def speaks_stateless(headers: Headers, envelope: object) -> bool:
    """Like `names_stateless`, for a JSON value that may not be a message."""
    params = envelope.get("params") if isinstance(envelope, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    named = isinstance(meta, dict) and META_VERSION in meta
    return named or not STATELESS_SET.isdisjoint(headers.get(VERSION_HEADER, ()))


def check_routing(headers: Headers, message: Request | Notification) -> None:
    """Checks `Mcp-Method` and `Mcp-Name` of a message of a stateless revision. Raises Refusal(HEADER_MISMATCH) if one
    is missing, occurs twice, or does not match the body (MCP 2026-07-28)."""
    method, lines = message.method, headers.get("mcp-method", ())
    if lines != (method,):
        raise _ambiguous("Mcp-Method") if len(lines) > 1 else _mismatch("Mcp-Method does not match the body's method")
    key = _NAMED_BY.get(method)
    if key is None:
        return
    lines = headers.get("mcp-name", ())
    value: Any = message.params.get(key)
    if lines == (value,) and len(value) <= _MAX_HEADER_CHARS and not value.startswith(_CODED_START):
        return
    if len(lines) > 1:
        raise _ambiguous("Mcp-Name")
    if not lines or _decoded(lines[0], "Mcp-Name") != value:
        raise _mismatch(f"Mcp-Name does not match the body's {key}")


def name_of(message: Request) -> str | None:
    """The value of `Mcp-Name` for a decided message; None if its method has no such header."""
    key = _NAMED_BY.get(message.method)
    return None if key is None else message.params[key]


def routing_headers(method: str, name: str | None) -> list[tuple[str, str]]:
    """The mirrored headers of a decided message in a stateless revision. `name` is that of `name_of`."""
    headers = [("Mcp-Method", method)]
    if name is not None:
        headers.append(("Mcp-Name", encoded_header(name)))
    return headers


def check_parameter_headers(
    headers: Headers, declared: Mapping[str, Sequence[str]], arguments: Mapping[str, Any]
) -> None:
    """Checks `Mcp-Param-*` against the arguments that they mirror. `declared` maps the rest of the header's name, as
    written in the schema, to the path of the argument. Raises Refusal(HEADER_MISMATCH) if one occurs twice, does not
    match, or if only one of the header and the argument is there."""
    for name, path in declared.items():
        lines = headers.get(f"mcp-param-{name.lower()}", ())
        if len(lines) > 1:
            raise _ambiguous(f"Mcp-Param-{name}")
        given = _decoded(lines[0], f"Mcp-Param-{name}") if lines else None
        if not _mirrors(given, _at(arguments, path)):
            raise _mismatch(f"Mcp-Param-{name} does not match the body's argument")


def parameter_headers(declared: Mapping[str, Sequence[str]], arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The forwarded `Mcp-Param-*`, made from the arguments, whatever the revision of the caller."""
    mirrored = ((name, _at(arguments, path)) for name, path in declared.items())
    return [(f"Mcp-Param-{name}", encoded_header(_text(value))) for name, value in mirrored if value is not None]


def encoded_header(value: str) -> str:
    """A value as a header: unchanged if it is printable ASCII without blanks at its ends, otherwise in the base64 form
    of MCP 2026-07-28."""
    plain = value.isascii() and value.isprintable() and value == value.strip() and value != ""
    if plain and not _CODED.match(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def _decoded(value: str, name: str) -> str:
    if len(value) > _MAX_HEADER_CHARS:
        raise _mismatch(f"{name} is too long")
    if (match := _CODED.match(value)) is None:
        return value
    coded = match[1]
    try:
        raw = base64.b64decode(coded, validate=True)
        if base64.b64encode(raw).decode() != coded:
            raise _mismatch(f"{name} is not canonical base64")
        return raw.decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _mismatch(f"{name} is not base64 of UTF-8") from None


def _at(arguments: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = arguments
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _mirrors(given: str | None, value: object) -> bool:
    if value is None or given is None:
        return value is None and given is None
    if isinstance(value, str | bool):
        return given == _text(value)
    match = _DECIMAL.match(given)
    return isinstance(value, int | float) and match is not None and int(match[1]) == value


def _ambiguous(name: str) -> Refusal:
    """The refusal of a header that occurs twice: some readers use the first, others the last."""
    return _mismatch(f"{name} appears more than once")


def _mismatch(detail: str) -> Refusal:
    return Refusal(Reason.HEADER_MISMATCH, detail)


def unsupported(requested: str, supported: Sequence[str] = ALL_VERSIONS) -> Refusal:
    """The refusal of the revision `requested`. `supported` are the revisions in the answer: to a stateless request
    those of `server/discover`, as the official suite requires, and to any other request all revisions."""
    return Refusal(Reason.VERSION_UNSUPPORTED, data={"supported": [*supported], "requested": requested})
