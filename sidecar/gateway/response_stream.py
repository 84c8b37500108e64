"""Streams an upstream's answer to the caller.

An answer is one body or a stream of events. It is recorded before it is complete. `response_filter.py` decides which
messages pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from aiohttp import web

from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.gateway.error_responses import error_body, facts_of
from sidecar.gateway.frontends.mcp_requests import EVENT_STREAM, JSON
from sidecar.gateway.ownership import NOTHING
from sidecar.gateway.request import Closable, UpstreamExchange
from sidecar.gateway.response_filter import FilteredMessage, ResponseFilter, read_answer
from sidecar.gateway.response_rules import inspect, refused, screen_of
from sidecar.gateway.sse_session import SseSession
from sidecar.http.client import Share
from sidecar.http.server.event_stream import EventSink, EventStream
from sidecar.http.server.response import NO_HEADERS
from sidecar.protocols import jsonrpc, sse
from sidecar.protocols.streamed import Streamed
from sidecar.upstreams.http_address import hold
from sidecar.upstreams.mcp.transport import MAX_ERROR_BYTES, UpstreamAnswer
from sidecar.upstreams.statuses import in_words_of, passes_on, refusal_of

# How much of a stream is read before other work runs. 16 KiB of the smallest events take 10 ms.
SLICE_BYTES = 16 * 1024
# Statuses with which an upstream may carry a protocol error; any other status is a failure of the upstream.
PROTOCOL_STATUSES = frozenset({400, 404})
# Delay before a stream is resumed, unless the upstream sets one (WHATWG HTML, 9.2.2, leaves it to the reader).
RETRY_S = 1.0
MIN_RETRY_S = 0.05

Passing = Callable[[EventStream], Awaitable[bool]]


class ResponseStream:
    """Moves one upstream's answer to one caller and records its outcome. `passage` None: the messages are already
    filtered. `last_event_id` is the upstream's id of the last event read, `retry_s` its delay before resuming."""

    last_event_id: str | None = None
    retry_s = RETRY_S

    def __init__(self, exchange: UpstreamExchange, passage: ResponseFilter | None) -> None:
        self.exchange, self.passage = exchange, passage

    async def answer(self, answer: UpstreamAnswer) -> web.StreamResponse:
        """Sends the answer to a request: one JSON object, or a stream that ends with it."""
        if answer.status != 200:
            passed = await self.told(answer)
        elif answer.media_type == EVENT_STREAM:
            return await self._stream(answer, partial(self._until_answer, answer), until_answer=True)
        else:
            passed = await self.whole(answer)
        return await self.exchange.request.respond(passed.status, passed.out or b"", JSON)

    async def whole(self, answer: UpstreamAnswer) -> FilteredMessage:
        """Returns the filtered answer, from a body or a stream; other messages of a stream are dropped. Raises
        Refusal, also for a status other than 200."""
        passage = self.passage
        try:
            if answer.status != 200:
                raise await self._refusal(answer)
            if answer.media_type != JSON:
                return await self._first_answer(answer)
            raw = await answer.read(self.exchange.request.now.bounds.max_response_bytes)
            if passage is None:
                raise refused("its body is not an answer")
            message = read_answer(raw)
            if isinstance(message, jsonrpc.Response):
                if message.id is None:  # an error, which can only be about the one request
                    message = message._replace(id=passage.answers)
                return await passage.response(message, raw)
            await passage.other(message, raw)
            raise refused("its body is not an answer")
        except Refusal:
            withhold(answer)
            raise

    async def _first_answer(self, answer: UpstreamAnswer) -> FilteredMessage:
        if answer.media_type != EVENT_STREAM:
            raise refused("its media type is neither JSON nor an event stream")
        async with aclosing(self.read(answer)) as events:
            async for event in events:
                passed = await self._hear(event.message) if event.message else FilteredMessage()
                if passed.final:
                    return passed
        raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an answer")

    async def told(self, answer: UpstreamAnswer) -> FilteredMessage:
        """Like `whole`, but returns a JSON-RPC error that the server sends with one of PROTOCOL_STATUSES."""
        if answer.status not in PROTOCOL_STATUSES or answer.media_type != JSON:
            return await self.whole(answer)
        said = jsonrpc.encode_response(await self._error(answer))
        return FilteredMessage(said, final=True, status=answer.status)

    async def _hear(self, data: str) -> FilteredMessage:
        """Filters one message of a stream. The result is empty for a dropped message."""
        raw, passage = data.encode(), self.passage
        if passage is None:
            return FilteredMessage(raw)
        reader = Streamed(passage.expected, passage.answers, self.exchange.service.account.message_dropped)
        try:
            message = reader.read(raw)
        except Refusal as refusal:
            raise refused(refusal.detail) from None
        if message is None:
            return FilteredMessage()
        if isinstance(message, jsonrpc.Response):
            return await passage.response(message, raw)
        if isinstance(message, jsonrpc.Notification) and message.method == "notifications/progress":
            self.exchange.progressed()
        return await passage.other(message, raw)

    async def respond(self, passed: FilteredMessage, headers: Mapping[str, str] = NO_HEADERS) -> web.StreamResponse:
        """Sends the filtered answer as one JSON object, recorded first."""
        return await self.exchange.request.respond(passed.status, passed.out or b"", JSON, headers)

    async def stream(self, answer: UpstreamAnswer) -> web.StreamResponse:
        """Sends a stream that answers no request: the session's own, or a resumed one."""
        if answer.status != 200:
            raise refusal_of(answer)
        if answer.media_type != EVENT_STREAM:
            raise refused("its media type is not an event stream")
        return await self._stream(answer, partial(self.pass_on, answer), until_answer=False)

    async def hold(self, paired: SseSession, endpoint: str) -> web.StreamResponse:
        """Sends the stream of an HTTP+SSE session until it is closed. Its caller sends messages to `endpoint`."""
        return await self._stream(paired, partial(paired.hold, endpoint), until_answer=False)

    async def _refusal(self, answer: UpstreamAnswer) -> Refusal:
        """Returns the refusal for a status, with the error in the body if the error may pass. Otherwise raises
        Refusal."""
        refusal = refusal_of(answer)
        if not passes_on(refusal) or answer.media_type != JSON:
            return refusal
        try:
            raw = await answer.read(MAX_ERROR_BYTES)
            said = read_answer(raw)
        except Refusal:
            return refusal
        if not isinstance(said, jsonrpc.Response) or said.error is None:
            return refusal
        return in_words_of(refusal, (await self._screened(said.error, raw)).error or said.error)

    async def _screened(self, error: dict[str, Any], raw: bytes) -> jsonrpc.Response:
        """Returns an error, redacted, as the answer of this exchange, whatever its id: the official 1.x server uses the
        id "server-error", and a client that probes for the revision must receive its 400."""
        own = jsonrpc.Response(self.exchange.request.request_id, error=error)
        if (screen := screen_of(self.exchange)) is not None:
            await (await inspect(self.exchange, screen, own, raw, NOTHING)).settle(passes=False)
        return own

    async def _error(self, answer: UpstreamAnswer) -> jsonrpc.Response:
        raw = await answer.read(MAX_ERROR_BYTES)
        message = read_answer(raw)
        if not isinstance(message, jsonrpc.Response) or message.error is None:
            raise refusal_of(answer)
        if self.exchange.span is not None:
            self.exchange.span.heard(None, message.error)
        self.exchange.request.answered()
        if not self.exchange.call.session:
            self.exchange.request.tool_failed()
        return await self._screened(message.error, raw)

    async def _stream(self, source: Closable, passing: Passing, *, until_answer: bool) -> web.StreamResponse:
        """Sends a stream. `passing` writes the events of `source`, and returns whether the answer was among them."""
        sent = await self.exchange.request.open_outlet()
        try:
            complete = await self._events(source, passing, sent, until_answer)
            if until_answer and not complete and not sent.resumable:
                raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an answer")
            if not self.exchange.request.record.done:
                await self.exchange.request.ended(200, sent.bytes_out)
            await sent.end()
        except asyncio.CancelledError:
            await self._caller_left(sent)
            raise
        except Refusal as refusal:
            if refusal.reason is Reason.CALLER_GONE:
                await self._caller_left(sent)
            withhold(source)
            await self._break_off(refusal, sent, until_answer)
        return sent.response

    async def _caller_left(self, sent: EventStream) -> None:
        """Handles a disconnect. It is the normal end of an endless stream, and of a resumed one after its answer."""
        if self.exchange.endless:
            await self.exchange.request.left(sent.bytes_out)

    async def _break_off(self, refusal: Refusal, sent: EventStream, until_answer: bool) -> None:
        """Ends a stream with a refusal in the protocol, because the status line was sent."""
        request = self.exchange.request
        told = await request.remember(refusal, 200)
        if told.reason is Reason.CALLER_GONE:
            return
        facts = facts_of(told, request.record.decision_id, request.now.manner)
        farewell = sse.encode_farewell(str(facts.get("reason", "denied")))
        if until_answer:
            farewell = sse.encode_event(error_body(told, request.request_id, facts))
        with suppress(Refusal):  # the caller disconnected; the outcome is recorded
            await sent.write(farewell)
            await sent.end()

    async def _events(self, source: Closable, passing: Passing, sent: EventStream, until_answer: bool) -> bool:
        """Passes on events until the answer, or the end of the stream; returns True when the answer came. A stream that
        was cut off without a denial ends normally."""
        try:
            with self.exchange.streaming(source, sent):
                return await passing(sent)
        except Refusal:
            cut = self.exchange.cut
            if cut is None:
                raise
            if until_answer or ANSWERS[cut].status == "permission_denied":
                raise Refusal(cut) from None
            await sent.write(sse.encode_farewell(cut.value))
            return False

    async def _until_answer(self, answer: UpstreamAnswer, sent: EventStream) -> bool:
        if await self.pass_on(answer, sent, until_answer=True):
            return True
        return sent.shared and await self._rest(sent)

    async def _rest(self, sent: EventStream) -> bool:
        """Resumes a stream that the server left early for its reader to poll (MCP 2025-11-25). This kind of caller
        cannot resume, so the rest is fetched here, within the call's deadline. Returns whether the answer came."""
        while self.last_event_id is not None:
            await asyncio.sleep(min(self.retry_s, self.exchange.patience_s))
            with await self.exchange.listen(self.last_event_id) as rest:
                if rest.status != 200 or rest.media_type != EVENT_STREAM:
                    return False
                with self.exchange.streaming(rest):
                    if await self.pass_on(rest, sent, until_answer=True):
                        return True
        return False

    async def pass_on(self, answer: UpstreamAnswer, sent: EventStream, *, until_answer: bool = False) -> bool:
        """Passes on a stream's events up to the answer or the end of the stream; returns True for the answer. Raises
        Refusal."""
        async with aclosing(self.read(answer)) as events:
            async for event in events:
                if await self.event(event, sent, until_answer):
                    return True
        return False

    async def read(self, answer: UpstreamAnswer) -> AsyncGenerator[sse.SseEvent, None]:
        """Yields the events of a stream, consecutive comments as one. Other work runs between many events."""
        parser = sse.SseParser(self.exchange.request.now.bounds.max_response_bytes)
        deadline, loop = self.exchange.clock(), asyncio.get_running_loop()
        slices, share = _slices(answer.chunks(deadline=deadline)), Share()
        async with aclosing(slices):
            async for piece in slices:
                last = None
                await hold(share, parser.held_bytes + len(piece), deadline)
                for event in parser.feed(piece):
                    if not (event.comment and last is sse.COMMENT):
                        yield event
                    last = event
                    if deadline.at is not None and loop.time() >= deadline.at:
                        # Reading a fast server never waits, so no time-out fires without this check.
                        raise Refusal(Reason.UPSTREAM_TIMEOUT, "it did not come to an end in time")
        share.close()

    async def event(self, event: sse.SseEvent, sent: EventSink, until_answer: bool) -> bool:
        """Passes on one event; returns True if it was the answer."""
        if event.comment:
            await sent.write(sse.KEEP_ALIVE)
            return False
        if event.id:
            self.last_event_id = event.id
        if event.retry_ms is not None:
            self.retry_s = max(MIN_RETRY_S, event.retry_ms / 1000)
        event_id = None if sent.shared else self._sealed(event.id)
        sent.resumable = sent.resumable or event_id is not None
        if not event.message:
            if not sent.shared:
                await sent.write(_hint(event, event_id))
            return False
        passed = await self._hear(event.message)
        if passed.reply is not None:  # a server's request that the caller must not receive
            with await self.exchange.post(passed.reply):
                pass
        if passed.out is None:
            return False
        final = until_answer and passed.final
        written = sse.encode_event(passed.out, id=event_id)
        if final:  # recorded before the answer is complete
            await self.exchange.request.ended(200, sent.bytes_out + len(written))
        await sent.write(written)
        return final

    def _sealed(self, event_id: str | None) -> str | None:
        session, outward = self.exchange.session, self.exchange.outward
        sealed = session.sealed_event_id(event_id) if session is not None and event_id else None
        return sealed if sealed is None or outward is None else outward.event_id(sealed)


def _hint(event: sse.SseEvent, event_id: str | None) -> bytes:
    """Returns the part of an event without a message that the caller receives: its id and retry delay, or a comment."""
    if event.data and event_id is None and event.retry_ms is None:  # an event of another type
        return sse.KEEP_ALIVE
    return sse.encode_hint(id=event_id, retry_ms=event.retry_ms, data=event.data == "")


def withhold(answer: object) -> None:
    """Reports to the upstream of a refused answer that a request for input in it does not reach the caller."""
    if isinstance(answer, UpstreamAnswer):
        answer.withhold()


async def _slices(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk[:SLICE_BYTES]
            for start in range(SLICE_BYTES, len(chunk), SLICE_BYTES):
                await asyncio.sleep(0)
                yield chunk[start : start + SLICE_BYTES]
