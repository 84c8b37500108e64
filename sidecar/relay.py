"""What of the upstream's answer may the caller have?

The answer's way, as `pipeline.py` is the call's. Every message is parsed, judged and written anew, whether it comes
as one JSON body or as an event among others: what cannot be read does not pass (threats L1), what a list names is
what its caller may use (I9), and what a server asks of its client needs a row like any call (CONTRACT 1.4).

    Passage    judges one message; no I/O
    Relay      moves bytes: one body, or a stream event by event
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Container, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiohttp import web

from sidecar.answers import error_body, facts_of
from sidecar.audit import Recording
from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.intents import EVENT_STREAM, JSON
from sidecar.protocols import eras, jsonrpc, mcp, sse
from sidecar.protocols.jsonrpc import Id
from sidecar.turn import Exchange
from sidecar.upstreams import Answer
from sidecar.vocabulary import Decision
from sidecar.whole import NO_HEADERS, Whole

STREAM_HEADERS = {
    "Server": "sidecar",
    "Content-Type": EVENT_STREAM,
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
MAX_ERROR_BYTES = 64 * 1024  # an upstream's error is a sentence, not a document
# How much of a stream is read before others have their turn: 16 KiB of the smallest events take 10 ms (threats I11).
SLICE_BYTES = 16 * 1024
# What an upstream may say no with in the protocol's own words; any other status is trouble between it and us.
PROTOCOL_STATUSES = frozenset({400, 404})


class Passed(NamedTuple):
    """What became of one message. `out` goes to the caller, `reply` back to the upstream; either may be nothing.
    `final` says that the call has its answer; `version` is the revision that an `initialize` agreed on."""

    out: bytes | None = None
    reply: bytes | None = None
    final: bool = False
    version: str = ""


@dataclass(slots=True)
class Passage:
    """The judge of one answer. `expected` are the ids that may be answered here. Rules are those of the exchange's own
    revision (`judged_by`), which for a stream without end is the newest."""

    exchange: Exchange
    expected: Container[Id]
    now_s: Callable[[], float]

    def judge(self, raw: bytes | str) -> Passed:
        """One message of the upstream. Raises Refusal: RESPONSE_REFUSED, or a denial of what the server asks."""
        message = read_answer(raw)
        if isinstance(message, jsonrpc.Response):
            return self._response(message)
        if isinstance(message, jsonrpc.Request):
            return self._request(message)
        return self._notification(message)

    def _response(self, response: jsonrpc.Response) -> Passed:
        if response.id is None or response.id not in self.expected:
            raise refused("it answers another request")
        if response.error is not None:
            return Passed(jsonrpc.encode_response(response), final=True)
        if not isinstance(response.result, dict):
            raise refused("its result is not an object")
        version = agreed_version(response.result) if self._beginning else ""
        out = jsonrpc.encode_response(jsonrpc.Response(response.id, self._result(response.result)))
        return Passed(out, final=True, version=version)

    @property
    def _beginning(self) -> bool:
        """Whether this answers an `initialize`."""
        return self.exchange.call.method == "initialize"

    def _result(self, result: dict[str, Any]) -> dict[str, Any]:
        if mcp.evades(result):
            raise refused("its result has a member in another spelling")
        for member in mcp.LISTS:
            if member in result:
                result[member] = self._entries(member, result[member])
        if result.get("resultType", "complete") not in mcp.RESULT_TYPES:
            raise refused("its resultType is not one that was asked for")
        for method in mcp.asked_of_client(result):
            self._ask(method).or_refuse()
        if isinstance(result.get("capabilities"), dict):
            result["capabilities"] = mcp.without_tasks(result["capabilities"])
        if "cacheScope" in result:
            # It passed a policy for one caller; no shared cache may serve it to another.
            result["cacheScope"] = "private"
        return result

    def _entries(self, member: str, entries: object) -> list[Any]:
        if not isinstance(entries, list):
            raise refused(f"its {member} are not a list")
        now_s = self.now_s()
        return [entry for entry in entries if self._listed(member, entry, now_s)]

    def _listed(self, member: str, entry: object, now_s: float) -> bool:
        exchange = self.exchange
        question = mcp.entry_question(member, exchange.turn.server, entry)
        if question is None or not exchange.judged_by.engine.may_list(exchange.caller.chain, question, now_s):
            return False
        return member != "tools" or exchange.service.catalogue.usable(question.name)

    def _request(self, request: jsonrpc.Request) -> Passed:
        session = self.exchange.session
        if self._beginning:
            return Passed()  # nobody can answer yet; a server has to do without (MCP 2025-11-25, lifecycle)
        if session is None:
            raise refused("it asks the client outside of a result")  # MCP 2026-07-28 forbids it
        if request.method == "ping":
            session.expect(request.id, request.method)
            return Passed(jsonrpc.encode_request(request))
        if request.method not in mcp.SERVER_REQUESTS:
            return Passed(reply=_no(request.id, _UNKNOWN_METHOD))
        if not self._ask(request.method).allowed:
            return Passed(reply=_no(request.id, _NOT_PERMITTED))
        session.expect(request.id, request.method)
        return Passed(jsonrpc.encode_request(request))

    def _ask(self, method: str) -> Decision:
        exchange = self.exchange
        question = mcp.server_question(exchange.turn.server, method)
        decision = exchange.judged_by.engine.decide(exchange.caller.chain, question, self.now_s())
        exchange.turn.record.server_asked(question, decision)
        return decision

    def _notification(self, notification: jsonrpc.Notification) -> Passed:
        if notification.method not in mcp.SERVER_NOTIFICATIONS:
            return Passed()  # unknown means no
        if notification.method == "notifications/tools/list_changed":
            self.exchange.service.catalogue.stale()
        if notification.method == "notifications/resources/updated" and not self._listed(
            "resources", notification.params, self.now_s()
        ):
            return Passed()
        return Passed(jsonrpc.encode_notification(notification))


_UNKNOWN_METHOD = {"code": -32601, "message": "Method not found"}
_NOT_PERMITTED = {"code": 403, "message": "The client may not be asked for this"}


def _no(request_id: Id, error: dict[str, Any]) -> bytes:
    return jsonrpc.encode_response(jsonrpc.Response(request_id, error=error))


@dataclass(slots=True)
class Relay:
    """Moves one upstream's answer to one caller, and writes down how it ended."""

    exchange: Exchange
    passage: Passage

    async def answer(self, answer: Answer) -> web.StreamResponse:
        """The answer to a request: one JSON object, or a stream that ends with it."""
        if answer.status in PROTOCOL_STATUSES and answer.media_type == JSON:
            return await self._protocol_error(answer)
        if answer.status == 200 and answer.media_type == EVENT_STREAM:
            return await self._stream(answer, until_answer=True)
        return self.respond(await self.whole(answer))

    async def whole(self, answer: Answer) -> Passed:
        """The one message that answers, out of a body or a stream; what else a stream holds is left out."""
        if answer.status != 200:
            raise Refusal(Reason.UPSTREAM_FAILED, f"it answered HTTP {answer.status}")
        if answer.media_type == EVENT_STREAM:
            async with aclosing(self._read(answer)) as events:
                async for event in events:
                    passed = self.passage.judge(event.data) if event.data else Passed()
                    if passed.final:
                        return passed
            raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an answer")
        if answer.media_type != JSON:
            raise refused("its media type is neither JSON nor an event stream")
        passed = self.passage.judge(await answer.read(self._max_bytes))
        if not passed.final:
            raise refused("its body is not an answer")
        return passed

    def respond(self, passed: Passed, headers: Mapping[str, str] = NO_HEADERS) -> web.StreamResponse:
        """The judged answer as one JSON object, on record."""
        return self._respond(passed.out or b"", 200, headers)

    async def stream(self, answer: Answer) -> web.StreamResponse:
        """A stream that answers nothing in particular: the session's own, or a resumed one."""
        if answer.status != 200:
            raise Refusal(Reason.UPSTREAM_FAILED, f"it answered HTTP {answer.status}")
        if answer.media_type != EVENT_STREAM:
            raise refused("its media type is not an event stream")
        return await self._stream(answer, until_answer=False)

    async def _protocol_error(self, answer: Answer) -> web.StreamResponse:
        message = read_answer(await answer.read(MAX_ERROR_BYTES))
        if not isinstance(message, jsonrpc.Response) or message.error is None:
            raise Refusal(Reason.UPSTREAM_FAILED, f"it answered HTTP {answer.status}")
        # Whose error it is the exchange says: the official 1.x server writes "server-error" where the id belongs, and
        # a client that looks for the era must hear its 400.
        own = jsonrpc.Response(self.exchange.turn.request_id, error=message.error)
        return self._respond(jsonrpc.encode_response(own), answer.status)

    def _respond(self, body: bytes, status: int, headers: Mapping[str, str] = NO_HEADERS) -> web.StreamResponse:
        self.exchange.turn.ended(status, len(body))
        return Whole(status, body, JSON, headers)

    async def _stream(self, answer: Answer, *, until_answer: bool) -> web.StreamResponse:
        stream = web.StreamResponse(headers=STREAM_HEADERS)
        try:
            await stream.prepare(self.exchange.turn.request)
        except ConnectionError:
            raise Refusal(Reason.CALLER_GONE) from None
        self.exchange.turn.begun = stream
        sent = _Sent(stream)
        try:
            complete = await self._events(answer, sent, until_answer)
            if until_answer and not complete and not sent.resumable:
                raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an answer")
            if not self._record.done:
                self.exchange.turn.ended(200, sent.bytes_out)
            await sent.end()
        except asyncio.CancelledError:
            self._caller_left(sent)
            raise
        except Refusal as refusal:
            if refusal.reason is Reason.CALLER_GONE:
                self._caller_left(sent)
            await self._break_off(refusal, sent, until_answer)
        return stream

    def _caller_left(self, sent: _Sent) -> None:
        """Leaving is how a stream without an end ends, and how a resumed one does once its answer has come."""
        if not self.exchange.endless or self._record.done:
            return
        try:
            self.exchange.turn.ended(200, sent.bytes_out)
        except Refusal as unrecorded:
            self.exchange.turn.remember(unrecorded, 499)

    async def _break_off(self, refusal: Refusal, sent: _Sent, until_answer: bool) -> None:
        """The status line is out: the refusal follows as the answer's event, in the protocol."""
        told = self.exchange.turn.remember(refusal, 200)
        if told.reason is Reason.CALLER_GONE:
            return
        try:
            if until_answer:
                facts = facts_of(told, self._record.decision_id, self.exchange.turn.now.manner)
                await sent.write(sse.encode_event(error_body(told, self.exchange.turn.request_id, facts)))
            await sent.end()
        except Refusal:  # the caller left meanwhile; what happened is on record
            return

    async def _events(self, answer: Answer, sent: _Sent, until_answer: bool) -> bool:
        """Pass events on until the answer, or the end of the stream; True when the answer came."""
        try:
            with self.exchange.streaming(answer):
                return await self._pass_events(answer, sent, until_answer)
        except Refusal:
            cut = self.exchange.cut
            if cut is None:
                raise
            if until_answer or ANSWERS[cut].status == "permission_denied":
                raise Refusal(cut) from None
            return False  # a stream that was cut off because it was not needed any more has ended well

    async def _pass_events(self, answer: Answer, sent: _Sent, until_answer: bool) -> bool:
        async with aclosing(self._read(answer)) as events:
            async for event in events:
                if await self._event(event, sent, until_answer):
                    return True
        return False

    async def _read(self, answer: Answer) -> AsyncGenerator[sse.SseEvent, None]:
        """The events of a stream. Of comments that come in a row, one is enough; and however many events come at
        once, others have their turn in between."""
        parser = sse.SseParser(self._max_bytes)
        async with aclosing(_slices(answer.chunks(idle_s=None, total_s=self.exchange.left_s))) as slices:
            async for piece in slices:
                last = None
                for event in parser.feed(piece):
                    if not (event.comment and last is sse.COMMENT):
                        yield event
                    last = event

    async def _event(self, event: sse.SseEvent, sent: _Sent, until_answer: bool) -> bool:
        """Pass one event on; True when it was the answer."""
        if event.comment:
            await sent.write(sse.KEEP_ALIVE)
            return False
        event_id = self._sealed(event.id)
        sent.resumable = sent.resumable or event_id is not None
        if not event.data:
            await sent.write(sse.encode_hint(id=event_id, retry_ms=event.retry_ms, data=event.data is not None))
            return False
        passed = self.passage.judge(event.data)
        if passed.reply is not None:
            await self._reply(passed.reply)
        if passed.out is None:
            return False
        final = until_answer and passed.final
        written = sse.encode_event(passed.out, id=event_id)
        if final:  # evidence before the answer is complete
            self.exchange.turn.ended(200, sent.bytes_out + len(written))
        await sent.write(written)
        return final

    @property
    def _record(self) -> Recording:
        return self.exchange.turn.record

    @property
    def _max_bytes(self) -> int:
        return self.exchange.turn.now.bounds.max_response_bytes

    def _sealed(self, event_id: str | None) -> str | None:
        session = self.exchange.session
        return session.sealed_event_id(event_id) if session is not None and event_id else None

    async def _reply(self, reply: bytes) -> None:
        """Answer the server in the caller's place: it asked for something that the caller may not be asked."""
        with await self.exchange.post(reply):
            pass


