"""Makes a bidirectional message stream look like a Streamable HTTP server (`transport.py`).

A program on pipes and a 2024-11-05 HTTP+SSE server have one line for all messages:

    a request                                answered whole, or with events if a message about it comes first
    progress                                 by its token, to the request that has that token
    a message that names a subscription      to that subscription's stream (MCP 2026-07-28)
    lists changed, resources updated         to the session's own stream (GET), held for it until it opens
    a request to the client, a log message   to the newest request in flight, otherwise as above

Ids and progress tokens on the line are the sidecar's, so that those of callers who share a line cannot collide. If a
request's caller disconnects, the request is `cancelled` at the server. When the line breaks, every caller receives the
failure at once. A *shared* line has many sessions. Its client is the sidecar, without capabilities: a request or a log
message of such a server could be about any caller, so a request is declined, and a log message dropped.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.http.client import QueueFull
from sidecar.protocols import jsonrpc, sse
from sidecar.protocols.jsonrpc import METHOD_NOT_FOUND, Id, Notification, Request, Response
from sidecar.protocols.mcp.eras import META_SUBSCRIPTION, SESSION_VERSIONS, STATELESS_SET
from sidecar.upstreams.mcp.background import BackgroundTasks
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    LIST_FLAGS,
    OURSELVES,
    SESSION_ID,
    UPDATED,
    AnswerPipe,
    BuiltUpstream,
    OfOneCaller,
    Outbound,
    unknown_method,
)
from sidecar.vocabulary import Caller

MAX_IN_FLIGHT: Final = 1024
MAX_SESSIONS: Final = 10_000
MAX_STREAMS: Final = 4  # of one session: as many as it may have open with the sidecar
MAX_ASKED: Final = 64  # unanswered requests to one client
MAX_BACKLOG: Final = 256  # messages that wait for a session's stream to open; the oldest is dropped first
MAX_BACKLOG_BYTES: Final = 256 * 1024
MAX_NOISE: Final = 1_000  # in a row: a banner is tolerated, a program that only logs there is not
_SLICE_BYTES: Final = 64 * 1024  # how much is read from the line before other tasks run
# MCP 2026-07-28, transports: the HTTP status of each code.
_STATUS: Final = {METHOD_NOT_FOUND: 404, -32020: 400, -32021: 400, -32022: 400}
_OF_ONE_CLIENT: Final = frozenset(
    {"notifications/initialized", "notifications/roots/list_changed", "notifications/progress"}
)


class DuplexWire(ABC):
    """A line to one server. Messages are whole JSON texts, without the framing of the line."""

    @abstractmethod
    async def send(self, message: bytes, caller: Caller | None) -> None:
        """Sends a message for `caller` (None: the line's last caller), in order; waits for a slow reader. Raises
        Refusal."""

    @abstractmethod
    def messages(self) -> AsyncGenerator[bytes, None]:
        """Yields the server's messages, bounded in size. Ends with the line; a Refusal gives the reason."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the line, and ends what was started for it. Calling it twice is allowed."""


@dataclass(slots=True, eq=False)
class _Session:
    """One session on the line. `asked` are the server's requests to its client: the sidecar's number → the server's
    id."""

    id: str
    owner: str
    asked: OrderedDict[int, Id] = field(default_factory=OrderedDict)
    subscribed: set[str] = field(default_factory=set)
    streams: list[AnswerPipe] = field(default_factory=list)
    backlog: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_BACKLOG))

    def tell(self, event: bytes) -> None:
        """Sends an event on its newest stream, or on the next one to open."""
        for stream in reversed(self.streams):
            stream.write(event)
            if not stream.closed:
                return
            self.streams.remove(stream)
        if event not in self.backlog:  # a repeated list change adds nothing
            self.backlog.append(event)
            while sum(map(len, self.backlog)) > MAX_BACKLOG_BYTES:
                self.backlog.popleft()

    def listen(self) -> BuiltUpstream:
        """Opens a further stream, which begins with the backlog."""
        pipe = AnswerPipe()
        while self.backlog:
            pipe.write(self.backlog.popleft())
        self.streams.append(pipe)
        if len(self.streams) > MAX_STREAMS:
            self.streams.pop(0).end()
        return BuiltUpstream(200, media_type=EVENT_STREAM, pipe=pipe, given_up=partial(self.leave, pipe))

    def end(self) -> None:
        for stream in self.streams:
            stream.end()
        self.streams.clear()

    def leave(self, pipe: AnswerPipe) -> None:
        if pipe in self.streams:
            self.streams.remove(pipe)


