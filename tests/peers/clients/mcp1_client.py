"""The official Python SDK, 1.x: its session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from play import OnProgress, Told, run


class Official:
    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self._session.list_tools()).tools]

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress, total)

        result = await self._session.call_tool(tool, arguments, progress_callback=heard)
        return Told(" ".join(getattr(part, "text", "") for part in result.content), bool(result.isError))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Official]:
    async with streamable_http_client(url) as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        yield Official(session)


run(opened)
