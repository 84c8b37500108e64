"""Does each minute run once, by real clocks, when whoever is at it is killed?

    python -m bench.clockwork [--minutes 10] [--schedules 20]

Three `sidecar serve` share one Valkey, and schedules that are due every minute call one agent. In the seconds around
each full minute one of the three is killed with kill -9, and started anew. In the end every message that reached the
agent is laid beside the minutes that there were: a due time is one message.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
from aiohttp import web

from bench.process import BenchFailed, Running, free_port, running, wait_for_port
from bench.valkeys import one
from sidecar.settings.shipped_files import shipped

REPLICAS = 3
MINUTE_S = 60.0
SETTLED_S = 25.0  # whoever takes over does so within fifteen
AGENT = "clerk"


@dataclass
class Agent:
    """Answers each message at once, and knows when which came."""

    heard: dict[str, tuple[str, float]] = field(default_factory=dict)
    again: Counter[str] = field(default_factory=Counter)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"name": AGENT, "capabilities": {}})
        asked = await request.json()
        message = asked["params"]["message"]
        name, schedule = message["messageId"], message["parts"][0]["data"]["schedule"]
        if name in self.heard:
            self.again[name] += 1
        self.heard[name] = schedule, time.time()
        said = {"messageId": f"to-{name}", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": {"message": said}})


@dataclass
class Fleet:
    """The replicas. `stack` ends them."""

    folders: list[Path]
    stack: ExitStack
    serving: list[Running] = field(default_factory=list)
    kills: int = 0

    async def start(self, place: int) -> None:
        """Start one, and wait until it listens."""
        folder = self.folders[place]
        command = (sys.executable, "-m", "sidecar", "serve", "-c", str(folder / "sidecar.yaml"))
        started = self.stack.enter_context(_mortal(command, folder / f"log-{self.kills}"))
        self.serving[place : place + 1] = [started]
        await asyncio.to_thread(wait_for_port, int((folder / "port").read_text()), started)

    async def kill(self, place: int) -> None:
        """As a power cut would, and start it anew."""
        self.serving[place].child.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self.serving[place].child.wait)
        self.kills += 1
        await self.start(place)


@contextmanager
def _mortal(command: Sequence[str], log: Path) -> Iterator[Running]:
    """`running`, of what may be killed meanwhile."""
    with suppress(BenchFailed), running(command, log) as started:
        yield started


def write(folder: Path, agent_port: int, store: str, schedules: int) -> None:
    """One replica's folder."""
    port = free_port()
    (folder / "policies").mkdir(parents=True)
    (folder / "models").mkdir()
    for model in shipped("models").glob("*.conf"):
        (folder / "models" / model.name).write_text(model.read_text())
    (folder / "port").write_text(str(port))
    rules = "".join(f"p, nhi:s{n}, nhi:{AGENT}, message/send, -, 1000, -, allow\n" for n in range(schedules))
    (folder / "policies" / "nhi_to_nhi.csv").write_text(rules)
    due = {
        f"s{n}": {"agent": AGENT, "cron": "* * * * *", "input_parameters": {"schedule": f"s{n}"}}
        for n in range(schedules)
    }
    settings = {
        "version": 1,
        "server": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": f"127.0.0.1:{free_port()}"},
        "store": {"url": store},
        "tasks": {"store": "redis"},
        "upstreams": {AGENT: {"a2a": {"url": f"http://127.0.0.1:{agent_port}/", "version": "1.0"}}},
        "schedules": due,
    }
    (folder / "sidecar.yaml").write_text(json.dumps(settings))


async def hour(minutes: int, schedules: int) -> None:
    """As many minutes of it."""
    agent, port, chance = Agent(), free_port(), random.Random(7)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", agent.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    with tempfile.TemporaryDirectory(prefix="clockwork") as name, ExitStack() as stack:
        node = stack.enter_context(one(Path(name) / "valkey"))
        folders = [Path(name) / f"replica-{n}" for n in range(REPLICAS)]
        for folder in folders:
            write(folder, port, f"redis://{node.address}", schedules)
        fleet = Fleet(folders, stack)
        for place in range(REPLICAS):
            await fleet.start(place)
        first = _next_minute(time.time() + 5)
        await asyncio.sleep(first - 1 - time.time())
        agent.heard.clear()  # of a minute that was full while they were started
        for n in range(minutes):
            await asyncio.sleep(max(0.0, first + n * MINUTE_S + chance.uniform(-0.2, 1.5) - time.time()))
            await fleet.kill(chance.randrange(REPLICAS))
            click.echo(f"{n + 1} of {minutes} minutes, {len(agent.heard)} messages", err=True)
        await asyncio.sleep(SETTLED_S)
    await runner.cleanup()
    _tell(agent, fleet.kills, minutes, schedules)


def _tell(agent: Agent, kills: int, minutes: int, schedules: int) -> None:
    due = minutes * schedules
    per = Counter(schedule for schedule, _ in agent.heard.values())
    late = [at % MINUTE_S for _, at in agent.heard.values()]
    lost = sum(max(0, minutes - per[f"s{n}"]) for n in range(schedules))
    more = sum(max(0, per[f"s{n}"] - minutes) for n in range(schedules))
    click.echo(f"kills {kills}, due {due}, messages {len(agent.heard)}, said twice {agent.again.total()}")
    click.echo(f"without a message {lost} (killed on the way to the agent), too many {more}")
    within = [sum(second <= most for second in late) for most in (1, 5, 20)]
    click.echo(f"heard within 1 s {within[0]}, 5 s {within[1]}, 20 s {within[2]}, latest {max(late, default=0):.1f} s")
    if more or agent.again:
        raise BenchFailed("a due time ran twice")


def _next_minute(now_s: float) -> float:
    return next(one for one in itertools.count(int(now_s // MINUTE_S + 1) * MINUTE_S, MINUTE_S))


@click.command()
@click.option("--minutes", default=10, show_default=True)
@click.option("--schedules", default=20, show_default=True)
def main(minutes: int, schedules: int) -> None:
    """Does each minute run once?"""
    asyncio.run(hour(minutes, schedules))


if __name__ == "__main__":
    main()
