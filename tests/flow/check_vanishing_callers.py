"""Crowds of callers who leave, and callers who read slowly, leave nothing behind."""

import asyncio
import random
from pathlib import Path

from tests.flow.bystanders import open_files
from tests.flow.raw import request, wire
from tests.flow.test_vanishing_callers import nothing_left, place_of, talking, whole
from tests.flow.world import until

AT_ONCE = 20  # is what the budget lets in


CALLERS = 400


async def test_hundreds_of_callers_who_leave_while_they_are_answered(tmp_path: Path) -> None:
    """BL-019: an RST at a random byte; the server is left."""
    chance = random.Random(19)
    async with talking(tmp_path) as (running, talker):
        tasks, files = len(asyncio.all_tasks()), open_files()

        async def leave() -> None:
            async with wire(running) as connection:
                await connection.send(request(running))
                await connection.reader.readexactly(chance.randrange(1, 4000))
                connection.reset()

        for _ in range(CALLERS // AT_ONCE):
            await asyncio.gather(*(leave() for _ in range(AT_ONCE)))
            await until(lambda: talker.busy == 0)
        assert talker.begun == CALLERS
        await nothing_left(running, tasks, files)
        await until(lambda: len(running.ends()) == CALLERS + 1)
        gone = [record for record in running.ends() if record["reason"] == "caller-gone"]
        assert len(gone) == CALLERS == len({record["decision_id"] for record in gone})


async def test_who_reads_slowly_gets_everything() -> None:
    """Whatever it takes altogether: the time-out is for reading nothing."""
    async with place_of(whole(2**23), reading_timeout_s=2.0) as (place, _), wire(place, receive_bytes=4096) as slow:
        await slow.send(request(place, "Connection: close"))
        began, received = asyncio.get_running_loop().time(), 0
        while data := await slow.reader.read(2**17):
            received += len(data)
            if asyncio.get_running_loop().time() - began < 2.5:
                await asyncio.sleep(0.05)
        assert received > 2**23
