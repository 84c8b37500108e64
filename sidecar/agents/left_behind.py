"""What becomes of a run whose process is gone?

The program is gone with the sidecar: its keeper ends with it (`processes/`). A run of which no try has begun is taken
up by another sidecar and waits for its turn there: the store has it that a try begins before the try does. What a try
had done is not known, so a run that had begun has failed, and is not run again. An end that it had come to stands.
"""

from __future__ import annotations

from sidecar.agents.record import MAX_TRANSITIONS, Execution, Failure, Transition
from sidecar.agents.states import Category, State
from sidecar.agents.telling import stood

_WHEN = {
    State.IDLE: "before it could run",
    State.STARTING: "while it began",
    State.RUNNING: "while it ran",
    State.FAILED: "before its next try",
}


TAKEN_UP = "another process took it up"


def has_begun(record: Execution) -> bool:
    """Whether a try may have begun since it was ordered, or its caller answered."""
    return record.state is not State.IDLE


def taken_up(record: Execution, now_s: float) -> Execution:
    """The run as it waits for its turn at another process; its next revision, so that one process alone has it."""
    logged = (*record.transitions[-MAX_TRANSITIONS:], Transition(State.IDLE, now_s, TAKEN_UP))
    return record._replace(transitions=logged, revision=record.revision + 1)


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
