"""The interface of an MCP upstream, which works like a Streamable HTTP server.

A session begins with an answer's `Mcp-Session-Id` and ends with a DELETE; a GET opens a stream of unsolicited messages.
Adapters give programs and HTTP+SSE servers (`duplex_transport.py`) and servers of other revisions (`bridge/`) the same
interface, and so do layers around it (`guarded_transport.py`).

    exchange(Outbound) ──▶ UpstreamAnswer      raises Refusal: UPSTREAM_FAILED, UPSTREAM_TIMEOUT, RESPONSE_REFUSED, …
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar

from sidecar import __version__
from sidecar.errors import Reason, Refusal
from sidecar.http.client import ENDLESS, Deadline
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import METHOD_NOT_FOUND, Id, Message, Response, encode_message
from sidecar.vocabulary import Caller

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
SESSION_ID: Final = "mcp-session-id"
MAX_PIPED_BYTES: Final = 16 * 2**20  # one answer of the maximum size, and the messages around it
MAX_ERROR_BYTES: Final = 64 * 1024  # an upstream's error is short
# A caller that waited nearly as long as a call may take counts as patient: because deciding and listing the tools take
# some of that time.
FULL_PATIENCE: Final = 0.9
OURSELVES: Final = {"name": "sidecar", "version": __version__}
LIST_FLAGS: Final[Mapping[str, str]] = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
"""The announcements of a changed list, and the flag that subscribes to each (MCP 2026-07-28)."""
UPDATED: Final = "notifications/resources/updated"
T = TypeVar("T")
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def never() -> bool:
    return False


class Outbound(NamedTuple):
    """One message to send to an upstream; a GET or DELETE has none. `version` is its revision, "" before one is agreed
    on; `session_id` is the upstream's own; `caller` None is the sidecar itself. `deadline_s`, from now, bounds the wait
    for the answer's head, and `read()`. `extra` are `Mcp-Param-*` and trace context. A GET, or an `endless` message,
    opens a stream that stays open. `own`: the sidecar sends it on its own initiative with a caller's credential, and it
    is not counted as a call. `expired` returns whether the server was late when an exchange was cancelled."""

    verb: Literal["POST", "GET", "DELETE"]
    message: Message | None
    version: str
    deadline_s: float
    session_id: str | None = None
    caller: Caller | None = None
    last_event_id: str | None = None
    extra: Sequence[tuple[str, str]] = ()
    endless: bool = False
    own: bool = False
    expired: Callable[[], bool] = never

    @property
    def owner(self) -> str:
        """The owner of the state that this may affect at the upstream: a chain, or "" for the sidecar itself."""
        return "" if self.caller is None else self.caller.binding

    @property
    def is_anonymous(self) -> bool:
        """Whether its owner stands for all anonymous callers."""
        return self.caller is not None and self.caller.is_anonymous


class OfOneCaller(Exception):
    """The cause of a Refusal that concerns only this caller's own program."""


