"""Does one caller notice what another does to the sidecar with programs that know no end?

    python -m bench.floods [NAME …]

One `sidecar serve`, and two callers. One has programs complain, tell, print and fork as fast as they can, sends large
prompts and ten thousand messages at once, and opens streams that it never reads. The other, a process of its own, asks
for a task and runs `cat`, again and again. What they see is measured in each flood, and in none; then it is counted
what is there. Everything has an end by itself within seconds. The table goes to `bench/floods.json`. Linux only.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
import psutil

from bench.errands import write_folder
from bench.process import Running, free_port, running, wait_for_200

OUT = Path(__file__).parent / "floods.json"
LASTS_S = 12
GONE_WITHIN_S = 10.0
QUIET_S = 8.0
UNREAD_S = 15.0
MESSAGES, STREAMS, PROMPTS = 10_000, 1_000, 200
LARGE: Final = "x y " * 200_000
_MORE: Final = {"A2A-Version": "1.0"}
_COMPLAIN: Final = "yes some words of complaint >&2"
_AFTER: Final = f"while read -r l; do echo got; {_COMPLAIN} & done"
_TOLD: Final = '{"jsonrpc":"2.0","method":"progress","params":{}}'
_TREE: Final = 'trap "" TERM; for i in $(seq 1 300); do setsid sh -c \'trap "" TERM; sleep 60\' & done; wait'
_LINES: Final = "for i in $(seq 1 3000); do echo some words that are said $i; sleep 0.01; done"
CALM, SHORT, SAYS = "calm", "short", "says"


def _agents() -> dict[str, Any]:
    def shell(script: str, *more: str, **how: Any) -> dict[str, Any]:
        return {"executable": "/bin/sh", "args": ["-c", script, *more], "timeout": LASTS_S, **how}

    return {
        CALM: {"executable": "cat"},
        SHORT: shell("sleep 0.2"),
        SAYS: shell(_LINES),
        "complains": shell(_COMPLAIN),
        "complains-files": shell("yes some words of complaint", "{output_file}", agent_type="stdin-file"),
        "complains-after": shell(
            f"while read -r l; do echo got; {_COMPLAIN} & done", mode="interactive", idle_timeout=LASTS_S
        ),
        "tells": shell(f"read l; yes '{_TOLD}'", agent_type="json-rpc"),
        "prints": shell("yes"),
        "forks": shell(_TREE),
        "fills": shell("head -c 2000000000 /dev/zero > large; for i in $(seq 1 20000); do : > f$i; done"),
    }


class Attacker:
    """Who floods, at `url`."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http
        self.came_to: Counter[str] = Counter()

    async def call(self, agent: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.http.post(f"{self.url}/agents/{agent}/", json=body, headers=_MORE) as response:
            told: dict[str, Any] = await response.json()
        state = told.get("result", {}).get("task", {}).get("status", {}).get("state", "")
        self.came_to[f"{response.status} {state}".strip()] += 1
        return told

    async def runs(self, agent: str, count: int = 4) -> None:
        """So many at once, each to its end."""
        await asyncio.gather(*(self.call(agent, "SendMessage", message("go")) for _ in range(count)))

    async def many(self) -> None:
        """Messages that wait for nothing."""
        at_once, gate = message("go") | {"configuration": {"returnImmediately": True}}, asyncio.Semaphore(100)

        async def one() -> None:
            async with gate:
                await self.call(SHORT, "SendMessage", at_once)

        await asyncio.gather(*(one() for _ in range(MESSAGES)))

    async def large(self) -> None:
        """Prompts that are hardly taken."""
        gate = asyncio.Semaphore(32)

        async def one() -> None:
            async with gate:
                await self.call(CALM, "SendMessage", message(LARGE))

        await asyncio.gather(*(one() for _ in range(PROMPTS)))

    async def unread(self) -> None:
        """Streams of one run, of which nothing is read."""
        params = message("go") | {"configuration": {"returnImmediately": True}}
        task = (await self.call(SAYS, "SendMessage", params))["result"]["task"]["id"]
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
        opened = [await self._opened(SAYS, json.dumps(body).encode()) for _ in range(STREAMS)]
        await asyncio.sleep(UNREAD_S)
        for sock in opened:
            sock.close()

    async def _opened(self, agent: str, body: bytes) -> socket.socket:
        host = self.url.removeprefix("http://")
        name, _, port = host.partition(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (name, int(port)))
        said = {"Host": host, **_MORE, "Content-Type": "application/json", "Content-Length": str(len(body))}
        head = "".join(f"{header}: {value}\r\n" for header, value in said.items())
        await loop.sock_sendall(sock, f"POST /agents/{agent}/ HTTP/1.1\r\n{head}\r\n".encode() + body)
        return sock


FLOODS: Final[Mapping[str, Callable[[Attacker], Awaitable[object]]]] = {
    "none": lambda attacker: asyncio.sleep(QUIET_S),
    "complains": lambda attacker: attacker.runs("complains"),
    "complains-files": lambda attacker: attacker.runs("complains-files"),
    "complains-after": lambda attacker: asyncio.gather(attacker.runs("complains-after"), asyncio.sleep(LASTS_S)),
    "tells": lambda attacker: attacker.runs("tells"),
    "prints": lambda attacker: attacker.runs("prints", 40),
    "forks": lambda attacker: attacker.runs("forks"),
    "fills": lambda attacker: attacker.runs("fills", 1),
    "large": Attacker.large,
    "many": Attacker.many,
    "unread": Attacker.unread,
}


def message(text: str) -> dict[str, Any]:
    """What a send is about."""
    return {"message": {"messageId": secrets.token_hex(8), "role": "ROLE_USER", "parts": [{"text": text}]}}


async def stand_by(url: str) -> None:
    """As the other caller, until a line comes: how long each question took, and each run, in milliseconds."""
    took: dict[str, list[float]] = {"asked": [], "ran": []}
    wrong: Counter[str] = Counter()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        me, over = Attacker(url, http), asyncio.Event()
        task = (await me.call(CALM, "SendMessage", message("x")))["result"]["task"]["id"]

        async def again(what: str, method: str, params: Mapping[str, Any], rest_s: float) -> None:
            while not over.is_set():
                began = time.perf_counter()
                told = await me.call(CALM, method, params)
                took[what].append((time.perf_counter() - began) * 1000)
                found = told.get("result", {}).get("task", told.get("result", {}))
                state = found.get("status", {}).get("state", json.dumps(told)[:200])
                wrong[state] += state != "TASK_STATE_COMPLETED"
                await asyncio.sleep(rest_s)

        asks, runs = again("asked", "GetTask", {"id": task}, 0.01), again("ran", "SendMessage", message("y"), 0.05)
        doing = asyncio.gather(asks, runs)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        over.set()
        await doing
    print(json.dumps({"took": took, "wrong": dict(+wrong)}), flush=True)


async def flooded(name: str, ports: Mapping[str, int], serving: Running) -> dict[str, Any]:
    """One flood, and what the other caller saw of it."""
    other = f"http://127.0.0.1:{ports['other']}"
    words = (sys.executable, "-m", "bench.floods", "--stand-by", other)
    bystander = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, limit=2**24)
    assert bystander.stdout is not None
    await bystander.stdout.readline()
    most_mb, began, began_cpu_s = [serving.rss_mb()], time.monotonic(), serving.cpu_s()

    async def watch() -> None:
        while True:
            most_mb.append(serving.rss_mb())
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120), connector=connector) as http:
        attacker = Attacker(f"http://127.0.0.1:{ports['owner']}", http)
        await FLOODS[name](attacker)
    took_s, cpu_s = time.monotonic() - began, serving.cpu_s() - began_cpu_s
    said, _ = await bystander.communicate(b"\n")
    watching.cancel()
    told = json.loads(said.splitlines()[-1])
    return {
        "took_s": round(took_s, 1),
        "cpu_s": round(cpu_s, 1),
        "asked_ms": _figures(told["took"]["asked"]),
        "ran_ms": _figures(told["took"]["ran"]),
        "wrong": told["wrong"],
        "most_mb": round(max(most_mb)),
        "came_to": dict(attacker.came_to),
    }


