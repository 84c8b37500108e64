"""The A2A frontend: reads operations, carries them out at agents, and answers.

`request_reader.py` reads the operation and `task_ownership.py` looks up its tasks. After policy, limits and audit, the
operation is sent to the agent; its answer is checked and written in the caller's version and binding
(`response_writers.py`). A message that needs approval waits for it (`approval_wait.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.a2a import cards, request_reader
from sidecar.gateway.frontends.a2a.approval_wait import HeldMessage, WaitingMessages
from sidecar.gateway.frontends.a2a.exchange import AgentExchange, CheckedOperation, respond
from sidecar.gateway.frontends.a2a.push_notifications import PushConfigs, PushRewriter
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, CalledName, extensions_of, version_of
from sidecar.gateway.frontends.a2a.response_writers import HttpJsonWriter, JsonRpcWriter, TaskWaits
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.frontends.a2a.task_pages import TaskPages
from sidecar.gateway.frontends.a2a.unsent_tasks import UnsentTasks
from sidecar.gateway.request import Charged, ParsedOperation, RequestContext
from sidecar.gateway.routing import Route
from sidecar.http.client import Deadline
from sidecar.http.server.body_admission import cost_of_wire
from sidecar.http.server.response import WholeResponse
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import cards as documents, http
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import CANCEL, CARD, GET, LIST, RESUBSCRIBE, Operation
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed
from sidecar.protocols.sse import KEEP_ALIVE
from sidecar.upstreams.agents import AgentEvents
from sidecar.vocabulary import Call, Caller, Decision, Question

_new = tuple.__new__  # as in `jsonrpc.py`
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(slots=True)
class AgentFrontend:
    forwarder: Forwarder
    pushes: PushConfigs
    pages: TaskPages
    messages: WaitingMessages
    folder: str = routing.AGENTS
    written: cards.CardText = field(default_factory=cards.CardText)
    unsent: UnsentTasks = field(init=False)

    def __post_init__(self) -> None:
        self.unsent = UnsentTasks(self.messages, self.forwarder.places)

    def greet(self, request: RequestContext) -> None:
        """Sets the writer of a caller of another transport than HTTP, so that every refusal is in its protocol."""
        if (called := _called(request)) is not None:
            request.dialect = called.dialect

    def enter(self, request: RequestContext, route: Route) -> None:
        """Sets the writer that the address implies, so that refusals are in the caller's version and binding."""
        if request.dialect is None:
            said = request_reader.version_said(request.headers)
            if route.rest in routing.WHOLE:
                request.dialect = JsonRpcWriter(said or "0.3")
            else:
                request.dialect = HttpJsonWriter("0.3" if route.rest.startswith("/v1/") and said != "1.0" else "1.0")

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        """Reads the operation. Raises Refusal, in the caller's version and binding if they are known."""
        if (called := _called(request)) is not None:
            await request.admitted(called.body, cost=cost_of_wire)
            intent = request_reader.read_call(route.server, called, extensions_of(request.headers))
        elif route.rest in routing.WHOLE:
            if request.verb != "POST":
                raise Refusal(Reason.VERB_NOT_ALLOWED, allow=("POST",))
            intent = _rpc(request, route, await request.body(a2a=True))
        else:
            intent = await self._http(request, route)
        request.method = request.record.method = intent.call.method
        message, metadata = intent.params.get("message"), intent.params.get("metadata")
        if message is not None and "metadata" in message:
            request.names_run(message["metadata"])
        if metadata:  # the request's metadata takes precedence over that of its message
            request.names_run(metadata)
        return ParsedOperation(intent.call, intent)

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
        return request_reader.read_http(route.server, dialect, address, query, body, extensions)

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
        now_s = self.forwarder.live.clock()
        try:
            card = await agent.cards.card()
        except Refusal:
            if chain:
                raise
            raise Refusal(Reason.UPSTREAM_UNKNOWN) from None  # without a credential, as if there were no such agent
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
        return await respond(request, cards.told(body, public=caller.is_anonymous, known=known, proofs=proofs))

    async def check(
        self, request: RequestContext, caller: Caller, intent: AgentOperation, decision: Decision
    ) -> CheckedOperation:
        """Checks that the agent is offered in the caller's binding, that the tasks named are the caller's, and that the
        agent's breaker is closed. Runs after policy, so that only callers with permission learn what is offered."""
        agent = request.now.agent(request.front or "")
        dialect: Any = request.dialect
        if not request.now.speaks(agent.name, cards.TRANSPORT_OF[dialect.binding]):
            raise Refusal(Reason.ROUTE_UNKNOWN)
        owning, unable = TaskOwnership(self.forwarder.tasks, caller, intent), agent.unable(intent.operation)
        held = None
        if unable is None:  # otherwise the answer is the same for every task
            await owning.check()
            request.record.task_id = owning.task
            if intent.sends and not request.record.enforcement_point:  # it waits for the decision alone
                if owning.unsent is not None and (waiting := await self.unsent.standing(owning)) is not None:
                    raise TaskWaits(intent.operation, waiting, {})
                if decision.approvals and self._may_wait(request, caller):
                    held = HeldMessage(request, owning, self.messages)
                    request.wait = held.wait
        agent.account.breaker.check()
        return _new(CheckedOperation, (agent, owning, unable, held))

    def _may_wait(self, request: RequestContext, caller: Caller) -> bool:
        """Whether a message that needs approval becomes a task, which requires an owner that may know why it waits."""
        return not caller.is_anonymous and request.now.manner.disclosure == "reason"

    async def carry_out(self, charged: Charged) -> web.StreamResponse:
        """Returns the answer to the caller, whose outcome is recorded before it is complete. A call that ends before
        anything was sent to the agent costs nothing. Raises Refusal."""
        agent, owning, unable, held = charged.content
        request, timeout_s, intent = charged.request, charged.timeout_s, owning.intent
        if unable is not None:
            return await respond(request, request.dialect.error(unable))
        exchange = AgentExchange(
            charged, min(agent.timeout_s, timeout_s or agent.timeout_s), self.forwarder.oversight.open
        )
        if owning.unsent is not None and (response := await self.unsent.carry_out(exchange)) is not None:
            return response
        pushing = PushRewriter(self.pushes, charged.caller, intent) if intent.pushes else None
        if intent.operation.streams:
            # lasts as long as the task, unless a budget ends it earlier
            exchange.endless, exchange.timeout_s = True, timeout_s
            with self.forwarder.places.place(charged.caller, request.now.settings.streams):
                try:
                    if held is not None:
                        await held.take_over()
                        exchange.told = held.ids
                    return await self._stream(exchange, pushing)
                except Refusal as refusal:
                    if held is not None:
                        held.why = refusal
                    raise
                finally:
                    if held is not None:
                        await held.give_up()
        with exchange:
            await agent.cards.prepare()
            if intent.operation is CARD:
                return await self._extended(exchange)
            if intent.operation is LIST:
                return await self._listed(exchange)
            try:
                plain = pushing is None and owning.is_plain
                params = intent.params if plain else await _outward(exchange, pushing)
                answer = await exchange.ask(params)
                if isinstance(answer, AgentError):
                    return await exchange.failed(answer)
                exchange.hear(answer)
                if charged.lease.plan.settles:
                    exchange.heard_all()
                admitted = await owning.admit(answer)
                request.record.task_id = owning.task
                if pushing is not None:
                    await pushing.settle(admitted)
                    admitted = await pushing.shown(admitted)
                told = exchange.dialect.result(intent.operation, admitted)
                return await respond(request, told)
            finally:
                if pushing is not None:
                    await pushing.undo()

    async def _listed(self, exchange: AgentExchange) -> web.StreamResponse:
        async def ask(params: dict[str, Any]) -> dict[str, Any] | AgentError:
            exchange.deadline_s = exchange.left_s(0.0) or 0.001
            return await exchange.ask(params)

        page, dialect = await self.pages.page(exchange.owning, ask), exchange.dialect
        exchange.lease.forwarded = True
        told = dialect.error(page) if isinstance(page, AgentError) else dialect.result(LIST, page)
        return await respond(exchange.request, told)

    async def _extended(self, exchange: AgentExchange) -> web.StreamResponse:
        """Answers with the agent's extended card, or with its card if it has none, rewritten for the caller."""
        request, now, agent, dialect = exchange.request, exchange.request.now, exchange.agent, exchange.dialect
        exchange.lease.forwarded = True
        card: dict[str, Any] | AgentError = await agent.cards.card()
        if isinstance(card, dict) and card["capabilities"].get("extendedAgentCard"):
            card = await exchange.ask(exchange.owning.intent.params)
        if isinstance(card, AgentError):
            return await respond(request, dialect.error(card))
        try:
            documents.check(card)
        except UnreadableMessage as error:
            raise Refusal(Reason.RESPONSE_REFUSED, f"its card: {error}") from None
        place = cards.place_of(now, agent, request.alias, request.base)
        view = cards.view_of(now, agent, card, exchange.caller.chain, place, self.forwarder.live.clock())
        shown = documents.signed(cards.ours(agent, card, view), cards.signer_of(now))
        return await respond(request, dialect.result(CARD, shown))

    async def _stream(self, exchange: AgentExchange, pushing: PushRewriter | None) -> web.StreamResponse:
        """Passes on events until the agent ends the stream. Until the first event, the answer can still be a refusal
        without a stream, and the call can be cut off like one that waits for an answer."""
        agent, heard = exchange.agent, None
        try:
            with exchange:
                await agent.cards.prepare()
                heard = await exchange.listen(await _outward(exchange, pushing))
            if isinstance(heard, AgentError):
                return await self._not_streamed(exchange, heard)
            async with aclosing(_begun(heard, exchange.clock(), agent.timeout_s)) as events:
                with exchange:
                    first = await anext(events, None)
                    if first is None:
                        raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an event")
                    if isinstance(first, AgentError):
                        return await self._not_streamed(exchange, first)
                    first = await exchange.admit(first)
                    if exchange.held is not None:
                        await exchange.held.settle(first)
                    if pushing is not None:
                        await pushing.settle(first)
                return await self._passed_on(exchange, heard, events, first)
        finally:
            if heard is not None and not isinstance(heard, AgentError):
                heard.close()
            if pushing is not None:
                await pushing.undo()

    async def _not_streamed(self, exchange: AgentExchange, error: AgentError) -> web.StreamResponse:
        """Answers with an agent's error. A held stream on a task that ended in the meantime gets the last state of the
        task."""
        request, owning = exchange.request, exchange.owning
        if request.held is None or owning.intent.operation is not RESUBSCRIBE:
            return await exchange.failed(error)
        with exchange:
            params = owning.outward({"id": owning.task})
            answer = await exchange.agent.wire.ask(exchange.outgoing(params)._replace(operation=GET))
            if isinstance(answer, AgentError):
                return await exchange.failed(error)
            events = b"".join(exchange.events_of(await owning.admit({"task": answer})))
        await request.ended(200, len(events))
        return await request.end_held(events)

    async def _passed_on(
        self,
        exchange: AgentExchange,
        heard: AgentEvents,
        events: AsyncGenerator[dict[str, Any] | AgentError | None, None],
        first: dict[str, Any],
    ) -> web.StreamResponse:
        request, dialect = exchange.request, exchange.dialect
        called = _called(request)
        exchange.hear(first)
        sent = await request.open_outlet() if called is None else called.outlet()
        request.held = None
        try:
            with exchange.streaming(heard, sent):
                for said in exchange.events_of(first):
                    await sent.write(said)
                async for event in events:
                    if event is None:
                        await sent.write(KEEP_ALIVE)
                    elif isinstance(event, AgentError):
                        request.tool_failed()
                        if exchange.span is not None:
                            exchange.span.heard(None, {"code": event.code})
                        await sent.write(dialect.error_event(event))
                        break
                    else:
                        exchange.hear(event)
                        for said in exchange.events_of(await exchange.admit(event)):
                            await sent.write(said)
            exchange.heard_all()
            await request.ended(200, sent.bytes_out)
            await sent.end()
        except asyncio.CancelledError:
            await request.left(sent.bytes_out)
            raise
        except Refusal as refusal:
            told = await request.remember(Refusal(exchange.cut) if exchange.cut is not None else refusal, 200)
            if told.reason is not Reason.CALLER_GONE:
                with suppress(Refusal):  # the caller disconnected; the outcome is recorded
                    # The status line has been sent, so the stream ends with the refusal in the protocol.
                    await sent.write(dialect.refusal_event(told, request.record.decision_id, request.now.manner))
                    await sent.end()
        return sent.response

    async def pushed(self, request: RequestContext, route: Route) -> web.StreamResponse:
        """Accepts an agent's push. The agent authenticates with the secret that it received with the address."""
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


