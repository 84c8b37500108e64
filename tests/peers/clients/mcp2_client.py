"""The official Python SDK, 2.x: its high-level client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client
from play import OnProgress, Told, run


class Official:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self._client.list_tools()).tools]

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress, total)

        result = await self._client.call_tool(tool, arguments, progress_callback=heard)
        return Told(" ".join(getattr(part, "text", "") for part in result.content), bool(result.is_error))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Official]:
    async with Client(url) as client:
        yield Official(client)


run(opened)
