"""LangChain's MCP adapters: its tools in one session, called as a tool node calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain_mcp_adapters.callbacks import CallbackContext, Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from mcp import ClientSession
from play import OnProgress, Told, nothing, run


class Chain:
    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._on_progress: OnProgress = nothing

    async def _heard(self, progress: float, total: float | None, message: str | None, context: CallbackContext) -> None:
        self._on_progress(progress, total)

    async def _tools(self) -> dict[str, Any]:
        callbacks = Callbacks(on_progress=self._heard)
        return {tool.name: tool for tool in await load_mcp_tools(self._session, callbacks=callbacks)}

    async def names(self) -> list[str]:
        return list(await self._tools())

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        self._on_progress = on_progress
        called = {"type": "tool_call", "id": "1", "name": tool, "args": arguments}
        message = await (await self._tools())[tool].ainvoke(called)
        return Told(message.text, message.status == "error")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Chain]:
    client = MultiServerMCPClient({"demo": {"transport": "streamable_http", "url": url}})
    async with client.session("demo") as session:
        yield Chain(session)


run(opened)
