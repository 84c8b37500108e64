"""Does anything stay behind when programs are started and ended, ten thousand times, at whatever moment?

`python -m bench.children [CYCLES]` starts programs as the sidecar starts MCP servers, sixteen at a time, lets each do
what programs do (serve, ignore SIGTERM, leave orphans in sessions of their own, crash, be gone at once), and ends each
at a moment drawn by lot. Then it counts what is left: processes, zombies, descriptors, folders. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from sidecar.upstreams.processes.launcher import Processes, Program

CYCLES = 10_000
AT_ONCE = 16
LONGEST_S = 0.02  # that a program lives at most; most end while they still begin
SETTLE_S = 5.0
SCRIPTS = (
    "exec cat",
    "trap '' TERM; sleep 600 & exec cat",
    "setsid sleep 600 & exec cat",
    "(setsid sh -c 'sleep 600 & sleep 600' &) ; exec cat",
    "(trap '' TERM HUP; setsid sleep 600 &) ; echo said; echo said >&2; exec sleep 600",
    "exit 3",
    "kill -SEGV $$",
    "sleep 600 & exit 0",
)


@dataclass(frozen=True, slots=True)
class Left:
    """What a run left. `slowest_s` is the longest that the end of one program took."""

    cycles: int
    seconds: float
    slowest_s: float
    processes: tuple[int, ...]
    descriptors: int
    folders: int

    @property
    def nothing(self) -> bool:
        return not self.processes and self.descriptors <= 0 and self.folders == 0


async def run(cycles: int, seed: int = 1) -> Left:
    """Start and end so many programs, and look."""
    draw = random.Random(seed)
    processes = Processes(dict(os.environ))
    await _cycle(processes, "exec cat", 0.0, True)  # the warden is there from now on
    await asyncio.sleep(0.1)
    fds, slowest_s, began = _descriptors(), 0.0, time.monotonic()
    turns = iter(range(cycles))

    async def work() -> None:
        nonlocal slowest_s
        for _ in turns:
            lives_s, properly = max(0.0, draw.uniform(-LONGEST_S, LONGEST_S)), draw.random() < 0.8
            slowest_s = max(slowest_s, await _cycle(processes, draw.choice(SCRIPTS), lives_s, properly))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    seconds = time.monotonic() - began
    await _settled(processes)
    left = Left(cycles, seconds, slowest_s, tuple(_below(processes)), _descriptors() - fds, _folders())
    await processes.close()
    return left


async def _cycle(processes: Processes, script: str, lives_s: float, properly: bool) -> float:
    """One program; how long its end took. Not `properly` is as a sidecar that has no time left."""
    path = os.environ.get("PATH", os.defpath)
    process = await processes.start(Program("/bin/sh", ["sh", "-c", script], {"PATH": path}))
    await asyncio.sleep(lives_s)
    began = time.monotonic()
    if properly:
        await process.end(patience_s=0.0, grace_s=0.05)
    else:
        process.abandon()
    return time.monotonic() - began


async def _settled(processes: Processes) -> None:
    """What was abandoned is given its second."""
    for _ in range(int(SETTLE_S / 0.05)):
        if not any(_below(processes)) and not _folders():
            return
        await asyncio.sleep(0.05)


def _below(processes: Processes) -> Iterator[int]:
    """Every process below the warden, dead ones too."""
    pairs = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pairs.append((int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])))
    parents = {processes.warden_pid}
    while parents := {child for child, parent in pairs if parent in parents}:
        yield from parents


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _folders() -> int:
    return len(list(Path(tempfile.gettempdir()).glob(f"sidecar-{os.getpid()}-*")))


def main() -> None:
    left = uvloop.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else CYCLES))
    print(f"{left.cycles} programs in {left.seconds:.0f} s, {left.seconds / left.cycles * 1000:.1f} ms each")
    print(f"the slowest end took {left.slowest_s:.2f} s")
    print(f"left: {len(left.processes)} processes, {left.descriptors} descriptors, {left.folders} folders")
    raise SystemExit(0 if left.nothing else 1)


if __name__ == "__main__":
    main()
