"""How is a process started, watched and ended?

Every process of the benchmark is a child of it, is measured through /proc, and is ended by its own id.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from asyncio import create_subprocess_exec, timeout
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sidecar.cli.free_ports import free_ports

REPOSITORY = Path(__file__).parents[1]
LONGEST_LINE_BYTES = 16 * 2**20
READY_WITHIN_S = 60.0  # on a machine that does much else
ENDS_WITHIN_S = 10.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BenchFailed(Exception):
    """The benchmark cannot go on, or what it measured is not what it set out to measure."""


@dataclass(frozen=True, slots=True)
class Running:
    """A child process; `log` is what it printed."""

    child: subprocess.Popen[bytes]
    log: Path

    def cpu_s(self) -> float:
        """User and system time of all its threads so far, in steps of a clock tick (10 ms)."""
        fields = self._proc("stat").rpartition(")")[2].split()  # the name before it may hold blanks
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    def rss_mb(self) -> float:
        return int(self._proc("statm").split()[1]) * _PAGE_BYTES / 1e6

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.child.pid}/fd").iterdir())

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.child.pid}/{name}").read_text("ascii")


@asynccontextmanager
async def ready(count: int, module: str, *words: str) -> AsyncIterator[list[Process]]:
    """Python processes of one module that have said `ready`, and wait for a line."""
    command = (sys.executable, "-m", module, *words)
    started = [
        await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=REPOSITORY, limit=LONGEST_LINE_BYTES)
        for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout
            async with timeout(READY_WITHIN_S):
                said = await process.stdout.readline()
            if said != b"ready\n":
                raise BenchFailed(f"{module} did not begin: it said {said[:200]!r}")
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()


@contextmanager
def running(command: Sequence[str], log: Path, ends_with: int = signal.SIGTERM) -> Iterator[Running]:
    """The process, for as long as the block lasts. What it prints goes to `log`."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Running(child, log)
            if child.poll() is not None:
                raise BenchFailed(f"{command[0]} ended by itself: {log.read_text()[-2000:]}")
        finally:
            _end(child, ends_with)


def _end(child: subprocess.Popen[bytes], ends_with: int) -> None:
    if child.poll() is None:
        child.send_signal(ends_with)
    try:
        child.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def free_port() -> int:
    """A port that nobody has now."""
    return free_ports(1)[0]


def wait_for_port(port: int, process: Running) -> None:
    """Returns when somebody listens there."""
    for _ in _tries(f"nobody listens on port {port}", process):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return


def wait_for_200(url: str, process: Running) -> None:
    """Returns when the address answers 200."""
    for _ in _tries(f"{url} does not answer 200", process):
        try:
            with urllib.request.urlopen(url, timeout=READY_WITHIN_S):
                return
        except (urllib.error.URLError, ConnectionError):
            continue


def _tries(complaint: str, process: Running) -> Iterator[None]:
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and process.child.poll() is None:
        yield
        time.sleep(0.005)
    raise BenchFailed(f"{complaint}: {process.log.read_text()[-2000:]}")
