"""Finds the servers behind the aggregate address that a caller sees, holds its sessions there, and calls them
concurrently.

A server is visible if the caller holds an unexpired grant on it, no deny row closes it, it is neither disabled nor
switched off, and the credential meets its own requirements (`anonymous`, `scopes`). Any other server looks as if it did
not exist. A session at a server is opened on first use. The client knows only the aggregate session; all member
sessions end with it.

The servers of a request are called concurrently, AT_ONCE at most, each with its own deadline; one that fails is named
in the result. The request fails only if no server answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.forwarder import Forwarder, SessionLost
from sidecar.gateway.frontends.aggregate.names import AggregateNames
from sidecar.gateway.frontends.mcp_requests import SpreadIntent
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import RequestContext, UpstreamExchange
from sidecar.gateway.response_filter import LEFT_OUT, FilteredMessage
from sidecar.gateway.snapshot import Service, Snapshot, all_of, any_of
from sidecar.identity import check_caller
from sidecar.observability.metrics import Metrics
from sidecar.protocols.jsonrpc import METHOD_NOT_FOUND, Notification, Request
from sidecar.protocols.mcp.messages import LeftOut, server_question
from sidecar.upstreams.mcp.sessions import Session, upstream_id_from
from sidecar.upstreams.mcp.transport import SESSION_ID
from sidecar.vocabulary import Call, Caller, Decision, Question

HELLO: Final = 1  # the id of the sidecar's own requests in a new session; the client has sent nothing there yet
PATIENCE_S: Final = 10.0  # deadline of each server for a list; a slower one is reported as unavailable
AT_ONCE: Final = 64
MAX_CURSOR_CHARS: Final = 4096  # of one server's cursor; an answer with a longer one is refused
MAX_NAMED: Final = 64  # servers in one record
UNAVAILABLE: Final = "sidecar/unavailable"


class VisibleServers(NamedTuple):
    """The servers that one caller sees, the decision on all of them, and its questions. Without servers, `decision` is
    the denial."""

    servers: tuple[Service, ...]
    decision: Decision
    questions: tuple[Question, ...]


def view_of(
    now: Snapshot, caller: Caller, spread: SpreadIntent, now_s: float, switch: KillSwitch, *, shadow: bool
) -> VisibleServers:
    """Returns the servers that a request may reach, in the order of their names. Raises Refusal if policy allows some,
    but they are disabled, switched off, or not open to the credential."""
    answers = now.enter_each(caller.chain, spread.call, now_s)
    seen, refusals = dict[str, Decision](), list[Refusal]()
    for name, answer in answers.items():
        if answer.allowed or shadow:
            try:
                there = spread.call._replace(upstream=name)
                for disabled in (switch.ledger.disabled, now.disabled):
                    disabled.refuse((), there, now_s)
                switch.ledger.switched_off.refuse_use(there, now_s)
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
        """The aggregate session. Raises Refusal(METHOD_UNKNOWN) in stateless revisions."""
        if self.intent.session is None:
            raise Refusal(Reason.METHOD_UNKNOWN)
        return self.intent.session


@dataclass(slots=True)
class MemberSessions:
    """Opens member sessions, each once under concurrent calls. `opened` is called with each new one."""

    forwarder: Forwarder
    opened: Callable[[Session], None]
    _opening: dict[tuple[str, str], asyncio.Task[Session]] = field(default_factory=dict)

    async def at(
        self, service: Service, request: RequestContext, caller: Caller, whole: Session, timeout_s: float
    ) -> Session:
        """Returns the session at a server that belongs to the aggregate session `whole`. Raises Refusal."""
        if (part := whole.parts.get(service.name)) is not None:
            return part
        key = (whole.id, service.name)
        if (task := self._opening.get(key)) is None:
            task = self._opening[key] = asyncio.create_task(self._open(service, request, caller, whole, timeout_s))

            def opened(done: asyncio.Task[Session]) -> None:
                del self._opening[key]
                if not done.cancelled():
                    done.exception()  # retrieved even if no call waits, so that asyncio logs nothing

            task.add_done_callback(opened)
        return await asyncio.shield(task)  # one waiting call may be cancelled while others still wait

    async def _open(
        self, service: Service, request: RequestContext, caller: Caller, whole: Session, timeout_s: float
    ) -> Session:
        call = Call("mcp", "", service.name, "initialize", (server_question(service.name, "initialize"),))
        exchange = opened_exchange(service, request, caller, call, None, self.forwarder, timeout_s)
        upstream_id, version = None, whole.version
        try:
            with await exchange.post(Request(HELLO, "initialize", dict(whole.declared))) as answer:
                upstream_id = upstream_id_from(answer.headers.get(SESSION_ID))
                passed = await self.forwarder.relay(exchange, (HELLO,)).whole(answer)
            if not passed.version:
                raise Refusal(Reason.UPSTREAM_FAILED, "it begins no session")
            version = passed.version
            part = self.forwarder.sessions.add_part(whole, service.name, version=version, upstream_id=upstream_id)
        except BaseException:
            self.forwarder.part(service.name, upstream_id, version)
            raise
        exchange.session, exchange.call = part, call._replace(protocol_version=version)
        try:
            with await exchange.post(Notification("notifications/initialized", {})):
                pass
            if whole.level:
                with await exchange.post(set_level(whole.level)):
                    pass
        except BaseException:
            self.forwarder.sessions.end(part)
            self.forwarder.say_farewell(part)
            raise
        self.opened(part)
        return part


def set_level(level: str) -> Request:
    """Returns a request that sets the log level."""
    return Request(HELLO, "logging/setLevel", {"level": level})


def opened_exchange(
    service: Service,
    request: RequestContext,
    caller: Caller,
    call: Call,
    part: Session | None,
    forwarder: Forwarder,
    timeout_s: float,
) -> UpstreamExchange:
    limit_s = asyncio.get_running_loop().time() - request.started_s + timeout_s
    return UpstreamExchange(request, caller, call, limit_s, forwarder.oversight.open, caller.expires_at, service, part)


class UnavailableServer(NamedTuple):
    server: str
    refusal: Refusal

    @property
    def told(self) -> dict[str, str]:
        return {"server": self.server, "reason": self.refusal.reason.value}


class GatheredPage(NamedTuple):
    """One server's result, and the entries that have no valid name at this address."""

    server: str
    result: Mapping[str, Any]
    unnamed: Sequence[LeftOut] = ()

    @property
    def left_out(self) -> Iterator[dict[str, str]]:
        """Yields the entries that the list does not show, at the server's own address or here."""
        meta = self.result.get("_meta", {})
        told = meta.get(LEFT_OUT, ()) if isinstance(meta, dict) else ()
        yield from ({"server": self.server, **one} for one in (*told, *(one._asdict() for one in self.unnamed)))

    @property
    def cursor(self) -> str | None:
        cursor = self.result.get("nextCursor")
        return cursor if isinstance(cursor, str) and cursor else None