async def _slices(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk[:SLICE_BYTES]
            for start in range(SLICE_BYTES, len(chunk), SLICE_BYTES):
                await asyncio.sleep(0)
                yield chunk[start : start + SLICE_BYTES]


@dataclass(slots=True)
class _Sent:
    """What has gone out on a stream. `resumable` once an event bore an id: its reader may come back for the rest."""

    stream: web.StreamResponse
    bytes_out: int = 0
    resumable: bool = False

    async def write(self, data: bytes) -> None:
        """Send. Waits while the caller does not read; `listeners.py` hangs up on one who does not for too long."""
        self.bytes_out += len(data)
        try:
            await self.stream.write(data)
        except ConnectionError:
            raise Refusal(Reason.CALLER_GONE) from None

    async def end(self) -> None:
        try:
            await self.stream.write_eof()
        except ConnectionError:
            raise Refusal(Reason.CALLER_GONE) from None


def read_answer(raw: bytes | str) -> jsonrpc.Message:
    """One message of the upstream's. Raises Refusal(RESPONSE_REFUSED); its own fault is never the caller's 400."""
    try:
        return jsonrpc.message_from(jsonrpc.parse_answer(raw.encode() if isinstance(raw, str) else raw))
    except Refusal as refusal:
        raise refused(refusal.detail) from None


def agreed_version(result: dict[str, Any]) -> str:
    """The revision that an `initialize` result agrees on; one that we do not know is no agreement."""
    version = result.get("protocolVersion")
    if version not in eras.SESSION_VERSIONS:
        raise refused("it agrees on a revision that is not known here")
    return str(version)


def refused(detail: str) -> Refusal:
    return Refusal(Reason.RESPONSE_REFUSED, detail)
