"""A process that reads a large policy holds up no stop, no change and no signal."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.flow.process import Served, served
from tests.flow.test_hot_reload import WIDER, plain
from tests.flow.test_large_policy import MANY
from tests.flow.test_reload_ends import MORE
from tests.flow.world import RULES, until
from tests.unit.upstreams.processes.test_launcher import alive

LARGE = "agent_to_tool.many.csv"


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def has_begun(child: int) -> bool:
    """Whether it is past its first lines: it has loaded what reads policies."""
    try:
        is_it = "prctl" in Path(f"/proc/{child}/cmdline").read_text()  # and no copy of the one that starts it
        return is_it and "_pydantic_core" in Path(f"/proc/{child}/maps").read_text()
    except OSError:
        return False


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[Served, int]]:
    """A sidecar, and the process that reads its newest policy and hangs."""
    async with served("http://127.0.0.1:9/mcp", rules=RULES, files={f"policies/{LARGE}": MANY}) as running:
        pid = running.process.pid
        (running.folder / "policies" / LARGE).write_text(MANY + MORE)
        running.signal(signal.SIGHUP)
        await until(lambda: any(map(has_begun, children(pid))))
        (child,) = children(pid)
        os.kill(child, signal.SIGSTOP)
        try:
            yield running, child
        finally:
            if alive(child):
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_reading_process_that_hangs_holds_up_no_stop_and_ends_with_us(how: signal.Signals) -> None:
    """After kill -9 every descendant process ends within two seconds."""
    async with reading() as (running, child):
        if how == signal.SIGKILL:
            await running.kill()
            await until(lambda: not alive(child), 2.0)
            return
        running.signal(how)
        assert await running.ended(5.0) == 0
        assert not alive(child)
        assert running.verify()[0] == 0 and running.controls() == ["start", "stop", "checkpoint"]


async def test_a_reading_process_that_is_killed_is_told_once_and_the_next_change_is_taken() -> None:
    async with reading() as (running, child):
        os.kill(child, signal.SIGKILL)
        await until(lambda: "reload-failed" in running.controls())
        assert "P008" in (await running.ask("/readyz"))[1]
        (running.folder / "policies" / LARGE).write_text(MANY)  # what serves already
        await until(lambda: "reload" not in running.controls(), 0.5)
        (running.folder / "policies" / LARGE).write_text(MANY + MORE + MORE.replace("late", "later"))
        await until(lambda: "reload" in running.controls(), 15.0)
        assert "degraded" not in (await running.ask("/readyz"))[1]
        assert running.controls().count("reload-failed") == 1


async def test_a_storm_of_signals_is_a_reload_or_two() -> None:
    async with served("http://127.0.0.1:9/mcp", rules=RULES, settings="policy: {watch: false}\n") as running:
        for _ in range(500):
            running.signal(signal.SIGHUP)
        await until(lambda: "reload" in running.controls())
        await asyncio.sleep(0.5)
        assert running.controls().count("reload") < 50
        plain(running.folder / "policies", WIDER)
        before = len(running.controls())
        running.signal(signal.SIGHUP)
        await until(lambda: len(running.controls()) > before)
