"""What do other callers feel of those who only want to be in the way?

    python -m bench.hostile [--seconds 10]

A sidecar runs in this process, as it is configured without a word about bounds; a watch looks at its loop. Callers who
mean it, and those who do not, are processes of their own, and so is the server of each, because what a bomb does to a
server is not ours to measure: 5,000 connections that never finish their first line, 1,000
callers who ask for a megabyte and do not read, bodies that are bombs, and all of that at once. The table goes to
`bench/hostile.json`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import resource
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import click
import uvloop
from aiohttp import web

from bench.mixed import STATELESS, Behind, Callers, serve, write_folder
from bench.process import free_port
from bench.stalls import Watch
from sidecar.app.application import Application
from sidecar.cli.serve import settle_interpreter

OUT = Path(__file__).parent / "hostile.json"
HALF_OPEN, SLOW, BOMBERS, LARGE_BYTES = 5_000, 1_000, 4, 2**20
CALLERS, PAUSE_S = 8, 0.01
FROM = "127.0.0.66"  # where they come from
AGAIN_S = 5.0  # after which who was hung up on comes again: a thousand each second
ARRIVE_S, SETTLE_S = 20.0, 2.0  # slow readers come one after the other: what is measured is that they are there
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ANOTHER = "another"  # the server that they call
_HEAD = (
    f"POST /mcp/{ANOTHER} HTTP/1.1\r\nHost: 127.0.0.1:{{port}}\r\nContent-Type: application/json\r\n"
    f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {STATELESS}\r\n"
    "Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {length}\r\n{more}\r\n"
)


def bombs() -> Mapping[str, tuple[str, bytes]]:
    """What is sent: name → (further header lines, body)."""
    return {
        "gzip": ("Content-Encoding: gzip\r\n", gzip.compress(b"0" * 50_000_000)),
        "a million brackets": ("", _call("[" * 1_000_000)),
        "a number of a million digits": ("", _call("9" * 1_000_000)),
        "99,000 fractions": ("", _call("[" + ",".join(["0.1"] * 99_000) + "]")),
        "99,000 strings": ("", _call("[" + ",".join(['"abcdef"'] * 99_000) + "]")),
        "1 MiB of escapes": ("", _call('"' + "\\u0061" * 170_000 + '"')),
        "one name 9,900 times": ("", _call("{" + ",".join(['"a":1'] * 9_900) + "}")),
        "no JSON": ("", b"\xff" * 1_000_000),
    }


def _call(argument: str, tool: str = "quick") -> bytes:
    meta = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
    params = f'{{"_meta":{json.dumps(meta)},"name":"{tool}","arguments":{{"a":{argument}}}}}'
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode()


# --- those who are in the way ---------------------------------------------------------------------------------------


@dataclass
class Nuisance:
    """All that come from one address: to the callers' own listener with what is nobody's, and as somebody else with
    the rest. `done` counts what they tried, by kind."""

    port: int
    other: int
    until_s: float
    done: dict[str, int]

    async def half_open(self) -> None:
        """Connections that begin a line, as many at once as there can be; who is hung up on comes again."""

        async def one() -> None:
            while time.monotonic() < self.until_s:
                with suppress(OSError):
                    reader, writer = await self._connect(self.port)
                    writer.write(b"POST /mcp/")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self.until_s - time.monotonic()):
                            await reader.read(1)
                    writer.transport.abort()
                await asyncio.sleep(AGAIN_S)

        await self._all(one, HALF_OPEN)

    async def slow(self) -> None:
        """Callers who ask for much and read nothing."""
        body = _call("1", "large")
        asked = _HEAD.format(port=self.other, tool="large", length=len(body), more="").encode() + body

        async def one() -> None:
            await asyncio.sleep(random.uniform(0.0, ARRIVE_S))
            while time.monotonic() < self.until_s:
                with suppress(OSError):
                    _, writer = await self._connect(self.other, receive_bytes=4096)
                    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of a socket has it
                    writer.write(asked)
                    await asyncio.sleep(self.until_s - time.monotonic())
                    writer.transport.abort()

        await self._all(one, SLOW)

    async def bombs(self) -> None:
        """Bodies, one after the other, each answered before the next."""

        async def one() -> None:
            while time.monotonic() < self.until_s:
                for more, body in bombs().values():
                    head = _HEAD.format(
                        port=self.other, tool="quick", length=len(body), more=more + "Connection: close\r\n"
                    )
                    with suppress(OSError, TimeoutError):
                        reader, writer = await self._connect(self.other)
                        writer.write(head.encode() + body)
                        async with asyncio.timeout(5):
                            await reader.read()
                        writer.transport.abort()
                    self.done["bombs"] = self.done.get("bombs", 0) + 1

        await self._all(one, BOMBERS)

    async def _connect(self, port: int, receive_bytes: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        sock.bind((FROM, 0))
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port)), 5)
        except BaseException:
            sock.close()
            raise
        self.done["connections"] = self.done.get("connections", 0) + 1
        return await asyncio.open_connection(sock=sock, limit=2**16)

    async def _all(self, one: Callable[[], Awaitable[None]], count: int) -> None:
        await asyncio.gather(*(one() for _ in range(count)))


def _be_in_the_way(told: Connection) -> None:
    os.nice(10)  # as if they were on machines of their own
    while (what := told.recv()) is not None:
        port, other, kinds, seconds = what
        nuisance = Nuisance(port, other, time.monotonic() + seconds, {})

        async def all_of_them(nuisance: Nuisance = nuisance, kinds: tuple[str, ...] = kinds) -> None:
            await asyncio.gather(*(getattr(nuisance, kind)() for kind in kinds))

        uvloop.run(all_of_them())
        told.send(nuisance.done)


# --- those who mean it ----------------------------------------------------------------------------------------------


def _call_on(told: Connection) -> None:
    """Told (port, seconds), it calls, and says how long each call took, in milliseconds, and how many failed."""
    while (what := told.recv()) is not None:
        told.send(uvloop.run(_calls(*what)))


async def _calls(port: int, seconds: float) -> tuple[list[float], int]:
    took_ms: list[float] = []
    failed, until_s = 0, time.monotonic() + seconds

    async def one(callers: Callers) -> None:
        nonlocal failed
        while time.monotonic() < until_s:
            began = time.perf_counter()
            try:
                status, _, _ = await callers.stateless("tools/call", {"name": "quick", "arguments": {"a": 1}})
            except aiohttp.ClientError:
                status = 0
            took_ms.append((time.perf_counter() - began) * 1e3)
            failed += status != 200
            await asyncio.sleep(PAUSE_S)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
        callers = Callers(port, port, http, keep_answers=False)
        await asyncio.gather(*(one(callers) for _ in range(CALLERS)))
    return took_ms, failed


def _serve_behind(told: Connection) -> None:
    uvloop.run(serve(told.recv(), _Large().handle, lambda: told.send(None)))


class _Large(Behind):
    """The server of `mixed`, with a tool that answers much."""

    async def _result(self, method: str, params: dict[str, Any], request: web.Request) -> dict[str, Any]:
        result = await super()._result(method, params, request)
        if method == "tools/list":
            result["tools"].append({"name": "large", "inputSchema": {"type": "object"}})
        if params.get("name") == "large":
            result["content"][0]["text"] = "x" * LARGE_BYTES
        return result


class Outside:
    """A process that is told things, and says things."""

    def __init__(self, stack: ExitStack, does: Callable[[Connection], None]) -> None:
        self._ours, theirs = Pipe()
        process = get_context("fork").Process(target=does, args=(theirs,), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.terminate)

    async def told(self, what: object) -> Any:
        self._ours.send(what)
        return await asyncio.to_thread(self._ours.recv)


# --- the phases -----------------------------------------------------------------------------------------------------

PHASES: Mapping[str, tuple[str, ...]] = {
    "quiet": (),
    "5,000 half-open": ("half_open",),
    "1,000 slow readers": ("slow",),
    "bombs": ("bombs",),
    "all of it": ("half_open", "slow", "bombs"),
    "quiet again": (),
}


@click.command()
@click.option("--seconds", type=click.FloatRange(1, 600), default=10.0, show_default=True, help="Of each phase.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(seconds: float, out: Path) -> None:
    """Be in the way, and see who notices."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="hostile") as folder:
        outside = [Outside(stack, does) for does in (_serve_behind, _serve_behind, _call_on, _be_in_the_way)]
        told = uvloop.run(_measure(Path(folder), outside, seconds))
    out.write_text(json.dumps(told, indent=1) + "\n")
    columns = dict.fromkeys(("calls", "failed"), 0) | dict.fromkeys(("p50_ms", "p99_ms", "p99_ratio"), 1)
    columns |= dict.fromkeys(("stall_ms", "stall_cpu_ms", "rss_mb"), 1)
    click.echo(" " * 20 + "".join(f"{column:>14}" for column in columns))
    for name, one in told.items():
        numbers = "".join(f"{one[column]:14.{digits}f}" for column, digits in columns.items())
        click.echo(f"{name:20}{numbers}  {one['tried']}")


