"""What becomes of programs that write when their sidecar stands still, or the store that replicas share does?

    python -m bench.agent_faults [NAME…]

Two real `sidecar serve` on one real Valkey, and one agent that writes: its program says so when it meets another of its
kind. In each fault a long run is at work on one replica and a short one waits on the other. What is told: how long the
long one's program lived, when the short one began, what both were told and what is kept of them, and how long a new run
takes to begin once all is well again. Two at once, or a run that is told otherwise than it is kept, fail the whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click
import psutil
import uvloop

from bench import errands
from bench.errands import Senders
from bench.mixed import Callers
from bench.process import BenchFailed, Running, free_port, running, wait_for_200
from bench.valkeys import Node, one
from sidecar.tasks.programs.write_leases import LEASE_S

LONG_S = 60.0
WITHIN_S = 2 * LEASE_S + 15.0
TAKES_WITHIN_S = 5.0  # after the store is back
STANDS_STILL_S = LEASE_S * 0.65  # longer than a program may live unheard, shorter than its run is left to it


@dataclass
class Replica:
    """One sidecar and who calls it."""

    serving: Running
    senders: Senders

    def stop(self) -> None:
        """It does nothing any more."""
        os.kill(self.serving.child.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """It does."""
        os.kill(self.serving.child.pid, signal.SIGCONT)


@dataclass
class Laboratory:
    """Two replicas on one store, and what their programs wrote down. `stopped` is how many stood beside another."""

    place: Path
    node: Node
    replicas: list[Replica]
    told: dict[str, Any] = field(default_factory=dict)
    stopped: int = 0

    async def sends(self, replica: Replica, seconds: float) -> errands.Errand:
        """A run that writes for so long; it is there when this returns."""
        end_s = time.monotonic() + TAKES_WITHIN_S
        while time.monotonic() < end_s:
            found = await replica.senders._sent(errands.WRITES, f"works {seconds}", at_once=True)
            if found is not None:
                return found
            await asyncio.sleep(0.1)
        raise BenchFailed(f"no run was begun: {replica.senders.busy} {replica.senders.wrong}")

    def noted(self, trace: str) -> dict[str, int]:
        """What a run's program wrote down: what, and its process."""
        lines = [line.split() for line in (self.place / "journal").read_text().splitlines()]
        return {what: int(pid) for what, known, pid in lines if known == trace}

    async def began(self, errand: errands.Errand) -> int:
        """The process of its program, once that has begun."""
        await until(lambda: "began" in self.noted(errand.trace), f"the program of {errand.run_id}")
        return self.noted(errand.trace)["began"]

    async def over(self, replica: Replica, errand: errands.Errand) -> str:
        """The state that its owner is told in the end."""
        state, end_s = "", time.monotonic() + WITHIN_S
        while not errands_over(state) and time.monotonic() < end_s:
            state = await replica.senders.shown(errand)
            await asyncio.sleep(0.2)
        return state.removeprefix("TASK_STATE_").lower()

    def kept(self, errand: errands.Errand) -> dict[str, Any]:
        """The run as the store has it."""
        with self.node.client() as client:
            for key in client.scan_iter(match=f"*agent-runs*:task:{errand.run_id}", count=10_000):
                found: dict[str, Any] = json.loads(client.hget(key, "body") or "{}")
                return found
        return {}


def errands_over(state: str) -> bool:
    """Whether nothing more comes of a task."""
    return state.endswith(("COMPLETED", "FAILED", "CANCELED", "REJECTED"))


