"""Sends a completion callback when a task ends.

By the outbox (`callbacks/`): what is put there is on disk, and gets there once at least. Who loses a result by its size
hears of the end nonetheless.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.tasks.api.models import A2aTask
from sidecar.tasks.api.task_record import Task
from sidecar.tasks.webhooks import OnBehalfOf, Outbox

HEADERS: Final = (("Content-Type", "application/json"),)
Announce = Callable[[Task, A2aTask], Awaitable[None]]
"""Put down that the owner of a task is to be called back with this; on disk when it returns. Raises Refusal."""


def announces(outbox: Outbox) -> Announce:
    """How ends are told by this outbox."""

    async def announce(record: Task, said: A2aTask) -> None:
        try:
            body = orjson.dumps(said)
            behalf = OnBehalfOf(record.caller, record.target, record.task_type)
            await outbox.put("task", record.id, behalf, record.callback_url, HEADERS, body)
        except Refusal as refusal:
            if refusal.reason is not Reason.TOO_LARGE or said["result"] is None:
                raise
            await announce(record, without_result(said))

    return announce


def without_result(said: A2aTask) -> A2aTask:
    """A task as it is shown where its result is too large: that can be had at its own address."""
    return {**said, "result": None, "result_omitted": True}
