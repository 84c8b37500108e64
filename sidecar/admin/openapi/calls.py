"""OpenAPI paths of plain tool calls.

The paths are those of `gateway.routing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.admin.openapi.components import CORRELATION, PRIVATE, bad, good, header, taken
from sidecar.errors import Reason
from sidecar.gateway.frontends.rest import ERROR_STATUS, McpCall, McpCallResult, McpTool, McpTools

# Reasons of other protocols, methods and tasks, and those that no caller sees.
ELSEWHERE: Final = frozenset(
    {
        Reason.VERB_NOT_ALLOWED,
        Reason.NOT_ACCEPTABLE,
        Reason.VERSION_UNSUPPORTED,
        Reason.HEADER_MISMATCH,
        Reason.METHOD_UNKNOWN,
        Reason.SESSION_UNKNOWN,
        Reason.TASK_UNKNOWN,
        Reason.NOT_CANCELABLE,
        Reason.CALLER_GONE,
    }
)
# Reasons about a body, one tool, and what is charged for it.
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
        Reason.BUDGET_SPENT,
        Reason.TOO_MANY_CONCURRENT,
    }
)
LISTING: Final = frozenset(Reason) - ELSEWHERE - OF_CALLS
CALLING: Final = frozenset(Reason) - ELSEWHERE
_ALSO: Final[Mapping[int, str]] = {
    ERROR_STATUS: "Without a reason: the tool, or its server, answered with an error; it is in `details`."
}
MODELS: Final = (McpTool, McpTools, McpCall, McpCallResult)


def paths() -> dict[str, Any]:
    """The paths of tool calls."""
    return {
        "/mcp/{server}/tools": {"parameters": [_SERVER, *CORRELATION], "get": _listing()},
        "/mcp/{server}/tools/{tool}": {"parameters": [_SERVER, _TOOL, *CORRELATION], "post": _calling()},
    }


def _listing() -> dict[str, Any]:
    return {
        "operationId": "listTools",
        "summary": "The tools of a server that the caller may use",
        "responses": {"200": good("all of them", McpTools, header(PRIVATE, "Cache-Control")), **bad(LISTING, _ALSO)},
    }


def _calling() -> dict[str, Any]:
    return {
        "operationId": "callTool",
        "summary": "Call a tool, and wait for its whole result",
        "requestBody": taken(McpCall),
        "responses": {"200": good("the tool's result", McpCallResult, {}), **bad(CALLING, _ALSO)},
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
