"""Is a task that its caller was not promised never carried out?"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.observability.metrics import Metrics
from sidecar.storage import AddedRecord, RecordStoreOut, SqliteFile, SqliteRecordStore
from sidecar.tasks.api.task_record import TASKS, Task, TaskState
from sidecar.tasks.api.task_runner import TaskRunner
from tests.unit.tasks.api.test_task_record import record


class Silent(SqliteRecordStore[Task]):
    """Stores the first task and does not answer: in time, or at all."""

    stored = False
    is_slow = True

    async def add(self, *about: Any) -> AddedRecord:
        added = await super().add(*about)
        if self.stored:
            return added
        self.stored = True
        if self.is_slow:
            await asyncio.Event().wait()
        raise RecordStoreOut("timeout")


async def refused(*, disconnects: bool) -> TaskRunner:
    """The runner of a task that is stored, and whose caller got no answer."""
    store = Silent(SqliteFile(None), TASKS)
    store.is_slow = disconnects
    rules = SimpleNamespace(max_per_principal=10, max=10)
    means: Any = SimpleNamespace(store=store, live=SimpleNamespace(clock=lambda: 2.0), rules=rules)
    runner = TaskRunner(means, Metrics(upstreams=()), "me")
    adding = asyncio.create_task(runner.add(record()))
    async with asyncio.timeout(5):
        while not store.stored:
            await asyncio.sleep(0.001)
    if disconnects:
        adding.cancel()
    with pytest.raises(asyncio.CancelledError if disconnects else RecordStoreOut):
        await adding
    return runner


@pytest.mark.parametrize("disconnects", [True, False])
async def test_a_task_whose_caller_got_no_answer_is_cancelled(disconnects: bool) -> None:
    runner = await refused(disconnects=disconnects)
    await runner.worker.turn()
    found = await runner.means.store.get("t1")
    assert found is not None and found.state is TaskState.CANCELLED and not runner.worker.jobs


async def test_a_task_that_is_ordered_again_is_carried_out() -> None:
    runner = await refused(disconnects=True)
    assert not await runner.add(record()), "it is stored already"
    await runner.worker.turn()
    assert "t1" in runner.worker.jobs
    await runner.worker.cancel()
    found = await runner.means.store.get("t1")
    assert found is not None and found.state is TaskState.PENDING
