"""MCP servers that are polite until a call names a script of `misbehaviours.py`, and then say just that.

Whoever calls with `POLITE` gets an answer; so does the sidecar when it asks for the list of tools. A call names its
script in its argument (`rude`), a list by its cursor. The servers:

HostileUpstream     Streamable HTTP of both eras, on a raw socket
HostileOld          HTTP+SSE
HostileSessions     2025-11-25 only, so that callers of the other era are bridged; HostileStateless the other way
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.flow.apart import SessionsOnly, StatelessOnly
from tests.flow.misbehaviours import PASSES, WORDS, Attack, bytes_of, listed
from tests.flow.world import TOOLS, Upstream, World, world
from tests.unit.http.client.hostile import Conversation, Hostile, response, serving
from tests.unit.upstreams.old import RESULTS, Old

POLITE = {"repo": "acme/polite"}
JSON_WORDS = {**WORDS, **PASSES}
# What may reach a caller of an upstream's head is nothing: these are ours, and aiohttp's framing.
OUR_HEADERS = {
    *("Server", "Date", "Content-Type", "Content-Length", "Transfer-Encoding", "Connection", "Cache-Control"),
    *("X-Accel-Buffering", "Retry-After", "Mcp-Session-Id"),
}


def rude(script: str = "rude") -> dict[str, Any]:
    """The arguments that ask for this script."""
    return {"repo": f"acme/{script}"}


RUDE = rude()


def script_in(message: dict[str, Any]) -> str:
    """The script that a message asks for; "" for none."""
    params = message.get("params", {})
    if message.get("method") == "tools/call" and params["arguments"] != POLITE:
        return str(params["arguments"]["repo"]).removeprefix("acme/")
    return str(params.get("cursor", ""))


@dataclass
class HostileUpstream:
    """`asked` are the messages that were answered with an attack."""

    scripts: Mapping[str, Attack]
    asked: list[dict[str, Any]] = field(default_factory=list)
    server: Hostile | None = None
    _polite: Upstream = field(default_factory=Upstream)

    async def converse(self, conversation: Conversation) -> None:
        while True:
            head, _, body = (await conversation.request()).partition(b"\r\n\r\n")
            message = json.loads(body) if body else {"method": head.split(b" ")[0].decode()}
            script = "rude" if message.get("method") == "GET" else script_in(message)
            if script:
                self.asked.append(message)
                await self.scripts[script](conversation, message)
            else:
                await conversation.send(self.answer(message))

    def answer(self, message: dict[str, Any]) -> bytes:
        said = self._polite.answer(message)
        headers = [
            f"{name}: {value}" for name, value in said.headers.items() if name in ("Content-Type", "Mcp-Session-Id")
        ]
        body = said.body if isinstance(said.body, bytes) else b""
        return response(body, *headers, status=f"{said.status} OK")


@dataclass
class Liar:
    """It says these results to whoever asks, the sidecar itself first, and to all else what is right."""

    results: Mapping[str, Any]
    _polite: HostileUpstream = field(default_factory=lambda: HostileUpstream({}))

    async def converse(self, conversation: Conversation) -> None:
        while True:
            _, _, raw = (await conversation.request()).partition(b"\r\n\r\n")
            message = json.loads(raw) if raw else {}
            if message.get("method") == "server/discover":
                await conversation.send(response(b"", status="404 Not Found"))
            elif message.get("method") in self.results:
                told = {"jsonrpc": "2.0", "id": message["id"], "result": self.results[message["method"]]}
                await conversation.send(response(bytes_of(told), "Content-Type: application/json"))
            else:
                await conversation.send(self._polite.answer(message))


@dataclass
class HostileOld(Old):
    """On the stream of whoever asked, or with a script `wrong stream` on all the others'; a list of what is secret, on
    all of them."""

    async def answer(self, message: dict[str, Any], number: int) -> None:
        script = script_in(message)
        if "method" not in message:
            return  # our answer to what it asked
        if not script:
            results = {**RESULTS, "tools/list": {"tools": TOOLS}, "tools/call": polite_answer(message)["result"]}
            await self.say({"id": message["id"], "result": results.get(message["method"], {})}, number)
        elif message["method"] == "tools/list":
            for stream in self.streams:
                await stream.send(as_event(bytes_of(listed(message))))
        elif script == "wrong stream":
            for other in {*range(len(self.streams))} - {number}:
                await self.say({"id": message["id"], "result": {"content": [{"type": "text", "text": "stray"}]}}, other)
        else:
            await self.streams[number].send(as_event(bytes_of(JSON_WORDS[script](message))))


def as_event(data: bytes) -> bytes:
    """These very bytes as an event's data."""
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


class _Scripted:
    """What a bridged server answers to `tools/call`, in its own way of answering."""

    @staticmethod
    def word(message: dict[str, Any]) -> bytes | None:
        """What the call's script says; None for a polite one."""
        script = script_in(message)
        return bytes_of(JSON_WORDS[script](message)) if script else None


@dataclass
class HostileSessions(SessionsOnly, _Scripted):
    tools: list[dict[str, Any]] = field(default_factory=lambda: [dict(tool) for tool in TOOLS])

    async def _act(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        word = self.word(message)
        if word is None:
            return web.json_response(polite_answer(message))
        stream = await self._open(request)
        await stream.write(as_event(word))
        return stream


@dataclass
class HostileStateless(StatelessOnly, _Scripted):
    tools: list[dict[str, Any]] = field(default_factory=lambda: [dict(tool) for tool in TOOLS])

    async def _act(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        word = self.word(message)
        if word is None:
            return web.json_response(polite_answer(message))
        return web.Response(body=word, content_type="application/json")


def polite_answer(message: dict[str, Any]) -> dict[str, Any]:
    result = {"resultType": "complete", "content": [{"type": "text", "text": "done"}], "isError": False}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


@asynccontextmanager
async def before(folder: Path, attack: Attack, **options: Any) -> AsyncIterator[tuple[World, HostileUpstream]]:
    """A sidecar whose upstream attacks whoever is rude; its breaker gives it no rest, unless a test says so."""
    options.setdefault("upstream_settings", "breaker: {failures: 1000}")
    hostile = HostileUpstream({"rude": attack})
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
    found: str = messages[-1].get("error", {}).get("data", {}).get("reason", "") if messages else "no message"
    return found


async def in_turn(names: list[str], play: Callable[[str], Any], at_once: int) -> dict[str, Any]:
    """Each of these played once, so many at a time; what each came to."""
    waiting, came_to = list(reversed(names)), {}

    async def player() -> None:
        while waiting:
            name = waiting.pop()
            came_to[name] = await play(name)

    await asyncio.gather(*(player() for _ in range(at_once)))
    return came_to
