"""The stored record of one run.

The seed's AgentExecution and its ExecutionResult in one value. What a person or a program said in it is kept without
secrets (`stored_text.py`), and within bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from pydantic import TypeAdapter

from sidecar.storage import FINITE, RecordCodec, RecordKind
from sidecar.storage.caller_codec import caller_from, plain_caller
from sidecar.tasks.programs.run_states import ENDS, MOVES, Category, RunState, RunStatus
from sidecar.vocabulary import Caller

MAX_TRANSITIONS: Final = 100  # kept of what was before it was taken up, or went on


class Usage(NamedTuple):
    """The seed's ResourceUsage: what a run took, all its processes together. Memory and disk are in bytes."""

    cpu_s: float = 0.0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0


class Transition(NamedTuple):
    """One change of state, `at` seconds since the epoch."""

    state: RunState
    at: float
    why: str = ""


class Failure(NamedTuple):
    """Why a try came to nothing. `message` is ours or the program's last words, safe to show."""

    category: Category
    message: str


class Attempt(NamedTuple):
    """One try that is over."""

    started_at: float
    ended_at: float
    status: RunStatus
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    failure: Failure | None = None
    usage: Usage = Usage()


class Execution(NamedTuple):
    """One run. Times are seconds since the epoch; "" and None are what is not known yet.

    `caller` is on whose behalf, `owner` its binding, `target` the agent's name, `schedule` which schedule ordered it.
    `input` is the prompt and `output` the end of what the program said, without secrets. `task` is the run as A2A's
    canonical Task. `status` is what it came to, once that is known. `started_at` is when the process of the last try
    was started, or its turn in a process of its conversation began; None where it was not. `previous_tries` are those
    before the last. `revision` grows with each change.
    """

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
        """Whether it came to its end, and nothing of it is left to clean up."""
        return self.state is RunState.IDLE and self.status is not None

    @property
    def standing(self) -> str:
        """The word by which it is counted and found: what it came to, or its state until then."""
        return self.status if self.is_done and self.status else self.state

    @property
    def retry_count(self) -> int:
        """How many more tries than one there were so far."""
        return len(self.previous_tries)

    @property
    def previous_state(self) -> RunState | None:
        """The state before this one."""
        return self.transitions[-2].state if len(self.transitions) > 1 else None

    def moved(self, state: RunState, now_s: float, why: str = "", **facts: Any) -> Execution:
        """In another state, with more known of it. Raises ValueError for a way that the table does not know."""
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


def encoded(record: Execution) -> bytes:
    """A run as a store keeps it."""
    return orjson.dumps({**record._asdict(), "caller": plain_caller(record.caller)}, default=_named)


def decoded(raw: bytes | str) -> Execution:
    """A run that a store kept. Raises ValueError, TypeError or LookupError for what says nothing to us."""
    known = _known(Execution, orjson.loads(raw))
    known["caller"] = caller_from(known["caller"])
    known["transitions"] = [_known(Transition, one) for one in known["transitions"]]
    known["previous_tries"] = [_with_parts(_known(Attempt, one)) for one in known["previous_tries"]]
    return _WHOLE.validate_python(_with_parts(known))


def _named(part: Any) -> Mapping[str, Any]:
    """A part of a run by names, so that a newer version may know more of it."""
    return dict(part._asdict())


def _known(kind: type[_Part], plain: Any) -> dict[str, Any]:
    """As much of a part as this version knows."""
    return {name: plain[name] for name in kind._fields if name in plain}


def _with_parts(known: dict[str, Any]) -> dict[str, Any]:
    failure = known["failure"]
    return {**known, "failure": failure and _known(Failure, failure), "usage": _known(Usage, known["usage"])}


_Part = Execution | Transition | Attempt | Failure | Usage
_WHOLE: Final = TypeAdapter(Execution, config=FINITE)
RUNS: Final = RecordKind(
    "a run",
    RecordCodec(encoded, decoded),
    table="runs",
    key="agent-runs",
    broken="T105",
    newer="T106",
    lost="runs that were begun before are not known then, and nobody sees what became of them",
)
