"""Formats tasks for callers: the seed's A2aTask, with the agent's own values beside it."""

from __future__ import annotations

from sidecar.gateway.snapshot import Snapshot
from sidecar.tasks.api.models import A2aTask, TaskCancelled, TaskCreated
from sidecar.tasks.api.request_reader import id_of
from sidecar.tasks.api.task_record import Task, moment


def shown(record: Task, now: Snapshot) -> A2aTask:
    """Returns the seed's task object."""
    source = record.caller.last
    return {
        "id": record.id,
        "source_agent_id": id_of(now, source.id) if source.kind == "nhi" else None,
        "target_agent_id": id_of(now, record.target),
        "task_type": record.task_type,
        "state": record.state,
        "result": record.result,
        "error_code": record.error_code or None,
        "error_message": record.error_message or None,
        "created_at": moment(record.created_at),
        "started_at": moment(record.started_at),
        "completed_at": moment(record.completed_at),
        "a2a": {
            "task_id": record.a2a_task or None,
            "context_id": record.a2a_context or None,
            "state": record.a2a_state or None,
        },
    }


def created(record: Task) -> TaskCreated:
    """Returns the response to a creation."""
    return {"task_id": record.id, "status": record.state, "created_at": moment(record.created_at)}


def cancelled(record: Task) -> TaskCancelled:
    """Returns the response to a cancellation."""
    return {"task_id": record.id, "state": record.state, "cancelled_at": moment(record.completed_at)}
