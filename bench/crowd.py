"""Do real sidecars together let through exactly what one limit says, however many callers come to all of them?

Several `sidecar serve`, each with its own folder and address, one real Valkey, one server behind them that counts what
reaches it, and callers who come over HTTP to all of them at once. One hour's limit refuses; a day and a budget of money
must then have moved exactly as often.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import redis

from bench.call import SERVER, Post, post_to
from bench.process import free_port, running, wait_for_200, wait_for_port
from bench.subjects import valkey
from sidecar.limits.topology import PREFIX
from sidecar.settings.shipped_files import shipped

CALLERS = 16  # of each sidecar
SETTLED_S = 1.5  # what could not be confirmed is undone
SPENDER = "nhi:spender"
COST = 2_000  # millionths of a dollar
SETTINGS = """\
version: 1
data: data
server: {{listen: "127.0.0.1:0", max_lag_s: 60}}
admin: {{listen: "127.0.0.1:{admin}"}}
local: [{{listen: "127.0.0.1:{port}", principal: "{spender}"}}]
store: {{url: "{store}"}}
refusals: {{per_principal_per_minute: 1000000}}
upstreams: {{{server}: {{mcp: {{url: "{upstream}"}}, probe: {{enabled: false}}}}}}
"""
BUDGETS = """\
version: 1
principals:
  {spender}: {{per_hour: {limit}, per_day: 900000000}}
"""
MONEY = """\
costs: [{{object: "tool:{server}/*", unit: usd, per_call: 0.002}}]
budgets: [{{principal: "{spender}", unit: usd, per_month: 900000000}}]
"""


@dataclass(frozen=True)
class Met:
    """What the callers were answered, what reached the server, and what each counter says."""

    answers: Counter[str]
    reached: int
    counted: dict[str, int]
    took_s: float


@dataclass
class Caller(asyncio.Protocol):
    """One connection that makes the same call again and again, while there are attempts left."""

    request: bytes
    attempts: Iterator[int]
    answers: Counter[str]
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _buffer: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if found and len(body) >= _length(head):
            self._buffer = b""
            self.answers[_answer(head, body)] += 1
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.answers["cut off"] += 1
            self.over.set_result(None)

    def _next(self) -> None:
        if next(self.attempts, None) is None:
            self.over.set_result(None)
            self._transport.close()
        else:
            self._transport.write(self.request)


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


def _answer(head: bytes, body: bytes) -> str:
    if head[9:12] == b"200" and b'"result"' in body:
        return "admitted"
    reason = body.partition(b'"reason":"')[2].partition(b'"')[0].decode()
    return f"{head[9:12].decode()} {reason}".strip()


def met(attempts: int, processes: int, limit: int) -> Met:
    """What becomes of so many calls. Raises BenchFailed where a process did not serve."""
    with tempfile.TemporaryDirectory(prefix="crowd") as name, ExitStack() as ends:
        folder, upstream, ports = Path(name), free_port(), [free_port() for _ in range(processes)]
        store = ends.enter_context(valkey(folder))
        behind = (sys.executable, "-m", "bench.stub", str(upstream))
        wait_for_port(upstream, ends.enter_context(running(behind, folder / "upstream.log")))
        starting = []
        for port in ports:
            config, ready = _write(folder / str(port), port, upstream, store, limit)
            command = (sys.executable, "-m", "sidecar", "serve", "-c", str(config))
            starting.append((ready, ends.enter_context(running(command, folder / f"{port}.log"))))
        for ready, process in starting:
            wait_for_200(ready, process)
        began_s = time.monotonic()
        answers = asyncio.run(_call(ports, attempts))
        took_s = time.monotonic() - began_s
        if answers.keys() - {"admitted", "429 rate-limited"}:
            time.sleep(SETTLED_S)
        return Met(answers, _reached(upstream), _counted(store), took_s)


async def _call(ports: list[int], attempts: int) -> Counter[str]:
    loop, answers, left = asyncio.get_running_loop(), Counter[str](), iter(range(attempts))
    callers = []
    for port in ports:
        request = _bytes(post_to(f"http://127.0.0.1:{port}/mcp/{SERVER}"))
        for _ in range(CALLERS):
            _, caller = await loop.create_connection(lambda: Caller(request, left, answers), "127.0.0.1", port)  # noqa: B023
            callers.append(caller)
    await asyncio.gather(*(caller.over for caller in callers))
    return answers


def _bytes(post: Post) -> bytes:
    at, body = urlsplit(post.url), post.body.encode()
    headers = {"Host": at.netloc, **post.headers, "Content-Length": str(len(body))}
    lines = [f"POST {at.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def _write(folder: Path, port: int, upstream: int, store: str, limit: int) -> tuple[Path, str]:
    """A folder; its configuration, and where it says that it is ready."""
    (folder / "policies").mkdir(parents=True)
    shutil.copytree(shipped("models"), folder / "models")
    admin = free_port()
    (folder / "sidecar.yaml").write_text(
        SETTINGS.format(
            port=port,
            admin=admin,
            spender=SPENDER,
            store=store,
            server=SERVER,
            upstream=f"http://127.0.0.1:{upstream}/mcp",
        )
    )
    (folder / "policies" / "agent_to_tool.csv").write_text(f"p, {SPENDER}, tool:{SERVER}/*, use, -, -, -, allow\n")
    budgets = BUDGETS.format(spender=SPENDER, limit=limit)
    money = MONEY.format(spender=SPENDER, server=SERVER)
    (folder / "policies" / "budgets.yaml").write_text(budgets + money)
    return folder / "sidecar.yaml", f"http://127.0.0.1:{admin}/readyz"


def _reached(upstream: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{upstream}/called", timeout=10) as answer:
        return int(answer.read())


def _counted(store: str) -> dict[str, int]:
    """What is counted, by kind of counter, as the store has it."""
    found = {}
    with redis.Redis.from_url(store, decode_responses=True) as client:
        for key in client.scan_iter(f"{PREFIX}*", _type="hash"):
            counter = client.hgetall(key)
            kind = "hour" if "m" in counter else "day" if "d" in counter else "month" if "b" in counter else ""
            if kind:
                found[kind] = int(counter["n"])
    return found
