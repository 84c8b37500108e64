"""Do many streams cost nobody else anything, and leave nothing? `python -m bench.streams` is the long run of this.

Threats D3, D4, S10, F9.
"""

import asyncio
import resource
import socket
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tests.flow.bystanders import open_files
from tests.flow.guests import BOB, GOOD, RULES, emitter, gateway, gone, listening, opened, stream
from tests.flow.leftovers import nothing_left
from tests.flow.process import served
from tests.flow.streams import EVENT_STREAM
from tests.flow.talk import Talk
from tests.flow.world import Upstream, World, until

MANY = "max_per_principal: 1000, session_calls_per_minute: 100000"
ROOM = "streams: {max_per_principal: 1000}\n"
SLOW_READERS = 40
NOTE = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"' + b"x" * 16_000 + b'"}}\n\n'


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


async def test_forty_readers_who_read_nothing_are_bounded_and_hung_up_on(tmp_path: Path) -> None:
    sent: Counter[str] = Counter()

    async def flood(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers=EVENT_STREAM)
        await answer.prepare(request)
        while True:
            await answer.write(NOTE)
            sent[request.headers["Mcp-Session-Id"]] += len(NOTE)
            await asyncio.sleep(0)

    upstream = Upstream(script={"GET": flood, "DELETE": gone})
    async with gateway(tmp_path, upstream=upstream, sessions=MANY, settings=ROOM) as running:
        set_reading_timeout(running, 0.5)
        bob = await opened(running, BOB)
        readers = [await unread(await opened(running)) for _ in range(SLOW_READERS)]
        await until(lambda: len(sent) == SLOW_READERS)
        assert (await bob.call("search_code", GOOD))[0] == 200
        await until(lambda: not running.app.pipeline.forwarder.streams, within_s=15)
        # What lies in the kernel's buffers on both sides, and ours of each: some megabytes, however long it lasts.
        assert max(sent.values()) < 16 * 2**20
        ends = Counter(end["reason"] for end in running.ends() if end["bytes_out"] and end["bytes_out"] > 10_000)
        assert ends == {None: SLOW_READERS}  # leaving is how a stream without an end ends
        for reader in readers:
            reader.close()


def set_reading_timeout(running: World, seconds: float) -> None:
    server = running.app.listeners[0]._server
    server.patience = replace(server.patience, reading_timeout_s=seconds)


async def unread(talk: Talk) -> socket.socket:
    """A session's stream whose reader takes nothing."""
    address = urlsplit(talk.world.url)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (address.hostname, address.port))
    headers = {"Host": address.netloc, "Accept": "text/event-stream", **talk.headers, **talk.in_session}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    await loop.sock_sendall(sock, f"GET /mcp/github HTTP/1.1\r\n{lines}\r\n".encode())
    return sock


async def test_a_sidecar_takes_the_descriptors_that_it_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        async with served("http://127.0.0.1:1/mcp", rules=RULES) as running:
            assert resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
