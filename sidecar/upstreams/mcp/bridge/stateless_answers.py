"""Writes the answer of a bridged call for a stateless caller.

It ends with the response, or with the server's next input request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Protocol

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ENDLESS, Deadline
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import Message, Notification, Request, Response, encode_notification, encode_response
from sidecar.upstreams.mcp.bridge.borrowed_calls import BorrowedCall, StreamMark
from sidecar.upstreams.mcp.bridge.borrowed_sessions import BorrowedSession
from sidecar.upstreams.mcp.transport import EVENT_STREAM, BuiltUpstream, whole_of


@dataclass(frozen=True, slots=True)
class BridgedAnswer:
    """What one message becomes for the caller: an intermediate message, or the last. `state` names the call that is now
    held.
    """

    between: Notification | None = None
    final: Response | None = None
    state: str = ""


class ServerQuestion(BuiltUpstream):
    """A whole answer that may be an input request of the server's."""

    __slots__ = ("_withheld",)

    def __init__(self, status: int, body: bytes, *, withheld: Callable[[], None]) -> None:
        super().__init__(status, body)
        self._withheld = withheld

    def withhold(self) -> None:
        self._withheld()


class BridgedCalls(Protocol):
    """The owner of the calls, which decides how each goes on."""

    def told(self, lent: BorrowedSession, course: BorrowedCall, message: Message) -> BridgedAnswer:
        """What one message becomes for the caller. Raises Refusal(RESPONSE_REFUSED)."""

    def give_up(self, lent: BorrowedSession, course: BorrowedCall, *, late: bool = False) -> None:
        """The caller left, or the server was `late`."""

    def drop(self, state: str) -> None:
        """Drop the held call that this state names."""


def is_late(error: BaseException) -> bool:
    """Whether a call ended because the server did not answer in time."""
    return isinstance(error, Refusal) and error.reason is Reason.UPSTREAM_TIMEOUT


class AnswerCrossing:
    """A `transport.UpstreamAnswer`: a call's stream, up to its response or the next input request."""

    __slots__ = ("_calls", "_course", "_done", "_lent", "_state", "headers", "media_type", "status")

    def __init__(self, calls: BridgedCalls, lent: BorrowedSession, course: BorrowedCall) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = MappingProxyType({})
        self.media_type = EVENT_STREAM
        self._calls, self._lent, self._course = calls, lent, course
        self._done = False
        self._state = ""

    async def read(self, max_bytes: int) -> bytes:
        return await whole_of(self, max_bytes)

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        try:
            while not self._done:
                arrival = await self._course.next(deadline)
                if isinstance(arrival, StreamMark):
                    yield sse.KEEP_ALIVE
                elif isinstance(arrival, Request | Notification | Response):
                    told = self._calls.told(self._lent, self._course, arrival)
                    if told.between is not None:
                        yield sse.encode_event(encode_notification(told.between))
                    if told.final is not None:
                        self._done, self._state = True, told.state
                        yield sse.encode_event(encode_response(told.final))
        except Refusal as refusal:
            self._leave(late=is_late(refusal))
            raise
        finally:
            self.close()

    def close(self) -> None:
        self._leave(late=False)

    def _leave(self, *, late: bool) -> None:
        if not self._done:
            self._done = True
            self._calls.give_up(self._lent, self._course, late=late)

    def withhold(self) -> None:
        self._calls.drop(self._state)

    def __enter__(self) -> AnswerCrossing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
