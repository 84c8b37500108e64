"""What programs are started by: one warden for all tests of a module."""

from collections.abc import AsyncIterator

import pytest_asyncio

from sidecar.upstreams.processes.launcher import Processes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes() -> AsyncIterator[Processes]:
    processes = Processes({})
    yield processes
    await processes.close()
