"""Request and response models of the plain addresses.

The names are the seed's. McpError is `error_responses.McpError`, because every refusal outside of a protocol is one.
The text beside a field appears in the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool that the caller may use. What is None is left out."""

    name: Annotated[str, "what it is called by, in the path as it stands"]
    description: Annotated[str | None, "what the server says of it"]
    input_schema: Annotated[Mapping[str, Any], "the JSON Schema of its arguments"]
    status: Annotated[Literal["active"], "what is disabled, quarantined or not as pinned is not listed"]
    deprecated: Annotated[bool, "whether the server says so, in the tool's annotations or in its schema"]
    tags: Annotated[Sequence[str] | None, "the server's words for its kind, in the definition or its `_meta`"] = None
    metadata: Annotated[Mapping[str, Any] | None, "what the server says beside: `metadata`, else `_meta`"] = None


@dataclass(frozen=True, slots=True)
class McpTools:
    """All tools of a server that the caller may use."""

    tools: Annotated[Sequence[McpTool], "in the server's order"]


class McpCall(TypedDict):
    """What a tool is called with."""

    arguments: NotRequired[Annotated[Mapping[str, Any], "as its schema wants them; nothing is as good as {}"]]


@dataclass(frozen=True, slots=True)
class McpCallResult:
    """What a call came to."""

    call_id: Annotated[str, "the call's id in the audit, where it is called decision_id"]
    result: Annotated[Mapping[str, Any], "the tool's result as MCP has it: content, structuredContent"]
    latency_ms: Annotated[float, "how long the server took"]
