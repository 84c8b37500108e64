"""Do many streams cost nobody else anything, and leave nothing? `python -m bench.streams` is the long run of this."""

import asyncio
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from tests.flow.bystanders import open_files
from tests.flow.guests import BOB, GOOD, RULES, emitter, gateway, listening, opened, stream
from tests.flow.leftovers import nothing_left
from tests.flow.process import served
from tests.flow.world import until

MANY = "max_per_principal: 1000, session_calls_per_minute: 100000"
ROOM = "streams: {max_per_principal: 1000}\n"


async def test_a_hundred_streams_are_in_no_calls_way_and_leave_nothing(tmp_path: Path) -> None:
    """What calls take beside them is for `python -m bench.streams` to say."""
    async with gateway(tmp_path, upstream=listening(), sessions=MANY, settings=ROOM) as running:
        bob = await opened(running, BOB)
        assert (await bob.call("search_code", GOOD))[0] == 200
        tasks, files = len(asyncio.all_tasks()), open_files()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with nothing_left(), aiohttp.ClientSession(connector=connector) as http, AsyncExitStack() as ears:
            talks = [await opened(running) for _ in range(100)]
            for talk in talks:
                await ears.enter_async_context(stream(talk, http=http))
            await until(lambda: emitter(running).count == 100)
            await running.app.pipeline.forwarder.oversight.look()
            assert (await bob.call("search_code", GOOD))[0] == 200
            for talk in talks:
                assert (await talk.verb("DELETE"))[0] == 204
            await until(lambda: not running.app.pipeline.forwarder.streams)
        await until(lambda: emitter(running).count == 0 and running.app.pipeline.stages.inside == 0)
        await until(lambda: len(running.app.sessions) == 1 and running.app.pipeline.forwarder.farewells.empty())
        await until(lambda: len(asyncio.all_tasks()) <= tasks and open_files() <= files)
        assert running.app.pipeline.forwarder.places.count == 0


async def test_a_sidecar_takes_the_descriptors_that_it_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        async with served("http://127.0.0.1:1/mcp", rules=RULES) as running:
            assert resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
