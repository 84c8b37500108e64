"""Does the worker take up what is due, outlive a store and a job that fail, and let its jobs end?"""

import asyncio
import logging
from random import Random

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.storage import RecordBounds, RecordStoreOut, UnreadableRecord
from sidecar.tasks.worker import MAX_REFUSED, HeldRecords, Worker, backoff_s
from tests.unit.tasks.programs.runs import in_memory, run


def test_each_further_attempt_waits_twice_as_long_up_to_a_bound() -> None:
    chance = Random(1).random
    waits = [backoff_s(1.0, 10.0, failed, (0.5, 1.0), chance()) for failed in (1, 2, 3, 4, 5, 50, 10_000)]
    longest = [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True))
    assert len({backoff_s(1.0, 10.0, 10, (0.5, 1.0), chance()) for _ in range(20)}) > 10, "what failed together"


async def test_a_store_that_is_out_is_told_once_and_sweeps_come_with_looks(caplog: pytest.LogCaptureFixture) -> None:
    outs, swept, rest = [True, True, False, False, True, False], list[int](), asyncio.Event()

    async def look() -> None:
        if outs.pop(0):
            raise RecordStoreOut("timeout")

    async def sweep() -> None:
        swept.append(len(outs))
        if not outs:
            rest.set()

    worker = Worker[None]("runs", look, sweep, lambda: 0.0, sweep_every_s=0.0)
    looking = asyncio.create_task(worker.run())
    await asyncio.wait_for(rest.wait(), 5)
    looking.cancel()
    assert [record.getMessage() for record in caplog.records] == ["the store of runs is unavailable"] * 2
    assert swept == [3, 2, 0]


async def test_a_job_that_fails_harms_no_other_and_may_begin_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    done: list[str] = []

    async def fails() -> None:
        raise ValueError("broken")

    async def is_out() -> None:
        raise RecordStoreOut("timeout")

    async def works() -> None:
        await asyncio.sleep(0)
        done.append("works")

    worker = Worker[str]("runs", works, works, lambda: 0.0, ended=lambda: done.append("ended"))
    for job_id, doing in (("1", fails), ("2", is_out), ("3", works)):
        worker.begin(job_id, job_id, doing)
    assert [*worker.jobs] == ["1", "2", "3"]
    await worker.wait()
    await asyncio.sleep(0)
    assert (worker.jobs, done.count("works"), done.count("ended")) == ({}, 1, 3)
    assert [record.getMessage() for record in caplog.records] == ["bug", "the store of runs is unavailable"]
    worker.begin("1", "1", asyncio.Event().wait)  # type: ignore[arg-type]
    await worker.cancel()
    assert worker.jobs == {}


async def test_after_an_outage_each_process_extends_its_own_before_it_takes_what_lapsed() -> None:
    store, now_s = in_memory(), [0.0]
    held = [HeldRecords(store, name, lambda: now_s[0]) for name in ("dead", "alive")]
    await held[0].add(run(id="1"), RecordBounds())
    assert await held[1].take() == []
    now_s[0] = 20.0
    assert await held[1].take(own_first=True) == [] and held[1].is_sure
    assert [one.id for one in await held[1].take()] == ["1"]
    assert await held[1].take({"1": 0}) == [], "its revision is known"


def test_what_callers_are_told_of_a_store_that_is_out() -> None:
    for out, detail in ((RecordStoreOut("timeout"), ""), (UnreadableRecord("it was damaged"), "it was damaged")):
        with pytest.raises(Refusal) as refused:
            raise out
        assert (refused.value.reason, refused.value.detail) == (Reason.STORE_UNAVAILABLE, detail)
    held = HeldRecords(in_memory(), "me", lambda: 0.0)
    for number in range(MAX_REFUSED + 5):
        held.refuse(str(number))
    assert len(held.refused) == MAX_REFUSED and "4" not in held.refused
