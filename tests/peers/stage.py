"""Where do the official SDKs' clients and server meet, with us in between?

Stage    a sidecar before `everything.py`, and what reached that server since the stage was set
Wire     a TCP connection that a test can cut, between a client and the sidecar
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import Client

from tests.flow.forks import python
from tests.flow.world import World, world
from tests.peers.ears import Ears, text_of
from tests.tables import tables

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0
META = "io.modelcontextprotocol/"
EVERYTHING = (sys.executable, "-m", "tests.peers.everything")
SETTINGS = """\
server: {listen: "127.0.0.1:0", shutdown_grace_s: 1s}
sessions: {session_calls_per_minute: 10000, max_per_principal: 500}
"""
ALL = """\
p, nhi:planner, tool:github/*, use, -, -, -, allow
p, nhi:planner, prompt:github/*, use, -, -, -, allow
p, nhi:planner, resource:github/*, use, -, -, -, allow
p, nhi:planner, nhi:github, sampling/createMessage|elicitation/create|roots/list, -, -, -, allow
"""
# A caller who may a little: what it may not has no row, or a row that denies it.
LITTLE = tables("peers/stage")["little"]


@contextmanager
def running(program: str, *words: str, stderr: int | None = None) -> Iterator[str]:
    """A server as a process of its own, which prints its port and ends with its standard input; its base URL."""
    command = (python(program), *words)
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()


@dataclass
class Stage:
    """A sidecar before the server at `upstream`. `begun` is how long the server's log was when the stage was set."""

    world: World
    upstream: str
    begun: int = 0

    @property
    def url(self) -> str:
        """The server's address at the sidecar, for nhi:planner."""
        return f"{self.world.url}/mcp/github"

    async def seen(self) -> list[dict[str, Any]]:
        """What reached the server since the stage was set."""
        async with self.world.http.get(f"{self.upstream}/seen", params={"since": str(self.begun)}) as response:
            entries: list[dict[str, Any]] = await response.json()
            return entries

    async def messages(self, method: str) -> list[dict[str, Any]]:
        """The messages of this method that reached the server."""
        return [entry["message"] for entry in await self.seen() if entry.get("message", {}).get("method") == method]

    async def verbs(self, verb: str) -> list[Mapping[str, str]]:
        """The noted headers of each GET or DELETE that reached the server."""
        return [entry["headers"] for entry in await self.seen() if entry.get("verb") == verb]

    async def open(self, gate: str) -> None:
        """Let the tool go on that waits there."""
        async with self.world.http.post(f"{self.upstream}/open/{gate}") as response:
            assert response.status == 204

    async def until(self, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until what the server saw fulfils the condition."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(await self.seen()):
                await asyncio.sleep(0.02)

    async def until_event(self, what: str, tag: str = "") -> None:
        """Wait until a tool has witnessed this."""
        await self.until(lambda entries: {"event": what, "tag": tag} in entries)

    async def check_progress(
        self, peer: Client, ears: Ears, gate: str, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """A tool's first report arrives while it runs: it waits until that has happened."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            await ears.on_progress(progress, total, message)
            if progress == 1:
                meanwhile()
                await self.open(gate)

        assert text_of(await peer.call_tool("steps", {"gate": gate}, progress_callback=on_progress)) == f"{gate} done"
        assert ears.progress == [(1, f"{gate} waits"), (2, f"{gate} goes on")]

    async def check_cancelling(self, peer: Client, tag: str) -> None:
        """A cancelled call is cancelled upstream at once, and the client goes on."""
        call = asyncio.create_task(peer.call_tool("slow", {"tag": tag}))
        await self.until_event("slow-begun", tag)
        call.cancel()
        await self.until_event("slow-cancelled", tag)
        assert text_of(await peer.call_tool("echo", {"text": "still here"})) == "still here"

    async def until_verb(self, verb: str, count: int = 1) -> None:
        """Wait until so many GETs or DELETEs have reached the server."""
        await self.until(lambda entries: sum(entry.get("verb") == verb for entry in entries) >= count)


@asynccontextmanager
async def stage(
    folder: Path, upstream: str, rules: str, *, settings: str = SETTINGS, path: str = "/mcp", **kw: Any
) -> AsyncIterator[Stage]:
    """A sidecar with these rules before the server; 1,000 connections are enough for every stream of a test."""
    url = f"{upstream}{path}"
    async with world(
        folder, rules=rules, settings=settings, upstream_url=url, mcp_settings="max_connections: 1000", **kw
    ) as running:
        on = Stage(running, upstream)
        on.begun = len(await on.seen())
        yield on


@dataclass
class Wire:
    """Carries bytes between clients and a port, until it is cut."""

    port: int
    address: str = ""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        """Break every connection; new ones are carried as before."""
        for writer in self._writers:
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, both ways; closed at once if the port refuses it."""
        ends = {writer}
        try:
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
                ends.add(far_writer)
                self._writers |= ends
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionError  # one end is gone, so the other goes too


@asynccontextmanager
async def wire_to(port: int) -> AsyncIterator[Wire]:
    """A wire to a port of loopback."""
    wire = Wire(port)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(wire.carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    wire.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        wire.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
