"""The process that renders pages: what it returns, what it cannot do, and how it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from sidecar.admin.console.page_process import PageProcess
from sidecar.admin.console.page_work import OFTEN, PageProcessFailed
from sidecar.admin.console.request import ConsoleFault
from tests.flow.world import PATIENCE_S


@pytest.fixture
async def pages() -> AsyncIterator[PageProcess]:
    process = PageProcess()
    yield process
    await process.close()


async def test_functions_run_in_one_other_process_several_at_a_time(pages: PageProcess) -> None:
    async with asyncio.timeout(PATIENCE_S):
        slow = asyncio.create_task(pages.run(partial(time.sleep, PATIENCE_S)))
        others = {await pages.run(os.getpid) for _ in range(3)}  # none waits for the one before it
        assert len(others) == 1
        assert others != {os.getpid()}
        slow.cancel()


async def test_errors_come_back_and_other_work_goes_on(pages: PageProcess) -> None:
    with pytest.raises(FileNotFoundError):
        await pages.run(partial(Path.read_bytes, Path("/no/such/file")))
    with pytest.raises(PageProcessFailed, match="invalid literal"):
        await pages.run(partial(int, "x"))
    with pytest.raises(PageProcessFailed, match="cannot pickle"):
        await pages.run(partial(open, os.devnull))
    with pytest.raises(PageProcessFailed, match="too large"):
        await pages.run(partial(bytes, 65 * 2**20))
    assert await pages.run(partial(int, "7")) == 7


async def test_a_process_that_dies_fails_what_waits_and_is_replaced(pages: PageProcess) -> None:
    waits = asyncio.create_task(pages.run(partial(time.sleep, 60.0)))
    dead = await pages.run(os.getpid)
    os.kill(dead, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ConsoleFault, match="ended: look again"):
            await waits
        assert await pages.run(os.getpid) != dead


async def test_once_prepared_it_has_imported_what_pages_need(pages: PageProcess) -> None:
    await pages.prepare()
    imported = await pages.run(partial(eval, "[*__import__('sys').modules]"))
    assert set(OFTEN) <= set(imported)


async def test_what_comes_after_the_end_starts_no_process(pages: PageProcess) -> None:
    await pages.run(os.getpid)
    await pages.close()
    with pytest.raises(ConsoleFault, match="being closed"):
        await pages.run(os.getpid)


async def test_closing_while_it_starts_leaves_no_process(pages: PageProcess) -> None:
    before = psutil.Process().children()
    order = asyncio.create_task(pages.run(os.getpid))
    await asyncio.sleep(0)  # the start has begun
    await pages.close()
    with pytest.raises(ConsoleFault):
        await order
    assert psutil.Process().children() == before


async def test_work_that_takes_too_long_is_given_up(pages: PageProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    await pages.run(os.getpid)
    monkeypatch.setattr("sidecar.admin.console.page_process.RUN_S", 0.05)
    with pytest.raises(ConsoleFault, match="in time"):
        await pages.run(partial(time.sleep, 60.0))


def test_it_ends_with_a_parent_that_is_killed() -> None:
    code = (
        "import asyncio, os, signal; from sidecar.admin.console.page_process import PageProcess\n"
        "async def main():\n"
        "    print(await PageProcess().run(os.getpid), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, check=False)
    child, ends_s = int(parent.stdout), time.monotonic() + PATIENCE_S
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < ends_s, "the page process lives on"
        time.sleep(0.05)
