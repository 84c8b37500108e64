"""Fixtures of the peer tests: the official SDK's server once, a sidecar before it for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from mcp.shared.exceptions import MCPDeprecationWarning

from tests.peers.stage import ALL, EVERYTHING, LITTLE, Stage, running, stage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sampling, roots and logging are deprecated, and still served."""
    deprecated = f"ignore::{MCPDeprecationWarning.__module__}.{MCPDeprecationWarning.__name__}"
    for item in items:  # all of the run's
        if item.nodeid.startswith("tests/peers/"):
            item.add_marker(pytest.mark.filterwarnings(deprecated))


@pytest.fixture(scope="session")
def everything() -> Iterator[str]:
    """The base URL of the official SDK's server."""
    with running(*EVERYTHING) as url:
        yield url


@pytest_asyncio.fixture
async def open_stage(tmp_path: Path, everything: str) -> AsyncIterator[Stage]:
    """nhi:planner may everything."""
    async with stage(tmp_path, everything, ALL) as on:
        yield on


@pytest_asyncio.fixture
async def shut_stage(tmp_path: Path, everything: str) -> AsyncIterator[Stage]:
    """nhi:planner may a little."""
    async with stage(tmp_path, everything, LITTLE) as on:
        yield on
