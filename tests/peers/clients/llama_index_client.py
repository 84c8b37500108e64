"""LlamaIndex: the tools that its MCP tool specification makes, called as its agents call them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llama_index.core.tools.calling import acall_tool
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec
from play import OnProgress, Told, run


class Llama:
    def __init__(self, url: str) -> None:
        self._specification = McpToolSpec(BasicMCPClient(url))

    async def _tools(self) -> dict[str, Any]:
        return {str(tool.metadata.name): tool for tool in await self._specification.to_tool_list_async()}

    async def names(self) -> list[str]:
        return list(await self._tools())

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        output = await acall_tool((await self._tools())[tool], arguments)
        return Told(output.content, output.is_error)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Llama]:
    yield Llama(url)


run(opened)
