"""How are event streams held open, from both ends?

Emitter   the upstream's end: it keeps every GET stream open by session, and sends what a test says
Ear       the caller's end: the events of one stream, as they come
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests.flow.world import ACCEPT, PATIENCE_S

EVENT_STREAM = {"Content-Type": "text/event-stream"}


def event(message: Any, *, id: str | None = None) -> bytes:
    """A message as one event."""
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: message\ndata: {json.dumps(message)}\n\n".encode()


async def streamed(request: web.Request, *pieces: bytes, pause_s: float = 0.0) -> web.StreamResponse:
    """An event stream of these pieces, then its end."""
    stream = web.StreamResponse(headers=EVENT_STREAM)
    await stream.prepare(request)
    for piece in pieces:
        await stream.write(piece)
        await asyncio.sleep(pause_s)
    return stream


@dataclass
class Emitter:
    """Put `listen` into an upstream's script under "GET". `open` are the streams by upstream session id."""

    open: dict[str, list[web.StreamResponse]] = field(default_factory=dict)
    asked: list[Mapping[str, str]] = field(default_factory=list)

    async def listen(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        self.asked.append(dict(request.headers))
        stream = web.StreamResponse(headers=EVENT_STREAM)
        await stream.prepare(request)
        mine = self.open.setdefault(request.headers.get("Mcp-Session-Id", ""), [])
        mine.append(stream)
        try:
            await asyncio.Event().wait()  # until its reader goes
        finally:
            mine.remove(stream)
        return stream

    async def emit(self, session: str, data: bytes) -> None:
        """Send to every stream of a session."""
        for stream in list(self.open.get(session, ())):
            await stream.write(data)

    @property
    def count(self) -> int:
        return sum(map(len, self.open.values()))


@dataclass
class Ear:
    """One stream, as its caller hears it."""

    response: aiohttp.ClientResponse

    @property
    def status(self) -> int:
        return self.response.status

    async def block(self, within_s: float = PATIENCE_S) -> bytes:
        """The next lines up to an empty one; b"" at the end of the stream, wherever that came."""
        try:
            async with asyncio.timeout(within_s):
                return await self.response.content.readuntil(b"\n\n")
        except (aiohttp.ClientPayloadError, ConnectionError):
            return b""

    async def message(self, within_s: float = PATIENCE_S) -> Any:
        """The next message; None at the end."""
        while block := await self.block(within_s):
            data = b"\n".join(line[6:] for line in block.split(b"\n") if line.startswith(b"data: "))
            if data:
                return json.loads(data)
        return None

    async def rest(self, within_s: float = PATIENCE_S) -> list[Any]:
        """Every message up to the end."""
        messages = []
        while (message := await self.message(within_s)) is not None:
            messages.append(message)
        return messages


@asynccontextmanager
async def hearing(
    http: aiohttp.ClientSession, url: str, headers: Mapping[str, str], body: Any = None
) -> AsyncIterator[Ear]:
    """Open a stream: a GET, or the POST of `body`."""
    verb, accept = ("GET", "text/event-stream") if body is None else ("POST", ACCEPT)
    data = None if body is None else json.dumps(body).encode()
    sent = {"Accept": accept, **({"Content-Type": "application/json"} if data else {}), **headers}
    async with http.request(verb, url, data=data, headers=sent) as response:
        yield Ear(response)
