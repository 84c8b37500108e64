"""The call may go: how is it carried out, and what of it must be remembered?

One function for each kind of intent. What goes to the upstream is our own serialisation of what was decided; what
comes back passes `relay.py`. Sessions begin and end here, because they do so with the upstream's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.intents import JSON, Ask, Intent, Leave, Listen, Reply, Tell
from sidecar.protocols import jsonrpc, mcp
from sidecar.protocols.jsonrpc import Id, Notification, Request
from sidecar.protocols.mcp import Era
from sidecar.relay import Passage, Relay
from sidecar.snapshot import Live, Service
from sidecar.turn import Exchange, Turn
from sidecar.upstreams import Answer
from sidecar.upstreams.sessions import Session, Sessions
from sidecar.vocabulary import Caller, Decision

FAREWELL_DEADLINE_S = 5.0
MAX_FAREWELLS = 10_000
SWEEP_EVERY_S = 10.0


@dataclass(slots=True)
class Exchanges:
    """Carries decided calls to their upstreams."""

    live: Live
    sessions: Sessions
    streams: set[Exchange] = field(default_factory=set)
    farewells: asyncio.Queue[Session] = field(default_factory=lambda: asyncio.Queue(maxsize=MAX_FAREWELLS))

    async def carry_out(
        self, turn: Turn, service: Service, caller: Caller, decision: Decision, intent: Intent, timeout_s: float | None
    ) -> web.StreamResponse:
        """The answer to the caller. Raises Refusal: UPSTREAM_FAILED, UPSTREAM_TIMEOUT, RESPONSE_REFUSED, and denials
        of what the upstream asked in return. The outcome is on record before the answer is complete."""
        session = None if isinstance(intent, Ask) and intent.session is None else intent.session
        limit_s = min(service.timeout_s, timeout_s or service.timeout_s)
        exchange = Exchange(
            turn, service, caller, decision, session, intent.call.protocol_version, limit_s, self.streams
        )
        match intent:
            case Ask():
                return await self._ask(exchange, intent)
            case Tell():
                sent = Notification(intent.message.method, mcp.forwarded_params(intent.message))
                return await self._deliver(exchange, jsonrpc.encode_notification(sent))
            case Reply():
                return await self._deliver(exchange, jsonrpc.encode_response(intent.message))
            case Listen():
                return await self._listen(exchange, intent)
            case Leave():
                return self._leave(exchange, intent.session)
            case _:
                assert_never(intent)

    async def _ask(self, exchange: Exchange, intent: Ask) -> web.StreamResponse:
        message = Request(intent.message.id, intent.message.method, mcp.forwarded_params(intent.message))
        if message.method == "subscriptions/listen":
            exchange.endless, exchange.timeout_s = True, self._grant_left_s(exchange)
        routing = mcp.routing_headers(message) + exchange.turn.parameter_headers if intent.era is Era.STATELESS else []
        with await exchange.post(jsonrpc.encode_request(message), routing) as answer:
            if message.method == "initialize":
                return await self._begin(exchange, message, answer)
            if exchange.session is not None:
                self._check_alive(exchange.session, answer)
                exchange.session.remember(message.id)
            return await self._relay(exchange, (message.id,)).answer(answer)

    async def _begin(self, exchange: Exchange, message: Request, answer: Answer) -> web.StreamResponse:
        """A session begins with the upstream's yes; without one there is nothing to keep (threats S9)."""
        if answer.status != 200:
            return await self._relay(exchange, (message.id,)).answer(answer)
        upstream_id = answer.headers.get("mcp-session-id")
        session, ended = self.sessions.start(exchange.caller, exchange.turn.server, version="", upstream_id=upstream_id)
        for other in ended:
            self.say_farewell(other)
        exchange.session = session
        relay = self._relay(exchange, (message.id,))
        relay.extra_headers["Mcp-Session-Id"] = session.id
        try:
            return await relay.answer(answer)
        finally:
            if not session.version:  # the result that names it did not come
                self.sessions.end(session)

    async def _deliver(self, exchange: Exchange, body: bytes) -> web.StreamResponse:
        """Send what has no answer: the upstream takes it, or the caller hears that it did not."""
        with await exchange.post(body) as answer:
            if exchange.session is not None:
                self._check_alive(exchange.session, answer)
            if answer.status not in (200, 202, 204):
                raise Refusal(Reason.UPSTREAM_FAILED, f"it answered HTTP {answer.status}")
        return _empty(exchange.turn, 202)

    async def _listen(self, exchange: Exchange, intent: Listen) -> web.StreamResponse:
        session = intent.session
        with await exchange.listen(intent.last_event_id) as answer:
            self._check_alive(session, answer)
            if answer.status == 405:
                raise Refusal(Reason.VERB_NOT_ALLOWED, "this server offers no stream", allow=("POST", "DELETE"))
            exchange.endless, exchange.timeout_s = True, self._grant_left_s(exchange)
            close = partial(exchange.cut_off, Reason.SESSION_UNKNOWN)
            session.closers.add(close)
            try:
                return await self._relay(exchange, session.sent).stream(answer)
            finally:
                session.closers.discard(close)

    def _leave(self, exchange: Exchange, session: Session) -> web.StreamResponse:
        self.sessions.end(session)
        self.say_farewell(session)
        return _empty(exchange.turn, 204)

    def metadata(self, turn: Turn, server: str) -> web.StreamResponse:
        """RFC 9728: who issues tokens for this address. Open to all, and the same for every name."""
        body = turn.now.resource_metadata(server)
        turn.method = "metadata"
        turn.record.outcome(http_status=200, bytes_out=len(body))
        headers = {"Server": "sidecar", "Content-Type": JSON, "Cache-Control": "max-age=300"}
        return web.Response(body=body, headers=headers)

    def drain(self) -> None:
        """End the streams that would never end by themselves; calls in flight go on to their answers."""
        for exchange in list(self.streams):
            if exchange.endless:
                exchange.cut_off(Reason.DRAINING)

    def say_farewell(self, session: Session) -> None:
        """Have the upstream told that a session is over. With ten thousand waiting, its own time-out must do."""
        if session.upstream_id is not None and not self.farewells.full():
            self.farewells.put_nowait(session)

    async def run_farewells(self) -> None:
        """Send the DELETEs that ended sessions owe their upstreams. Runs as long as the process."""
        while True:
            session = await self.farewells.get()
            service = self.live.current.services.get(session.server)
            if service is not None:
                await service.upstream.end_session(session.upstream_id or "", session.version, FAREWELL_DEADLINE_S)

    async def run_sweeps(self) -> None:
        """End the sessions that nobody uses. Runs as long as the process."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for session in self.sessions.sweep():
                self.say_farewell(session)

    def _relay(self, exchange: Exchange, expected: Container[Id]) -> Relay:
        turn, catalogue = exchange.turn, exchange.service.catalogue
        passage = Passage(
            engine=turn.now.engine,
            caller=exchange.caller,
            server=turn.server,
            now_s=self.live.clock,
            expected=expected,
            session=exchange.session,
            usable=catalogue.usable,
            tools_changed=catalogue.stale,
            witness=turn.record.server_asked,
        )
        return Relay(exchange, passage)

    def _check_alive(self, session: Session, answer: Answer) -> None:
        """The upstream forgot the session: so do we, and the caller starts anew."""
        if answer.status == 404 and session.upstream_id is not None:
            self.sessions.end(session)
            raise Refusal(Reason.SESSION_UNKNOWN)

    def _grant_left_s(self, exchange: Exchange) -> float | None:
        """How long a stream may last: no longer than the credential and the grants that opened it. From the turn's
        start, in seconds; None is for ever."""
        ends = [end for end in (exchange.caller.expires_at, exchange.decision.until) if end is not None]
        if not ends:
            return None
        elapsed_s = asyncio.get_running_loop().time() - exchange.turn.started_s
        return max(0.0, min(ends) - self.live.clock()) + elapsed_s


def _empty(turn: Turn, status: int) -> web.StreamResponse:
    turn.ended(status, 0)
    return web.Response(status=status, headers={"Server": "sidecar"})
