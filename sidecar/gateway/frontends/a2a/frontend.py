"""The A2A frontend: reads operations, carries them out at agents, and answers.

`request_reader.py` reads the operation and `task_ownership.py` looks up its tasks. After policy, limits and audit, the
operation is sent to the agent; its answer is checked and written in the caller's version and binding
(`response_writers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.a2a import cards
from sidecar.gateway.frontends.a2a.push_configs import PushRewriter
from sidecar.gateway.frontends.a2a.push_notifications import PushConfigs
from sidecar.gateway.frontends.a2a.reported_costs import CostReader
from sidecar.gateway.frontends.a2a.request_reader import (
    AgentOperation,
    CalledName,
    extensions_of,
    read_call,
    read_http,
    read_rpc,
    version_of,
    version_said,
)
from sidecar.gateway.frontends.a2a.response_writers import HttpJsonWriter, JsonRpcWriter, ResponseWriter
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.frontends.a2a.task_pages import TaskPages
from sidecar.gateway.reauthorization import end_of
from sidecar.gateway.request import RequestContext, WatchedExchange
from sidecar.gateway.routing import Route
from sidecar.http.server.response import WholeResponse
from sidecar.limits import Lease
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import cards as documents
from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import CANCEL, CARD, LIST, RESUBSCRIBE, Operation, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed
from sidecar.protocols.sse import KEEP_ALIVE
from sidecar.upstreams.agents import AgentEvents, AgentUpstream, OutgoingOperation
from sidecar.vocabulary import Call, Caller, Decision, Question

_OF_RPC = frozenset({"", "/", "/v1", "/v1/"})  # the seed's base path is /agents/{id}/v1


@dataclass(slots=True)
class AgentFrontend:
    exchanges: Forwarder
    pushes: PushConfigs
    pages: TaskPages
    written: cards.CardText = field(default_factory=cards.CardText)

    def greet(self, request: RequestContext) -> None:
        """Sets the writer of a caller that did not come by HTTP, so that every refusal is in its protocol."""
        if (called := _called(request)) is not None:
            request.dialect = called.dialect

    def enter(self, request: RequestContext, route: Route) -> None:
        """Sets the writer that the address implies, so that refusals are in the caller's version and binding."""
        request.dialect = request.dialect or _dialect_at(route, version_said(request.headers))

    async def understand(self, request: RequestContext, route: Route) -> AgentOperation:
        """Returns the operation requested. Raises Refusal, in the caller's version and binding as far as they are
        known."""
        called = _called(request)
        if called is not None:
            await request.came(called.body)
            return _understood(request, read_call(route.server, called, extensions_of(request.headers)))
        if route.rest in _OF_RPC:
            return await self._rpc(request, route)
        return await self._http(request, route)

    async def _rpc(self, request: RequestContext, route: Route) -> AgentOperation:
        dialect = request.dialect
        assert isinstance(dialect, JsonRpcWriter)
        if request.verb != "POST":
            raise Refusal(Reason.VERB_NOT_ALLOWED, allow=("POST",))
        envelope = jsonrpc.parse_json(await request.body(a2a=True))
        dialect.request_id = request.request_id = request.record.request_id = jsonrpc.request_id_in(envelope)
        # a refusal of the version also carries the request's id
        dialect.version = version_of(request.headers, _query(request))
        message = jsonrpc.message_from(envelope)
        return _understood(request, read_rpc(route.server, dialect, message, extensions_of(request.headers)))

    async def _http(self, request: RequestContext, route: Route) -> AgentOperation:
        query = _query(request)
        dialect = request.dialect
        assert isinstance(dialect, HttpJsonWriter)
        version = dialect.version
        said = version_of(request.headers, query)
        try:
            address = http.address_of(request.verb, route.rest, said)
        except UnreadableMessage as error:
            raise malformed(str(error), INVALID_PARAMS) from None
        if said != version and not (said == "1.0" and address is not None):
            raise Refusal(Reason.VERSION_UNSUPPORTED, f"this address speaks A2A {version}")
        dialect.version = said
        if address is None:
            raise Refusal(Reason.ROUTE_UNKNOWN)
        if address.operation is None or address.route is None:
            raise Refusal(Reason.VERB_NOT_ALLOWED, allow=address.allowed)
        request.asks(address.operation.action)
        body = await _json(request, address.operation) if address.route.has_body else None
        extensions = extensions_of(request.headers)
        return _understood(request, read_http(route.server, dialect, address, query, body, extensions))

    def card_call(self, request: RequestContext, route: Route) -> Call:
        """Returns the call that reads a card, for the kill switch. Raises Refusal(UPSTREAM_UNKNOWN)."""
        agent = cards.named(request.now, route.server)
        request.goes_to(agent.name)
        request.asks("card")
        return Call("a2a", "1.0", agent.name, "card", (Question(f"nhi:{agent.name}", CARD.action, ""),))

    def name_of(self, request: RequestContext, route: Route) -> str:
        """Returns the name of the agent whose card is requested; for an unknown agent, the name in the address."""
        try:
            return cards.named(request.now, route.server).name
        except Refusal:
            return route.server

    async def card(self, request: RequestContext, route: Route, caller: Caller) -> web.StreamResponse:
        """Answers with an agent's card, as this caller may see it. Raises Refusal."""
        agent = cards.named(request.now, route.server)
        chain = caller.chain if agent.anonymous or not caller.is_anonymous else ()
        now_s = self.exchanges.live.clock()
        try:
            card = await agent.cards.card()
        except Refusal:
            if chain:
                raise
            raise Refusal(Reason.UPSTREAM_UNKNOWN) from None  # an unidentified caller sees an agent that does not exist
        place = cards.place_of(request.now, agent, route.alias, request.base)
        view = cards.view_of(request.now, agent, card, chain, place, now_s)
        signer = cards.signer_of(request.now)

        def write() -> dict[str, Any]:
            canonical = cards.ours(agent, card, view)
            is_seeds = route.kind == routing.SEED_CARD
            return documents.seed_card(canonical) if is_seeds else documents.document(canonical, signer)

        body = self.written.of(card, (agent.name, route.kind, signer.kid if signer else "", view), write)
        known = ",".join(request.headers.get("if-none-match", ()))
        proofs = cards.proofs_of(view)
        return await _whole(request, cards.told(body, public=caller.is_anonymous, known=known, proofs=proofs))

    def agent(self, request: RequestContext, route: Route) -> AgentUpstream:
        """Returns the agent that was called. Runs after policy, so that only callers with permission learn what the
        agent speaks. Raises Refusal: UPSTREAM_UNKNOWN, or ROUTE_UNKNOWN for a binding that it does not have."""
        agent = request.now.agent(route.server)
        if not request.now.speaks(agent.name, cards.TRANSPORT_OF[_dialect(request).binding]):
            raise Refusal(Reason.ROUTE_UNKNOWN)
        return agent

    def owning(self, caller: Caller, intent: AgentOperation) -> TaskOwnership:
        """Returns the ownership of the tasks that the operation names."""
        return TaskOwnership(self.exchanges.tasks, caller, intent)

    async def carry_out(
        self,
        request: RequestContext,
        agent: AgentUpstream,
        decision: Decision,
        intent: AgentOperation,
        owning: TaskOwnership,
        lease: Lease,
        timeout_s: float | None,
    ) -> web.StreamResponse:
        """Returns the answer to the caller. Raises Refusal. The outcome is recorded before the answer is complete. A
        call that is refused before anything was sent to the agent costs nothing."""
        if (unable := agent.unable(intent.operation)) is not None:
            return await _whole(request, _dialect(request).error(unable))
        limit_s = min(agent.timeout_s, timeout_s or agent.timeout_s)
        until = end_of(owning.caller, decision, request.now)
        overseen = WatchedExchange(
            request, owning.caller, intent.call, limit_s, self.exchanges.streams, request.now, until
        )
        outgoing = OutgoingOperation(
            intent.operation,
            intent.params,
            owning.caller,
            overseen.left_s or limit_s,
            intent.extensions,
            routing.trace_headers(request.headers),
            owning.admit,
        )
        if intent.operation.streams:
            with self.exchanges.places.place(owning.caller, request.now.settings.streams):
                return await self._stream(overseen, agent, outgoing, owning, lease, timeout_s)
        async with overseen.under_way(self.exchanges.oversight.calls):
            await agent.cards.prepare()
            if intent.operation is CARD:
                lease.forwarded = True
                return await self._extended(overseen, agent, outgoing)
            if intent.operation is LIST:
                return await self._listed(overseen, agent, outgoing, owning, lease)
            pushing = PushRewriter(self.pushes, owning.caller, intent)
            try:
                params = await pushing.rewritten()
                await owning.begin()
                lease.forwarded = True
                answer = await agent.wire.ask(outgoing._replace(params=owning.outward(params)))
                if isinstance(answer, AgentError):
                    CostReader(request).failed()
                    return await _whole(request, _dialect(request).error(answer))
                costing = CostReader(request)
                costing.hear(answer)
                costing.end()
                admitted = await self._admitted(request, owning, answer)
                await pushing.settle(admitted)
                return await _whole(request, _dialect(request).result(intent.operation, await pushing.shown(admitted)))
            finally:
                await pushing.undo()

    async def _admitted(self, request: RequestContext, owning: TaskOwnership, result: dict[str, Any]) -> dict[str, Any]:
        """Returns what the caller may see of an answer or an event; the audit record names its task."""
        admitted = await owning.admit(result)
        request.record.task_id = owning.task
        return admitted

    async def _listed(
        self,
        overseen: WatchedExchange,
        agent: AgentUpstream,
        outgoing: OutgoingOperation,
        owning: TaskOwnership,
        lease: Lease,
    ) -> web.StreamResponse:
        async def ask(params: dict[str, Any]) -> dict[str, Any] | AgentError:
            lease.forwarded = True
            return await agent.wire.ask(outgoing._replace(params=params, deadline_s=overseen.left_s or 0.001))

        page, dialect = await self.pages.page(owning, ask), _dialect(overseen.request)
        lease.forwarded = True
        told = dialect.error(page) if isinstance(page, AgentError) else dialect.result(LIST, page)
        return await _whole(overseen.request, told)

    async def _extended(
        self, overseen: WatchedExchange, agent: AgentUpstream, outgoing: OutgoingOperation
    ) -> web.StreamResponse:
        """Answers an authenticated caller with the agent's extended card, or with its rewritten card if it has none."""
        request, now = overseen.request, overseen.request.now
        card: dict[str, Any] | AgentError = await agent.cards.card()
        if isinstance(card, dict) and card["capabilities"].get("extendedAgentCard"):
            card = await agent.wire.ask(outgoing)
        if isinstance(card, AgentError):
            return await _whole(request, _dialect(request).error(card))
        try:
            documents.check(card)
        except UnreadableMessage as error:
            raise Refusal(Reason.RESPONSE_REFUSED, f"its card: {error}") from None
        place = cards.place_of(now, agent, request.alias, request.base)
        view = cards.view_of(now, agent, card, overseen.caller.chain, place, self.exchanges.live.clock())
        shown = cards.ours(agent, card, view)
        return await _whole(request, _dialect(request).result(CARD, documents.signed(shown, cards.signer_of(now))))

    async def _stream(
        self,
        overseen: WatchedExchange,
        agent: AgentUpstream,
        outgoing: OutgoingOperation,
        owning: TaskOwnership,
        lease: Lease,
        timeout_s: float | None,
    ) -> web.StreamResponse:
        """Passes on events until the agent ends the stream. Until the first event, the answer can still be a plain
        refusal, and the call is watched as one that waits for an answer."""
        request, dialect, calls = overseen.request, _dialect(overseen.request), self.exchanges.oversight.calls
        # lasts as long as the task, unless a budget ends it earlier
        overseen.endless, overseen.timeout_s = True, timeout_s
        pushing = PushRewriter(self.pushes, owning.caller, owning.intent)
        try:
            async with overseen.under_way(calls):
                await agent.cards.prepare()
                params = await pushing.rewritten()
                await owning.begin()
                outgoing = outgoing._replace(params=owning.outward(params))
                lease.forwarded = True
                heard = await agent.wire.listen(outgoing)
        except BaseException:
            await pushing.undo()
            raise
        if isinstance(heard, AgentError):
            CostReader(request).failed()
            await pushing.undo()
            return await _whole(request, dialect.error(heard))
        try:
            async with aclosing(_begun(heard, overseen, agent.timeout_s)) as events:
                async with overseen.under_way(calls):
                    first = await anext(events, None)
                    if first is None:
                        raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an event")
                    if isinstance(first, AgentError):
                        CostReader(request).failed()
                        return await _whole(request, dialect.error(first))
                    first = await self._admitted(request, owning, first)
                    await pushing.settle(first)
                return await self._passed_on(overseen, heard, events, first, owning)
        finally:
            heard.close()
            await pushing.undo()

    async def pushed(self, request: RequestContext, route: Route) -> web.StreamResponse:
        """Accepts an agent's push notification. The agent authenticates with the secret that it received with the
        address."""
        request.asks("push")
        token, authorization = (request.headers.get(name, ()) for name in ("x-a2a-notification-token", "authorization"))
        if len(token) > 1 or len(authorization) > 1:
            raise malformed("a credential is there more than once")
        record = await self.pushes.knocked(route.server, "".join(token), "".join(authorization))
        request.goes_to(record.server)
        request.record.caller = record.caller
        await self.pushes.pushed(record, await request.body(a2a=True))
        await request.record.outcome(http_status=204, bytes_out=0)
        return WholeResponse(204)

    async def _passed_on(
        self,
        overseen: WatchedExchange,
        heard: AgentEvents,
        events: AsyncGenerator[dict[str, Any] | AgentError | None, None],
        first: dict[str, Any],
        owning: TaskOwnership,
    ) -> web.StreamResponse:
        request, dialect, operation = overseen.request, _dialect(overseen.request), owning.intent.operation
        called, costing = _called(request), CostReader(request)
        costing.hear(first)
        sent = await request.open_outlet() if called is None else called.outlet()
        try:
            with overseen.streaming(heard, sent):
                await sent.write(dialect.event(operation, first))
                async for event in events:
                    if event is None:
                        await sent.write(KEEP_ALIVE)
                    elif isinstance(event, AgentError):
                        request.tool_failed()
                        await sent.write(dialect.error_event(event))
                        break
                    else:
                        costing.hear(event)
                        await sent.write(dialect.event(operation, await self._admitted(request, owning, event)))
            costing.end()
            await request.ended(200, sent.bytes_out)
            await sent.end()
        except asyncio.CancelledError:
            if not request.record.done:
                await request.ended(200, sent.bytes_out)  # a reader ends a stream by disconnecting
            raise
        except Refusal as refusal:
            told = await request.remember(Refusal(overseen.cut) if overseen.cut is not None else refusal, 200)
            if told.reason is not Reason.CALLER_GONE:
                await self._last_word(request, sent, dialect, told)
        return sent.response

    async def _last_word(self, request: RequestContext, sent: Any, dialect: ResponseWriter, told: Refusal) -> None:
        """Ends a stream with a refusal in the protocol, because the status line has been sent."""
        try:
            await sent.write(dialect.refusal_event(told, request.record.decision_id, request.now.manner))
            await sent.end()
        except Refusal:  # the caller disconnected; the outcome is recorded
            return


