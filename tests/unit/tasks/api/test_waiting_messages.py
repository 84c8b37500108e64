"""Is a message that waits for approval always either its request's or the worker's?"""

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.observability.metrics import Metrics
from sidecar.storage import RecordBounds, RecordStoreOut, SqliteFile, SqliteRecordStore
from sidecar.storage.sealing import AesSeal
from sidecar.tasks.api.task_record import TASKS, Task, TaskStep
from sidecar.tasks.api.task_runner import TaskRunner
from sidecar.tasks.api.waiting_messages import WaitingMessages
from tests.unit.tasks.api.test_task_record import record

SEAL = AesSeal(b"k" * 32, b"tests")
WAITING = record(action="message/send").waits("approval", 50.0, SEAL)


class Store(SqliteRecordStore[Task]):
    """Answers no write while it `is_out`."""

    is_out = False

    async def replace(self, record: Task) -> bool:
        if self.is_out:
            raise RecordStoreOut("timeout")
        return await super().replace(record)


@pytest.fixture
async def messages() -> WaitingMessages:
    store = Store(SqliteFile(None), TASKS)
    await store.add(WAITING, "me", 100.0, RecordBounds())
    means: Any = SimpleNamespace(store=store, live=SimpleNamespace(clock=lambda: 2.0))
    return WaitingMessages(TaskRunner(means, Metrics(upstreams=()), "me"))


async def begins(messages: WaitingMessages) -> bool:
    """Whether the worker takes up the message."""
    messages.runner.begin(WAITING, WAITING.caller)
    found = WAITING.id in messages.runner.worker.jobs
    await messages.runner.worker.cancel()
    return found


async def test_the_worker_leaves_a_message_to_the_request_that_sends_it(messages: WaitingMessages) -> None:
    assert await messages.take_over(WAITING.id)
    sending = await messages.runner.means.store.get(WAITING.id)
    assert sending is not None and sending.step is TaskStep.SENDING
    assert not await begins(messages)
    assert not await messages.take_over(WAITING.id), "it is too late"


async def test_the_worker_continues_a_message_that_no_request_could_take(messages: WaitingMessages) -> None:
    messages.runner.means.store.is_out = True  # type: ignore[attr-defined]
    with pytest.raises(RecordStoreOut):
        await messages.take_over(WAITING.id)
    assert await begins(messages)
