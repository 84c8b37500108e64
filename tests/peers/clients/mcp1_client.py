"""The official Python SDK, 1.x: its session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from play import OfSdk, run


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[OfSdk]:
    async with streamable_http_client(url) as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        yield OfSdk(session)


run(opened)
