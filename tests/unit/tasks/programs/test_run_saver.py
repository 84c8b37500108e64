"""When is what is known of a run in the store, and what if somebody else wrote there?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from sidecar.storage import RecordBounds, RecordStoreOut, SqliteFile, SqliteRecordStore
from sidecar.tasks.programs import run_saver as saving
from sidecar.tasks.programs.run_record import RUNS, Execution, RunState, Transition
from sidecar.tasks.programs.run_saver import RunSaver
from sidecar.tasks.worker import HeldRecords
from tests.flow.world import PATIENCE_S, until
from tests.unit.tasks.programs.runs import in_memory, run


class Watched:
    """One run whose writes are watched."""

    def __init__(self, store: SqliteRecordStore[Execution] | None = None) -> None:
        self.store = store or in_memory()
        self.record = run(id="1", transitions=(Transition(RunState.IDLE, 0.0),), state=RunState.IDLE, status=None)
        self.bounds = RecordBounds()
        self.asked, self.lost = 0, list[Execution | None]()
        self.held = HeldRecords(self.store, "me", lambda: 0.0, is_shared=False)
        self.saving = RunSaver(self.held, lambda: self.bounds, lambda: self.record, self._ask, self.lost.append)

    def _ask(self) -> None:
        self.asked += 1

    async def __aenter__(self) -> Watched:
        await self.store.add(self.record, "me", 10.0, RecordBounds())
        self._writing = asyncio.create_task(self.saving.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writing.cancel()

    async def kept(self) -> Execution:
        return await self.store.get("1")


@pytest.fixture
async def one() -> AsyncIterator[Watched]:
    async with Watched() as made:
        yield made


class Out(SqliteRecordStore[Execution]):
    """One that cannot be written."""

    is_out = True
    asked = 0

    async def replace(self, record: Execution) -> bool:
        self.asked += 1
        if self.is_out:
            raise RecordStoreOut("database or disk is full")
        return await super().replace(record)


async def settled(saving: RunSaver) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await saving.settle()


async def test_what_it_says_waits_and_each_state_does_not(one: Watched) -> None:
    one.saving.spoke()
    await settled(one.saving)
    one.record = one.record._replace(output="more")
    one.saving.spoke()
    await asyncio.sleep(0.02)
    assert (await one.kept()).output == ""
    one.record = one.record.moved(RunState.STARTING, 1.0)
    one.saving.moved()
    await settled(one.saving)
    assert ((await one.kept()).output, (await one.kept()).state) == ("more", RunState.STARTING)


async def test_a_reply_that_got_lost_is_no_fault_and_who_asks_to_give_it_up_is_heard(one: Watched) -> None:
    revision = one.record.revision
    await one.store.replace(one.record._replace(revision=revision + 1))  # it was ours, and we did not hear of it
    one.saving.moved()
    await settled(one.saving)
    await one.store.replace((await one.kept())._replace(revision=revision + 3, cancel_requested=True))
    one.saving.moved()
    await settled(one.saving)
    assert (one.asked, one.lost, (await one.kept()).revision) == (1, [], revision + 4)


async def test_a_store_that_is_out_is_told_once_of_each_run_and_when_it_is_kept_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full for a night is not a line a second of every run."""
    monkeypatch.setattr(saving, "AGAIN_S", 0.001)
    caplog.set_level(logging.INFO, "sidecar.tasks.programs")
    store = Out(SqliteFile(None), RUNS)
    async with Watched(store) as one:
        one.saving.moved()
        await until(lambda: store.asked >= 10)
        store.is_out = False
        await settled(one.saving)
    said = [(record.getMessage(), getattr(record, "run", "")) for record in caplog.records]
    assert said == [("a run cannot be stored; it is retried", "1"), ("a run is stored again", "1")]


async def test_what_somebody_else_ended_is_theirs_and_is_not_written_again(one: Watched) -> None:
    theirs = one.record.moved(RunState.FAILED, 5.0, "the sidecar stopped")._replace(revision=one.record.revision + 1)
    await one.store.replace(theirs)
    for _ in range(2):
        one.saving.moved()
        await settled(one.saving)
    assert (one.lost, await one.kept()) == ([theirs], theirs)


async def test_what_the_store_forgot_is_kept_anew_and_goes_on(one: Watched) -> None:
    one.store = one.held.store = in_memory()
    for state in (RunState.STARTING, RunState.RUNNING):
        one.record = one.record.moved(state, 1.0)
        one.saving.moved()
        await settled(one.saving)
        assert (one.lost, (await one.kept()).state) == ([], state)


@pytest.mark.parametrize("why", ["others may have ended it", "there is no room"])
async def test_what_may_not_be_kept_anew_is_lost(one: Watched, why: str) -> None:
    one.store = one.held.store = in_memory()
    one.saving.doubted = why == "others may have ended it"
    one.bounds = RecordBounds(total=0) if why == "there is no room" else RecordBounds()
    one.saving.moved()
    await settled(one.saving)
    assert (one.lost, await one.store.get("1")) == ([None], None)