@dataclass(slots=True, eq=False)
class _Call:
    """A request on the line. `token` is the progress token that its caller chose."""

    request: Request
    outbound: Outbound
    session: _Session | None
    token: Id | None
    give_up: Callable[[], None]
    until: float
    head: asyncio.Future[BuiltUpstream]
    pipe: AnswerPipe = field(default_factory=AnswerPipe)

    @property
    def opens(self) -> bool:
        """Whether this begins the line's session. No message about it is delivered before its response."""
        return self.request.method == "initialize"

    def pass_on(self, message: dict[str, Any]) -> None:
        """Passes on a message about the request before its response."""
        if not self.head.done():
            left_s = self.until - self.head.get_loop().time()
            self.head.set_result(
                BuiltUpstream(200, media_type=EVENT_STREAM, pipe=self.pipe, deadline_s=left_s, given_up=self.give_up)
            )
        self.pipe.write(sse.encode_event(orjson.dumps(message)))
        if self.pipe.closed:  # its reader did not read
            self.give_up()

    def answer(self, message: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Delivers the response and ends the request."""
        body = orjson.dumps({**message, "id": self.request.id})
        if self.head.done():
            self.pipe.write(sse.encode_event(body))
            self.pipe.end()
        else:
            error = message.get("error")
            code = error.get("code") if isinstance(error, dict) and self.outbound.version in STATELESS_SET else None
            status = _STATUS.get(code, 200) if isinstance(code, int) else 200
            self.head.set_result(BuiltUpstream(status, body, headers=headers))

    def fail(self, refusal: Refusal) -> None:
        if self.head.done():
            self.pipe.end(refusal)
        else:
            self.head.set_exception(refusal)
            self.head.exception()  # its caller may still be sending, and fail by that: asyncio would log this one


class DuplexTransport:
    """One line of an `owner`. `lost` is called once, when nothing more can go over it; `failure` then is the reason,
    which says nothing about other lines if the server is a caller's `own`. `key`, `used_mono_s`: for the keeper
    (`line_sessions.py`)."""

    def __init__(
        self,
        wire: DuplexWire,
        lost: Callable[[DuplexTransport], None],
        owner: str = "",
        *,
        shared: bool = False,
        own: bool = False,
        key: str | None = None,
        used_mono_s: float = 0.0,
    ) -> None:
        self.owner, self.key, self.used_mono_s = owner, key, used_mono_s
        self.failure: Refusal | None = None
        self.proven = False  # whether it ever answered with something other than an error
        self.noise = 0  # invalid messages since the last valid one
        self.sessions: dict[str, _Session] = {}
        self._own, self._wire, self._lost, self._shared = own, wire, lost, shared
        self._calls: dict[int, _Call] = {}
        self._ids = count(1)
        self._greeting: dict[str, Any] | None = None
        self._greets = asyncio.Lock()
        self._background = BackgroundTasks(MAX_IN_FLIGHT)
        self._reading = asyncio.create_task(self._read(), name="reads a line")

    @property
    def busy(self) -> bool:
        """Whether a request or a stream is open on the line."""
        return bool(self._calls) or any(session.streams for session in self.sessions.values())

    @property
    def takes_over(self) -> bool:
        """Whether a session may begin on it, because no earlier request has changed its state."""
        return not self.proven and not self.busy and self.failure is None

    async def exchange(self, outbound: Outbound) -> BuiltUpstream:
        if self.failure is not None:
            raise Refusal(self.failure.reason, self.failure.detail) from self.failure.__cause__
        session = self.sessions.get(outbound.session_id or "")
        if session is None and outbound.session_id is not None:
            return BuiltUpstream(404)
        match outbound.message:
            case Request() as request:
                answer = await self._for_all(outbound, request, session) if self._shared else None
                return answer or await self._ask(outbound, request, session)
            case Notification() as notification:
                await self._notify(outbound, notification, session)
                return BuiltUpstream(202)
            case Response() as response:
                number = response.id
                if session is not None and isinstance(number, int) and number in session.asked:
                    await self._send(outbound, response._replace(id=session.asked.pop(number)))
                return BuiltUpstream(202)
        if session is None or outbound.verb != "GET":
            return BuiltUpstream(405)
        return session.listen()

    def end_session(self, session_id: str) -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            session.end()

    async def close(self) -> None:
        self._lose(Refusal(Reason.UPSTREAM_FAILED, "its connection was closed"))
        self._reading.cancel()
        await self._background.close(within_s=0)
        await self._wire.close()

    # --- to the server ------------------------------------------------------------------------------------------------

    async def _ask(self, outbound: Outbound, request: Request, session: _Session | None) -> BuiltUpstream:
        if len(self._calls) >= MAX_IN_FLIGHT:
            raise Refusal(Reason.UPSTREAM_FAILED, "too many calls wait for it") from QueueFull("no number is free")
        number = next(self._ids)
        params, token = _renumbered(request.params, number)
        loop = asyncio.get_running_loop()
        until, give_up = loop.time() + outbound.deadline_s, partial(self._give_up, number)
        call = _Call(request, outbound, session, token, give_up, until, loop.create_future())
        self._calls[number] = call
        try:
            async with asyncio.timeout_at(until):
                await self._wire.send(jsonrpc.encode_request(Request(number, request.method, params)), outbound.caller)
                return await call.head
        except BaseException as error:
            self._give_up(number)
            if isinstance(error, TimeoutError):
                raise Refusal(Reason.UPSTREAM_TIMEOUT) from self._whose()
            if call.opens:
                self._lose(Refusal(Reason.UPSTREAM_FAILED, "its session was given up"))
            raise

    def _give_up(self, number: int) -> None:
        """Cancels a request whose caller stopped waiting. An `initialize` cannot be cancelled (MCP 2025-11-25): its
        line is closed."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        if call.opens:
            self._lose(Refusal(Reason.UPSTREAM_FAILED, "its session was given up"))
            return
        self._tell(Notification("notifications/cancelled", {"requestId": number}), call.outbound.caller)

    async def _notify(self, outbound: Outbound, message: Notification, session: _Session | None) -> None:
        params = message.params
        if message.method == "notifications/cancelled":
            number = self._number_of(params.get("requestId"), session)
            if number is None:
                return  # it is answered, or was never sent
            params = {**params, "requestId": number}
        elif self._shared and message.method in _OF_ONE_CLIENT:
            return
        await self._send(outbound, Notification(message.method, params))

    async def _send(self, outbound: Outbound, message: Notification | Response) -> None:
        try:
            async with asyncio.timeout(outbound.deadline_s):
                await self._wire.send(jsonrpc.encode_message(message), outbound.caller)
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT) from self._whose()

    def _whose(self) -> OfOneCaller | None:
        return OfOneCaller() if self._own else None

    def _tell(self, message: Notification | Response, caller: Caller | None = None) -> None:
        """Sends a message that no caller waits for."""
        if self.failure is None:  # if the line is lost meanwhile, its reader reports that
            self._background.add(self._wire.send(jsonrpc.encode_message(message), caller))

    def _number_of(self, request_id: object, session: _Session | None) -> int | None:
        """Returns the sidecar's number of the newest request of this id in the session."""
        for number, call in reversed(self._calls.items()):
            if call.session is session and not call.opens and call.request.id == request_id:
                return number
        return None

    # --- shared lines -------------------------------------------------------------------------------------------------

    async def _for_all(self, outbound: Outbound, request: Request, session: _Session | None) -> BuiltUpstream | None:
        """Answers a request that the sidecar answers for a shared line; None if the server must answer it."""
        if request.method == "initialize":
            result = await self._greeted(outbound)
            if len(self.sessions) >= MAX_SESSIONS:
                raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many sessions of one server")
            return BuiltUpstream.of_response(Response(request.id, result), headers={SESSION_ID: self._begun(outbound)})
        if request.method == "logging/setLevel":
            return BuiltUpstream.of_response(unknown_method(request.id))
        uri = request.params.get("uri")
        if session is None or not isinstance(uri, str):
            return None
        if request.method == "resources/subscribe":
            session.subscribed.add(uri)
        elif request.method == "resources/unsubscribe":
            session.subscribed.discard(uri)
            if any(uri in other.subscribed for other in self.sessions.values()):
                return BuiltUpstream.of_response(Response(request.id, {}))
        return None

    async def _greeted(self, outbound: Outbound) -> dict[str, Any]:
        """Returns the result of the sidecar's own `initialize`, without the capability to log. Raises Refusal."""
        async with self._greets:
            if self._greeting is None:
                params = {"protocolVersion": SESSION_VERSIONS[-1], "capabilities": {}, "clientInfo": OURSELVES}
                answer = await self._ask(outbound, Request(0, "initialize", params), None)
                result = orjson.loads(await answer.read(sse.MAX_LINE_BYTES)).get("result")
                if not isinstance(result, dict):
                    raise Refusal(Reason.UPSTREAM_FAILED, "it refused to be initialized")
                capabilities = result.get("capabilities")
                if isinstance(capabilities, dict):
                    result["capabilities"] = {k: v for k, v in capabilities.items() if k != "logging"}
                await self._send(outbound, Notification("notifications/initialized", {}))
                self._greeting = result
            return self._greeting

    def _begun(self, outbound: Outbound) -> str:
        session_id = secrets.token_urlsafe()
        self.sessions[session_id] = _Session(session_id, outbound.owner)
        return session_id

    # --- from the server ----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        failure, taken = Refusal(Reason.UPSTREAM_FAILED, "it closed the connection"), 0
        try:
            async with aclosing(self._wire.messages()) as messages:
                async for raw in messages:
                    self._came(raw)
                    taken += len(raw) + 1024
                    if taken > _SLICE_BYTES:
                        taken = 0
                        await asyncio.sleep(0)
        except Refusal as refusal:
            failure = refusal
        self._lose(failure)

    def _came(self, raw: bytes) -> None:
        """Handles one message. Raises Refusal after too many invalid messages."""
        message = None
        with suppress(Refusal):
            message = jsonrpc.parse_answer(raw)
        if not isinstance(message, dict):
            self.noise += 1
            if self.noise > MAX_NOISE:
                raise Refusal(Reason.RESPONSE_REFUSED, "its output is not JSON-RPC")
            return
        self.noise = 0
        if not isinstance(message.get("method"), str):
            self._answered(message)
        elif "id" in message:
            self._asked(message)
        else:
            self._notified(message)

    def _answered(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        call = self._calls.pop(number, None) if type(number) is int else None
        if call is None:
            return  # cancelled in the meantime, or never sent: dropped
        self.proven = self.proven or "result" in message
        headers = {}
        if call.opens and "result" in message and not self._shared:
            headers[SESSION_ID] = self._begun(call.outbound)
        _restore_subscription(message.get("result"), number, call.request.id)
        call.answer(message, headers)

    def _asked(self, message: dict[str, Any]) -> None:
        """Delivers a request to the client if there is exactly one that it can be for; otherwise declines it."""
        try:
            asked = jsonrpc.message_from(message)
        except Refusal:
            return
        if not isinstance(asked, Request):
            return
        if asked.method == "ping":
            self._tell(Response(asked.id, {}))
            return
        session = next(iter(self.sessions.values()), None)
        if session is None or self._shared:
            self._tell(unknown_method(asked.id))
            return
        number = next(self._ids)
        session.asked[number] = asked.id
        if len(session.asked) > MAX_ASKED:
            _, oldest = session.asked.popitem(last=False)
            self._tell(Response(oldest, error={"code": 429, "message": "The client has not answered"}))
        self._to_client({**message, "id": number})

    def _notified(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        if not isinstance(params, dict):
            params = {}
        method, meta = message["method"], params.get("_meta")
        if method == "notifications/progress":
            call = self._call(params.get("progressToken"))
            if call is not None and call.token is not None:
                call.pass_on({**message, "params": {**params, "progressToken": call.token}})
        elif isinstance(meta, dict) and META_SUBSCRIPTION in meta:
            call = self._call(meta[META_SUBSCRIPTION])
            if call is not None:
                _restore_subscription(params, meta[META_SUBSCRIPTION], call.request.id)
                call.pass_on(message)
        elif method in LIST_FLAGS or method == UPDATED:
            event, uri = sse.encode_event(orjson.dumps(message)), params.get("uri")
            for session in self.sessions.values():
                if not self._shared or not isinstance(uri, str) or uri in session.subscribed:
                    session.tell(event)
        elif method == "notifications/cancelled":
            self._taken_back(message, params)
        elif not self._shared:
            self._to_client(message)

    def _call(self, number: object) -> _Call | None:
        """Returns the call that a message before its response may concern."""
        call = self._calls.get(number) if type(number) is int else None
        return None if call is None or call.opens else call

    def _taken_back(self, message: dict[str, Any], params: dict[str, Any]) -> None:
        """Passes on that the server cancelled its request."""
        for session in self.sessions.values():
            for number, theirs in session.asked.items():
                if theirs == params.get("requestId"):
                    del session.asked[number]
                    self._to_client({**message, "params": {**params, "requestId": number}})
                    return

    def _to_client(self, message: dict[str, Any]) -> None:
        """Delivers a message to the one client of this line: on the answer to its newest request, otherwise on its
        session's stream."""
        for call in reversed(self._calls.values()):
            if not call.opens and not call.outbound.endless:
                # Anonymous callers share a line, but are not one client.
                if call.session is not None or not call.outbound.is_anonymous:
                    call.pass_on(message)
                return
        for session in self.sessions.values():
            session.tell(sse.encode_event(orjson.dumps(message)))

    def _lose(self, failure: Refusal) -> None:
        """Fails every call and ends every session: nothing more goes over this line."""
        if self.failure is not None:
            return
        failure.__cause__ = self._whose()
        self.failure = failure
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(failure)
        for session in self.sessions.values():
            session.end()
        self._lost(self)
        self.sessions.clear()


def _renumbered(params: dict[str, Any], number: int) -> tuple[dict[str, Any], Id | None]:
    """Returns the parameters with the sidecar's progress token, and the caller's token, None if it has none."""
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not isinstance(token, str | int):
        return params, None
    return {**params, "_meta": {**meta, "progressToken": number}}, token


def _restore_subscription(holder: object, ours: object, theirs: Id) -> None:
    """Replaces the sidecar's subscription id in the server's message with the caller's."""
    meta = holder.get("_meta") if isinstance(holder, dict) else None
    if isinstance(meta, dict) and meta.get(META_SUBSCRIPTION) == ours:
        meta[META_SUBSCRIPTION] = theirs