async def _begun(
    heard: AgentEvents, overseen: WatchedExchange, idle_s: float
) -> AsyncGenerator[dict[str, Any] | AgentError | None, None]:
    """Yields the events, without keep-alives before the first."""
    begun = False
    async with aclosing(heard.events(overseen.clock(), idle_s)) as events:
        async for event in events:
            if event is not None or begun:
                begun = True
                yield event


def _dialect_at(route: Route, said: Version | None) -> ResponseWriter:
    if route.rest in _OF_RPC:
        return JsonRpcWriter(said or "0.3")
    return HttpJsonWriter("0.3" if route.rest.startswith("/v1/") and said != "1.0" else "1.0")


def _dialect(request: RequestContext) -> ResponseWriter:
    return cast(ResponseWriter, request.dialect)  # set by `enter`


def _called(request: RequestContext) -> CalledName | None:
    http: object = request.http
    return http if isinstance(http, CalledName) else None


def _query(request: RequestContext) -> Any:
    try:
        return http.query_of(request.raw_path.partition("?")[2])
    except UnreadableMessage as error:
        raise malformed(str(error), INVALID_PARAMS) from None


async def _json(request: RequestContext, operation: Operation) -> Any:
    """Reads the body of an HTTP+JSON request. It may be absent if the address holds all parameters."""
    if not request.http.body_exists and operation in (CANCEL, RESUBSCRIBE):
        return {}
    return jsonrpc.parse_json(await request.body(a2a=True))


def _understood(request: RequestContext, intent: AgentOperation) -> AgentOperation:
    request.asks(intent.call.method)
    request.record.call = intent.call
    request.record.mark("parse")
    return intent


async def _whole(request: RequestContext, told: Any) -> WholeResponse:
    """Sends a complete answer, which is recorded first."""
    await request.ended(told.status, len(told.body))
    return WholeResponse(told.status, told.body, told.content_type, told.headers)
