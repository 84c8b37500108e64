"""Emulates sessions at a stateless server: each request repeats what its caller declared, set and subscribed to."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Id, Message, Notification, Request, Response
from sidecar.protocols.mcp.eras import (
    META_CAPABILITIES,
    META_CLIENT,
    META_LEVEL,
    META_SUBSCRIPTION,
    META_VERSION,
    STATELESS_VERSIONS,
)
from sidecar.upstreams.mcp.bridge import translation
from sidecar.upstreams.mcp.bridge.input_rounds import InputRounds
from sidecar.upstreams.mcp.bridge.server_eras import speaks_stateless
from sidecar.upstreams.mcp.bridge.unsolicited import MAX_UNREAD_BYTES, UnsolicitedStream
from sidecar.upstreams.mcp.streams import StreamMark, whole_answer
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    LIST_FLAGS,
    SESSION_ID,
    UPDATED,
    AnswerPipe,
    BuiltUpstream,
    McpTransport,
    Outbound,
    UpstreamAnswer,
    event_of,
)
from sidecar.upstreams.statuses import passes_on, refusal_of, words_of

STATELESS: Final = STATELESS_VERSIONS[-1]
MAX_PLAYED: Final = 10_000
MAX_URIS: Final = 100  # the most that one subscriptions/listen may name
MAX_EARS: Final = 4  # as many as the streams that a session may have open
ID_BYTES: Final = 32
PREFIX: Final = "sidecar-played-"
HEARD_WITHIN_S: Final = 5.0


@dataclass(slots=True, eq=False)
class EmulatedSession:
    """One emulated session. `server` is the result of its `initialize`, `questions` the requests that the server waits
    for."""

    id: str
    owner: str
    version: str
    meta: Mapping[str, Any]
    server: Mapping[str, Any]
    used_s: float
    level: str | None = None
    uris: OrderedDict[str, None] = field(default_factory=OrderedDict)
    calls: dict[Id, InputRounds] = field(default_factory=dict)
    questions: dict[Id, asyncio.Future[Response]] = field(default_factory=dict)
    ears: set[EmulatedStream] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def stated(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns parameters in the form of stateless revisions."""
        meta = {**params.get("_meta", {}), **self.meta}
        if self.level is not None:
            meta[META_LEVEL] = self.level
        return {**{key: value for key, value in params.items() if key != "task"}, "_meta": meta}

    def wish(self) -> dict[str, Any]:
        """Returns the filter of its stream: all announcements of the server, and the resources that it subscribed
        to."""
        announced = (flag for flag in LIST_FLAGS.values() if translation.announces(self.server, flag))
        wish: dict[str, Any] = dict.fromkeys(announced, True)
        if self.uris:
            wish["resourceSubscriptions"] = list(self.uris)
        return wish


