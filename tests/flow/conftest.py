"""Fixtures of the flow tests: a whole sidecar, real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.flow.world import World, world


@pytest_asyncio.fixture
async def planner(tmp_path: Path) -> AsyncIterator[World]:
    """A sidecar whose caller is nhi:planner, before a scripted upstream called github."""
    async with world(tmp_path) as running:
        yield running
