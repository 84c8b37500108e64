"""What do callers hear while the shared store is away, and how soon is it used again?

Never 429, never a long wait: the first calls spend their deadline, those after them wait for nothing.
"""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.limits import Limiter, LimitPlan
from sidecar.limits.redis_store import RedisCounters
from sidecar.limits.topology import finder_of
from sidecar.settings.store import DEADLINE_S, StoreSettings
from tests.flow.world import PATIENCE_S, until
from tests.unit.limits.stages import charge
from tests.valkey import Valkey, running_valkey

LIMITS = LimitPlan((charge("hour", 1000), charge("concurrency", 1000)))
HOLD_S = 0.1  # how long an emptied store is held is asked in unit/limits/test_forgetting.py


@contextmanager
def killed(valkey: Valkey) -> Iterator[None]:
    valkey.server.terminate()
    try:
        yield
    finally:
        valkey.server.start()


@asynccontextmanager
async def opened(url: str, deadline_s: float = 0.4) -> AsyncIterator[Limiter]:
    limiter = Limiter(RedisCounters(finder_of(StoreSettings(url=url)), deadline_s=deadline_s, hold_s=HOLD_S))
    try:
        yield limiter
    finally:
        await limiter.close()


async def call(limiter: Limiter, number: int) -> Reason | None:
    """One forwarded call; why it was refused, if it was."""
    try:
        async with limiter.reserve(LIMITS, f"call-{number}") as lease:
            lease.forwarded = True
    except Refusal as refusal:
        return refusal.reason
    return None


async def are_refused_at_once(limiter: Limiter) -> None:
    """One call learns of the outage, one that there is no way back yet; those after them wait for nothing."""
    heard = [await call(limiter, number) for number in range(1, 3)]
    for number in range(3, 40):
        asked = asyncio.create_task(call(limiter, number))
        await asyncio.sleep(0)  # its one turn of the loop
        assert asked.done()
        heard.append(asked.result())
    assert set(heard) == {Reason.STORE_UNAVAILABLE} and not limiter.store.up


async def until_it_serves(limiter: Limiter) -> None:
    async with asyncio.timeout(PATIENCE_S):
        number = 10_000
        while await call(limiter, number):
            number += 1
            await asyncio.sleep(0.02)
    assert limiter.store.up


@pytest.mark.parametrize("outage", [killed, Valkey.frozen], ids=["killed", "frozen"])
async def test_an_outage_is_told_at_once_and_ends_by_itself(
    valkey: Valkey, outage: Callable[[Valkey], AbstractContextManager[None]]
) -> None:
    """BL-024."""
    assert DEADLINE_S < 0.1, "what one call may cost"
    async with opened(valkey.url) as limiter:
        await until_it_serves(limiter)
        with outage(valkey):
            await are_refused_at_once(limiter)
        await until_it_serves(limiter)


async def test_callers_in_flight_hear_of_an_outage_together(valkey: Valkey) -> None:
    """BL-024, under load; what a frozen store had already received is given back."""
    with valkey.client() as client:
        client.flushall()
    async with opened(valkey.url) as limiter:
        await limiter.store.ping()
        with valkey.frozen():
            async with asyncio.timeout(PATIENCE_S / 2):  # one after another they would take longer
                reasons = await asyncio.gather(*(call(limiter, number) for number in range(64)))
            assert set(reasons) == {Reason.STORE_UNAVAILABLE}
        await until_it_serves(limiter)
        await limiter.store.ping()
        with valkey.client() as client:
            assert int(client.hget("{sidecar}:hour:a", "n") or 0) == 1
            assert client.zcard("{sidecar}:concurrency:a") == 0


async def test_a_network_that_swallows_everything_costs_no_more_than_the_promise() -> None:
    """BL-024, a black hole."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)  # nobody accepts: once this queue is full, the kernel drops who knocks
        address = listener.getsockname()
        crowd = [socket.socket() for _ in range(3)]
        for knocker in crowd:
            knocker.setblocking(False)
            knocker.connect_ex(address)
        try:
            async with opened(f"redis://127.0.0.1:{address[1]}") as limiter:
                await are_refused_at_once(limiter)
        finally:
            for knocker in crowd:
                knocker.close()


async def test_a_store_that_is_absent_at_first_is_used_as_soon_as_it_is_there() -> None:
    with tempfile.TemporaryDirectory(prefix="valkey") as folder:
        path = Path(folder) / "later"
        async with opened(f"unix://{path}") as limiter:
            await are_refused_at_once(limiter)
            with running_valkey() as valkey:
                path.symlink_to(valkey.path)
                await until_it_serves(limiter)


async def test_scripts_that_are_flushed_and_a_store_that_restarts_cost_a_moment(valkey: Valkey) -> None:
    """BL-041, under load: an outage is told as one, and then everything is as before."""
    over = asyncio.Event()
    heard: list[Reason | None] = []

    async def calls(limiter: Limiter, worker: int) -> None:
        number = 0
        while not over.is_set():
            heard.append(await call(limiter, 1_000_000 * worker + number))
            number += 1
            await asyncio.sleep(0.002)

    async with opened(valkey.url, deadline_s=10.0) as limiter, asyncio.TaskGroup() as load:
        await limiter.store.ping()
        for worker in range(1, 9):
            load.create_task(calls(limiter, worker))
        for _ in range(3):
            with valkey.client() as client:
                client.script_flush()
            await asyncio.sleep(0.05)
        assert set(heard) == {None}, "forgotten scripts cost nothing"
        await asyncio.to_thread(valkey.restart)
        await until_it_serves(limiter)
        await until(lambda: heard[-50:] == [None] * 50)  # and nobody had to restart us
        over.set()
