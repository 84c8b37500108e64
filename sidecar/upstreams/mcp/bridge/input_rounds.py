"""Repeats a session's call at a stateless server with its caller's input until there is a result, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ENDLESS, Deadline
from sidecar.protocols import jsonrpc, sse
from sidecar.protocols.jsonrpc import Id, Notification, Request, Response
from sidecar.upstreams.mcp.bridge import translation
from sidecar.upstreams.mcp.streams import StreamMark, StreamPlace, events, received
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    JSON,
    BuiltUpstream,
    McpTransport,
    Outbound,
    UpstreamAnswer,
    event_of,
    until,
)
from sidecar.upstreams.statuses import passes_on, refusal_of

if TYPE_CHECKING:
    from sidecar.upstreams.mcp.bridge.session_to_stateless import EmulatedSession

MAX_ROUNDS: Final = 10
FIRST_PAUSE_S: Final = 0.1
_PASSED: Final = frozenset({"notifications/progress", "notifications/message"})
_TOO_MANY: Final = {"code": -32603, "message": "The server asked too often"}


class InputRounds(UpstreamAnswer):
    """One call, and its answer if it needs a stream. `request` is the call in the session `played`, one of its `calls`
    while in progress; `outbound` is that call as first sent."""

    def __init__(self, inner: McpTransport, played: EmulatedSession, outbound: Outbound, request: Request) -> None:
        super().__init__(200, EVENT_STREAM)
        self._inner, self._played, self._outbound, self._request = inner, played, outbound, request
        self._post: asyncio.Task[UpstreamAnswer] | None = None
        self._answer: UpstreamAnswer | None = None
        self._first: Response | None = None
        self._waiting: dict[Id, asyncio.Future[Response]] = {}
        self._cancelled = self._closed = False
        self._count = 0
        self._sent_id = request.id

    async def begin(self) -> UpstreamAnswer:
        """Returns the head of the answer, complete if the server answered in one body and needs no input. Raises
        Refusal."""
        try:
            answer = await self._send(self._outbound)
            if answer.status == 200 and answer.media_type == EVENT_STREAM:
                return self
            told = await self._whole(answer)
            if isinstance(told, Response) and not _asks(told):
                told = BuiltUpstream.of_response(self._final(told))
        except BaseException:
            self.close()
            raise
        if isinstance(told, BuiltUpstream):
            self.close()
            return told
        self._first = told
        return self

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        try:
            response = self._first
            while True:
                if response is None:
                    async with aclosing(self._between(deadline)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Response):
                                response = piece
                                break
                            yield piece
                    if response is None:
                        raise self._gone("its stream ended without an answer")
                if not _asks(response):
                    yield event_of(self._final(response))
                    return
                self._count += 1
                if self._count > MAX_ROUNDS:
                    yield event_of(Response(self._request.id, error=dict(_TOO_MANY)))
                    return
                asked = translation.questions_in(response.result)
                for request in self._put(asked):
                    yield event_of(request)
                answers = await self._gathered(asked, deadline)
                if isinstance(answers, Response):
                    yield event_of(answers)
                    return
                response = await self._again(answers, response.result.get("requestState"), deadline)
        finally:
            self.close()

    def cancel(self) -> None:
        """The caller cancelled the call: the exchange with the server is closed, which notifies the server."""
        self._cancelled = True
        self._stop()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stop()
            for asked_id in self._waiting:
                self._played.questions.pop(asked_id, None)
            if self._played.calls.get(self._request.id) is self:
                del self._played.calls[self._request.id]

    def _stop(self) -> None:
        if self._post is not None:
            self._post.cancel()
        if self._answer is not None:
            self._answer.close()
        for waiting in self._waiting.values():
            waiting.cancel()

    async def _send(self, outbound: Outbound) -> UpstreamAnswer:
        """Sends in a task, so that the call can be cancelled before the server sends anything."""
        if self._cancelled or self._closed:
            raise self._gone("the exchange was given up")
        post = self._post = asyncio.ensure_future(self._inner.exchange(outbound))
        try:
            self._answer = await post
        except asyncio.CancelledError:
            if post.done() and not post.cancelled() and post.exception() is None:
                post.result().close()  # the call was abandoned just as the answer arrived
            if self._cancelled or self._closed:
                raise self._gone("the exchange was given up") from None
            raise
        finally:
            self._post = None
        return self._answer

    async def _whole(self, answer: UpstreamAnswer) -> Response | BuiltUpstream:
        """Reads an answer that is not a stream: returns its response, or the answer in the caller's form. Raises
        Refusal."""
        body = await answer.read(self._inner.max_response_bytes)
        if answer.media_type != JSON or (answer.status != 200 and passes_on(refusal_of(answer))):
            told = answer.with_body(body)
            # A 404 would mean to the caller that its session has ended, which is not so.
            told.status = 502 if answer.status == 404 else answer.status
            return told
        message = received(body)
        if not isinstance(message, Response):
            raise Refusal(Reason.RESPONSE_REFUSED, "its body is not an answer")
        if message.error is None and answer.status != 200:
            raise refusal_of(answer)
        return message

    async def _between(self, deadline: Deadline) -> AsyncGenerator[bytes | Response, None]:
        """Yields the intermediate messages, then the response."""
        assert self._answer is not None
        stream = events(self._answer, StreamPlace(self._inner, self._sent_id), deadline)
        async with aclosing(stream) as messages:
            try:
                async for message in messages:
                    if message is StreamMark.ALIVE:
                        yield sse.KEEP_ALIVE
                    elif isinstance(message, Response):
                        yield message
                        return
                    elif isinstance(message, Notification) and message.method in _PASSED:
                        yield event_of(message)
            except Refusal as refusal:
                raise self._gone(refusal.detail, refusal.reason) from None

    async def _again(self, answers: dict[str, Any], state: str | None, deadline: Deadline) -> Response | None:
        """Sends the call again; returns its response if it is complete, None if there is a stream to read."""
        params = dict(self._outbound.message.params) if isinstance(self._outbound.message, Request) else {}
        if answers:
            params["inputResponses"] = answers
        if state is not None:
            params["requestState"] = state
        # Each round is a request of its own.
        self._sent_id = f"{self._request.id}-{self._count}"[-jsonrpc.MAX_ID_CHARS :]
        message = Request(self._sent_id, self._request.method, params)
        if self._answer is not None:
            self._answer.close()
        answer = await self._send(self._outbound._replace(message=message, deadline_s=self._left_s(deadline)))
        if answer.status == 200 and answer.media_type == EVENT_STREAM:
            return None
        told = await self._whole(answer)
        if isinstance(told, BuiltUpstream):
            raise refusal_of(told)
        return told

    def _final(self, response: Response) -> Response:
        if response.error is not None:
            return Response(self._request.id, error=translation.played_error(response.error, self._request.method))
        if response.id not in (self._sent_id, self._request.id):
            raise Refusal(Reason.RESPONSE_REFUSED, "it answers another request")
        if not isinstance(response.result, dict):
            raise Refusal(Reason.RESPONSE_REFUSED, "its result is not an object")
        if response.result.get("resultType", "complete") != "complete":
            raise Refusal(Reason.RESPONSE_REFUSED, "its resultType is not one that a session knows")
        return Response(self._request.id, translation.played_result(response.result))

    def _left_s(self, deadline: Deadline) -> float:
        if deadline.at is None:
            return self._outbound.deadline_s
        return max(0.0, deadline.at - asyncio.get_running_loop().time())

    def _gone(self, detail: str, reason: Reason = Reason.UPSTREAM_FAILED) -> Refusal:
        return Refusal(Reason.CALLER_GONE) if self._cancelled else Refusal(reason, detail)

    def _put(self, asked: Mapping[str, Any]) -> list[Request]:
        """Returns the input requests as requests of a server. Their responses are expected from then on."""
        requests, self._waiting = [], {}
        for entry in asked.values():
            method, params = translation.played_question(entry, self._played.version)
            request = Request(f"question-{next(self._played.numbers)}", method, params)
            self._waiting[request.id] = self._played.questions[request.id] = asyncio.get_running_loop().create_future()
            requests.append(request)
        return requests

    async def _gathered(self, asked: Mapping[str, Any], deadline: Deadline) -> dict[str, Any] | Response:
        """Returns the caller's responses by key, or an error, which the server cannot receive: it ends the call. Raises
        Refusal."""
        if not asked:  # the server only requires the call to be sent again
            await asyncio.sleep(FIRST_PAUSE_S * self._count)
            return {}
        answers = {}
        for key, waiting in zip(asked, list(self._waiting.values()), strict=True):
            await until(deadline, partial(asyncio.wait, {waiting}), "the client did not answer in time")
            if waiting.cancelled():
                raise self._gone("the session is over")
            response = waiting.result()
            if response.error is not None:
                return Response(self._request.id, error=response.error)
            answers[key] = response.result
        self._waiting = {}
        return answers


def _asks(response: Response) -> bool:
    result = response.result
    return response.error is None and isinstance(result, dict) and result.get("resultType") == "input_required"
