"""A store whose clock the test moves.

Redis' own clock cannot be moved, so the test runs another build of the scripts: the one line that reads TIME reads a
list that the test writes. Everything else in them is what is shipped.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import Kind, LimitCharge
from sidecar.limits.redis_store import RedisCounters, scripts_from, shipped
from sidecar.limits.store import REMEMBER_S, CounterStore, StoreObserver
from sidecar.limits.topology import finder_of
from sidecar.settings.store import StoreSettings
from tests.valkey import Valkey

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
MONTH_US = 31 * DAY_US  # no month is longer
START_US = 1_795_824_000_000_000  # 2026-11-28T00:00:00Z, a midnight
LEASE_S = 60.0
CLOCK = "{sidecar}:test-clock"


@dataclass
class Stage:
    """A store and its clock, in µs since the epoch."""

    store: CounterStore
    announce: Callable[[int], None] = lambda _: None
    now_us: int = field(default=START_US)

    def to(self, now_us: int) -> None:
        self.now_us = now_us
        self.announce(now_us)

    async def settled(self) -> None:
        """Until everything said so far has been done: replies come in order."""
        await self.store.ping()

    def wait(self, duration_us: int) -> None:
        self.to(self.now_us + duration_us)


def memory_stage(max_counters: int = 1000, remember_s: float = REMEMBER_S) -> Stage:
    store = MemoryCounters(
        lambda: stage.now_us / 1e6, lease_s=LEASE_S, max_counters=max_counters, remember_s=remember_s
    )
    stage = Stage(store)
    return stage


def redis_stage(valkey: Valkey) -> Stage:
    def announce(now_us: int) -> None:
        with valkey.client() as client:
            client.delete(CLOCK)
            client.rpush(CLOCK, now_us // 1_000_000, now_us % 1_000_000)

    finder = finder_of(StoreSettings(url=valkey.url))
    store = RedisCounters(finder, lease_s=LEASE_S, deadline_s=2.0, scripts=ON_TEST_CLOCK)
    stage = Stage(store, announce)
    stage.to(START_US)
    return stage


def on_test_clock(name: str) -> str:
    text, real = shipped(name), "redis.call('TIME')"
    assert text.count(real) == (name in ("admit.lua", "settle.lua", "restore.lua"))
    return text.replace(real, f"redis.call('LRANGE', '{CLOCK}', 0, -1)")


ON_TEST_CLOCK = scripts_from(on_test_clock)


def charge(
    kind: Kind, most: int, name: str = "a", interval_us: int = 0, amount: int = 1, unit: str = ""
) -> LimitCharge:
    key = f"{kind}:{name}"
    return LimitCharge(f"test:{name}:{kind}", kind, key, most, amount=amount, interval_us=interval_us, unit=unit)


class Listening(StoreObserver):
    """Counts what the store could not be told."""

    def __init__(self) -> None:
        self.missed: Counter[str] = Counter()

    def untold(self, counts: Mapping[str, int]) -> None:
        self.missed.update(counts)


@asynccontextmanager
async def opened(
    url: str, deadline_s: float = 2.0, observer: StoreObserver | None = None, **settings: Any
) -> AsyncIterator[RedisCounters]:
    """A shared store that is patient with a busy test machine."""
    finder = finder_of(StoreSettings(url=url, **settings))
    store = RedisCounters(finder, deadline_s=deadline_s, hold_s=0.0, observer=observer or StoreObserver())
    try:
        yield store
    finally:
        await store.close()


class Between:
    """Stands before a Valkey, behind TLS where it has a context; passes everything on until it is to eat replies."""

    def __init__(self, to: Path, context: ssl.SSLContext | None = None) -> None:
        self.to, self.context = to, context
        self.eating, self.eaten = False, 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(self.to))
        ways = [self._pass(reader, far_writer, replies=False), self._pass(far_reader, writer, replies=True)]
        passing = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in passing:
                way.cancel()
            for end in (writer, far_writer):
                end.transport.abort()
            await asyncio.gather(*passing, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if replies and self.eating:
                    self.eaten += 1
                else:
                    writer.write(data)
