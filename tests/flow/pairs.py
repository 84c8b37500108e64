"""How does a client of the HTTP+SSE transport of MCP 2024-11-05 hold its session?

pair      a session of one caller: its stream is open, and it may be initialized
Pair      what is said in it, and what is heard
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.flow.streams import Ear, hearing
from tests.flow.world import SESSION, World, request

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@dataclass
class Pair:
    """One session. `messages` is the address that its stream told; `heard` are messages that nobody waited for yet."""

    world: World
    headers: dict[str, str]
    ear: Ear
    messages: str = ""
    heard: list[Any] = field(default_factory=list)

    async def post(
        self, message: Any, *, headers: Mapping[str, str] | None = None, url: str = ""
    ) -> tuple[int, Any, Mapping[str, str]]:
        """One POST to the address that was told, or to another, by this caller or another."""
        who = self.headers if headers is None else headers
        return await self.world.post(message, headers=who, url=url or self.world.url + self.messages)

    async def say(self, message: Any) -> None:
        """One message that is taken."""
        status, body, _ = await self.post(message)
        assert (status, body) == (202, None), (status, body)

    async def ask(self, method: str, params: dict[str, Any] | None = None, *, id: int | str = 1) -> Any:
        """One request, and the answer that the stream brings to it."""
        await self.say(request(method, params, id=id))
        return await self.answer(id)

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, *, id: int | str = 1) -> Any:
        """One `tools/call`."""
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, id=id)

    async def answer(self, id: int | str) -> Any:
        """The answer to this request; what comes before it is in `heard`."""
        while (message := await self.ear.message()) is not None:
            if message.get("id") == id and "method" not in message:
                return message
            self.heard.append(message)
        raise AssertionError("the stream ended without the answer")

    async def open(self, version: str = SESSION) -> Any:
        """`initialize`, and the notification after it."""
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        answer = await self.ask("initialize", hello, id="hello")
        if "result" in answer:
            await self.say(INITIALIZED)
        return answer


@asynccontextmanager
async def pair(
    running: World,
    who: Mapping[str, str],
    *,
    server: str = "github",
    opened: bool = True,
    http: aiohttp.ClientSession | None = None,
) -> AsyncIterator[Pair]:
    """A session of one caller's."""
    async with hearing(http or running.http, f"{running.url}/mcp/{server}/sse", who) as ear:
        assert ear.status == 200, await ear.response.text()
        talk = Pair(running, dict(who), ear)
        kind, data = (await ear.block()).decode().splitlines()[:2]
        assert kind == "event: endpoint"
        talk.messages = data.removeprefix("data: ")
        if opened:
            assert "result" in await talk.open()
        yield talk


async def all_quiet(talk: Pair, for_s: float = 0.15) -> bool:
    """Whether nothing comes on the stream for a while."""
    try:
        block = await talk.ear.block(for_s)
    except TimeoutError:
        return True
    raise AssertionError(json.dumps(block.decode()))


async def together(*deeds: Any) -> list[Any]:
    """All of them at once."""
    return await asyncio.gather(*deeds)