@dataclass(slots=True, eq=False)
class SessionToStateless:
    """All emulated sessions of one server."""

    inner: McpTransport
    idle_s: float
    _played: OrderedDict[str, EmulatedSession] = field(default_factory=OrderedDict)

    def __contains__(self, session_id: str | None) -> bool:
        """Whether it is an emulated session, ended ones included, which the server does not know."""
        return session_id is not None and session_id.startswith(PREFIX)

    async def begin(self, outbound: Outbound, request: Request) -> UpstreamAnswer:
        """Returns the answer to `initialize`. Raises Refusal."""
        params = request.params
        capabilities = translation.played_capabilities(params["capabilities"])
        meta = {META_VERSION: STATELESS, META_CAPABILITIES: capabilities}
        if isinstance(params.get("clientInfo"), dict):
            meta[META_CLIENT] = params["clientInfo"]
        question = Request(request.id, "server/discover", {"_meta": meta})
        asked = outbound._replace(message=question, version=STATELESS, session_id=None)
        with await self.inner.exchange(asked) as answer:
            _, response = await whole_answer(answer, request.id, self.inner, outbound.deadline_s)
        if response is None or answer.status != 200 or not speaks_stateless(response):
            if passes_on(refusal := refusal_of(answer)):
                raise refusal
            raise Refusal(Reason.UPSTREAM_FAILED, f"its answer to server/discover cannot be used: {words_of(answer)}")
        version = translation.agreed(params.get("protocolVersion"))
        result = translation.initialized(response.result, version, self.inner.name)
        now_s = asyncio.get_running_loop().time()
        # Sessions are normally ended explicitly; this removes those whose end was missed, but none in use.
        for old in list(self._played.values()):
            if now_s - old.used_s <= self.idle_s:
                break
            if not (old.ears or old.calls):
                self.end(old.id)
        if len(self._played) >= MAX_PLAYED:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many open sessions")
        session_id = PREFIX + secrets.token_urlsafe(ID_BYTES)
        self._played[session_id] = EmulatedSession(session_id, outbound.owner, version, meta, result, now_s)
        return BuiltUpstream.of_response(Response(request.id, result), headers={SESSION_ID: session_id})

    async def exchange(self, outbound: Outbound) -> UpstreamAnswer:
        """Returns the answer to one message of a session. Raises Refusal."""
        played = self._played.get(outbound.session_id or "")
        if played is None or played.owner != outbound.owner:
            raise Refusal(Reason.SESSION_UNKNOWN)
        played.used_s = asyncio.get_running_loop().time()
        self._played.move_to_end(played.id)
        message = outbound.message
        if isinstance(message, Request):
            return await self._request(played, outbound, message)
        if isinstance(message, Response):
            waiting = played.questions.pop(message.id, None) if message.id is not None else None
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return BuiltUpstream(202)
        if isinstance(message, Notification):
            if message.method == "notifications/cancelled":
                self._cancel(played, message.params.get("requestId"))
            return BuiltUpstream(202)
        if outbound.verb == "GET":
            return await self._listen(played, outbound)
        self.end(played.id)
        return BuiltUpstream(204)

    def end(self, session_id: str) -> None:
        """Forgets the session and closes its streams and calls. Calling it twice is allowed."""
        played = self._played.pop(session_id, None)
        if played is None:
            return
        for call in list(played.calls.values()):
            call.cancel()
        for ear in list(played.ears):
            ear.close()

    def close(self) -> None:
        for session_id in list(self._played):
            self.end(session_id)

    async def _request(self, played: EmulatedSession, outbound: Outbound, request: Request) -> UpstreamAnswer:
        params, fault = request.params, ""
        match request.method:
            case "ping":
                pass
            case "logging/setLevel":
                if params.get("level") in translation.LEVELS:
                    played.level = params["level"]
                else:
                    fault = "level is none of the eight"
            case "resources/subscribe":
                uri = str(params.get("uri"))
                if uri in played.uris or len(played.uris) < MAX_URIS:
                    played.uris[uri] = None
                    await self._listen_anew(played)
                else:
                    fault = "too many subscriptions"
            case "resources/unsubscribe":
                played.uris.pop(str(params.get("uri")), None)
                await self._listen_anew(played)
            case _:
                return await self._call(played, outbound, request)
        error = {"code": INVALID_PARAMS, "message": fault}
        return BuiltUpstream.of_response(Response(request.id, error=error) if fault else Response(request.id, {}))

    async def _call(self, played: EmulatedSession, outbound: Outbound, request: Request) -> UpstreamAnswer:
        stated = request._replace(params=played.stated(request.params))
        sent = outbound._replace(message=stated, version=STATELESS, session_id=None)
        earlier = played.calls.get(request.id)
        if earlier is not None:
            earlier.cancel()  # an id belongs to one call at a time
        played.calls[request.id] = rounds = InputRounds(self.inner, played, sent, request)
        return await rounds.begin()

    def _cancel(self, played: EmulatedSession, request_id: object) -> None:
        if isinstance(request_id, str) or type(request_id) is int:
            call = played.calls.get(request_id)
            if call is not None:
                call.cancel()

    async def _listen(self, played: EmulatedSession, outbound: Outbound) -> UpstreamAnswer:
        has_stream = played.wish() or translation.offers(played.server, "resources", "subscribe")
        # Nothing is stored for a replay.
        if not has_stream or outbound.last_event_id is not None or len(played.ears) >= MAX_EARS:
            return BuiltUpstream(405)
        asked = outbound._replace(verb="POST", version=STATELESS, session_id=None, endless=True)
        ear = EmulatedStream(self.inner, played, asked)
        if not await ear.open():
            return BuiltUpstream(405)
        return BuiltUpstream(200, media_type=EVENT_STREAM, pipe=ear.pipe, given_up=ear.close)

    async def _listen_anew(self, played: EmulatedSession) -> None:
        """Reopens the streams and waits for them, HEARD_WITHIN_S at most, so that the subscriber gets every update from
        now on."""
        if played.ears:
            await asyncio.wait([asyncio.ensure_future(ear.renew()) for ear in played.ears], timeout=HEARD_WITHIN_S)


@dataclass(slots=True, eq=False)
class EmulatedStream:
    """One GET of a session: a series of `subscriptions/listen` at the server."""

    inner: McpTransport
    played: EmulatedSession
    outbound: Outbound
    pipe: AnswerPipe = field(default_factory=partial(AnswerPipe, MAX_UNREAD_BYTES))
    _current: UnsolicitedStream | None = None
    _renewing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> bool:
        """Whether the server accepts the subscription. Raises Refusal."""
        self.played.ears.add(self)
        ready = False
        try:
            # There is nothing to listen for yet, but a subscription may follow.
            ready = not self.played.wish() or await self._begin()
        finally:
            if not ready:
                self.close()
        return ready

    async def renew(self) -> None:
        """Listens for the current subscriptions; the old stream continues until the new one has begun."""
        async with self._renewing:
            if self.pipe.closed:
                return
            before, self._current = self._current, None
            if self.played.wish():
                await self._begin()
            if before is not None:
                before.close()

    def close(self) -> None:
        self.played.ears.discard(self)
        self.pipe.end()
        if self._current is not None:
            self._current.close()

    async def _begin(self) -> bool:
        self._current = UnsolicitedStream(self.inner, self._listening, self._heard, lambda status: status >= 500)
        return await self._current.open(HEARD_WITHIN_S)

    def _listening(self) -> Outbound:
        params = self.played.stated({"notifications": self.played.wish()})
        number = next(self.played.numbers)
        return self.outbound._replace(message=Request(f"listen-{number}", "subscriptions/listen", params))

    def _heard(self, message: Message | StreamMark) -> None:
        if message is StreamMark.ALIVE:
            self.pipe.write(sse.KEEP_ALIVE)
        elif isinstance(message, Notification) and (message.method in LIST_FLAGS or message.method == UPDATED):
            # Without its subscription id, because the session has one stream for all subscriptions.
            params = dict(message.params)
            meta = {key: value for key, value in params.pop("_meta", {}).items() if key != META_SUBSCRIPTION}
            unmarked = Notification(message.method, {**params, "_meta": meta} if meta else params)
            self.pipe.write(event_of(unmarked))
        if self.pipe.closed:  # its caller did not read
            self.close()