def alive(pid: int) -> bool:
    """Whether it is there, and no corpse."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def until(holds: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> float:
    """How long it took."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > within_s:
            raise BenchFailed(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s


# --- the faults -------------------------------------------------------------------------------------------------------


async def _at_work_and_waiting(lab: Laboratory) -> tuple[errands.Errand, int, errands.Errand]:
    """A long run at work here, its program's id, and a short one that waits there."""
    here, there = lab.replicas
    long = await lab.sends(here, LONG_S)
    pid = await lab.began(long)
    return long, pid, await lab.sends(there, 0.1)


async def sidecar_stands_still(lab: Laboratory) -> None:
    """For longer than its lease: another begins, and nothing of the first is there then."""
    here, there = lab.replicas
    long, pid, short = await _at_work_and_waiting(lab)
    here.stop()
    try:
        lab.told["program_lived_s"] = await until(lambda: not alive(pid), "the end of a program whose sidecar stands")
        lab.told["other_began_after_s"] = lab.told["program_lived_s"] + await until(
            lambda: "began" in lab.noted(short.trace), "the other's turn"
        )
        lab.told["other"] = await lab.over(there, short)
    finally:
        here.go_on()
    await _told_and_kept(lab, here, long)


async def sidecar_stands_still_for_less(lab: Laboratory) -> None:
    """For long enough that its program was ended, and not so long that anybody took its run."""
    here, there = lab.replicas
    long, pid, short = await _at_work_and_waiting(lab)
    here.stop()
    try:
        lab.told["program_lived_s"] = await until(lambda: not alive(pid), "the end of a program whose sidecar stands")
        await asyncio.sleep(max(0.0, STANDS_STILL_S - lab.told["program_lived_s"]))
    finally:
        here.go_on()
    await _told_and_kept(lab, here, long)
    lab.told["other"] = await lab.over(there, short)


async def machine_stands_still(lab: Laboratory) -> None:
    """Sidecar, keepers and programs, as where a container is frozen: what no lease can help. How long it lasts then."""
    here, there = lab.replicas
    long, pid, short = await _at_work_and_waiting(lab)
    sidecar = psutil.Process(here.serving.child.pid)
    everybody = [sidecar, *sidecar.children(recursive=True)]
    for each in everybody:
        each.suspend()
    try:
        await until(lambda: "began" in lab.noted(short.trace), "the other's turn")
        lab.told["other"] = await lab.over(there, short)
    finally:
        for each in reversed(everybody):  # the program first
            each.resume()
    went_on_s = time.monotonic()
    while alive(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    lab.stopped = 1  # its lock was held all the time
    lab.told["program_lived_on_ms"] = round((time.monotonic() - went_on_s) * 1000)
    await _told_and_kept(lab, here, long)


async def store_stands_still(lab: Laboratory) -> None:
    """For longer than a lease, both replicas up."""
    await _store_out(lab, lab.node.freeze, lab.node.thaw, LEASE_S * 1.2)


async def store_stands_still_for_less(lab: Laboratory) -> None:
    """For so short that the run goes on."""
    here, there = lab.replicas
    long = await lab.sends(here, 8.0)
    await lab.began(long)
    short = await lab.sends(there, 0.1)
    lab.node.freeze()
    await asyncio.sleep(LEASE_S / 4)
    lab.node.thaw()
    await _told_and_kept(lab, here, long)
    lab.told["other"] = await lab.over(there, short)


async def store_dies(lab: Laboratory) -> None:
    """And comes back empty after longer than a lease."""
    await _store_out(lab, lab.node.kill, lab.node.start, LEASE_S * 1.2, remembers=False)


async def store_is_emptied(lab: Laboratory) -> None:
    """In the middle of a run, which goes on, and is kept anew."""
    here, there = lab.replicas
    long = await lab.sends(here, 8.0)
    await lab.began(long)
    short = await lab.sends(there, 0.1)
    lab.node.ask("FLUSHALL")
    await until(lambda: "ended" in lab.noted(long.trace), "the end of a run that the store forgot")
    lab.told["other_began_after_s"] = await until(lambda: "began" in lab.noted(short.trace), "the other's turn")
    for name, errand in (("long", long), ("other", short)):
        await until(lambda errand=errand: lab.kept(errand).get("status") is not None, f"the end of {errand.run_id}")  # type: ignore[misc]
        lab.told[name] = lab.kept(errand)["status"]


async def _store_out(
    lab: Laboratory, goes: Callable[[], None], comes: Callable[[], None], for_s: float, *, remembers: bool = True
) -> None:
    here, there = lab.replicas
    long, pid, short = await _at_work_and_waiting(lab)
    goes()
    try:
        lab.told["program_lived_s"] = await until(lambda: not alive(pid), "the end of a program whose store is out")
        await asyncio.sleep(max(0.0, for_s - lab.told["program_lived_s"]))
        began_s = time.monotonic()
        for replica in lab.replicas if remembers else ():
            await replica.senders.shown(long)
        lab.told["answers_while_out_s"] = time.monotonic() - began_s
    finally:
        comes()
    if remembers:
        lab.told["other_began_after_s"] = await until(lambda: "began" in lab.noted(short.trace), "the other's turn")
        await _told_and_kept(lab, here, long)
        lab.told["other"] = await lab.over(there, short)


async def _told_and_kept(lab: Laboratory, replica: Replica, errand: errands.Errand) -> None:
    lab.told["long"] = await lab.over(replica, errand)
    kept = lab.kept(errand)
    lab.told["kept"] = kept["task"]["status"]["state"].removeprefix("TASK_STATE_").lower()
    if kept["failure"] is not None:
        lab.told["why"] = f"{kept['failure']['category']}: {kept['failure']['message']}"
    if lab.told["long"] != lab.told["kept"]:
        raise BenchFailed(f"told otherwise than it is kept: {lab.told}")


FAULTS: dict[str, Callable[[Laboratory], Awaitable[None]]] = {
    one.__name__: one
    for one in (
        sidecar_stands_still,
        sidecar_stands_still_for_less,
        machine_stands_still,
        store_stands_still,
        store_stands_still_for_less,
        store_dies,
        store_is_emptied,
    )
}


# --- the whole --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def laboratory(place: Path) -> AsyncIterator[Laboratory]:
    """Two replicas, ready, whose store has been asked for longer than a lease."""
    async with AsyncExitStack() as both:
        stack = both.enter_context(ExitStack())
        node = stack.enter_context(one(place / "valkey"))
        node.ask("SET", "{sidecar}:agent-turns:since", 1)
        http = await both.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        replicas = []
        for number in range(2):
            folder = place / str(number)
            ports = {name: free_port() for name in ("owner", "other", "admin")}
            errands.write_folder(
                folder, "", place, ports, store={"url": f"redis://{node.address}"}, tasks={"store": "redis"}
            )
            settings = json.loads((folder / "sidecar.yaml").read_text())
            settings["agents"][errands.WRITES]["timeout"] = 2 * LONG_S
            (folder / "sidecar.yaml").write_text(json.dumps(settings))
            serve = (sys.executable, "-m", "sidecar", "serve", "-c", str(folder / "sidecar.yaml"))
            serving = stack.enter_context(running(serve, place / f"log-{number}"))
            await asyncio.to_thread(wait_for_200, f"http://127.0.0.1:{ports['admin']}/readyz", serving)
            callers = Callers(ports["owner"], ports["other"], http)
            replicas.append(Replica(serving, Senders(callers, "", random.Random(number))))
        (place / "journal").touch()
        yield Laboratory(place, node, replicas)


async def measured(place: Path, name: str) -> dict[str, Any]:
    """One fault, and what there is to tell of it."""
    async with laboratory(place) as lab:
        await FAULTS[name](lab)
        again_s = time.monotonic()
        again = await lab.sends(lab.replicas[0], 0.1)
        lab.told["next_taken_s"] = time.monotonic() - again_s
        lab.told["next_began_s"] = await until(lambda: "began" in lab.noted(again.trace), "the next run")
        lab.told["next"] = await lab.over(lab.replicas[0], again)
        met = (place / "journal").read_text().count("met ") - lab.stopped
        wrong = {what: count for one in lab.replicas for what, count in one.senders.wrong.items() if count}
        if met or wrong:
            raise BenchFailed(f"{name}: {met} met another; {wrong}")
        return {what: round(value, 1) if isinstance(value, float) else value for what, value in lab.told.items()}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(FAULTS)))
def main(names: tuple[str, ...]) -> None:
    """Try each fault, and see what becomes of the runs."""
    for name in names or FAULTS:
        with tempfile.TemporaryDirectory(prefix="faults") as folder:
            told = uvloop.run(measured(Path(folder), name))
        click.echo(f"{name:30} " + ", ".join(f"{what} {value}" for what, value in told.items()))


if __name__ == "__main__":
    main()
