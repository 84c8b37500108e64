"""Ends runs whose process is gone.

The program is gone with the sidecar: its warden ends with it (`upstreams/processes/`). A run without an attempt is
taken over by another sidecar and waits for its turn there; the store knows of an attempt before it begins. What an
attempt had done is unknown, so a run that had begun has failed and is not run again. An end that was reached stands.
"""

from __future__ import annotations

from sidecar.tasks.programs.run_events import stood
from sidecar.tasks.programs.run_record import MAX_TRANSITIONS, Execution, Failure, Transition
from sidecar.tasks.programs.run_states import Category, RunState

_WHEN = {
    RunState.IDLE: "before it could run",
    RunState.STARTING: "while it began",
    RunState.RUNNING: "while it ran",
    RunState.FAILED: "before its next try",
}


TAKEN_UP = "another process took it up"


def has_begun(record: Execution) -> bool:
    """Whether an attempt may have begun since the run was ordered, or since its caller answered."""
    return record.state is not RunState.IDLE


def taken_up(record: Execution, now_s: float) -> Execution:
    """Returns the run waiting at another process, as its next revision, so that only one process takes it over."""
    logged = (*record.transitions[-MAX_TRANSITIONS:], Transition(RunState.IDLE, now_s, TAKEN_UP))
    return record._replace(transitions=logged, revision=record.revision + 1)


def left_behind(record: Execution, why: str, now_s: float, keep_s: float) -> Execution:
    """Returns the run at its end, by transitions that the state table has, as its next revision."""
    if record.state in _WHEN:
        record = _ended(record, f"{why} {_WHEN[record.state]}", now_s)
    if record.state is not RunState.CLEANUP:
        record = record.moved(RunState.CLEANUP, now_s)
    return record.moved(RunState.IDLE, now_s, why, expires_at=now_s + keep_s)._replace(revision=record.revision + 1)


def _ended(record: Execution, why: str, now_s: float) -> Execution:
    if record.cancel_requested:
        task, _ = stood(record.task, "TASK_STATE_CANCELED", why, now_s)
        return record.moved(RunState.CANCELLED, now_s, why, task=task)
    task, _ = stood(record.task, "TASK_STATE_FAILED", why, now_s)
    about = {"task": task, "failure": Failure(Category.SYSTEM, why)}
    if record.state is RunState.FAILED:
        return record.moved(RunState.CLEANUP, now_s, why, **about)
    return record.moved(RunState.FAILED, now_s, why, **about)
