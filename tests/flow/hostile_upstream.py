"""An MCP server that is polite until a call says otherwise, and then says these very bytes.

Whoever calls with `POLITE` gets an answer; so does the sidecar when it asks for the list of tools. Everything else is
what the test scripts, on a raw socket.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.flow.world import Upstream, World, world
from tests.unit.egress.hostile import Conversation, Hostile, response, serving

POLITE, RUDE = {"repo": "acme/polite"}, {"repo": "acme/rude"}
Attack = Callable[[Conversation, dict[str, Any]], Awaitable[None]]
"""What is done on a connection that just asked this message."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
# What may reach a caller of an upstream's head is nothing: these are ours, and aiohttp's framing.
OUR_HEADERS = {
    "Server",
    "Content-Type",
    "Content-Length",
    "Date",
    "Cache-Control",
    "X-Accel-Buffering",
    "Transfer-Encoding",
    "Retry-After",
    "Connection",
    "Mcp-Session-Id",
}


@dataclass
class HostileUpstream:
    """`asked` are the messages that were answered with the attack."""

    attack: Attack
    asked: list[dict[str, Any]] = field(default_factory=list)
    server: Hostile | None = None
    _polite: Upstream = field(default_factory=Upstream)

    async def converse(self, conversation: Conversation) -> None:
        while True:
            head, _, body = (await conversation.request()).partition(b"\r\n\r\n")
            message = json.loads(body) if body else {"method": head.split(b" ")[0].decode()}
            if self._is_for_us(message):
                self.asked.append(message)
                await self.attack(conversation, message)
            else:
                await conversation.send(self._answer(message))

    def _is_for_us(self, message: dict[str, Any]) -> bool:
        method, params = message["method"], message.get("params", {})
        if method == "tools/call":
            return bool(params["arguments"] != POLITE)
        return method == "GET" or "rude" in params.get("cursor", "")

    def _answer(self, message: dict[str, Any]) -> bytes:
        said = self._polite.answer(message)
        headers = [
            f"{name}: {value}" for name, value in said.headers.items() if name in ("Content-Type", "Mcp-Session-Id")
        ]
        body = said.body if isinstance(said.body, bytes) else b""
        return response(body, *headers, status=f"{said.status} OK")


@asynccontextmanager
async def before(folder: Path, attack: Attack, **options: Any) -> AsyncIterator[tuple[World, HostileUpstream]]:
    """A sidecar whose upstream attacks whoever is rude; its breaker gives it no rest, unless a test says so."""
    options.setdefault("upstream_settings", "breaker: {failures: 1000}")
    hostile = HostileUpstream(attack)
    async with (
        serving(hostile.converse) as hostile.server,
        world(folder, upstream_url=hostile.server.url, **options) as running,
    ):
        yield running, hostile


async def polite(running: World, times: int = 1) -> None:
    """Another caller, whom nothing of this concerns."""
    for _ in range(times):
        status, body, _ = await running.call("search_code", POLITE)
        assert (status, body["result"]["content"][0]["text"]) == (200, "done")


def say(data: bytes, *, then_close: bool = False) -> Attack:
    """These bytes and nothing else."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(data)
        if then_close:
            conversation.writer.close()

    return attack


def body(
    make: Callable[[dict[str, Any]], Any], *headers: str, media: str = "application/json", status: str = "200 OK"
) -> Attack:
    """A well-framed response with this body, made for the message that asked."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        made = make(message)
        data = made if isinstance(made, bytes) else json.dumps(made).encode()
        lines = [f"Content-Type: {media}", *headers] if media else headers
        await conversation.send(response(data, *lines, status=status))

    return attack


def events(*pieces: bytes, pause_s: float = 0.0) -> Attack:
    """A stream of these bytes, cut where they are cut, and its end."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(response(b"", "Content-Type: text/event-stream", framing="Connection: close"))
        for piece in pieces:
            await conversation.send(piece)
            await asyncio.sleep(pause_s)
        conversation.writer.close()

    return attack


def done(message: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The right answer."""
    result = {"resultType": "complete", "content": [{"type": "text", "text": "fine"}], "isError": False}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result} | changes


FINE = "fine"


def resident_bytes() -> int:
    """The memory of this process, as the kernel counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def grows_at_most(megabytes: int) -> Iterator[Callable[[], None]]:
    """The process holds at most so much more at each look, and at the end."""
    start = resident_bytes()

    def look() -> None:
        grown = (resident_bytes() - start) / 2**20
        assert grown <= megabytes, f"{grown:.0f} MB more than at the start"

    yield look
    look()


def reason_in_stream(raw: bytes) -> str:
    """Why a stream ended; "" if with an answer."""
    messages = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    found: str = messages[-1].get("error", {}).get("data", {}).get("reason", "")
    return found
