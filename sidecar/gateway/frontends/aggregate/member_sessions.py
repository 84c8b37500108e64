"""Keeps the sessions at member servers behind one aggregate session.

There is one for each server that the session has reached. It is opened on first use, with the client's declared
capabilities. The client knows only the aggregate session, and all member sessions end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.request import RequestContext, UpstreamExchange
from sidecar.gateway.routing import EVERY
from sidecar.gateway.snapshot import Service
from sidecar.protocols.jsonrpc import Notification, Request
from sidecar.protocols.mcp import messages
from sidecar.upstreams.mcp.sessions import Session, Sessions, upstream_id_from
from sidecar.upstreams.mcp.transport import SESSION_ID
from sidecar.vocabulary import Call, Caller

HELLO: Final = 1  # the id of the first request; the session's client has not sent that server anything yet
Opened = Callable[[Service, Session], None]


@dataclass(slots=True)
class MemberSessions:
    """Opens member sessions, each once under concurrent calls. `told` is called for each."""

    sessions: Sessions
    exchanges: Forwarder
    told: Opened
    _opening: dict[tuple[str, str], asyncio.Task[Session]] = field(default_factory=dict)

    async def at(
        self, request: RequestContext, service: Service, caller: Caller, whole: Session, timeout_s: float
    ) -> Session:
        """Returns the member session at one server. Raises Refusal."""
        part = whole.parts.get(service.name)
        if part is not None:
            return part
        key = (whole.id, service.name)
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(request, service, caller, whole, timeout_s))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(task)  # one waiting call may be cancelled while others still wait

    def _landed(self, key: tuple[str, str], task: asyncio.Task[Session]) -> None:
        del self._opening[key]
        if not task.cancelled():
            task.exception()  # retrieved even if no call is waiting, so that asyncio logs nothing

    async def _open(
        self, request: RequestContext, service: Service, caller: Caller, whole: Session, timeout_s: float
    ) -> Session:
        call = Call("mcp", "", service.name, "initialize", (messages.server_question(service.name, "initialize"),))
        exchange = opened_exchange(request, service, caller, call, None, self.exchanges, timeout_s)
        upstream_id, version = None, whole.version
        try:
            with await exchange.post(Request(HELLO, "initialize", dict(whole.declared))) as answer:
                upstream_id = upstream_id_from(answer.headers.get(SESSION_ID))
                passed = await self.exchanges.relay(exchange, (HELLO,)).whole(answer)
            if not passed.version:
                raise Refusal(Reason.UPSTREAM_FAILED, "it begins no session")
            version = passed.version
            part = self.sessions.add_part(whole, service.name, version=version, upstream_id=upstream_id)
        except BaseException:
            self.exchanges.part(service.name, upstream_id, version)
            raise
        exchange.session, exchange.call = part, call._replace(protocol_version=version)
        await self._settle(exchange, part)
        self.told(service, part)
        return part

    async def _settle(self, exchange: UpstreamExchange, part: Session) -> None:
        """Tells the server that its client is ready, and which log level it wants."""
        try:
            with await exchange.post(Notification("notifications/initialized", {})):
                pass
            if part.whole is not None and part.whole.level:
                with await exchange.post(set_level(part.whole.level)):
                    pass
        except BaseException:
            self.sessions.end(part)
            self.exchanges.say_farewell(part)
            raise


def set_level(level: str) -> Request:
    """Returns a request that sets the log level; its answer is not awaited."""
    return Request(HELLO, "logging/setLevel", {"level": level})


def opened_exchange(
    request: RequestContext,
    service: Service,
    caller: Caller,
    call: Call,
    part: Session | None,
    exchanges: Forwarder,
    timeout_s: float,
) -> UpstreamExchange:
    """Returns one of several exchanges of one request, with its own deadline."""
    elapsed_s = asyncio.get_running_loop().time() - request.started_s
    return UpstreamExchange(
        request,
        caller,
        call,
        elapsed_s + timeout_s,
        exchanges.streams,
        request.now,
        caller.expires_at,
        service=service,
        session=part,
    )


def is_whole(session: Session | None) -> bool:
    """Reports whether a session is an aggregate session rather than a member."""
    return session is not None and session.server == EVERY
