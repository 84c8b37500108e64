"""A server that says exactly what it is told, byte by byte, and remembers what it heard.

async with serving(say(OK)) as server:            every request gets these bytes
async with serving(script) as server:             script(conversation) is one connection, from its first byte
server.url, server.requests, server.connections   where it is, and what it has seen
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sidecar.http.client import HttpClient, parse_origin

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@dataclass
class Conversation:
    """One connection, from the server's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: Hostile

    async def request(self) -> bytes:
        """The next whole request, head and body. Raises IncompleteReadError when the client hangs up."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        self.server.requests.append(head + body)
        return head + body

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def drip(self, data: bytes, *, every_s: float, step: int = 1) -> None:
        for start in range(0, len(data), step):
            await self.send(data[start : start + step])
            await asyncio.sleep(every_s)

    def reset(self) -> None:
        """Hang up with an RST, as a crashed peer does."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hung_up(self) -> None:
        """Wait until the client is gone."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Conversation], Awaitable[None]]


@dataclass
class Hostile:
    """A running server. `live` counts the connections that are open now."""

    port: int
    scheme: str = "http"
    requests: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    connections: int = 0
    live: int = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/mcp"

    async def all_gone(self, within_s: float = 1.0) -> None:
        """Wait until no client is connected. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while self.live:
                await asyncio.sleep(0.002)


async def silent(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.hung_up()


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Hostile]:
    """Run `script` for each connection until the block ends."""
    hostile = Hostile(0, "https" if tls else "http")
    running: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        hostile.connections += 1
        hostile.writers.append(writer)
        hostile.live += 1
        try:
            await script(Conversation(reader, writer, hostile))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            hostile.live -= 1
            running.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=tls)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def meeting(script: Script, **options: Any) -> AsyncIterator[tuple[Hostile, HttpClient]]:
    """A hostile server and a client of ours."""
    async with serving(script) as server:
        client = HttpClient(parse_origin(server.url), **options)
        try:
            yield server, client
        finally:
            await client.close()


def say(*answers: bytes, then_close: bool = False) -> Script:
    """Each request gets the next answer, the last one again and again; `then_close` hangs up after the first."""

    async def script(conversation: Conversation) -> None:
        for number in range(1_000_000):
            await conversation.request()
            await conversation.send(answers[min(number, len(answers) - 1)])
            if then_close:
                return

    return script


def response(body: bytes = b"{}", *headers: str, status: str = "200 OK", framing: str | None = None) -> bytes:
    """A well-formed response; `framing` replaces its Content-Length line."""
    lines = [f"HTTP/1.1 {status}", *headers, framing if framing is not None else f"Content-Length: {len(body)}"]
    return "\r\n".join(line for line in lines if line).encode() + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
