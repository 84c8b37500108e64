"""Answers many requests on one event stream (MCP 2024-11-05).

In the HTTP+SSE transport of MCP 2024-11-05 a session *is* a stream. Its caller opens it with a GET, is told where to
POST, and hears on the stream every answer, and whatever the server says or asks besides. What is under way for a
session ends with its stream.

    GET  …/sse                       event: endpoint, then one event for each message
    POST …/messages?session_id=…     202 at once: what comes of it, comes on the stream
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.http.server.event_stream import EventStream, SharedEventStream
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import Message, Notification, Request

# What one stream may have under way: a caller with more to ask at once opens another. Notifications and answers are
# counted apart, so that 64 calls that wait for the caller's answer do not keep it out.
MAX_CALLS: Final = 64
MAX_WORDS: Final = 64

Work = Callable[[], Coroutine[Any, Any, None]]


class SseSession:
    """The stream of one session, and what is under way for it. `hear` passes on what the server says unasked, for as
    long as it says something."""

    __slots__ = ("_closed", "_failure", "_group", "_hear", "_heard", "_stream", "_told", "_under_way")

    def __init__(self, hear: Callable[[EventStream], Coroutine[Any, Any, None]]) -> None:
        self._hear = hear
        self._stream: EventStream | None = None
        self._closed = asyncio.Event()
        self._failure: Refusal | None = None
        self._group: asyncio.TaskGroup | None = None
        self._under_way: dict[asyncio.Task[None], bool] = {}  # and whether it is a call
        self._told: asyncio.Task[None] | None = None
        self._heard: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody still waits for an answer."""
        return bool(self._under_way)

    def close(self) -> None:
        """End the stream, and what is under way for it. Twice is no fault."""
        self._closed.set()

    def outlet(self) -> SharedEventStream:
        """The way out for one more answer."""
        assert self._stream is not None, "nothing is taken before the stream is open"
        return SharedEventStream(self._stream)

    async def hold(self, endpoint: str, stream: EventStream) -> bool:
        """Keep the stream open until it is closed; its caller is to POST to `endpoint`. Raises Refusal: why it was
        closed, if anybody said so, and CALLER_GONE."""
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
        """Have a message answered on the stream. Raises Refusal: SESSION_UNKNOWN, TOO_MANY_CONCURRENT."""
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
        """The caller was told 202 at once, so it does not wait until the server has its notification: what comes next
        does. A server that has not heard `initialized` refuses calls."""
        if told is not None and not told.done():
            await asyncio.wait({told})
        await answer()

    def begin_to_hear(self) -> None:
        """The server may speak from now on. Twice is no fault."""
        if self._group is not None and self._heard is None:
            self._heard = self._group.create_task(self._listen())

    async def _listen(self) -> None:
        try:
            await self._hear(self.outlet())
        except Refusal as refusal:
            self._failure = refusal
            self.close()
