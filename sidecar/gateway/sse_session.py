"""Answers many requests on one event stream (MCP 2024-11-05).

In the HTTP+SSE transport a session is a stream. Its caller opens it with a GET, receives the address for POST, and
reads every answer and server message on the stream. The session's work in progress ends with its stream.

    GET  …/sse                       event: endpoint, then one event for each message
    POST …/messages?session_id=…     202 at once; the answer comes on the stream
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.http.server.event_stream import EventStream, SharedEventStream
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import Message, Notification, Request

# The maximum number of concurrent calls of one stream; for more, a caller opens a second stream. Notifications and
# answers are counted separately, so that calls that wait for the caller's answer do not keep it out.
MAX_CALLS: Final = 64
MAX_WORDS: Final = 64

Work = Callable[[], Coroutine[Any, Any, None]]


class SseSession:
    """One session's stream, and its work in progress. `hear` passes on the server's own messages."""

    __slots__ = ("_closed", "_failure", "_group", "_hear", "_heard", "_stream", "_told", "_under_way")

    def __init__(self, hear: Callable[[EventStream], Coroutine[Any, Any, None]]) -> None:
        self._hear = hear
        self._stream: EventStream | None = None
        self._closed = asyncio.Event()
        self._failure: Refusal | None = None
        self._group: asyncio.TaskGroup | None = None
        self._under_way: dict[asyncio.Task[None], bool] = {}  # whether each is a call
        self._told: asyncio.Task[None] | None = None
        self._heard: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def close(self) -> None:
        """Ends the stream, and its work in progress. Idempotent."""
        self._closed.set()

    def outlet(self) -> SharedEventStream:
        """Returns the part of the stream for one answer."""
        assert self._stream is not None, "nothing is taken before the stream is open"
        return SharedEventStream(self._stream.response, self._stream, shared=True)

    async def hold(self, endpoint: str, stream: EventStream) -> bool:
        """Keeps the stream open until it is closed; its caller POSTs to `endpoint`. Then raises Refusal with the reason
        for which it was closed."""
        self._stream = stream
        await stream.write(sse.encode_endpoint(endpoint))
        async with asyncio.TaskGroup() as self._group:
            try:
                await self._closed.wait()
            finally:
                self._group = None
                for task in (self._heard, *self._under_way):
                    if task is not None:
                        task.cancel()
        raise self._failure or Refusal(Reason.UPSTREAM_FAILED, "the stream was closed")

    def take(self, message: Message, answer: Work) -> asyncio.Task[None]:
        """Begins to answer a message on the stream. Raises Refusal: SESSION_UNKNOWN, TOO_MANY_CONCURRENT."""
        if self._group is None or self._closed.is_set():
            raise Refusal(Reason.SESSION_UNKNOWN)
        is_call = isinstance(message, Request)
        if sum(each is is_call for each in self._under_way.values()) >= (MAX_CALLS if is_call else MAX_WORDS):
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too much is under way on this stream")
        task = self._group.create_task(self._in_order(self._told, answer))
        self._under_way[task] = is_call
        task.add_done_callback(lambda done: self._under_way.pop(done))
        if isinstance(message, Notification):
            self._told = task
        return task

    async def _in_order(self, told: asyncio.Task[None] | None, answer: Work) -> None:
        """Waits for the previous notification: a server that has not received `initialized` refuses calls."""
        if told is not None and not told.done():
            await asyncio.wait({told})
        await answer()

    def begin_to_hear(self) -> None:
        """Begins to pass on the server's own messages. Idempotent."""
        if self._group is not None and self._heard is None:
            self._heard = self._group.create_task(self._listen())

    async def _listen(self) -> None:
        try:
            await self._hear(self.outlet())
        except Refusal as refusal:
            self._failure = refusal
            self.close()
