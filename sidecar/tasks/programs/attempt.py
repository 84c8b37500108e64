"""The interface of one attempt: its order, its events, its end.

Takes an order and yields events; the last is its end. Closing the generator ends the attempt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from sidecar.errors import Reason
from sidecar.tasks.programs.run_record import Failure, Usage
from sidecar.tasks.programs.time_limits import TimeLimit
from sidecar.upstreams.processes import Exit
from sidecar.vocabulary import Caller, Question

CHANGED: Final = "the agent was changed"

Objection = Callable[[Caller, str, str], Reason | None]
"""Returns why nothing may run any more for this caller, agent name and skill; None if it may. It is called often, and
returns at once."""


def no_objection(caller: Caller, name: str, skill: str) -> Reason | None:
    """Allows every caller."""
    return None


class Prompt(NamedTuple):
    """What a message says to a program. `text` is only data; the caller chose `cli_args`, `envs` and
    `working_directory` from what the operator allows. `message` is the whole message in A2A's canonical form, for a
    program that speaks JSON-RPC."""

    text: str
    cli_args: Mapping[str, str]
    envs: Mapping[str, str]
    working_directory: str | None
    message: Mapping[str, Any]

    @property
    def skill(self) -> str:
        """Returns the skill that it asks for, as rules read it; "" for none."""
        return Question("nhi:", "", "", arguments={"message": self.message}).tool


class ProgramOrder(NamedTuple):
    """One attempt to make, at most `deadline_s` from now. `owner` is the binding of `caller`, on whose behalf it is
    made; a process kept for that caller ends when it loses the permission. `term` bounds the program's life even if
    this process cannot."""

    execution_id: str
    task_id: str
    context_id: str
    owner: str
    prompt: Prompt
    deadline_s: float
    attempt: int = 1
    caller: Caller | None = None
    term: TimeLimit | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The process runs; in a conversation that continues it ran before."""

    pid: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """More of its answer, as text that is safe to show."""

    text: str


@dataclass(frozen=True, slots=True)
class OutputArtifact:
    """A part of an artifact, in A2A's canonical form: a TaskArtifactUpdateEvent without ids. An artifact without an
    `artifactId` is more of its answer, in addition to its `OutputChunk`s."""

    update: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProgressNote:
    """Its progress: a sentence, and figures if it gives them. One that `stays` is kept in the finished task."""

    message: str
    done: float | None = None
    total: float | None = None
    stays: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of the attempt. Without a `failure` it succeeded; `state` is the state of A2A's Task then, such as
    TASK_STATE_COMPLETED, TASK_STATE_INPUT_REQUIRED or TASK_STATE_REJECTED. `message` is its last message, as canonical
    parts; `alone` means that the answer is this message and no task; `timed_out` that its time was over."""

    exit: Exit | None
    usage: Usage
    failure: Failure | None = None
    timed_out: bool = False
    state: str = "TASK_STATE_COMPLETED"
    message: tuple[Mapping[str, Any], ...] = ()
    alone: bool = False


Event = Started | OutputChunk | OutputArtifact | ProgressNote | AttemptEnd


class ProgramRunner(Protocol):
    """Makes the attempts of one agent."""

    def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        """Makes one attempt. `AttemptEnd` is always the last event, unless the generator is closed: once closing
        returns, nothing of the process is left, except for a conversation's process whose program agreed to cancel the
        turn. If cancelled during that, raises CancelledError when it is done (`shielding.py`). Never raises for what a
        program does."""

    async def close(self, why: str = CHANGED) -> None:
        """Ends every process kept for a conversation, and records why."""
