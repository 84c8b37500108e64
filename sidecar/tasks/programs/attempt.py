"""The interface of one attempt: its order, its events, its end.

An order goes in; what happens comes out, event by event, and the last is its end. Who stops listening ends it.
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
"""Why nothing may run for this caller any more, of the agent of this name and for this skill; None if it may. It is
asked often, and answers at once."""


def no_objection(caller: Caller, name: str, skill: str) -> Reason | None:
    """Everybody may."""
    return None


class Prompt(NamedTuple):
    """What a message says to a program. `text` is data and nothing else; its caller chose `cli_args`, `envs` and
    `working_directory` out of what the operator allows. `message` is all of it in A2A's canonical form, for a program
    that speaks JSON-RPC."""

    text: str
    cli_args: Mapping[str, str]
    envs: Mapping[str, str]
    working_directory: str | None
    message: Mapping[str, Any]

    @property
    def skill(self) -> str:
        """The skill that it asks for, as rules read it; "" for none."""
        return Question("nhi:", "", "", arguments={"message": self.message}).tool


class ProgramOrder(NamedTuple):
    """One try that is to be made. `deadline_s` from now bounds it. `owner` is the binding of `caller`, on whose behalf
    it is; a process that is kept for them ends when they may no longer speak with it. `term` bounds what runs for it,
    also where nobody sees to that here."""

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
    """The process runs; in a conversation that goes on it has run already."""

    pid: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """More of its answer: text, safe to show."""

    text: str


@dataclass(frozen=True, slots=True)
class OutputArtifact:
    """A part of an artifact, in A2A's canonical form: a TaskArtifactUpdateEvent without ids. An artifact without an
    `artifactId` is more of its answer, beside what it `OutputChunk`."""

    update: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProgressNote:
    """How far it is: a sentence, and parts of a whole where it says. One that `stays` is known when all is over too."""

    message: str
    done: float | None = None
    total: float | None = None
    stays: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of the try. Without a `failure` it did what it was told; `state` is what A2A's Task is then, such as
    TASK_STATE_COMPLETED, TASK_STATE_INPUT_REQUIRED or TASK_STATE_REJECTED. `message` is its last word, canonical parts;
    `alone` says that the answer is this message and no task. `timed_out` that its time was over."""

    exit: Exit | None
    usage: Usage
    failure: Failure | None = None
    timed_out: bool = False
    state: str = "TASK_STATE_COMPLETED"
    message: tuple[Mapping[str, Any], ...] = ()
    alone: bool = False


Event = Started | OutputChunk | OutputArtifact | ProgressNote | AttemptEnd


class ProgramRunner(Protocol):
    """Makes tries of one agent."""

    def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        """One try. `AttemptEnd` is the last event, and there is always one, unless the generator is closed: then
        nothing of the process is left when that returns, but for that of a conversation whose program agreed to give up
        the turn. Who is cancelled in the middle of that hears of it when it is done (`shielding.py`). Never raises for
        what a program does."""

    async def close(self, why: str = CHANGED) -> None:
        """End every process that is kept for a conversation, and say why."""
