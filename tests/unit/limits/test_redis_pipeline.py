"""Is a way that is slow told from one that is gone?

The server is real, and late because a command before keeps it: a blocking one holds up what its connection asks next.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis import Redis

from sidecar.limits.redis_pipeline import PipelineLate, PipelineLost, RedisPipeline
from sidecar.limits.topology import finder_of
from sidecar.settings.store import StoreSettings
from tests.valkey import Valkey


@asynccontextmanager
async def wired(valkey: Valkey, deadline_s: float) -> AsyncIterator[RedisPipeline]:
    finder = finder_of(StoreSettings(url=valkey.url))
    wire = RedisPipeline(await finder.find(), deadline_s, lambda wire: None)
    try:
        yield wire
    finally:
        await wire.close()
        await finder.close()


async def test_one_late_reply_among_others_is_refused_alone_and_dropped_when_it_comes(fresh_valkey: Valkey) -> None:
    async with wired(fresh_valkey, 0.3) as wire:
        first, late = wire.ask("BLPOP", "nothing", "0.05"), wire.ask("BLPOP", "nothing", "0.3")
        assert await first is None
        with pytest.raises(PipelineLate):
            await late
        assert await wire.ask("PING") in (b"PONG", "PONG") and not wire.ended, "and nothing is out of step"


async def test_where_nothing_is_heard_the_connection_is_condemned_at_once(fresh_valkey: Valkey) -> None:
    async with wired(fresh_valkey, 0.05) as wire:
        await wire.ask("PING")
        await asyncio.sleep(0.01)
        asked = [wire.ask("BLPOP", "nothing", "0.2"), wire.ask("PING")]
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [PipelineLost, PipelineLost] and wire.ended


async def test_who_is_always_late_is_not_waited_for(fresh_valkey: Valkey) -> None:
    async with wired(fresh_valkey, 0.05) as wire:
        asked = [wire.ask("BLPOP", "nothing", "0.03")]
        async with asyncio.timeout(30):
            while not wire.ended:
                asked.append(wire.ask("BLPOP", "nothing", "0.03"))
                await asyncio.sleep(0.01)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert any(isinstance(end, PipelineLate) for end in ends), "some others were answered meanwhile"


HELD_S = 0.4  # beyond each deadline below


@pytest.mark.parametrize(
    ("deadline_s", "sent"), [(0.05, True), (0.3, False)], ids=["while the reply lay in the socket", "before it sent"]
)
async def test_a_loop_that_was_held_refuses_nothing(fresh_valkey: Valkey, deadline_s: float, sent: bool) -> None:
    async with wired(fresh_valkey, deadline_s) as wire:
        asked = [wire.ask("BLPOP", "nothing", "0.01" if sent else "0.1"), wire.ask("PING")]
        if sent:
            await asyncio.sleep(0.005)
        time.sleep(HELD_S)
        assert await asyncio.gather(*asked) == [None, b"PONG"] and not wire.ended


async def test_a_loop_that_is_held_all_the_time_hears_every_reply(fresh_valkey: Valkey) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def hold() -> None:
        time.sleep(0.03)
        if not over.is_set():
            loop.call_soon(hold)

    async with wired(fresh_valkey, 0.05) as wire:
        loop.call_soon(hold)
        for _ in range(4):
            assert await asyncio.gather(*[wire.ask("PING") for _ in range(10)]) == [b"PONG"] * 10
        over.set()
        assert not wire.ended


async def test_a_held_loop_still_notices_a_store_that_is_silent(fresh_valkey: Valkey) -> None:
    async with wired(fresh_valkey, 0.05) as wire:
        await wire.ask("PING")
        with fresh_valkey.frozen():
            asked = wire.ask("PING")
            await asyncio.sleep(0.005)
            time.sleep(HELD_S)
            with pytest.raises(PipelineLost):
                await asked


async def test_what_cannot_be_sent_is_not_waited_for(fresh_valkey: Valkey, client: Redis) -> None:
    """The store reads nothing more, and the piece that it does not take is nobody's any more."""
    async with wired(fresh_valkey, 0.05) as wire:
        await wire.ask("PING")
        with fresh_valkey.frozen():
            wire.ask("ECHO", b"x" * (4 * 2**20)).cancel()
            await asyncio.sleep(0.1)
            with pytest.raises(PipelineLost):
                async with asyncio.timeout(5):
                    await wire.ask("PING")
        while len(client.client_list()) > 1:  # ours ends once the rest was taken
            await asyncio.sleep(0.01)
