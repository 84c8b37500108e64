"""A server of the HTTP+SSE transport that says on its stream what a test says, and keeps what was POSTed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sidecar.upstreams.credentials.source import NO_CREDENTIAL, CredentialSource
from sidecar.upstreams.http_address import HttpAddress
from sidecar.upstreams.mcp.legacy_sse import SseUpstream
from tests.unit.http.client.hostile import Conversation, Hostile, response, serving

STREAM = response(b"", "Content-Type: text/event-stream; charset=utf-8", framing="")
ACCEPTED = response(b"Accepted", status="202 Accepted")
RESULTS: dict[str, Any] = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "old", "version": "1"}},
    "tools/list": {"tools": []},
    "tools/call": {"content": []},
}


@dataclass
class Old:
    """`opening` is what a GET is answered with, `taking` what a POST is; a message is answered if `answers`, on the
    stream whose number its address bears."""

    opening: bytes = STREAM + b"event: endpoint\ndata: /messages?s=NUMBER\n\n"
    taking: bytes = ACCEPTED
    answers: bool = True
    streams: list[Conversation] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)
    server: Hostile | None = None

    async def converse(self, conversation: Conversation) -> None:
        while True:
            head, _, body = (await conversation.request()).partition(b"\r\n\r\n")
            if head.startswith(b"GET"):
                await conversation.send(self.opening.replace(b"NUMBER", str(len(self.streams)).encode()))
                if not self.opening.startswith(STREAM):
                    continue
                self.streams.append(conversation)
                await conversation.hung_up()
                return
            message = json.loads(body)
            self.posted.append(message)
            await conversation.send(self.taking)
            if self.answers and "id" in message and self.streams:
                number = re.match(rb"POST /messages\?s=([0-9]+) ", head)
                await self.answer(message, int(number[1]) if number else -1)

    async def answer(self, message: dict[str, Any], number: int) -> None:
        """The answer to a request that came for this stream."""
        await self.say({"id": message["id"], "result": RESULTS.get(message.get("method"), {})}, number)

    async def say(self, message: dict[str, Any], stream: int = -1) -> None:
        """One message on a stream, the newest by default."""
        raw = json.dumps({"jsonrpc": "2.0", **message})
        await self.streams[stream].send(f"event: message\r\ndata: {raw}\r\n\r\n".encode())

    async def until_posted(self, count: int) -> dict[str, Any]:
        """Wait for so many messages; the newest."""
        async with asyncio.timeout(2):
            while len(self.posted) < count:
                await asyncio.sleep(0.002)
        return self.posted[-1]


@asynccontextmanager
async def running(server: Old) -> AsyncIterator[Old]:
    """The server, running; what speaks with it is `upstream_of`."""
    async with serving(server.converse) as hostile:
        server.server = hostile
        yield server


@asynccontextmanager
async def upstream_of(
    server: Old, *, timeout_s: float = 2.0, max_message_bytes: int = 2**20, credential: CredentialSource = NO_CREDENTIAL
) -> AsyncIterator[SseUpstream]:
    """What speaks with it. Afterwards no connection is left."""
    address = HttpAddress(server.server.url, credential=credential, max_connections=10)
    upstream = SseUpstream("old", address, timeout_s=timeout_s, max_response_bytes=max_message_bytes)
    try:
        yield upstream
    finally:
        await upstream.close()
        await server.server.all_gone()
