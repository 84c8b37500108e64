"""Which stores do the tests run against, and who moves their clock?"""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis

from sidecar.limits.redis_store import RedisCounters
from tests.unit.limits.stages import Stage, memory_stage, opened, redis_stage
from tests.valkey import Valkey, running_valkey


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@pytest.fixture
def fresh_valkey(valkey: Valkey) -> Valkey:
    with valkey.client() as client:
        client.flushall()
        client.script_flush()
    return valkey


@pytest.fixture
def client(fresh_valkey: Valkey) -> Iterator[Redis]:
    with fresh_valkey.client() as client:
        yield client


@pytest.fixture
async def store(fresh_valkey: Valkey) -> AsyncIterator[RedisCounters]:
    async with opened(fresh_valkey.url) as store:
        yield store


@pytest.fixture(params=["memory", "redis"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """Every contract test runs over both stores, on a clock that stands still until it is moved."""
    if request.param == "memory":
        yield memory_stage()
        return
    valkey: Valkey = request.getfixturevalue("fresh_valkey")
    stage = redis_stage(valkey)
    yield stage
    await stage.store.close()
