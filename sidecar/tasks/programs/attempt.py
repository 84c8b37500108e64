"""One attempt: its order, its events, of which the last is its end, and whether another attempt follows."""

import errno
import os
import signal
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from sidecar.errors import Reason
from sidecar.settings.agents import MAX_BACKOFF_S, CliAgent, Resources
from sidecar.tasks.programs.run_record import Category, Failure, Usage
from sidecar.tasks.worker import backoff_s
from sidecar.upstreams.processes.launcher import Exit, StartFailed, WaitLimit
from sidecar.vocabulary import Caller, Question

CHANGED: Final = "the agent was changed"
Hear = Callable[[WaitLimit | None], None]

Objection = Callable[[Caller, str, str], Reason | None]
"""Returns why the agent of this name may no longer run this skill for the caller; None if it may. Does not block."""


def no_objection(caller: Caller, name: str, skill: str) -> Reason | None:
    return None


class Prompt(NamedTuple):
    """The content of a message for a program. `text` is only data; `cli_args`, `envs` and `working_directory` are a
    caller's choices among those that the operator allows. `message` is the message in canonical form, for JSON-RPC.
    `trace` is the trace context of the request, as variables."""

    text: str
    cli_args: Mapping[str, str]
    envs: Mapping[str, str]
    working_directory: str | None
    message: Mapping[str, Any]
    trace: Mapping[str, str] = MappingProxyType({})

    @property
    def skill(self) -> str:
        """Returns the skill that the message names, in the form of rules; "" for none."""
        return Question("nhi:", "", "", arguments={"message": self.message}).tool


@dataclass(slots=True, eq=False)
class TimeLimit:
    """The time limit of one run. The holder of the lease renews it (`write_leases.py`) for the program's warden, which
    ends the program in time even if this process is stopped. Without `until` there is no limit."""

    until: WaitLimit | None = None
    _hearers: set[Hear] = field(default_factory=set)

    def renew(self, until: WaitLimit) -> None:
        self.until = until
        for hear in self._hearers:
            hear(until)

    def bind(self, hear: Hear) -> None:
        self._hearers.add(hear)
        hear(self.until)

    def release(self, hear: Hear) -> None:
        self._hearers.discard(hear)
        hear(None)


class ProgramOrder(NamedTuple):
    """One attempt for `caller`, with binding `owner`, of at most `deadline_s`. `term` bounds it even if this process
    cannot."""

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
    """The process runs. `resumed`: it already ran, for an earlier turn of its conversation."""

    pid: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """More of its answer, as text that is safe to show."""

    text: str


@dataclass(frozen=True, slots=True)
class OutputArtifact:
    """A part of an artifact: a canonical TaskArtifactUpdateEvent without ids; without `artifactId`, of the answer."""

    update: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProgressNote:
    """Its progress: a sentence, and figures if the program gives them. A note that `stays` is stored in the finished
    task."""

    message: str
    done: float | None = None
    total: float | None = None
    stays: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """Its end: success without a `failure`, with A2A's task `state`. `alone`: the answer is the `message`, without a
    task."""

    exit: Exit | None
    usage: Usage
    failure: Failure | None = None
    timed_out: bool = False
    state: str = "TASK_STATE_COMPLETED"
    message: tuple[Mapping[str, Any], ...] = ()
    alone: bool = False


Event = Started | OutputChunk | OutputArtifact | ProgressNote | AttemptEnd


class ProgramRunner(Protocol):
    def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        """Makes one attempt; `AttemptEnd` is its last event. Once the generator is closed, no part of the process is
        left, except a conversation's process that can take another turn. Never raises because of a program's
        behaviour."""

    async def close(self, why: str = CHANGED) -> None:
        pass


class DialogueBroken(Exception):
    """A program sent output that makes its further output ambiguous. The message describes it, without values."""


class UnsayableError(Exception):
    """An order cannot be sent to this program; the message gives the reason. Nothing was written."""


class TurnAnswer(NamedTuple):
    """The end of a turn. The fields are those of `AttemptEnd`."""

    state: str = "TASK_STATE_COMPLETED"
    message: tuple[Mapping[str, Any], ...] = ()
    alone: bool = False
    failure: Failure | None = None