async def _measure(folder: Path, outside: Sequence[Outside], seconds: float) -> dict[str, Any]:
    behind, another, callers, nuisance = outside
    ports = {name: free_port() for name in ("port", "other", "admin", "upstream")}
    write_folder(folder / "s", store="memory://", **ports)
    _add_server(folder / "s", port := free_port())
    await behind.told(ports["upstream"])
    await another.told(port)
    app, watch = await Application.start(folder / "s" / "sidecar.yaml", {}), Watch()
    settle_interpreter()
    watching = asyncio.create_task(watch.run())
    told: dict[str, Any] = {}
    try:
        await callers.told((ports["port"], 1.0))
        for name, kinds in PHASES.items():
            told[name] = await _phase(watch, callers, nuisance, ports, kinds, seconds)
            told[name]["p99_ratio"] = round(told[name]["p99_ms"] / told["quiet"]["p99_ms"], 2)
    finally:
        watching.cancel()
        await app.stop()
    return told


def _add_server(folder: Path, port: int) -> None:
    settings, rules = folder / "sidecar.yaml", folder / "policies" / "agent_to_tool.csv"
    server = f'{ANOTHER}: {{mcp: {{url: "http://127.0.0.1:{port}/mcp", transport: http}}, probe: {{enabled: false}}}}'
    settings.write_text(settings.read_text().replace("upstreams: {", f"upstreams: {{{server}, "))
    rules.write_text(rules.read_text() + f"p, nhi:other, tool:{ANOTHER}/*, use, -, -, -, allow\n")


