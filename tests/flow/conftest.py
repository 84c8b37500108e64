"""Fixtures of the flow tests: a whole sidecar, real sockets."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.flow import forks
from tests.flow.guests import gateway, gone
from tests.flow.streams import Emitter
from tests.flow.world import Upstream, World, world


@pytest_asyncio.fixture
async def planner(tmp_path: Path) -> AsyncIterator[World]:
    """A sidecar whose caller is nhi:planner, before a scripted upstream called github."""
    async with world(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway whose upstream keeps GET streams open."""
    upstream = Upstream(script={"GET": Emitter().listen, "DELETE": gone})
    async with gateway(tmp_path, upstream=upstream) as running:
        yield running


@pytest.fixture(scope="session")
def commands() -> Path:
    """A folder for PATH whose `sidecar` starts at once."""
    return Path(forks.sidecar()).parent
