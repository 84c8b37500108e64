"""What does a caller see who writes bytes instead of HTTP?"""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from sidecar.http.server.listeners import Handle, Listener, ListenerDeadlines, Server, open_listener
from sidecar.http.server.response import WholeResponse
from sidecar.settings.addresses import ListenAddress, UnixAddress
from tests.flow.world import ACCEPT, PATIENCE_S, STATELESS, World, stateless
from tests.unit.http.client.hostile import Conversation

CALL = json.dumps(stateless("tools/call", {"name": "search_code", "arguments": {"repo": "acme/raw"}})).encode()
ROUTING = [
    "Content-Type: application/json",
    f"Accept: {ACCEPT}",
    f"MCP-Protocol-Version: {STATELESS}",
    "Mcp-Method: tools/call",
    "Mcp-Name: search_code",
]
_STATUS = re.compile(rb"HTTP/\d\.\d (\d{3}) [^\r\n]*\r\n")


ANYWHERE = ListenAddress("127.0.0.1", 0)


@asynccontextmanager
async def listening(
    handle: Handle,
    address: ListenAddress | UnixAddress = ANYWHERE,
    tls: ssl.SSLContext | None = None,
    probes: Collection[str] = (),
    **patience: float,
) -> AsyncIterator[Listener]:
    """A listener of ours before this handler, without anything else of a sidecar."""

    async def broken(_: str, status: int) -> web.StreamResponse:
        return WholeResponse(status)

    listener = open_listener(address)
    deadlines = ListenerDeadlines(**patience)  # type: ignore[arg-type]  # by name, as the test says
    listener.serve(Server(handle, broken, deadlines, probes=probes), tls)
    try:
        yield listener
    finally:
        await listener.close(1.0)


@dataclass
class Wire:
    """One connection to the sidecar."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write, whatever the other side thinks of it."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass

    async def everything(self, within_s: float = PATIENCE_S) -> bytes:
        """All that comes, up to the end of the connection. AssertionError if it stays open."""
        received = bytearray()
        try:
            async with asyncio.timeout(within_s):
                while data := await self.reader.read(65536):
                    received += data
        except ConnectionError:
            pass
        except TimeoutError:
            raise AssertionError(f"the connection is still open after {bytes(received[:200])!r}") from None
        return bytes(received)

    async def quiet(self, for_s: float = 0.1, within_s: float = PATIENCE_S) -> bytes:
        """All that comes until the connection ends, or has had something to say and is silent."""
        received = bytearray()
        try:
            while data := await asyncio.wait_for(self.reader.read(65536), for_s if received else within_s):
                received += data
        except (TimeoutError, ConnectionError):
            pass
        return bytes(received)

    async def response(self, within_s: float = PATIENCE_S) -> tuple[int, bytes]:
        """One response with a length: its status and body."""
        async with asyncio.timeout(within_s):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
            body = await self.reader.readexactly(int(length[1])) if length else b""
        return int(head[9:12]), body

    def stop_reading(self) -> None:
        """Leave what comes in the kernel's buffers, as a caller does who is busy elsewhere."""
        self.writer.transport.pause_reading()

    reset = Conversation.reset


@asynccontextmanager
async def wire(running: World, *, receive_bytes: int = 0) -> AsyncIterator[Wire]:
    """A connection. `receive_bytes` makes the kernel's buffer on our side small."""
    where = urlsplit(running.url)
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (where.hostname, where.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**16)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def statuses(received: bytes) -> list[int]:
    """The statuses of what came back on one connection."""
    return [int(status) for status in _STATUS.findall(received)]


def request(
    running: World,
    *lines: str | bytes,
    first: str = "POST /mcp/github HTTP/1.1",
    body: bytes = CALL,
    length: bool = True,
    host: bool = True,
    routing: bool = True,
    end: bytes = b"\r\n",
) -> bytes:
    """A good request, changed."""
    head: list[str | bytes] = [first]
    if host:
        head.append(f"Host: {urlsplit(running.url).netloc}")
    if routing:
        head += ROUTING
    if length:
        head.append(f"Content-Length: {len(body)}")
    raw = [line if isinstance(line, bytes) else line.encode("latin-1") for line in (*head, *lines)]
    return end.join(raw) + end * 2 + body


def chunks(*pieces: bytes) -> bytes:
    """Pieces in chunked coding, with its end."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"


def answer_in(received: bytes) -> Any:
    """The JSON of the last response."""
    return json.loads(received[received.rindex(b"\r\n\r\n") + 4 :])