def _figures(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 1) for name, part in at.items()}


async def measured(place: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Each flood, and what was left when all were over."""
    ports = {name: free_port() for name in ("owner", "other", "admin")}
    write_folder(place, "", place, ports, agents=_agents(), schedules={})
    command = (sys.executable, "-m", "sidecar", "serve", "-c", str(place / "sidecar.yaml"))
    with running(command, place / "log") as serving:
        await asyncio.to_thread(wait_for_200, f"http://127.0.0.1:{ports['admin']}/readyz", serving)
        told = {}
        for name in names:
            told[name] = await flooded(name, ports, serving)
            click.echo(row(name, told[name]))
        left = await asyncio.to_thread(_left, psutil.Process(serving.child.pid))
        return {"floods": told, "processes_left": left, "descriptors": serving.descriptors()}


def _left(sidecar: psutil.Process) -> int:
    """How many processes of programs there are when all of them had the time to go."""
    until = time.monotonic() + LASTS_S + GONE_WITHIN_S
    while (left := len(sidecar.children(recursive=True)) - 1) > 0 and time.monotonic() < until:
        time.sleep(0.2)
    return left


def row(name: str, one: Mapping[str, Any]) -> str:
    """A line of the table."""
    asked, ran = one["asked_ms"], one["ran_ms"]
    figures = f"{asked['p50']:>7} {asked['p99']:>7} {asked['max']:>7} {ran['p50']:>8} {ran['p99']:>7} {ran['max']:>7}"
    return f"{name:<16}{one['took_s']:>6} {one['cpu_s']:>6} {figures} {one['most_mb']:>6}  {sum(one['wrong'].values())}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*FLOODS]))
@click.option("--stand-by", hidden=True)
def main(names: tuple[str, ...], stand_by: str | None) -> None:
    if stand_by:
        asyncio.run(globals()["stand_by"](stand_by))
        return
    click.echo(f"{'':<16}{'s':>6} {'cpu s':>6} {'asked, ms: p50, p99, max':>23} {'ran, ms':>24} {'MB':>6}  wrong")
    with tempfile.TemporaryDirectory(prefix="floods") as place:
        told = asyncio.run(measured(Path(place), names or tuple(FLOODS)))
    click.echo(f"left: {told['processes_left']} processes; {told['descriptors']} descriptors")
    if not names:
        OUT.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
