"""Connects a command directly to an upstream, without a running sidecar."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.settings import Settings
from sidecar.upstreams import McpTransport, signer_from, upstream_from
from sidecar.upstreams.processes import Processes


@asynccontextmanager
async def reached(settings: Settings, server: str) -> AsyncIterator[McpTransport]:
    """Connect to the MCP server of that name; connections and processes end with the block."""
    processes = Processes(os.environ)
    try:
        upstream = upstream_from(
            server,
            settings.upstreams[server],
            max_response_bytes=settings.server.max_response_bytes,
            processes=processes,
            signer=signer_from(settings, settings.base_url, make=False),
        )
        try:
            yield upstream
        finally:
            await upstream.close()
    finally:
        await processes.close()
