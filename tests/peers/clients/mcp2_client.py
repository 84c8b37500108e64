"""The official Python SDK, 2.x: its high-level client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp import Client
from play import OfSdk, run


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[OfSdk]:
    async with Client(url) as client:
        yield OfSdk(client)


run(opened)