class UpstreamAnswer(ABC):
    """An upstream's answer whose head has arrived: read it to its end or close it; `with` closes it either way. Names
    in `headers` and `media_type` are lower-case, the latter without parameters, "" if there is none. Headers are the
    upstream's: pass on only known harmless ones. `arrived` is the whole body if it came with the head: then there is
    nothing to read or close."""

    __slots__ = ("headers", "media_type", "status")
    arrived: bytes | None = None

    def __init__(self, status: int, media_type: str, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        self.status = status
        self.media_type = media_type
        self.headers = headers

    async def read(self, max_bytes: int) -> bytes:
        """Returns the whole body, within the exchange's deadline. Raises Refusal, RESPONSE_REFUSED beyond
        `max_bytes`."""
        return await _joined(self.chunks(), max_bytes)

    @abstractmethod
    def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives, until a deadline that may be moved in the meantime. Raises Refusal."""

    @abstractmethod
    def close(self) -> None:
        """Cancels the rest; the upstream notices at once. Calling it twice is allowed."""

    def withhold(self) -> None:  # noqa: B027
        """Records that the caller did not get the input request at the end of the answer, so its call need not wait for
        input."""

    def with_body(self, body: bytes) -> BuiltUpstream:
        return BuiltUpstream(self.status, body, media_type=self.media_type, headers=self.headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def event_of(message: Message) -> bytes:
    return sse.encode_event(encode_message(message))


def unknown_method(request_id: Id) -> Response:
    return Response(request_id, error={"code": METHOD_NOT_FOUND, "message": "Method not found"})


async def _joined(chunks: AsyncGenerator[bytes, None], max_bytes: int) -> bytes:
    pieces, size = [], 0
    async with aclosing(chunks):  # an answer that is too large is closed at once, so that its sender notices
        async for piece in chunks:
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise Refusal(Reason.RESPONSE_REFUSED, "it is larger than allowed")
    return b"".join(pieces)


class McpTransport(ABC):
    """One MCP server. `timeout_s` is how long a call may take in total; `max_response_bytes` bounds a body or an event.
    Equal `secrets` mean that the server receives the same secrets, including the content of their files."""

    def __init__(self, name: str, timeout_s: float, max_response_bytes: int, secrets: object = None) -> None:
        self.name, self.secrets = name, secrets
        self.timeout_s, self.max_response_bytes = timeout_s, max_response_bytes

    @abstractmethod
    async def exchange(self, outbound: Outbound) -> UpstreamAnswer:
        """Sends one message; returns when the answer's head arrives. Never retried, because the server may have
        executed it. Raises Refusal."""

    @abstractmethod
    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        """Notifies the upstream that a session has ended. Best effort, because the upstream has its own time-out."""

    def roams(self, session_id: str | None) -> bool:
        """Whether another replica could continue this session: true for an upstream's own session, false for one of
        this process."""
        return False

    def message_dropped(self, why: str) -> None:  # noqa: B027
        """Counts a message of the upstream that was not valid."""

    @abstractmethod
    async def close(self) -> None:
        """Closes everything: connections and child processes, those in use included."""


class TransportLayer(McpTransport):
    """A layer around a transport. Methods that it does not override are those of `inner`."""

    def __init__(self, inner: McpTransport) -> None:
        super().__init__(inner.name, inner.timeout_s, inner.max_response_bytes, inner.secrets)
        self.inner = inner

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        await self.inner.end_session(session_id, version, deadline_s)

    def roams(self, session_id: str | None) -> bool:
        return self.inner.roams(session_id)

    def message_dropped(self, why: str) -> None:
        self.inner.message_dropped(why)

    async def close(self) -> None:
        await self.inner.close()


async def until(deadline: Deadline, arrival: Callable[[], Awaitable[T]], detail: str = "") -> T:
    """Returns what arrives until a deadline that may be moved to later; then `arrival` is called again. Raises
    Refusal(UPSTREAM_TIMEOUT)."""
    loop = asyncio.get_running_loop()
    while (at := deadline.at) is None or loop.time() < at:
        with suppress(TimeoutError):  # the deadline may have moved: check again
            async with asyncio.timeout_at(at):
                return await arrival()
    raise Refusal(Reason.UPSTREAM_TIMEOUT, detail)


@dataclass(slots=True, eq=False)
class AnswerPipe:
    """Bytes from a writer, which never waits, to a reader, which loses the rest and receives a refusal if it is too
    slow."""

    max_bytes: int = MAX_PIPED_BYTES
    closed: bool = False  # whether it accepts no more data
    _pieces: deque[bytes] = field(default_factory=deque)
    _size: int = 0
    _end: Refusal | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, piece: bytes) -> None:
        """Passes a piece on. If the reader is too slow, the pipe ends with RESPONSE_REFUSED."""
        if self.closed:
            return
        self._size += len(piece)
        if self._size > self.max_bytes:
            self.end(Refusal(Reason.RESPONSE_REFUSED, "it sent more than its reader took"))
            return
        self._pieces.append(piece)
        self._news.set()

    def end(self, failure: Refusal | None = None) -> None:
        """Ends the pipe; the reader still receives the earlier pieces. Only the first end takes effect."""
        if not self.closed:
            self.closed, self._end = True, failure
            self._news.set()

    async def read(self, deadline: Deadline) -> bytes:
        """Returns the next piece; b"" at the end. Raises the writer's Refusal, or UPSTREAM_TIMEOUT at the deadline."""
        while not self._pieces:
            if self.closed:
                if self._end is not None:
                    raise self._end
                return b""
            self._news.clear()
            await until(deadline, self._news.wait)
        piece = self._pieces.popleft()
        self._size -= len(piece)
        return piece


class BuiltUpstream(UpstreamAnswer):
    """An answer with a `body`, or with that of a `pipe`. `given_up` is called if it is closed before the pipe ends,
    `withheld` if it is not delivered."""

    __slots__ = ("_deadline", "_given_up", "_pipe", "_withheld", "body")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        *,
        media_type: str = JSON,
        headers: Mapping[str, str] = _NO_HEADERS,
        pipe: AnswerPipe | None = None,
        deadline_s: float | None = None,
        given_up: Callable[[], None] | None = None,
        withheld: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(status, media_type, headers)
        self.body = body
        self._pipe = pipe
        self._deadline = Deadline.within(deadline_s) if pipe is not None else ENDLESS
        self._given_up = given_up
        self._withheld = withheld

    @classmethod
    def of_response(cls, response: Response, status: int = 200, **how: Any) -> Self:
        return cls(status, encode_message(response), **how)

    async def read(self, max_bytes: int) -> bytes:
        return await _joined(self.chunks(deadline=self._deadline), max_bytes)

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        if self._pipe is None:
            if self.body:
                yield self.body
            return
        try:
            while piece := await self._pipe.read(deadline):
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        if self._pipe is None or self._given_up is None:
            return
        given_up, self._given_up = self._given_up, None
        if not self._pipe.closed:
            self._pipe.end(Refusal(Reason.UPSTREAM_FAILED, "the exchange was given up"))
            given_up()

    def withhold(self) -> None:
        if self._withheld is not None:
            self._withheld()
