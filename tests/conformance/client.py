"""What does the official suite's client side ask of a client, played by the official SDK?

    python -m tests.conformance.client [--through] URL

The suite starts a server, names a scenario in the environment, and watches what arrives. With `--through` a sidecar is
started before that server first, and what arrives is the sidecar's.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext

from tests.conformance.sidecar import before

STATELESS = "2026-07-28"
Play = Callable[[str, str], Awaitable[None]]


def _mode() -> str:
    """Which era the suite's server speaks in this run."""
    return "auto" if os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", STATELESS) == STATELESS else "legacy"


async def _elicited(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """The user takes every default, and agrees to what has none."""
    properties = (
        params.requested_schema.get("properties", {}) if isinstance(params, types.ElicitRequestFormParams) else {}
    )
    return types.ElicitResult(action="accept", content={k: v.get("default", True) for k, v in properties.items()})


async def _sampled(context: ClientRequestContext, params: object) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text=""), model="none")


async def _roots(context: ClientRequestContext) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[])


def _least(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a schema asks for, at their smallest."""
    empty = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}
    properties = schema.get("properties", {})
    return {name: empty.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", [])}


def _calls(*calls: tuple[str, dict[str, Any]], **abilities: Any) -> Play:
    """List the tools, then make these calls."""

    async def play(url: str, mode: str) -> None:
        async with Client(url, mode=mode, **abilities) as client:
            await client.list_tools()
            for name, arguments in calls:
                await client.call_tool(name, arguments)

    return play


async def _every_tool(url: str, mode: str) -> None:
    async with Client(url, mode=mode) as client:
        for tool in (await client.list_tools()).tools:
            await _tried(client, tool.name, _least(tool.input_schema))


async def _the_suites_calls(url: str, mode: str) -> None:
    wanted = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls", [])
    async with Client(url, mode=mode) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        for call in wanted:
            if call["name"] in listed:
                await _tried(client, call["name"], call.get("arguments") or {})


async def _schema_echoed(url: str, mode: str) -> None:
    async with Client(url, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        await client.call_tool("json_schema_echo", {"schema": tools["json_schema_2020_12_tool"].input_schema})


async def _tried(client: Client, name: str, arguments: dict[str, Any]) -> None:
    try:
        await client.call_tool(name, arguments)
    except Exception as error:  # the suite judges what arrived, not what came of it
        print(f"{name}: {type(error).__name__}", file=sys.stderr)


_ADD = ("add_numbers", {"a": 5, "b": 3})
_ABLE = {"sampling_callback": _sampled, "list_roots_callback": _roots, "elicitation_callback": _elicited}
_ROUNDS = ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type")

SCENARIOS: Mapping[str, Play] = {
    "initialize": _calls(),
    "json-schema-ref-no-deref": _calls(),
    "json-schema-2020-12-preservation": _schema_echoed,
    "tools_call": _calls(_ADD),
    "sse-retry": _calls(("test_reconnection", {})),
    "request-metadata": _calls(_ADD, **_ABLE),
    "http-standard-headers": _every_tool,
    "http-invalid-tool-headers": _every_tool,
    "http-custom-headers": _the_suites_calls,
    "elicitation-sep1034-client-defaults": _calls(
        ("test_client_elicitation_defaults", {}), elicitation_callback=_elicited
    ),
    "sep-2322-client-request-state": _calls(*((name, {}) for name in _ROUNDS), elicitation_callback=_elicited),
}
# The suite names the stateless revision, and its server speaks the session era.
_LEGACY = frozenset({"json-schema-ref-no-deref"})


async def main(url: str, through: bool) -> None:
    """Play the scenario that the environment names."""
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    mode = "legacy" if scenario in _LEGACY else _mode()
    if not through:
        await SCENARIOS[scenario](url, mode)
        return
    with before({"suite": {"url": url}}) as sidecar:
        await SCENARIOS[scenario](f"{sidecar}/mcp/suite", mode)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1], "--through" in sys.argv))
