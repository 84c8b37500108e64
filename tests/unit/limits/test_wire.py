"""Is a way that is slow told from one that is gone?

The server is real, and late because a command before keeps it: a blocking one holds up what its connection asks next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.limits.nodes import finder_of
from sidecar.limits.wire import LATE_FOR, Wire, WireLate, WireLost
from sidecar.settings.store import StoreSettings
from tests.valkey import Valkey


@asynccontextmanager
async def wired(valkey: Valkey, deadline_s: float) -> AsyncIterator[Wire]:
    finder = finder_of(StoreSettings(url=valkey.url))
    wire = Wire(await finder.find(), deadline_s, lambda wire: None)
    try:
        yield wire
    finally:
        await wire.close()
        await finder.close()


async def test_one_late_reply_among_others_is_refused_alone_and_dropped_when_it_comes(fresh_valkey: Valkey) -> None:
    async with wired(fresh_valkey, 0.3) as wire:
        first, late = wire.ask("BLPOP", "nothing", "0.05"), wire.ask("BLPOP", "nothing", "0.3")
        assert await first is None
        with pytest.raises(WireLate):
            await late
        assert await wire.ask("PING") in (b"PONG", "PONG") and not wire.ended, "and nothing is out of step"


async def test_where_nothing_is_heard_the_connection_is_condemned_at_once(fresh_valkey: Valkey) -> None:
    async with wired(fresh_valkey, 0.05) as wire:
        await wire.ask("PING")
        await asyncio.sleep(0.01)
        asked = [wire.ask("BLPOP", "nothing", "0.2"), wire.ask("PING")]
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [WireLost, WireLost] and wire.ended


async def test_who_is_always_late_is_not_waited_for(fresh_valkey: Valkey) -> None:
    loop = asyncio.get_running_loop()
    async with wired(fresh_valkey, 0.05) as wire:
        asked, began_s = [wire.ask("BLPOP", "nothing", "0.03")], loop.time()
        while not wire.ended and loop.time() - began_s < 2:
            asked.append(wire.ask("BLPOP", "nothing", "0.03"))
            await asyncio.sleep(0.01)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert wire.ended and loop.time() - began_s < (LATE_FOR + 3) * 0.05 + 0.1
        assert any(isinstance(end, WireLate) for end in ends), "some others were answered meanwhile"
