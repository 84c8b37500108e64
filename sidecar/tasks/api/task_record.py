"""The stored record of a task and its state tables.

`MOVES` are the states of the original data models, which callers see, with `waiting` for a person's approval. `STEPS`
are the steps of the sidecar's own part, so that a restart knows which steps remain. The agent's own state is stored
unchanged in addition.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import orjson

from sidecar.errors import Reason
from sidecar.protocols.a2a.operations import Version
from sidecar.storage import UnreadableRecord
from sidecar.storage.record_kind import RecordKind, record_codec
from sidecar.storage.sealing import AesSeal
from sidecar.vocabulary import Caller


class TaskState(StrEnum):
    """A2aTaskState of the original data models, with `waiting`."""

    PENDING = "pending"
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


MOVES: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    TaskState.PENDING: frozenset({TaskState.WAITING, TaskState.RUNNING, TaskState.CANCELLED}),
    TaskState.WAITING: frozenset({TaskState.PENDING, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.RUNNING: frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.COMPLETED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
_BETWEEN: Final = {TaskState.WAITING: TaskState.PENDING, TaskState.PENDING: TaskState.RUNNING}
# A2A's states as states of the original data models. A state that A2A does not define is neither progress nor an end.
SEEN: Final[Mapping[str, TaskState]] = {
    "TASK_STATE_UNSPECIFIED": TaskState.PENDING,
    "TASK_STATE_SUBMITTED": TaskState.PENDING,
    "TASK_STATE_WORKING": TaskState.RUNNING,
    "TASK_STATE_INPUT_REQUIRED": TaskState.RUNNING,
    "TASK_STATE_AUTH_REQUIRED": TaskState.RUNNING,
    "TASK_STATE_COMPLETED": TaskState.COMPLETED,
    "TASK_STATE_FAILED": TaskState.FAILED,
    "TASK_STATE_REJECTED": TaskState.FAILED,
    "TASK_STATE_CANCELED": TaskState.CANCELLED,
}


class TaskStep(StrEnum):
    """The progress of the sidecar's part."""

    UNSENT = "unsent"
    SENDING = "sending"  # the agent may or may not have it
    SENT = "sent"  # the agent has it, under a known id
    TELLING = "telling"  # it ended, and its completion callback is not queued yet
    OVER = "over"


STEPS: Final[Mapping[TaskStep, frozenset[TaskStep]]] = {
    TaskStep.UNSENT: frozenset({TaskStep.SENDING, TaskStep.TELLING, TaskStep.OVER}),
    TaskStep.SENDING: frozenset({TaskStep.SENT, TaskStep.TELLING, TaskStep.OVER}),
    TaskStep.SENT: frozenset({TaskStep.TELLING, TaskStep.OVER}),
    TaskStep.TELLING: frozenset({TaskStep.OVER}),
    TaskStep.OVER: frozenset(),
}


class Task(NamedTuple):
    """One task. Times are seconds since the epoch; "" and None mean not known yet. `caller` is the chain on whose
    behalf it is sent, `owner` its binding; `target` is an agent's name. `input` is stored until the task ends; it is
    `sealed` if the task waits for approval. `a2a_task`, `a2a_context` and `a2a_state` are the agent's own values;
    `answers` is the agent's task that requested this one. `refused` is the reason why its agent did not receive or
    accept it. `sender` identifies one attempt to send it. `trace` is the trace context of the request that created it.
    A task that waits for a person names the request for `approval`, and the time `approve_by` of its deadline;
    `approved_at` is when it continued.

    A message of A2A that waits for approval is a task too. Its input are the parameters of its operation, and `action`,
    `version` and `extensions` are those of the message. Its record is deleted once it is a task of its agent."""

    id: str
    owner: str
    caller: Caller
    target: str
    task_type: str
    created_at: float
    expires_at: float
    input: Mapping[str, Any] | None
    callback_url: str = ""
    state: TaskState = TaskState.PENDING
    step: TaskStep = TaskStep.UNSENT
    started_at: float | None = None
    completed_at: float | None = None
    a2a_task: str = ""
    a2a_context: str = ""
    a2a_state: str = ""
    result: Mapping[str, Any] | None = None
    error_code: str = ""
    error_message: str = ""
    revision: int = 0
    answers: str = ""
    refused: Reason | None = None
    sender: str = ""
    trace: str = ""
    approval: str = ""
    approve_by: float = 0.0
    approved_at: float = 0.0
    sealed: str = ""
    action: str = ""
    version: Version = "1.0"
    extensions: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return not MOVES[self.state]

    @property
    def is_sent(self) -> bool:
        """Whether its agent has it, or will never receive it."""
        return self.step not in (TaskStep.UNSENT, TaskStep.SENDING)

    @property
    def is_done(self) -> bool:
        return self.step is TaskStep.OVER

    @property
    def standing(self) -> str:
        return self.state

    def at(self, step: TaskStep) -> Self:
        if step not in STEPS[self.step]:
            raise ValueError(f"a task that is {self.step} cannot be {step}")
        return self._replace(step=step)

    def moved(self, state: TaskState, now_s: float) -> Self:
        """Returns the task in another state. A task that was never observed to run passes through `running`. Raises
        ValueError for a transition that the table lacks."""
        if state is self.state:
            return self
        if state not in MOVES[self.state]:
            if self.state not in _BETWEEN:
                raise ValueError(f"a task that is {self.state} cannot be {state}")
            return self.moved(_BETWEEN[self.state], now_s).moved(state, now_s)
        moved = self._replace(state=state)
        if state is TaskState.RUNNING:
            return moved._replace(started_at=now_s)
        return moved._replace(completed_at=now_s) if moved.is_over else moved

    def waits(self, approval: str, approve_by: float, seal: AesSeal) -> Self:
        """Returns the task waiting for this approval, with its input sealed, so that only holders of the key can read
        it, and without its caller's token."""
        sealed = self.sealed or seal.sealed_text(orjson.dumps(self.input), self.id.encode()).decode()
        waiting = self.moved(TaskState.WAITING, self.created_at)
        caller = replace(self.caller, token="")
        return waiting._replace(approval=approval, approve_by=approve_by, caller=caller, input=None, sealed=sealed)

    def input_in(self, seal: AesSeal) -> Mapping[str, Any]:
        """Returns the input; empty once the task is over. Raises UnreadableRecord if another key sealed it."""
        if not self.sealed:
            return self.input or {}
        try:
            opened: Mapping[str, Any] = orjson.loads(seal.opened_text(self.sealed, self.id.encode()))
        except ValueError:
            raise UnreadableRecord("the input of a task cannot be read: another key sealed it") from None
        return opened

    def goes_on(self, now_s: float) -> Self:
        """Returns the task as it is sent: one that waited is pending again, approved at `now_s`."""
        if self.state is not TaskState.WAITING:
            return self
        return self.moved(TaskState.PENDING, now_s)._replace(approved_at=now_s)

    def ended(self, state: TaskState, now_s: float, **facts: Any) -> Self:
        step = TaskStep.TELLING if self.callback_url else TaskStep.OVER
        return self.moved(state, now_s).at(step)._replace(input=None, sealed="", **facts)


TASKS: Final = RecordKind("a task", record_codec(Task), key="a2a-tasks")


def moment(epoch_s: float | None) -> str | None:
    if epoch_s is None:
        return None
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
