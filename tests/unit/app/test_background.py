"""Does what runs in the background run on, whatever happens to it?"""

import asyncio
import logging

import pytest

from sidecar.app.background import BackgroundJobs


async def test_what_ends_is_begun_anew_told_and_in_the_way_of_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[str] = []
    lives = asyncio.Event()

    async def fails() -> None:
        begun.append("fails")
        if len(begun) == 1:
            raise MemoryError
        if len(begun) == 2:
            return  # to end without a word is no better
        lives.set()
        await asyncio.Event().wait()

    async def goes_on() -> None:
        await asyncio.Event().wait()

    jobs = BackgroundJobs(rest_s=0.01)
    jobs.begin("the kill switch", fails)
    jobs.begin("all else", goes_on)
    async with asyncio.timeout(2):
        await lives.wait()
    assert list(jobs.trouble) == ["the kill switch ended and was started again: see the log"]
    told = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert [record.__dict__["again_in_s"] for record in told] == [0.02, 0.04]
    assert told[0].exc_info is not None
    await jobs.end()
    assert begun == ["fails"] * 3
