"""What do thousands of open streams cost, and how soon do they end when they must?

    python -m bench.streams [--streams 5000] [--sessions 50000]

A sidecar and a server that keeps every stream open run in processes of their own; the callers are sockets of this one.
Memory is the sidecar's, with both its connections of each stream. Afterwards everything must be back to where it was.
The table goes to `bench/streams.json`.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import uvloop

from bench.process import BenchFailed, Running, free_port, running, wait_for_200
from sidecar.cli.operator_socket import ask_control
from sidecar.settings.shipped_files import shipped

OUT = Path(__file__).parent / "streams.json"
OPENED_AT_ONCE, CALLS, SETTLE_S, WITHIN_S = 64, 300, 60.0, 120.0
OUR_OWN = 1  # the session in which the sidecar itself asks for the tools, from the first call on
QUIET_S = 6.0  # longer than idle connections are kept
RULES = "p, nhi:bench, tool:held/*, use, -, -, -, allow\n"
SETTINGS = """\
version: 1
server: {{listen: "127.0.0.1:0", max_connections: 20000, shutdown_grace_s: 2s}}
admin: {{listen: "127.0.0.1:{admin}"}}
local: [{{listen: "127.0.0.1:{port}", principal: "nhi:bench"}}]
sessions: {{max: 100000, max_per_principal: 100000, session_calls_per_minute: 1000000, idle_s: {idle_s}}}
streams: {{max: 20000, max_per_principal: 20000}}
upstreams: {{held: {{mcp: {{url: "http://127.0.0.1:{upstream}/mcp", transport: http}}, probe: {{enabled: false}}}}}}
"""
VERSION = "2025-11-25"
LAST_CHUNK = b"\r\n0\r\n\r\n"
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
_CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "search", "arguments": {}}}


@dataclass
class Caller:
    """Sessions and streams of one agent, as plain sockets."""

    port: int
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def session(self) -> str:
        """The id of a new session."""
        status, headers, _ = await self._post(_HELLO, "")
        if status != 200:
            raise BenchFailed(f"initialize was answered {status}")
        return re.search(rb"(?i)mcp-session-id: (\S+)", headers)[1].decode()  # type: ignore[index]

    async def call(self, session: str) -> tuple[int, str, float]:
        """Status, body and milliseconds of one call."""
        began = time.perf_counter()
        status, _, body = await self._post(_CALL, session)
        return status, body.decode(), (time.perf_counter() - began) * 1e3

    async def stream(self) -> None:
        """Open one more, and hold it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4096)
        writer.write(self._head("GET", await self.session(), 0, "text/event-stream"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WITHIN_S)
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise BenchFailed(head.decode())
        self.held.append((reader, writer))

    async def ended(self) -> None:
        """Until every held stream has ended by itself."""
        await asyncio.gather(*(reader.readuntil(LAST_CHUNK) for reader, _ in self.held))
        self.let_go()

    def let_go(self) -> None:
        for _, writer in self.held:
            writer.close()
        self.held.clear()

    async def _post(self, message: dict[str, Any], session: str) -> tuple[int, bytes, bytes]:
        body = json.dumps(message).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self._head("POST", session, len(body), "application/json, text/event-stream") + body)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WITHIN_S)
            length = re.search(rb"(?i)content-length: (\d+)", head)
            return int(head.split()[1]), head, await reader.readexactly(int(length[1]) if length else 0)
        finally:
            writer.close()

    def _head(self, verb: str, session: str, length: int, accept: str) -> bytes:
        lines = [f"{verb} /mcp/held HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Accept: {accept}"]
        lines += [f"Mcp-Session-Id: {session}", f"MCP-Protocol-Version: {VERSION}"] if session else []
        lines += ["Content-Type: application/json", f"Content-Length: {length}"] if length else []
        return "\r\n".join([*lines, "", ""]).encode()


class Held(NamedTuple):
    """What a sidecar holds: megabytes, descriptors, tasks, and objects that streams are made of."""

    rss_mb: int
    descriptors: int
    tasks: int
    objects: int