class TurnReply(NamedTuple):
    line: bytes


Heard = OutputChunk | OutputArtifact | ProgressNote | TurnAnswer | TurnReply


class Dialogue(Protocol):
    """The dialogue with one process, from its start to its end."""

    @property
    def strays(self) -> bool:
        """Whether it has output since its answer that would be mistaken for the next answer."""

    def begin(self, order: ProgramOrder) -> bytes:
        """Begins a turn; returns the message to write. Raises UnsayableError; then no turn has begun."""

    def cancel(self) -> bytes:
        """Returns the message that asks the program to cancel the turn; b"" if there is none."""

    def hear(self, chunk: bytes) -> Iterator[Heard]:
        """Parses more of its output. Raises DialogueBroken, and is unusable afterwards."""

    def over(self) -> Iterator[Heard]:
        """Parses the remaining output when its output has ended. Raises DialogueBroken."""


SPREAD: Final = (0.8, 1.2)


def rest_s(agent: CliAgent, ended: AttemptEnd, tries: int, random: Callable[[], float]) -> float | None:
    """Returns the delay in seconds before the next attempt, or None if there is none. `random` returns numbers from 0
    to 1."""
    may_pass = ended.failure is not None and ended.failure.category is Category.TRANSIENT
    if ended.timed_out or not may_pass or tries >= agent.tries:
        return None
    return backoff_s(agent.retries.backoff_s, MAX_BACKOFF_S, tries, SPREAD, random())


FAILED: Final = "TASK_STATE_FAILED"
CANCELED: Final = "TASK_STATE_CANCELED"
NOTHING: Final = Usage()
_MAY_PASS: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ETXTBSY, errno.ETIMEDOUT}
)
_WILL_STAY: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.E2BIG}
    | {errno.ENAMETOOLONG, errno.EINVAL, errno.ELIBBAD}
)
_TOLD_CHARS: Final = 400


def fell(failure: Failure, how: Exit | None = None, usage: Usage = NOTHING) -> AttemptEnd:
    return AttemptEnd(how, usage, failure, state=FAILED)


def withdrawn(why: str, how: Exit | None = None, usage: Usage = NOTHING) -> AttemptEnd:
    return AttemptEnd(how, usage, state=CANCELED, message=({"text": why},))


def overdue(order: ProgramOrder, how: Exit | None = None, usage: Usage = NOTHING) -> AttemptEnd:
    failure = Failure(Category.AGENT, f"it did not answer within {order.deadline_s:g} s")
    return AttemptEnd(how, usage, failure, timed_out=True, state=FAILED)


def failure_of_start(error: StartFailed) -> Failure:
    """Returns why nothing was started, without the program's path, which only the operator's log shows."""
    if error.number is None:
        return Failure(Category.SYSTEM, "it cannot be started")
    why = f"it cannot be started: {os.strerror(error.number)}"
    if error.number in _MAY_PASS:
        return Failure(Category.TRANSIENT, why)
    return Failure(Category.PERMANENT if error.number in _WILL_STAY else Category.SYSTEM, why)


def failure_of_exit(
    how: Exit, last_words: str, resources: Resources, usage: Usage, exit_codes: Collection[int] = ()
) -> Failure | None:
    """Returns why a program that ended on its own failed, or None. `exit_codes` mean "try again"."""
    if how.code == 0:
        return None
    limit = _limit_met(how, resources, usage)
    if limit is not None:
        return Failure(Category.AGENT, limit)
    why = f"{how}: {last_words[:_TOLD_CHARS]}" if last_words else str(how)
    if how.signal is not None or how.code in exit_codes:
        return Failure(Category.TRANSIENT, why)
    return Failure(Category.SYSTEM if how.code is None else Category.AGENT, why)


def _limit_met(how: Exit, resources: Resources, usage: Usage) -> str | None:
    cpu_s = resources.cpu_s
    if how.signal == signal.SIGXCPU or (how.signal == signal.SIGKILL and cpu_s is not None and usage.cpu_s >= cpu_s):
        return "it took all of its CPU time" if cpu_s is None else f"it took all of its {cpu_s} s of CPU time"
    if how.signal == signal.SIGXFSZ:
        return "it wrote a file beyond its size"
    return None
