"""Is something seen to its end, also by who is cancelled meanwhile?"""

from __future__ import annotations

import asyncio

import pytest

from sidecar.tasks.programs.supervised_process import to_its_end


async def test_who_is_cancelled_once_or_twice_hears_of_it_when_it_is_over() -> None:
    may_end, over = asyncio.Event(), False

    async def end() -> None:
        nonlocal over
        await may_end.wait()
        over = True

    seeing = asyncio.create_task(to_its_end(end()))
    for _ in range(3):
        await asyncio.sleep(0)
        seeing.cancel()
    await asyncio.sleep(0)
    assert not seeing.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await seeing
    assert over


async def test_what_it_comes_to_is_what_is_had_of_it() -> None:
    async def three() -> int:
        return 3

    async def fails() -> None:
        raise OSError("no")

    assert await to_its_end(three()) == 3
    with pytest.raises(OSError, match="no"):
        await to_its_end(fails())
