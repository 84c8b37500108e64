"""Measures the resources of a program and its descendants.

While a program runs, its warden and all processes below are sampled a few times a second from the kernel's counters. A
process that has ended is counted in its parent, so nothing is missed between samples except perhaps the peak of total
memory. Once the program is over, its warden has the kernel's own sum, which is exact (`processes.Used`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from sidecar.tasks.programs.run_record import Usage
from sidecar.upstreams.processes import Process, ProcessUsage

LOOK_S: Final = 0.25
LOOKS_SHARE: Final = 0.02  # of the event loop's time: large trees, where a sample is costly, are sampled more rarely
MAX_PROCESSES: Final = 256  # sampled; more indicate a fault, and sampling them is costly


class _Look(NamedTuple):
    """One sample. All values but memory only grow."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0


class UsageMeter:
    """Measures a process tree, from its start or from the last `begin`: the turns of a conversation share a process."""

    def __init__(self, process: Process, clock_mono: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        self._clock = clock_mono
        self._keeper = _keeper_of(process.pid)
        self._before = _Look()
        self._began_s = clock_mono()
        self._first = True
        self._last = self._look() or _Look()
        self._peak_bytes = self._last.memory_bytes

    async def run(self) -> None:
        rest_s = LOOK_S
        while not self._process.followed.done():
            await asyncio.wait({self._process.followed}, timeout=rest_s)
            if not self._process.followed.done():
                began_s = self._clock()
                self.look()
                rest_s = max(LOOK_S, (self._clock() - began_s) / LOOKS_SHARE)

    def look(self) -> None:
        self._last = self._look() or self._last
        self._peak_bytes = max(self._peak_bytes, self._last.memory_bytes)

    def begin(self) -> None:
        """Starts a new measurement: earlier usage belongs to another turn."""
        self.look()
        self._first = False
        self._before = self._last
        self._peak_bytes = self._last.memory_bytes
        self._began_s = self._clock()

    def usage(self) -> Usage:
        """Returns the usage since `begin`; exact once nothing is left of the process."""
        used, last, before = self._process.used, self._last, self._before
        if used is None:
            used = ProcessUsage(last.cpu_s, 0, last.disk_read_bytes, last.disk_write_bytes)
        cpu_s = max(used.cpu_s - before.cpu_s, 0.0)
        return Usage(
            cpu_s=cpu_s,
            cpu_percent=100 * cpu_s / max(self._clock() - self._began_s, 0.001),
            memory_bytes=last.memory_bytes,
            # The largest process of a conversation may have peaked in an earlier turn.
            peak_memory_bytes=max(self._peak_bytes, used.peak_memory_bytes if self._first else 0),
            disk_read_bytes=max(used.disk_read_bytes - before.disk_read_bytes, 0),
            disk_write_bytes=max(used.disk_write_bytes - before.disk_write_bytes, 0),
        )

    def _look(self) -> _Look | None:
        keeper = self._keeper
        pids = [keeper, *_below(keeper)] if keeper else [self._process.pid, *_below(self._process.pid)]
        looks = [look for pid in pids if (look := _look_at(pid, only_reaped=pid == keeper)) is not None]
        return _Look(*map(sum, zip(*looks, strict=True))) if looks else None


def _keeper_of(pid: int) -> int | None:
    """Returns the process that adopts a program's orphans; None on systems other than Linux."""
    if not psutil.LINUX:
        return None
    with suppress(psutil.Error):
        return psutil.Process(pid).ppid() or None
    return None


def _look_at(pid: int, *, only_reaped: bool) -> _Look | None:
    """Samples one process and its ended children; with `only_reaped`, as for a warden, only the children."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            disk = process.io_counters() if hasattr(process, "io_counters") else None
            memory = 0 if only_reaped else process.memory_info().rss
    except psutil.Error:
        return None  # it ended meanwhile, or its pid was reused
    own = 0.0 if only_reaped else times.user + times.system
    reaped = times.children_user + times.children_system
    return _Look(own + reaped, memory, disk.read_bytes if disk else 0, disk.write_bytes if disk else 0)


def _below(pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < MAX_PROCESSES:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found[:MAX_PROCESSES]


def _children(pid: int) -> list[int]:
    try:
        if not psutil.LINUX:
            return [child.pid for child in psutil.Process(pid).children()]
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text("ascii").split()]
    except (OSError, psutil.Error):
        return []