async def _phase(
    watch: Watch, callers: Outside, nuisance: Outside, ports: Mapping[str, int], kinds: tuple[str, ...], seconds: float
) -> dict[str, Any]:
    before_s = ARRIVE_S + SETTLE_S if "slow" in kinds else SETTLE_S
    at_it = asyncio.create_task(nuisance.told((ports["port"], ports["other"], kinds, before_s + seconds + SETTLE_S)))
    await asyncio.sleep(before_s)
    watch.longest_ms = watch.longest_cpu_ms = 0.0
    memory = Memory()
    watching = asyncio.create_task(memory.watch())
    took_ms, failed = await callers.told((ports["port"], seconds))
    stall_ms, stall_cpu_ms = watch.longest_ms, watch.longest_cpu_ms
    watching.cancel()
    tried = await at_it
    took_ms.sort()
    return {
        "calls": len(took_ms),
        "failed": failed,
        "p50_ms": round(took_ms[len(took_ms) // 2], 2),
        "p99_ms": round(took_ms[int(len(took_ms) * 0.99)], 2),
        "stall_ms": round(stall_ms, 1),
        "stall_cpu_ms": round(stall_cpu_ms, 1),
        "rss_mb": round(memory.most_mb, 1),
        "tried": tried,
    }


@dataclass
class Memory:
    """The most that this process had, in megabytes."""

    most_mb: float = 0.0

    async def watch(self) -> None:
        while True:
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])  # noqa: ASYNC240  # no disk is asked
            self.most_mb = max(self.most_mb, pages * _PAGE_BYTES / 1e6)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
