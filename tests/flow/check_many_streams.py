"""Readers who read nothing are bounded, and are hung up on."""

import asyncio
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from tests.flow.guests import BOB, GOOD, gateway, gone, opened
from tests.flow.streams import EVENT_STREAM
from tests.flow.talk import Talk
from tests.flow.test_many_streams import MANY, ROOM
from tests.flow.world import Upstream, World, until

SLOW_READERS = 40


NOTE = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"' + b"x" * 16_000 + b'"}}\n\n'


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