async def _outward(exchange: AgentExchange, pushing: PushRewriter | None) -> dict[str, Any]:
    """Returns the parameters for the agent. Raises Refusal."""
    owning = exchange.owning
    params = owning.intent.params if pushing is None else await pushing.rewritten()
    if owning.context:
        await owning.begin()
    return owning.outward(params)


async def _begun(
    heard: AgentEvents, deadline: Deadline, idle_s: float
) -> AsyncGenerator[dict[str, Any] | AgentError | None, None]:
    """Yields the agent's events, None for a keep-alive, without keep-alives before the first event."""
    begun = False
    async with aclosing(heard.events(deadline, idle_s)) as events:
        async for event in events:
            if event is not None or begun:
                begun = True
                yield event


def _rpc(request: RequestContext, route: Route, raw: bytes) -> AgentOperation:
    dialect, envelope = request.dialect, jsonrpc.parse_json(raw)
    assert type(dialect) is JsonRpcWriter
    try:
        if dialect.version == "0.3" or "?" in request.path:  # otherwise the one header says 1.0
            dialect.version = version_of(request.headers, _query(request))
        message = jsonrpc.message_from(envelope)
    except Refusal:  # the body contains the request's id too
        dialect.request_id = request.request_id = request.record.request_id = jsonrpc.request_id_in(envelope)
        raise
    if isinstance(message, jsonrpc.Request):
        dialect.request_id = request.request_id = request.record.request_id = message.id
    return request_reader.read_rpc(route.server, dialect, message, extensions_of(request.headers))


def _called(request: RequestContext) -> CalledName | None:
    http: object = request.http
    return http if isinstance(http, CalledName) else None


def _query(request: RequestContext) -> Any:
    if "?" not in request.path:
        return _NOTHING
    try:
        return http.query_of(request.path.partition("?")[2])
    except UnreadableMessage as error:
        raise malformed(str(error), INVALID_PARAMS) from None


async def _json(request: RequestContext, operation: Operation) -> Any:
    """Reads the body of an HTTP+JSON request. It may be absent if the address holds all parameters."""
    if not request.http.body_exists and operation in (CANCEL, RESUBSCRIBE):
        return {}
    return jsonrpc.parse_json(await request.body(a2a=True))
