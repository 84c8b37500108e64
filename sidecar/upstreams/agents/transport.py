"""The interface of an agent transport.

One operation in the canonical form goes out; its result comes back in the canonical form, or the agent's own no
(`AgentError`). What streams gives such results one by one. Nothing is ever sent twice: the agent may have done what it
did not answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from sidecar.errors import Reason, Refusal, Unsent
from sidecar.http.client import Deadline
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import Operation
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import INVALID_PARAMS
from sidecar.vocabulary import Caller

Result = dict[str, Any]


def unsaid(error: UnreadableMessage) -> Unsent:
    """The refusal of parameters that cannot be said to this agent: nothing went out."""
    return Unsent(Reason.MALFORMED_CALL, f"this agent cannot be told: {error}", code=INVALID_PARAMS)


class Declined(Refusal):
    """It is there and said something, but not in A2A: a redirection, or a no of what stands before it. Callers can
    cause it, each for themselves: it is no fault that closes it to everybody."""

    def __init__(self, said: str) -> None:
        super().__init__(Reason.UPSTREAM_FAILED, said)


Begun = Callable[[Result], Awaitable[object]]
"""Takes a `StreamResponse` that begins a task."""


class OutgoingOperation(NamedTuple):
    """One operation on its way to an agent. `caller` is on whose behalf, None is the sidecar itself. `deadline_s` from
    now bounds a whole answer, and of a stream its beginning. `extra` are trace headers. `begun` wants to hear of a task
    as soon as there is one, from who knows that before they answer; it raises Refusal."""

    operation: Operation
    params: Result
    caller: Caller | None
    deadline_s: float
    extensions: tuple[str, ...] = ()
    extra: Sequence[tuple[str, str]] = ()
    begun: Begun | None = None


class AgentEvents(Protocol):
    """A stream that an agent has begun. Read it to its end or close it."""

    def events(self, deadline: Deadline, idle_s: float) -> AsyncGenerator[Result | AgentError | None, None]:
        """Its events; None is a sign of life without any. An `AgentError` is the last. Raises Refusal."""

    def close(self) -> None:
        """Give up the rest: the agent can see it at once. Twice is no fault."""


class AgentTransport(Protocol):
    """One agent, by one of its interfaces."""

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        """The answer to an operation that does not stream. Raises Refusal: UPSTREAM_FAILED, UPSTREAM_TIMEOUT,
        RESPONSE_REFUSED; Declined, and Unsent where nothing was sent."""

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        """The answer to one that does, as soon as it has begun. Raises Refusal."""

    def shows_the_same_as(self, other: AgentTransport) -> bool:
        """Whether both show the agent the same credentials."""

    async def close(self) -> None:
        """Let go of every connection."""
