"""The stored record of one run (AgentExecution and ExecutionResult of the original data models), and its table of
states."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from sidecar.storage.record_kind import RecordKind, record_codec
from sidecar.vocabulary import Caller

MAX_TRANSITIONS: Final = 100  # of those before a takeover or a further turn


class RunState(StrEnum):
    """AgentState of the original data models, with the two ends that its transitions name."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    CLEANUP = "cleanup"


# The original transitions, plus one for a run that ends before it ran (cancelled, or its turn did not come in time).
MOVES: Final[Mapping[RunState, frozenset[RunState]]] = {
    RunState.IDLE: frozenset({RunState.STARTING, RunState.CANCELLED, RunState.TIMEOUT, RunState.FAILED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.FAILED, RunState.CANCELLED, RunState.TIMEOUT}),
    RunState.RUNNING: frozenset({RunState.COMPLETED, RunState.FAILED, RunState.TIMEOUT, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset({RunState.CLEANUP}),
    RunState.FAILED: frozenset(
        {RunState.STARTING, RunState.CANCELLED, RunState.CLEANUP}
    ),  # another attempt, unless it is cancelled
    RunState.TIMEOUT: frozenset({RunState.CLEANUP}),
    RunState.CANCELLED: frozenset({RunState.CLEANUP}),
    RunState.CLEANUP: frozenset({RunState.IDLE}),
}


class RunStatus(StrEnum):
    """ExecutionStatus of the original data models: how a run ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


ENDS: Final[Mapping[RunState, RunStatus]] = {
    RunState.COMPLETED: RunStatus.SUCCESS,
    RunState.FAILED: RunStatus.FAILURE,
    RunState.TIMEOUT: RunStatus.TIMEOUT,
    RunState.CANCELLED: RunStatus.CANCELLED,
}


class Category(StrEnum):
    """ErrorCategory of the original data models: the source of a failure."""

    TRANSIENT = "transient"  # may succeed the next time
    PERMANENT = "permanent"  # will fail again: no such program, a prompt that cannot be sent
    AGENT = "agent"  # the program's own
    SYSTEM = "system"  # the sidecar's


class Usage(NamedTuple):
    """ResourceUsage of the original data models: the resources used by all processes of a run. Memory and disk are in
    bytes."""

    cpu_s: float = 0.0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0


class Transition(NamedTuple):
    state: RunState
    at: float
    why: str = ""


class Failure(NamedTuple):
    """Why an attempt failed. `message` is the sidecar's or the program's, safe to show."""

    category: Category
    message: str


class Attempt(NamedTuple):
    started_at: float
    ended_at: float
    status: RunStatus
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    failure: Failure | None = None
    usage: Usage = Usage()


class Execution(NamedTuple):
    """One run. Times are seconds since the epoch; "" and None mean not known yet. `caller` is the chain on whose behalf
    it runs, `owner` its binding, `target` the agent's name. `input` is the prompt and `output` the end of the
    output, without secrets. `task` is the run as A2A's canonical Task. `started_at` is when the last attempt's
    process, or its turn in a conversation's process, began; `previous_tries` are the attempts before."""

    id: str
    owner: str
    caller: Caller
    target: str
    context: str
    created_at: float
    expires_at: float
    input: str
    task: Mapping[str, Any]
    schedule: str = ""
    state: RunState = RunState.IDLE
    status: RunStatus | None = None
    transitions: tuple[Transition, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    failure: Failure | None = None
    max_retries: int = 0
    timeout_s: float = 0.0
    output: str = ""
    output_bytes: int = 0
    usage: Usage = Usage()
    previous_tries: tuple[Attempt, ...] = ()
    cancel_requested: bool = False
    revision: int = 0

    @property
    def is_done(self) -> bool:
        return self.state is RunState.IDLE and self.status is not None

    @property
    def standing(self) -> str:
        """Returns the state for counts and filters: its status, or its state until it has one."""
        return self.status if self.is_done and self.status else self.state

    @property
    def retry_count(self) -> int:
        return len(self.previous_tries)

    @property
    def previous_state(self) -> RunState | None:
        return self.transitions[-2].state if len(self.transitions) > 1 else None

    def moved(self, state: RunState, now_s: float, why: str = "", **facts: Any) -> Self:
        """Returns the run in another state. Raises ValueError for a transition that the table lacks."""
        if state not in MOVES[self.state] or self.is_done:
            raise ValueError(f"a run that is {self.state} cannot be {state}")
        logged = (*self.transitions, Transition(state, now_s, why))
        moved = self._replace(state=state, transitions=logged, **facts)
        if state in ENDS:
            moved = moved._replace(status=ENDS[state], ended_at=now_s)
        elif state is RunState.STARTING:
            moved = moved._replace(status=None, started_at=None, ended_at=None)
        elif state is RunState.RUNNING:
            moved = moved._replace(started_at=now_s)
        return moved


RUNS: Final = RecordKind("a run", record_codec(Execution), key="agent-runs")


def standing_of(run: Mapping[str, Any]) -> str:
    """Returns the result or the state of a run, for operators: `waiting` if it waits for its turn, `asks` if it needs
    more from its caller."""
    if asks(run):
        return "asks"
    if run["status"] is not None:
        return str(run["status"])
    return "waiting" if run["state"] == RunState.IDLE else str(run["state"])


def asks(run: Mapping[str, Any]) -> bool:
    """Whether a run needs more from its caller, in the view of operators."""
    return run["is_over"] and run["task_state"] in ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED")