@dataclass
class Stage:
    """A sidecar before a server that holds streams."""

    folder: Path
    process: Running
    caller: Caller
    admin: int
    upstream: int

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=10) as answer:
            return float(re.search(rf"(?m)^{re.escape(name)} (\S+)", answer.read().decode())[1])  # type: ignore[index]

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.child.pid}/fd").iterdir()))

    async def held(self) -> Held:
        """Once nothing is under way any more."""
        await asyncio.sleep(QUIET_S)
        told = self.folder / "inside.json"
        told.unlink(missing_ok=True)
        self.process.child.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(SETTLE_S):
            while not told.exists():  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0.05)
        inside = json.loads(told.read_text())
        return Held(round(self.process.rss_mb()), self.descriptors, inside["tasks"], inside["objects"])

    def order(self, target: str, order: object) -> None:
        status, body = ask_control(self.folder / "data" / "control.sock", target, verb="POST", order=order)
        if status != 200:
            raise BenchFailed(body.decode())

    def sessions_there(self) -> int:
        """How many sessions the upstream has that nobody ended."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.upstream}/ended", timeout=10) as answer:
            told = json.load(answer)
        return int(told["of"] - told["ended"])

    async def settled(self) -> None:
        """Until no stream and no session is left, here and at the upstream."""
        until_s = time.monotonic() + SETTLE_S
        while (
            self.metric('sidecar_open_streams{protocol="mcp"}')
            or self.metric("sidecar_sessions")
            or self.sessions_there() > OUR_OWN
        ):
            if time.monotonic() > until_s:
                raise BenchFailed(f"streams or sessions are left, {self.sessions_there()} of them at the upstream")
            await asyncio.sleep(0.2)


@asynccontextmanager
async def staged(folder: Path, idle_s: float) -> AsyncIterator[Stage]:
    upstream, port, admin = free_port(), free_port(), free_port()
    (folder / "policies").mkdir(parents=True)
    (folder / "policies" / "agent_to_tool.csv").write_text(RULES)
    (folder / "models").mkdir()
    for model in shipped("models").glob("*.conf"):
        (folder / "models" / model.name).write_text(model.read_text())
    settings = SETTINGS.format(port=port, admin=admin, upstream=upstream, idle_s=idle_s)
    (folder / "sidecar.yaml").write_text(settings)
    holding = (sys.executable, "-m", "bench.holding", str(upstream))
    inside = (sys.executable, "-m", "bench.inside", str(folder / "inside.json"))
    serving = (*inside, "serve", "-c", str(folder / "sidecar.yaml"))
    with running(holding, folder / "upstream.log"), running(serving, folder / "sidecar.log") as process:
        wait_for_200(f"http://127.0.0.1:{admin}/readyz", process)
        yield Stage(folder, process, Caller(port), admin, upstream)


async def hold(stage: Stage, count: int) -> dict[str, Any]:
    """What `count` streams cost while they are open, what of it is left, and whether that serves the next."""
    caller = stage.caller
    await _open(caller, 200)  # what grows once has grown
    caller.let_go()
    await stage.settled()
    before = await stage.held()
    idle_ms = statistics.median(await _calls(caller))
    await _open(caller, count)
    while_open = await stage.held()
    beside_ms = statistics.median(await _calls(caller))
    caller.let_go()
    await stage.settled()
    after = await stage.held()
    await _open(caller, count)
    caller.let_go()
    await stage.settled()
    again = await stage.held()
    return {
        "streams": count,
        "kib_per_stream": round((while_open.rss_mb - before.rss_mb) * 1e6 / 1024 / count, 1),
        "call_p50_ratio": round(beside_ms / idle_ms, 2),
        "before": before._asdict(),
        "open": while_open._asdict(),
        "closed": after._asdict(),
        "closed_again": again._asdict(),
    }


async def _calls(caller: Caller) -> list[float]:
    """Milliseconds of each of some calls."""
    session = await caller.session()
    answers = [await caller.call(session) for _ in range(CALLS)]
    if any(status != 200 or '"error"' in body for status, body, _ in answers):
        raise BenchFailed("a call failed")
    return [took for _, _, took in answers]


async def abandon(stage: Stage, count: int) -> dict[str, Any]:
    """Sessions that are opened and never used."""
    before = await stage.held()
    turns, began = iter(range(count)), time.monotonic()

    async def work() -> None:
        for _ in turns:
            await stage.caller.session()

    await asyncio.gather(*(work() for _ in range(OPENED_AT_ONCE)))
    took_s = time.monotonic() - began
    await stage.settled()
    after = await stage.held()
    return {"sessions": count, "seconds": round(took_s, 1), "before": before._asdict(), "after": after._asdict()}


async def revoke(stage: Stage, count: int) -> dict[str, Any]:
    """Seconds from a switch or a reload being done to the refusal of new calls, and to the end of `count` streams."""
    told: dict[str, Any] = {"streams": count}
    rules = stage.folder / "policies" / "agent_to_tool.csv"

    def reload(text: str) -> None:
        rules.write_text(text)
        stage.order("/api/reload", {})

    ways = {
        "kill_switch": (
            lambda: stage.order("/api/principals/nhi%3Abench/disable", {}),
            lambda: stage.order("/api/principals/nhi%3Abench/enable", {}),
        ),
        "reload": (lambda: reload(RULES.replace("nhi:bench", "nhi:other")), lambda: reload(RULES)),
    }
    for name, (off, on) in ways.items():
        session = await stage.caller.session()
        await _open(stage.caller, count)
        await asyncio.to_thread(off)
        began = time.monotonic()
        refused, calls_s = False, 0.0
        while not refused:
            refused = '"reason"' in (await stage.caller.call(session))[1]
            calls_s = time.monotonic() - began
        await asyncio.wait_for(stage.caller.ended(), WITHIN_S)
        told[name] = {"new_calls_s": round(calls_s, 3), "streams_s": round(time.monotonic() - began, 2)}
        await asyncio.to_thread(on)
    return told


async def _open(caller: Caller, count: int) -> None:
    turns = iter(range(count))

    async def work() -> None:
        for _ in turns:
            await caller.stream()

    await asyncio.gather(*(work() for _ in range(OPENED_AT_ONCE)))


async def measured(folder: Path, streams: int, sessions: int) -> dict[str, Any]:
    async with staged(folder, idle_s=3.0) as stage:
        return {
            "held": await hold(stage, streams),
            "abandoned": await abandon(stage, sessions),
            "revoked": await revoke(stage, streams),
        }


@click.command()
@click.option("--streams", type=click.IntRange(100, 9_000), default=5_000, show_default=True)
@click.option("--sessions", type=click.IntRange(100, 100_000), default=50_000, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(streams: int, sessions: int, out: Path) -> None:
    """Hold thousands of streams, abandon sessions, revoke; on loopback."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the children inherit it
    with tempfile.TemporaryDirectory(prefix="streams") as name:
        told = uvloop.run(measured(Path(name) / "sidecar", streams, sessions))
    out.write_text(json.dumps(told, indent=1) + "\n")
    click.echo(out.read_text())


if __name__ == "__main__":
    main()
