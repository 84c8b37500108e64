"""Is a server that lies believed in nothing, and left in peace as soon as it tells the truth?"""

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis import Redis

from sidecar.limits.redis_pipeline import RedisPipeline
from sidecar.limits.redis_store import RedisCounters
from sidecar.limits.store import StoreUnavailable
from sidecar.limits.store_connection import StoreConnection
from sidecar.limits.topology import Finder, Sentinels, Trouble, finder_of
from sidecar.settings.store import StoreSettings
from tests.tables import tables
from tests.unit.limits.stages import charge, opened
from tests.valkey import Valkey

HOUR = charge("hour", 10)
HELLO = b"%1\r\n+server\r\n+redis\r\n"
GREETED = (HELLO, *[b"+sha\r\n"] * 4, b"*2\r\n$1\r\nx\r\n:-1\r\n")
"""What it says to HELLO, to four scripts, and of its epoch."""

LIES = {
    **{name: raw.encode("latin-1") for name, raw in tables("limits/liars")["lies"].items()},
    "a thousand pushes": b">2\r\n+a\r\n+b\r\n" * 1000,
    "deeper than anything": b"*1\r\n" * 2000,
}


@asynccontextmanager
async def lying(lie: bytes, *truths: bytes) -> AsyncIterator[str]:
    """A server that says these truths to its first questions, and then lies; its address."""

    serving = set[asyncio.StreamWriter]()
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(writer)
        left = [*truths]
        try:
            while asked := await reader.read(1 << 16):
                for _ in re.findall(rb"(?m)^\*\d+\r$", asked) or (b"",):
                    writer.write(left.pop(0) if left else lie)
        except OSError:
            pass
        finally:
            writer.close()
            serving.discard(writer)
            ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        while serving:
            for writer in serving:
                writer.transport.abort()
            ended.clear()
            await ended.wait()


async def refuses(store: RedisCounters) -> None:
    with pytest.raises(StoreUnavailable):
        await store.reserve((HOUR,), "call")


@pytest.mark.parametrize("truths", [(), GREETED], ids=["from the first word", "once it is trusted"])
async def test_no_lie_admits_a_call_or_ends_the_mending(truths: tuple[bytes, ...]) -> None:
    await asyncio.gather(*(_hears(lie, truths) for lie in LIES))
    gc.collect()  # warnings are errors: what a task of ours died of is told here


async def _hears(lie: str, truths: tuple[bytes, ...]) -> None:
    async with lying(LIES[lie], *truths) as address, opened(f"redis://{address}", 0.1) as store:
        await refuses(store)
        mending = store._link._mending
        assert mending is not None and (store.up or not mending.done()), lie


@pytest.mark.parametrize(
    "lie",
    [
        b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*2\r\n_\r\n_\r\n",
        b"*2\r\n:1\r\n:2\r\n",
        b"*2\r\n$1\r\na\r\n:99999\r\n",
        b"-MOVED x\r\n",
        b">2\r\n+a\r\n+b\r\n" * 1000,
    ],
)
async def test_a_sentinel_that_lies_is_one_that_names_nobody(lie: bytes) -> None:
    async with lying(lie, HELLO) as address:
        finder = finder_of(StoreSettings(url=f"redis+sentinel://{address}/service"))
        assert isinstance(finder, Sentinels)
        with pytest.raises(Trouble):
            await finder.find()
        assert await finder.still(), "who answers is stayed with"
        await finder.close()


async def test_a_bug_ends_no_mending(
    fresh_valkey: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sidecar.limits.store_connection.BEAT_S", 0.01)
    finder: Finder = finder_of(StoreSettings(url=fresh_valkey.url))
    bugs = ["greet", "beat"]

    async def greet(_: RedisPipeline) -> None:
        if "greet" in bugs:
            bugs.remove("greet")
            raise KeyError

    async def beat(_: RedisPipeline) -> None:
        if "beat" in bugs:
            bugs.remove("beat")
            raise KeyError

    link = StoreConnection(finder, 0.5, greet=greet, beat=beat, ready=lambda: None)
    with pytest.raises(StoreUnavailable, match="KeyError"):
        await link.ready()
    first = None
    async with asyncio.timeout(5):
        while bugs or link.wire is None or link.wire is first:
            first = first or link.wire
            await asyncio.sleep(0.01)
    await link.close()
    assert link.wire is not None
    await link.wire.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


async def test_operators_are_told_what_a_store_refuses_and_not_at_each_call(
    store: RedisCounters, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(f"{{sidecar}}:{HOUR.key}", "a foreign value")
    for _ in range(3):
        await refuses(store)
    assert store.up and not store.trouble
    assert [getattr(record, "error", "")[:25] for record in caplog.records] == ["ResponseError: WRONGTYPE "]
