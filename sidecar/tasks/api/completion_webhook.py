"""Sends a completion callback when a task ends.

Deliveries go through the outbox (`tasks/webhooks/outbox.py`): they are stored, and made at least once. A result that is
too large is left out, and the end is delivered without it.
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
"""Queues the completion callback of a task; it is stored when this returns. Raises Refusal."""


def announces(outbox: Outbox) -> Announce:
    """Returns a function that sends completion callbacks through this outbox."""

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
    """Returns a task without its result, which is too large; the task's own URL has it."""
    return {**said, "result": None, "result_omitted": True}