Ask = Callable[[Service], Awaitable[GatheredPage]]


@dataclass(slots=True)
class FanOut:
    forwarder: Forwarder
    parts: MemberSessions
    metrics: Metrics

    async def each(
        self, request: RequestContext, servers: Sequence[Service], ask: Ask
    ) -> tuple[list[GatheredPage], list[UnavailableServer]]:
        """Returns the pages of the servers that answered, and the servers that did not. Raises the first failure if
        none answered."""
        room = asyncio.Semaphore(AT_ONCE)

        async def bounded(service: Service) -> GatheredPage | UnavailableServer:
            async with room:
                return await self._one(service, ask)

        tasks = [asyncio.ensure_future(bounded(service)) for service in servers]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        pages = [one for one in found if isinstance(one, GatheredPage)]
        missing = [one for one in found if isinstance(one, UnavailableServer)]
        note(request, servers, missing)
        if missing and not pages:
            told = {"unavailable": [one.told for one in missing]}
            raise Refusal(missing[0].refusal.reason, "none of the servers answered", data=told)
        return pages, missing

    async def _one(self, service: Service, ask: Ask) -> GatheredPage | UnavailableServer:
        loop, failure = asyncio.get_running_loop(), Refusal(Reason.UPSTREAM_TIMEOUT)
        begun = loop.time()
        try:
            async with asyncio.timeout(patience_of(service)):
                page = await ask(service)
            self.metrics.upstream_answered(service.name, loop.time() - begun)
            return page
        except TimeoutError:
            pass
        except Refusal as refusal:
            failure = refusal
        return self.missed(service.name, failure)

    def missed(self, server: str, refusal: Refusal) -> UnavailableServer:
        self.metrics.federation_missed(server, refusal.reason.value)
        return UnavailableServer(server, refusal)

    async def page(self, call: AggregateCall, service: Service, params: dict[str, Any]) -> GatheredPage:
        """Returns one server's result of the request with these parameters. Raises Refusal."""
        message = call.message._replace(params=params)
        service.account.breaker.check()  # before waiting for its tools
        if message.method == "tools/list":
            await service.catalogue.learn(patience_of(service))  # a listed tool must be callable
        try:
            return await self._ask(call, service, message)
        except SessionLost:  # a list may be requested again in a new session
            return await self._ask(call, service, message)

    async def _ask(self, call: AggregateCall, service: Service, message: Request) -> GatheredPage:
        request, caller, spread = call.request, call.caller, call.intent
        patience_s, part, version = patience_of(service), None, spread.call.protocol_version
        if spread.session is not None:
            part = await self.parts.at(service, request, caller, spread.session, patience_s)
            version = part.version
        question = server_question(service.name, message.method)
        there = spread.call._replace(upstream=service.name, questions=(question,), protocol_version=version)
        exchange = opened_exchange(service, request, caller, there, part, self.forwarder, patience_s)
        names = exchange.outward = AggregateNames(service.name)
        if part is not None:
            part.remember(message.id, exchange.asked)
        with await exchange.post(message) as answer:
            if part is not None:
                self.forwarder.check_alive(part, answer)
            passed = await self.forwarder.relay(exchange, (message.id,)).told(answer)
        return GatheredPage(service.name, _checked(passed), names.left_out)


def patience_of(service: Service) -> float:
    return min(service.timeout_s, PATIENCE_S)


def note(request: RequestContext, servers: Sequence[Service], missing: Sequence[UnavailableServer]) -> None:
    """Notes the servers called and those that did not answer, for the audit record."""
    request.record.federation = {
        "servers": [service.name for service in servers[:MAX_NAMED]],
        "unavailable": [one.told for one in missing[:MAX_NAMED]],
    }


def _checked(passed: FilteredMessage) -> Mapping[str, Any]:
    if passed.result is None:
        if orjson.loads(passed.out or b"{}").get("error", {}).get("code") == METHOD_NOT_FOUND:
            return {}  # an empty list: the server does not know the method
        raise Refusal(Reason.UPSTREAM_FAILED, "it answered with an error")
    cursor = passed.result.get("nextCursor")
    if isinstance(cursor, str) and len(cursor) > MAX_CURSOR_CHARS:
        raise Refusal(Reason.RESPONSE_REFUSED, "its cursor is too long")
    return passed.result
