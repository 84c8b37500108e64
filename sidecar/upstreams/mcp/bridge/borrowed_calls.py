"""Reads the answer of one stateless caller's call at a session-based server.

A `BorrowedCall` reads the server's answer in a task of its own, because it may outlive the request that began it: when
the server asks its client for input, the caller's answer ends with that request, the call is held, and the caller's
retry reads on where it stopped. Messages wait in a short queue, so that a held call applies back pressure to the server
instead of filling memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ENDLESS, Deadline
from sidecar.protocols.jsonrpc import Id, Message, Request, Response
from sidecar.protocols.sse import SseParser
from sidecar.protocols.streamed import Streamed
from sidecar.upstreams.mcp.bridge.translation import received_in
from sidecar.upstreams.mcp.transport import EVENT_STREAM, McpTransport, Outbound, UpstreamAnswer, count_dropped

MAX_WAITING: Final = 64  # messages that were read and not yet passed on
MAX_WAITING_BYTES: Final = 2**20  # of them together, except the last: one message may be larger
MAX_RESUMPTIONS: Final = 64
MAX_PAUSE_S: Final = 5.0


class StreamMark(Enum):
    """Items of a stream other than messages."""

    OPENED = "its answer is a stream"
    ALIVE = "a keep-alive"


class CallBody(NamedTuple):
    """An answer that is not an event stream."""

    status: int
    media_type: str
    content: bytes
    headers: Mapping[str, str]


Arrival = Message | StreamMark | CallBody | Refusal


@dataclass(slots=True, eq=False)
class BorrowedCall:
    """One call at the server. `upstream_id` is its id there, `request_id` the caller's, which may change with each
    retry, as may `level` and the progress token (`token_now`; the server knows `token`). `expired` says that it is
    stopped because the server did not answer in time; `is_patient` that its caller waited as long as a call may take.
    """

    upstream: McpTransport
    outbound: Outbound
    upstream_id: int
    method: str
    fingerprint: bytes
    request_id: Id
    level: str | None
    token: Id | None
    token_now: Id | None
    is_patient: bool
    opened: bool = False
    held: bool = False
    over: bool = False
    expired: bool = False
    _arrived: asyncio.Queue[tuple[Arrival, int]] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING))
    _waiting_bytes: int = 0
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"{self.method} at {self.upstream.name}")

    def offer(self, message: Message) -> bool:
        """Queue a message about this call that came on another stream; False if the queue is full."""
        return self._put_now(message)

    async def next(self, deadline: Deadline) -> Arrival:
        """The next item. Raises the Refusal that ended the server's answer, or UPSTREAM_TIMEOUT at the deadline."""
        loop = asyncio.get_running_loop()
        while self._arrived.empty():
            if self.over:
                raise Refusal(Reason.UPSTREAM_FAILED, "the exchange was given up")
            at = deadline.at
            if at is not None and loop.time() >= at:
                raise Refusal(Reason.UPSTREAM_TIMEOUT)
            try:
                async with asyncio.timeout_at(at):
                    return self._taken(await self._arrived.get())
            except TimeoutError:
                continue  # the deadline may have moved: check again
        return self._taken(self._arrived.get_nowait())

    def stop(self, why: str = "the exchange was given up") -> None:
        """End the call: the server's stream closes, and a waiting reader gets a refusal."""
        self.over = True
        self._put_now(Refusal(Reason.UPSTREAM_FAILED, why))
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            with await self.upstream.exchange(self.outbound._replace(expired=self._has_expired)) as answer:
                if answer.status != 200 or answer.media_type != EVENT_STREAM:
                    content = await answer.read(self.upstream.max_response_bytes)
                    await self._put(CallBody(answer.status, answer.media_type, content, answer.headers))
                    return
                await self._put(StreamMark.OPENED)
                place = CallPlace(self.upstream, self.upstream_id)
                async with aclosing(self._messages(answer, place)) as messages:
                    async for arrival in messages:
                        await self._put(arrival, place.event_bytes)
                        if isinstance(arrival, Response):
                            return
            raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an answer")
        except Refusal as refusal:
            await self._put(refusal)

    def _has_expired(self) -> bool:
        return self.expired

    async def _put(self, arrival: Arrival, size: int = 0) -> None:
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        self._waiting_bytes += size
        await self._arrived.put((arrival, size))

    def _put_now(self, arrival: Arrival) -> bool:
        try:
            self._arrived.put_nowait((arrival, 0))
        except asyncio.QueueFull:
            return False
        return True

    def _taken(self, entry: tuple[Arrival, int]) -> Arrival:
        arrival, size = entry
        self._waiting_bytes -= size
        self._room.set()
        if isinstance(arrival, Refusal):
            raise Refusal(arrival.reason, arrival.detail)
        return arrival

    async def _messages(self, answer: UpstreamAnswer, place: CallPlace) -> AsyncGenerator[Arrival, None]:
        """Every message of the answer, also if the server has its client fetch the rest by GET."""
        async with aclosing(events(answer, place, self.upstream.max_response_bytes)) as first:
            async for arrival in first:
                yield arrival
        for _ in range(MAX_RESUMPTIONS):
            if place.last_event_id is None:
                return
            await asyncio.sleep(place.pause_s)
            asked = self.outbound._replace(verb="GET", message=None, last_event_id=place.last_event_id)
            with await self.upstream.exchange(asked) as rest:
                if rest.status != 200 or rest.media_type != EVENT_STREAM:
                    return
                async with aclosing(events(rest, place, self.upstream.max_response_bytes)) as more:
                    async for arrival in more:
                        yield arrival


@dataclass(slots=True)
class CallPlace:
    """The position in a stream of `upstream`, and how long the server asks its client to wait before it fetches the
    rest. `answers` is the id of the request that the stream answers, None if there is none. `event_bytes` is the size
    of the newest event.
    """

    upstream: McpTransport
    answers: Id | None = None
    last_event_id: str | None = None
    pause_s: float = 0.0
    event_bytes: int = 0

    def reader(self) -> Streamed:
        """The parser of the stream's messages."""
        own = self.answers
        return Streamed(() if own is None else (own,), own, partial(count_dropped, self.upstream))


async def events(
    answer: UpstreamAnswer, place: CallPlace, max_bytes: int, deadline: Deadline = ENDLESS
) -> AsyncGenerator[Message | StreamMark, None]:
    """The messages of a stream until it ends. Raises Refusal."""
    parser, reader = SseParser(max_bytes), place.reader()
    async with aclosing(answer.chunks(deadline=deadline)) as chunks:
        async for event in _parsed(chunks, parser):
            place.event_bytes = len(event.data or "")
            if event.comment:
                yield StreamMark.ALIVE
                continue
            if event.retry_ms is not None:
                place.pause_s = min(event.retry_ms / 1000, MAX_PAUSE_S)
            if event.id:
                place.last_event_id = event.id
            if not event.message:
                continue
            if (message := received_in(reader, event.message)) is not None:
                yield message


async def _parsed(chunks: AsyncIterator[bytes], parser: SseParser) -> AsyncGenerator[Any, None]:
    async for chunk in chunks:
        for event in parser.feed(chunk):
            yield event


def progress_token(request: Request) -> Id | None:
    token = request.params.get("_meta", {}).get("progressToken")
    return token if isinstance(token, str) or type(token) is int else None
