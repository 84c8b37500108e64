"""Strands Agents: its MCP client, whose tool results go to the model as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.client.streamable_http import streamable_http_client
from play import OnProgress, Told, reporting, run
from strands.tools.mcp import MCPClient


class Strands:
    def __init__(self, client: MCPClient) -> None:
        self._client = client

    async def names(self) -> list[str]:
        return [tool.tool_name for tool in self._client.list_tools_sync()]

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        heard = reporting(on_progress)
        result = await self._client.call_tool_async("1", tool, arguments, progress_callback=heard)
        return Told(" ".join(part.get("text", "") for part in result["content"]), result["status"] == "error")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Strands]:
    with MCPClient(lambda: streamable_http_client(url)) as client:
        yield Strands(client)


run(opened)
