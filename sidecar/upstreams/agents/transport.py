"""The interface of an agent transport.

Operations and results are in the canonical form; an agent's own error is an `AgentError`. Nothing is ever sent twice:
the agent may have executed an unanswered operation.
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
    """Returns the refusal of parameters that this agent's version cannot express; nothing was sent."""
    return Unsent(
        Reason.MALFORMED_CALL, f"the agent's version of A2A cannot express the request: {error}", code=INVALID_PARAMS
    )


def unreadable(error: UnreadableMessage) -> Refusal:
    """Returns the refusal of a result that is not in the agent's form."""
    return Refusal(Reason.RESPONSE_REFUSED, f"its result cannot be read: {error.pointer or '/'} {error.problem}")


class Declined(Refusal):
    """The address answered, but not in A2A: a redirect, or an error of a proxy. Any caller can cause this, so it is not
    a fault."""

    def __init__(self, said: str) -> None:
        super().__init__(Reason.UPSTREAM_FAILED, said)


Begun = Callable[[Result], Awaitable[object]]
"""Accepts a `StreamResponse` that begins a task."""


class OutgoingOperation(NamedTuple):
    """One operation to send to an agent. `caller` None is the sidecar itself. `deadline_s` is in seconds from now and
    bounds a whole answer, or the beginning of a stream. `extra` are trace headers. `begun` is called as soon as a task
    exists, by transports that know this before the answer; it raises Refusal."""

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
        """Yields the events; None is a keep-alive. An `AgentError` is the last item. `idle_s` is the longest silence in
        seconds. Raises Refusal."""

    def close(self) -> None:
        """Cancels the rest; the agent notices at once. Calling it twice is allowed."""


class AgentTransport(Protocol):
    """One agent, by one of its interfaces."""

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        """Returns the answer to an operation that does not stream. Raises Refusal: UPSTREAM_FAILED, UPSTREAM_LIMITED,
        UPSTREAM_TIMEOUT, RESPONSE_REFUSED; Declined, and Unsent if nothing was sent."""

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        """Returns the answer to a streaming operation, as soon as it has begun. Raises Refusal."""

    @property
    def secrets(self) -> object:
        """The secrets that the agent receives. Equal values are the same secrets, with the content of their files."""

    async def close(self) -> None:
        """Closes every connection."""
