"""Reads the messages of MCP servers from bodies and event streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ENDLESS, Deadline
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Id, Message, Response
from sidecar.protocols.sse import SseEvent, SseParser
from sidecar.protocols.streamed import Streamed
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, McpTransport, UpstreamAnswer

MAX_PAUSE_S: Final = 5.0


class StreamMark(Enum):
    """Items of a stream other than messages."""

    OPENED = "its answer is a stream"
    ALIVE = "a keep-alive"


@dataclass(slots=True)
class StreamPlace:
    """A position in a stream: the pause in seconds before its rest is fetched, the request id that it `answers`, and
    the length of its newest event."""

    upstream: McpTransport
    answers: Id | None = None
    last_event_id: str | None = None
    pause_s: float = 0.0
    event_bytes: int = 0


@dataclass(slots=True)
class ReopenPauses:
    """The pauses between the openings of one stream, in seconds: `first_s`, then twice the last one, at most
    `longest_s`. After a stream that lasted longer than `longest_s`, they begin again."""

    first_s: float
    longest_s: float
    _next_s: float = 0.0

    def after(self, lasted_s: float) -> float:
        """The pause after a stream that lasted so long."""
        pause_s = self.first_s if lasted_s > self.longest_s else max(self.first_s, self._next_s)
        self._next_s = min(2 * pause_s, self.longest_s)
        return pause_s


def received(raw: bytes) -> Message:
    """Parses a message of an upstream. Raises Refusal(RESPONSE_REFUSED)."""
    try:
        return jsonrpc.message_from(jsonrpc.parse_answer(raw))
    except Refusal as refusal:
        raise Refusal(Reason.RESPONSE_REFUSED, refusal.detail) from None


async def events(
    answer: UpstreamAnswer, place: StreamPlace, deadline: Deadline = ENDLESS
) -> AsyncGenerator[Message | StreamMark, None]:
    """Yields the messages of a stream until it ends. Raises Refusal."""
    own = place.answers
    reader = Streamed(() if own is None else (own,), own, place.upstream.message_dropped)
    async with aclosing(answer.chunks(deadline=deadline)) as chunks:
        async for event in _parsed(chunks, SseParser(place.upstream.max_response_bytes)):
            place.event_bytes = len(event.data or "")
            if event.comment:
                yield StreamMark.ALIVE
                continue
            if event.retry_ms is not None:
                place.pause_s = min(event.retry_ms / 1000, MAX_PAUSE_S)
            if event.id:
                place.last_event_id = event.id
            try:
                message = reader.read(event.message.encode()) if event.message else None
            except Refusal as refusal:
                if own is not None:
                    raise Refusal(Reason.RESPONSE_REFUSED, refusal.detail) from None
                place.upstream.message_dropped(refusal.detail)  # no answer is awaited
                continue
            if message is not None:
                yield message


async def _parsed(chunks: AsyncIterator[bytes], parser: SseParser) -> AsyncGenerator[SseEvent, None]:
    async for chunk in chunks:
        for event in parser.feed(chunk):
            yield event


async def whole_answer(
    answer: UpstreamAnswer, request_id: Id, upstream: McpTransport, within_s: float
) -> tuple[bytes, Response | None]:
    """Returns the body of an answer and the response in it, None if there is none. Of a stream it is the first
    response, b"" without one. Raises Refusal."""
    if answer.media_type == EVENT_STREAM:
        place = StreamPlace(upstream, request_id)
        async with aclosing(events(answer, place, Deadline.within(within_s))) as messages:
            async for message in messages:
                if isinstance(message, Response):
                    return jsonrpc.encode_response(message), message
        return b"", None
    body = await answer.read(upstream.max_response_bytes)
    if answer.media_type != JSON:
        return body, None
    try:
        whole = received(body)
    except Refusal:
        return body, None  # its consumer reports the fault
    return body, whole if isinstance(whole, Response) else None
