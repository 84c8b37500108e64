"""OpenAI Agents: the function tools that its runner makes of a server's tools, called as the runner calls them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import Agent, RunContextWrapper
from agents.mcp import MCPServerStreamableHttp
from agents.mcp.util import MCPUtil
from agents.tool_context import ToolContext
from play import OnProgress, Told, run


class Runner:
    def __init__(self, server: MCPServerStreamableHttp) -> None:
        self._server = server

    async def _tools(self) -> dict[str, Any]:
        agent = Agent(name="planner", mcp_servers=[self._server])
        tools = await MCPUtil.get_function_tools(self._server, False, RunContextWrapper(None), agent)
        return {tool.name: tool for tool in tools}

    async def names(self) -> list[str]:
        return list(await self._tools())

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        text = json.dumps(arguments)
        context = ToolContext(None, tool_name=tool, tool_call_id="1", tool_arguments=text)
        heard = await (await self._tools())[tool].on_invoke_tool(context, text)
        parts = heard if isinstance(heard, list) else [heard]
        return Told(" ".join(part["text"] if isinstance(part, dict) else str(part) for part in parts))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Runner]:
    async with MCPServerStreamableHttp({"url": url}, client_session_timeout_seconds=30) as server:
        yield Runner(server)


run(opened)
