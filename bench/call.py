"""Which call is measured, and what does its answer look like?

A stateless-era `tools/call` (MCP 2026-07-28) of ordinary size: its answer is a search result. The id never changes,
so that the upstream's answer can be one constant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SERVER = "bench"
TOOL = "search_code"
VERSION = "2026-07-28"
ID = 1
TTL_MS = 3_600_000  # the list of tools is learned once, before the measurement

_META = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
ARGUMENTS: Mapping[str, Any] = {
    "repo": "acme/site",
    "query": "def handle(request) language:python",
    "limit": 20,
    "sort": "updated",
    "labels": ["backend", "gateway"],
}
INPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "repo": {"type": "string", "pattern": "^[a-z0-9-]+/[a-z0-9-]+$", "maxLength": 100},
        "query": {"type": "string", "minLength": 1, "maxLength": 400},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "sort": {"enum": ["updated", "created", "relevance"]},
        "labels": {"type": "array", "items": {"type": "string", "maxLength": 50}, "maxItems": 20},
    },
    "required": ["repo", "query"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Post:
    """One HTTP request, repeated by the load."""

    url: str
    headers: Mapping[str, str]
    body: str
    method: str = "POST"


def post_to(url: str, token: str = "") -> Post:
    """The measured call, sent to `url`, with a bearer token where one is needed."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": TOOL,
    }
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return Post(url, headers, _compact(_request("tools/call", {"name": TOOL, "arguments": ARGUMENTS, "_meta": _META})))


def answer_to(method: str, request_id: object) -> str:
    """What the upstream answers to any method that the sidecar asks it."""
    return _compact({"jsonrpc": "2.0", "id": request_id, "result": _RESULTS.get(method, {})})


def _request(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"jsonrpc": "2.0", "id": ID, "method": method, "params": params}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _found(number: int) -> Mapping[str, Any]:
    return {"path": f"src/gateway/handlers/part_{number}.py", "line": 17 * number, "text": "async def handle(request):"}


_HITS = [_found(number) for number in range(1, 6)]
_TOOLS = [
    {"name": name, "description": "Searches.", "inputSchema": INPUT_SCHEMA}
    for name in (TOOL, *(f"search_{number}" for number in range(19)))
]
_RESULTS: Mapping[str, Mapping[str, Any]] = {
    "tools/call": {
        "resultType": "complete",
        "content": [{"type": "text", "text": _compact(_HITS)}],
        "structuredContent": {"hits": _HITS},
        "isError": False,
    },
    "tools/list": {"resultType": "complete", "tools": _TOOLS, "ttlMs": TTL_MS, "cacheScope": "public"},
    "server/discover": {
        "resultType": "complete",
        "supportedVersions": [VERSION],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": SERVER, "version": "1"},
        "ttlMs": TTL_MS,
        "cacheScope": "public",
    },
}
