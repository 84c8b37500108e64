"""What becomes of a run that nobody sees to any more?

Whoever had it is gone, and so is its program: their keepers end with the sidecar (`processes/`). What it had done,
nobody knows; so it has failed, and is not run again. An end that it had come to stands.
"""

from __future__ import annotations

from sidecar.agents.record import Execution, Failure
from sidecar.agents.states import Category, State
from sidecar.agents.telling import stood

_WHEN = {
    State.IDLE: "before it could run",
    State.STARTING: "while it began",
    State.RUNNING: "while it ran",
    State.FAILED: "before its next try",
}


def left_behind(record: Execution, why: str, now_s: float, keep_s: float) -> Execution:
    """The run at its end, on the way that the table knows; its next revision."""
    if record.state in _WHEN:
        record = _ended(record, f"{why} {_WHEN[record.state]}", now_s)
    if record.state is not State.CLEANUP:
        record = record.moved(State.CLEANUP, now_s)
    return record.moved(State.IDLE, now_s, why, expires_at=now_s + keep_s)._replace(revision=record.revision + 1)


def _ended(record: Execution, why: str, now_s: float) -> Execution:
    if record.cancel_requested:
        task, _ = stood(record.task, "TASK_STATE_CANCELED", why, now_s)
        return record.moved(State.CANCELLED, now_s, why, task=task)
    task, _ = stood(record.task, "TASK_STATE_FAILED", why, now_s)
    about = {"task": task, "failure": Failure(Category.SYSTEM, why)}
    if record.state is State.FAILED:
        return record.moved(State.CLEANUP, now_s, why, **about)
    return record.moved(State.FAILED, now_s, why, **about)
