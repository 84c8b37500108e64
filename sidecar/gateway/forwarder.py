"""Carries out an authorized call at its upstream.

One function handles each kind of intent. The upstream receives a new serialisation of the parsed message; its answer
passes `response_stream.py`. Sessions begin here once the upstream confirms them, and end here; the upstream is notified
afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, assert_never

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends import mcp_requests
from sidecar.gateway.frontends.mcp_requests import EVENT_STREAM, AskIntent, ListenIntent, OtherIntent, ServerIntent
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.reauthorization import LOOK_EVERY_S, Reauthorization, end_of
from sidecar.gateway.request import Charged, RequestContext, UpstreamExchange, WatchedExchange
from sidecar.gateway.request_state import RequestStates
from sidecar.gateway.response_filter import FilterServices, ResponseFilter
from sidecar.gateway.response_stream import ResponseStream
from sidecar.gateway.routing import EVERY
from sidecar.gateway.snapshot import Live
from sidecar.gateway.sse_session import SseSession
from sidecar.http.server.event_stream import EventStream
from sidecar.http.server.stream_limits import StreamLimits
from sidecar.protocols.jsonrpc import Id, Message, Notification, Request
from sidecar.protocols.mcp import messages, task_messages
from sidecar.storage.task_owners import TaskOwners
from sidecar.upstreams.mcp.session_store import SessionStore
from sidecar.upstreams.mcp.sessions import Session, Sessions, upstream_id_from
from sidecar.upstreams.mcp.streams import ReopenPauses
from sidecar.upstreams.mcp.transport import UpstreamAnswer
from sidecar.upstreams.statuses import refusal_of
from sidecar.vocabulary import Caller, Question

FAREWELL_DEADLINE_S = 5.0
FAREWELLS_AT_ONCE = 8  # so that one upstream that does not answer does not delay the others
MAX_FAREWELLS = 10_000
INITIALIZED = "notifications/initialized"
NOTHING: Final[Mapping[Id, Question]] = MappingProxyType({})
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0  # between the openings of a server's own stream, see ReopenPauses


class Farewell(NamedTuple):
    """A session that has ended here but that the upstream still holds."""

    server: str
    upstream_id: str
    version: str


class SessionLost(Refusal):
    """A server lost a member session and did not execute the call, which may be sent once more in a new session."""

    def __init__(self) -> None:
        super().__init__(Reason.UPSTREAM_FAILED, "it lost the session; the next call opens another")


@dataclass(slots=True)
class Forwarder:
    """Carries out calls at MCP servers, and holds their sessions and streams. `pairs` are the HTTP+SSE sessions with an
    open stream, by session id."""

    live: Live
    sessions: Sessions
    switch: KillSwitch
    tasks: TaskOwners
    oversight: Reauthorization
    places: StreamLimits
    states: RequestStates
    roaming: SessionStore
    farewells: asyncio.Queue[Farewell] = field(default_factory=lambda: asyncio.Queue(maxsize=MAX_FAREWELLS))
    pairs: dict[str, SseSession] = field(default_factory=dict)
    filtering: FilterServices = field(init=False)

    def __post_init__(self) -> None:
        self.filtering = FilterServices(self.live, self.switch, self.tasks, self.states)

    @property
    def streams(self) -> set[WatchedExchange]:
        return self.oversight.open.streams

    async def other(self, exchange: UpstreamExchange, intent: OtherIntent) -> web.StreamResponse:
        """Carries out an intent that is not a request of MCP. Raises Refusal like `ask`."""
        match intent:
            case mcp_requests.NotifyIntent():
                sent = Notification(intent.message.method, _forwarded(exchange, intent.message))
                return await self._deliver(exchange, sent)
            case mcp_requests.PairIntent():
                with self.place(exchange):
                    return await self._pair(exchange)
            case mcp_requests.ReplyIntent():
                return await self._deliver(exchange, intent.message)
            case ListenIntent():
                with self.place(exchange):
                    return await self._listen(exchange, intent)
            case mcp_requests.LeaveIntent():
                return await self.leave(exchange.request, intent.session)
            case _:
                assert_never(intent)

    def opened(self, charged: Charged, intent: ServerIntent) -> UpstreamExchange:
        """Returns the exchange of a charged call, with the smallest of its time-outs. Nothing is sent yet."""
        request, caller, _, decision, _, timeout_s = charged
        service, until = request.now.services[request.server], end_of(caller, decision, request.now)
        limit_s = service.timeout_s if timeout_s is None else min(service.timeout_s, timeout_s)
        exchange = UpstreamExchange(
            request, caller, intent.call, limit_s, self.oversight.open, until, service, intent.session
        )
        exchange.longest_s = service.longest_s if timeout_s is None else min(service.longest_s, timeout_s)
        exchange.outward = request.outward
        return exchange

    async def ask(self, exchange: UpstreamExchange, intent: AskIntent) -> web.StreamResponse:
        """Returns the answer to the caller, whose outcome is recorded before it is complete. Raises Refusal:
        UPSTREAM_FAILED, UPSTREAM_TIMEOUT, UPSTREAM_LIMITED, RESPONSE_REFUSED, SESSION_UNKNOWN, TOO_MANY_CONCURRENT for
        an endless stream, and the reasons for which a request of the upstream to the caller is denied."""
        message, session, creators = intent.message, intent.session, NOTHING
        method = message.method
        with exchange:
            if method in messages.NAMING_URIS:
                message = await _with_spelled_uris(exchange, message)
            if messages.may_speak_of_tasks(message):
                params = _forwarded(exchange, message)
                if task_messages.may_become_task(method, params):
                    creators = {message.id: exchange.call.question}
                message = message._replace(params=params)
            if method == "subscriptions/listen":
                exchange.has_no_end()
                with self.place(exchange), await exchange.post(message) as answer:
                    return await self.relay(exchange, (message.id,)).answer(answer)
            with await exchange.post(message) as answer:
                if method == "initialize":
                    return await self._begin(exchange, message, answer)
                if session is not None:
                    self.check_alive(session, answer)
                    session.remember(message.id, exchange.asked, creators.get(message.id))
                passage = ResponseFilter(exchange, (message.id,), creators, self.filtering)
                return await ResponseStream(exchange, passage).answer(answer)

    async def _begin(self, exchange: UpstreamExchange, message: Request, answer: UpstreamAnswer) -> web.StreamResponse:
        """Begins a session once the upstream accepts it. If this fails, no session remains here or at the upstream.
        Until the upstream accepts it, no other session of the caller is dropped for it."""
        relay, server = self.relay(exchange, (message.id,)), exchange.request.server
        if answer.status != 200:
            return await relay.answer(answer)
        upstream_id = upstream_id_from(answer.headers.get("mcp-session-id"))
        with ExitStack() as undo:
            undo.callback(self.part, server, upstream_id, exchange.call.protocol_version)
            passed = await relay.whole(answer)
            if not passed.version:
                return await relay.respond(passed)
            session = exchange.session  # the one whose stream already exists
            if session is not None:
                session.begin(passed.version, upstream_id)
            else:
                session = self.start(exchange.caller, server, version=passed.version, upstream_id=upstream_id)
            undo.callback(self.abandon, session)
            if not session.paired and exchange.service.upstream.roams(upstream_id):
                await self.roaming.keep(session)
            response = await relay.respond(passed, {"Mcp-Session-Id": session.id})
            undo.pop_all()
            return response

    def abandon(self, session: Session) -> None:
        """Drops a session whose client never received its id."""
        self.sessions.end(session)
        self.roaming.forget_soon(session)

    def start(self, caller: Caller, server: str, **how: Any) -> Session:
        """Begins a session here, and ends those that give way to it. Raises Refusal(TOO_MANY_CONCURRENT)."""
        session, ended = self.sessions.start(caller, server, **how)
        for other in ended:
            self.say_farewell(other)
        return session

    async def _deliver(self, exchange: UpstreamExchange, message: Message) -> web.StreamResponse:
        with await exchange.post(message) as answer:
            if exchange.session is not None:
                self.check_alive(exchange.session, answer)
            if answer.status not in (200, 202, 204):
                raise refusal_of(answer)
        if exchange.request.paired is not None and exchange.call.method == INITIALIZED:
            exchange.request.paired.begin_to_hear()
        return await empty(exchange.request, 202)

    async def _listen(self, exchange: UpstreamExchange, intent: ListenIntent) -> web.StreamResponse:
        session, close = intent.session, partial(exchange.cut_off, Reason.SESSION_UNKNOWN)
        session.open_stream(close)
        try:
            with await exchange.listen(intent.last_event_id) as answer:
                self.check_alive(session, answer)
                if answer.status == 405:
                    raise Refusal(Reason.VERB_NOT_ALLOWED, "this server offers no stream", allow=("POST", "DELETE"))
                exchange.has_no_end()
                return await self.relay(exchange, session.sent, session.creators).stream(answer)
        finally:
            session.close_stream(close)

    async def _pair(self, exchange: UpstreamExchange) -> web.StreamResponse:
        """Serves an HTTP+SSE session, which begins and ends with its stream, here and at the upstream."""
        request = exchange.request
        session = self.start(exchange.caller, request.server, paired=True)
        exchange.session = session
        exchange.has_no_end()
        paired = SseSession(partial(self._hear, exchange, session))
        close = partial(exchange.cut_off, Reason.SESSION_UNKNOWN)
        session.open_stream(close)
        self.pairs[session.id] = paired
        try:
            endpoint = f"{request.prefix}/mcp/{request.server}/messages?session_id={session.id}"
            return await self.relay(exchange, ()).hold(paired, endpoint)
        finally:
            del self.pairs[session.id]
            session.close_stream(close)
            self.sessions.end(session)
            self.say_farewell(session)

    async def recall(self, request: RequestContext, caller: Caller) -> None:
        """Loads the session that a request names from the replicas' store, if it is shared there. Raises Refusal:
        STORE_UNAVAILABLE, TOO_MANY_CONCURRENT."""
        named = request.headers.get("mcp-session-id", ()) if self.roaming.run is not None and not request.plain else ()
        if len(named) == 1:
            server = EVERY if request.front == EVERY else request.server
            for other in await self.roaming.recall(named[0], caller, server):
                self.say_farewell(other)

    def place(self, exchange: UpstreamExchange) -> AbstractContextManager[None]:
        """Reserves one endless stream. Raises Refusal(TOO_MANY_CONCURRENT)."""
        return self.places.place(exchange.caller, exchange.request.now.settings.streams)

    def paired(self, session_id: str, caller: Caller, server: str) -> tuple[Session, SseSession]:
        """Returns the caller's HTTP+SSE session and its stream. Raises Refusal(SESSION_UNKNOWN)."""
        session = self.sessions.find(session_id, caller, server, paired=True)
        paired = self.pairs.get(session.id)
        if paired is None:  # its stream is closing
            raise Refusal(Reason.SESSION_UNKNOWN)
        return session, paired

    async def _hear(self, exchange: UpstreamExchange, session: Session, outlet: EventStream) -> None:
        """Passes on the server's unrequested messages. This kind of caller cannot resume a stream, so the sidecar
        fetches missed messages for it. Raises Refusal if the stream must not continue."""
        exchange.call = exchange.call._replace(protocol_version=session.version)
        relay, pauses = self.relay(exchange, session.sent), ReopenPauses(MIN_PAUSE_S, MAX_PAUSE_S)
        while True:
            begun_s = asyncio.get_running_loop().time()
            try:
                with await exchange.listen(relay.last_event_id) as answer:
                    self.check_alive(session, answer)
                    if answer.status == 405:
                        return  # it has no stream
                    if answer.status == 200 and answer.media_type == EVENT_STREAM:
                        await relay.pass_on(answer, outlet)
            except Refusal as refusal:
                if refusal.reason not in (Reason.UPSTREAM_FAILED, Reason.UPSTREAM_TIMEOUT):
                    raise
            await asyncio.sleep(pauses.after(asyncio.get_running_loop().time() - begun_s))
            exchange.service = self.live.current.services.get(session.server, exchange.service)

    async def leave(self, request: RequestContext, session: Session) -> web.StreamResponse:
        """Ends a session at the caller's request. Raises Refusal(STORE_UNAVAILABLE), after which it continues."""
        await self.roaming.forget(session)
        self.sessions.end(session)
        self.say_farewell(session)
        return await empty(request, 204)

    def drain(self) -> None:
        """Ends endless streams, except HTTP+SSE streams with calls in flight. Calls continue until they are
        answered."""
        answering = {session_id for session_id, paired in self.pairs.items() if paired.busy}
        for exchange in {*self.streams, *self.oversight.open.calls}:  # some are still waiting for their first event
            session = exchange.session if isinstance(exchange, UpstreamExchange) else None
            if exchange.endless and (session is None or session.id not in answering):
                exchange.cut_off(Reason.DRAINING)

    def cut_off(self) -> None:
        """Ends every exchange when the grace time has ended."""
        for exchange in {*self.streams, *self.oversight.open.calls}:
            exchange.cut_off(Reason.DRAINING)

    def say_farewell(self, session: Session) -> None:
        """Schedules the notice to the upstream and the other replicas that a session has ended."""
        self.roaming.forget_soon(session)
        for one in (session, *session.parts.values()):
            self.part(one.server, one.upstream_id, one.version)

    def part(self, server: str, upstream_id: str | None, version: str) -> None:
        """Schedules the notice to one upstream that its session has ended."""
        # If the queue is full, the upstream's own time-out must suffice
        if upstream_id is not None and not self.farewells.full():
            self.farewells.put_nowait(Farewell(server, upstream_id, version))

    async def run_farewells(self) -> None:
        """Sends the DELETE requests for ended sessions. Runs as long as the process."""
        async with asyncio.TaskGroup() as group:
            for _ in range(FAREWELLS_AT_ONCE):
                group.create_task(self._send_farewells())

    async def _send_farewells(self) -> None:
        while True:
            farewell = await self.farewells.get()
            service = self.live.current.services.get(farewell.server)
            if service is not None:
                await service.upstream.end_session(farewell.upstream_id, farewell.version, FAREWELL_DEADLINE_S)

    async def run_reviews(self) -> None:
        """Ends streams and calls that have lost their permission, without waiting for a store. Runs as long as the
        process."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.oversight.look()

    async def run_sweeps(self) -> None:
        """Ends idle sessions, and those that another replica ended. Runs as long as the process."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.roaming.look()
            for session in self.sessions.sweep():
                if not await self.roaming.is_used(session):
                    self.say_farewell(session)

    def relay(
        self, exchange: UpstreamExchange, expected: Container[Id], creators: Mapping[Id, Question] = NOTHING
    ) -> ResponseStream:
        """Returns the stream of this exchange's answer. Requests in `creators` may be answered with a task."""
        return ResponseStream(exchange, ResponseFilter(exchange, expected, creators, self.filtering))

    def check_alive(self, session: Session, answer: UpstreamAnswer) -> None:
        """Drops a session that the upstream does not know any more, so that the caller begins a new one. Raises
        SessionLost for a member of an aggregate session, Refusal(SESSION_UNKNOWN) for any other."""
        if answer.status == 404 and session.upstream_id is not None:
            self.sessions.end(session)
            self.roaming.forget_soon(session)
            if session.whole is not None:  # the other members of its aggregate session continue
                raise SessionLost
            raise Refusal(Reason.SESSION_UNKNOWN)


async def _with_spelled_uris(exchange: UpstreamExchange, message: Request) -> Request:
    """Returns a message with its URIs as the upstream spells them."""
    catalogue = exchange.service.catalogue
    if messages.located_uri(message) not in ("", exchange.call.question.name):
        await catalogue.learn_spellings(exchange.patience_s)
    return messages.with_normal_uris(message, catalogue.spellings.spelled)


def _forwarded(exchange: UpstreamExchange, message: Request | Notification) -> dict[str, Any]:
    # At the aggregate address a task id does not identify its server, so there are no tasks.
    tasks = not exchange.caller.is_anonymous and exchange.outward is None
    return messages.forwarded_params(message, exchange.call.protocol_version, tasks=tasks)


async def empty(request: RequestContext, status: int) -> web.StreamResponse:
    """Records and sends an answer without a body."""
    return await request.respond(status)
