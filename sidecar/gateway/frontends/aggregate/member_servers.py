"""Finds the servers behind the aggregate address that a caller sees, and keeps its sessions at them.

A server is visible if the caller holds a live grant on it, no deny row closes it, it is not disabled, and the
credential meets the server's own requirements (`anonymous`, `scopes`). Any other server looks as if it did not exist.

A session at a server is opened on first use, with the client's declared capabilities. The client knows only the
aggregate session, and all member sessions end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.mcp_requests import SpreadIntent
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import RequestContext, UpstreamExchange
from sidecar.gateway.routing import EVERY
from sidecar.gateway.snapshot import Service, Snapshot, all_of, any_of
from sidecar.identity import check_caller
from sidecar.protocols.jsonrpc import Notification, Request
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.messages import server_question
from sidecar.upstreams.mcp.sessions import Session, upstream_id_from
from sidecar.upstreams.mcp.transport import SESSION_ID
from sidecar.vocabulary import Call, Caller, Decision, Question

HELLO: Final = 1  # the id of the first request; the session's client has not sent that server anything yet


class VisibleServers(NamedTuple):
    """The servers that one caller sees. Without servers, `decision` is the denial."""

    servers: tuple[Service, ...]
    decision: Decision
    questions: tuple[Question, ...]


def view_of(
    now: Snapshot, caller: Caller, spread: SpreadIntent, now_s: float, switch: KillSwitch, *, shadow: bool
) -> VisibleServers:
    """Returns the servers that a request may reach, by name. Raises Refusal if only policy leaves some."""
    answers = now.enter_each(caller.chain, spread.call, now_s)
    seen, refusals = dict[str, Decision](), list[Refusal]()
    for name, answer in answers.items():
        if answer.allowed or shadow:
            try:
                there = spread.call._replace(upstream=name)
                for disabled in (switch.disabled, now.disabled):
                    disabled.refuse((), there, now_s)
                switch.switched_off.refuse_use(there, now_s)
                check_caller(caller, now.audience(name))
                seen[name] = answer
            except Refusal as refusal:
                refusals.append(refusal)
    if refusals and not seen:
        raise refusals[0]
    decision = any_of(seen or answers) or now.engine.enter(caller.chain, spread.call.question, now_s)
    questions = tuple(server_question(name, spread.call.question.action) for name in seen or answers)
    for question in spread.also:
        answer = now.engine.decide(caller.chain, question, now_s)._replace(limits=())
        if question.server not in seen and not shadow:
            answer = answer._replace(allowed=False, reason=answer.reason or Reason.NO_MATCHING_RULE)
        decision = all_of((decision, answer))
    servers = tuple(now.services[name] for name in seen)
    return VisibleServers(servers, decision, (*(questions or spread.call.questions), *spread.also))


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """A decided request that names no server, and the servers that it may reach."""

    request: RequestContext
    caller: Caller
    intent: SpreadIntent
    servers: Sequence[Service]

    @property
    def message(self) -> Request:
        assert isinstance(self.intent.message, Request)
        return self.intent.message

    @property
    def session(self) -> Session:
        """The aggregate session. Raises Refusal(METHOD_UNKNOWN) in the stateless era."""
        if self.intent.session is None:
            raise Refusal(Reason.METHOD_UNKNOWN)
        return self.intent.session


@dataclass(slots=True)
class MemberSessions:
    """Opens member sessions, each once under concurrent calls. `opened` is called for each."""

    exchanges: Forwarder
    opened: Callable[[Session], None]
    _opening: dict[tuple[str, str], asyncio.Task[Session]] = field(default_factory=dict)

    async def at(
        self, service: Service, request: RequestContext, caller: Caller, whole: Session, timeout_s: float
    ) -> Session:
        if (part := whole.parts.get(service.name)) is not None:
            return part
        key = (whole.id, service.name)
        if (task := self._opening.get(key)) is None:
            task = self._opening[key] = asyncio.create_task(self._open(service, request, caller, whole, timeout_s))
            task.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(task)  # one waiting call may be cancelled while others still wait

    def _landed(self, key: tuple[str, str], task: asyncio.Task[Session]) -> None:
        del self._opening[key]
        if not task.cancelled():
            task.exception()  # retrieved even if no call is waiting, so that asyncio logs nothing

    async def _open(
        self, service: Service, request: RequestContext, caller: Caller, whole: Session, timeout_s: float
    ) -> Session:
        call = Call("mcp", "", service.name, "initialize", (messages.server_question(service.name, "initialize"),))
        exchange = opened_exchange(service, request, caller, call, None, self.exchanges, timeout_s)
        upstream_id, version = None, whole.version
        try:
            with await exchange.post(Request(HELLO, "initialize", dict(whole.declared))) as answer:
                upstream_id = upstream_id_from(answer.headers.get(SESSION_ID))
                passed = await self.exchanges.relay(exchange, (HELLO,)).whole(answer)
            if not passed.version:
                raise Refusal(Reason.UPSTREAM_FAILED, "it begins no session")
            version = passed.version
            part = self.exchanges.sessions.add_part(whole, service.name, version=version, upstream_id=upstream_id)
        except BaseException:
            self.exchanges.part(service.name, upstream_id, version)
            raise
        exchange.session, exchange.call = part, call._replace(protocol_version=version)
        try:
            with await exchange.post(Notification("notifications/initialized", {})):
                pass
            if whole.level:
                with await exchange.post(set_level(whole.level)):
                    pass
        except BaseException:
            self.exchanges.sessions.end(part)
            self.exchanges.say_farewell(part)
            raise
        self.opened(part)
        return part


def set_level(level: str) -> Request:
    """Returns a request that sets the log level; its answer is not awaited."""
    return Request(HELLO, "logging/setLevel", {"level": level})


def opened_exchange(
    service: Service,
    request: RequestContext,
    caller: Caller,
    call: Call,
    part: Session | None,
    exchanges: Forwarder,
    timeout_s: float,
) -> UpstreamExchange:
    limit_s = asyncio.get_running_loop().time() - request.started_s + timeout_s
    return UpstreamExchange(
        request, caller, call, limit_s, exchanges.streams, request.now, caller.expires_at, service=service, session=part
    )


def is_whole(session: Session | None) -> bool:
    """Reports whether a session is an aggregate session rather than a member."""
    return session is not None and session.server == EVERY
