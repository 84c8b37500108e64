"""The frontend of MCP: Streamable HTTP at a server's own address, and its HTTP+SSE transport.

`mcp_requests.py` reads the messages, `forwarder.py` sends them. Here is what lies between policy and limits: the
server's breaker, switched-off tools, pinned definitions and argument schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.error_responses import AnswerShape
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.mcp_requests import AskIntent, Intent, LeaveIntent, RequestReader, ServerIntent, begins
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import Charged, ParsedOperation, RequestContext
from sidecar.gateway.routing import Route
from sidecar.policy.similar_keys import SIMILAR_KEY
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Message
from sidecar.protocols.mcp import eras
from sidecar.protocols.mcp.eras import Era, EraHeaders
from sidecar.upstreams.mcp.arguments import Violation
from sidecar.upstreams.mcp.sessions import Session
from sidecar.vocabulary import Caller, Decision


@dataclass(slots=True)
class McpFrontend:
    forwarder: Forwarder
    switch: KillSwitch
    clock: Callable[[], float]
    folder: str = routing.MCP
    reader: type[RequestReader] = RequestReader

    def enter(self, request: RequestContext, route: Route) -> None:
        """Nothing to prepare: refusals have MCP's form already."""

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        """Reads era, session, method and parameters. Raises Refusal: malformed, unknown, no such session."""
        reader = self.reader(self.forwarder.sessions, request, caller, routing.head_of(request.headers))
        if request.verb == "POST":
            return operation_of(request, reader.of_message(await self._read_in_session(request, caller, reader)))
        request.shape = AnswerShape.PLAIN  # opening a stream or ending a session has no JSON-RPC id to answer
        await self.forwarder.recall(request, caller)
        is_paired = route.kind == routing.SSE
        return operation_of(request, reader.of_stream() if is_paired else reader.of_verb(request.verb))

    def parse_paired(
        self, request: RequestContext, caller: Caller, session: Session, message: Message
    ) -> ParsedOperation:
        """Reads a message of HTTP+SSE that belongs to this session."""
        head = routing.head_of(request.headers)
        return operation_of(
            request, RequestReader(self.forwarder.sessions, request, caller, head, session).of_message(message)
        )

    async def _read_in_session(self, request: RequestContext, caller: Caller, reader: RequestReader) -> Message:
        """Reads the message of a POST and loads its session. The message is read first, so that an error about its
        session carries the message's id; an invalid request is answered in its session if it exists."""
        try:
            message = await self.read(request, reader.head)
        except Refusal:
            if request.request_id is not None and request.shape is AnswerShape.SESSION:
                with suppress(Refusal):
                    await self.forwarder.recall(request, caller)
                    reader.session()
            raise
        if reader.head.session_id:
            await self.forwarder.recall(request, caller)
        return message

    async def read(self, request: RequestContext, head: EraHeaders) -> Message:
        """Reads the message in the body. Raises Refusal: malformed, too large, or of another media type."""
        envelope = jsonrpc.parse_json(await request.body())
        try:
            message = jsonrpc.message_from(envelope)
        except Refusal:
            request.address_faulty(envelope, head)
            raise
        request.address(message, head)
        return message

    async def check(
        self, request: RequestContext, caller: Caller, intent: ServerIntent, decision: Decision
    ) -> ServerIntent:
        """Checks also the arguments of a tool call, against the tool's pinned definition and its schema."""
        now, call = request.now, intent.call
        service = now.service(request.server)
        if not isinstance(intent, LeaveIntent):  # a session can be ended also while its upstream is off or unavailable
            if self.switch.ledger.flips:
                self.switch.ledger.switched_off.refuse_use(call, self.clock())
            service.account.breaker.check()  # before waiting for the server's tools, and before charging
        if not isinstance(intent, AskIntent):
            return intent
        if "requestState" in intent.message.params:  # of a call that continues; a state of another call is refused
            state = self.forwarder.states.open(caller, call, intent.message.params["requestState"])
            params = {**intent.message.params, "requestState": state}
            intent = intent._replace(message=intent.message._replace(params=params))
        if call.method == "tools/list":
            await service.catalogue.learn(service.timeout_s)  # a listed tool must be callable
        if call.method != "tools/call":
            return intent
        question = call.questions[0]
        tool = service.catalogue.known(question.name) or await service.catalogue.tool(question.name, service.timeout_s)
        if tool.schema is None:
            raise Refusal(Reason.SCHEMA_UNAVAILABLE, tool.quarantine_reason)
        if now.required and not now.approves(question.server, tool.name, tool.definition.digest):
            raise Refusal(Reason.PIN_MISMATCH)  # also in shadow mode: this definition of the tool was never approved
        key = now.similar_key(call, decision, tool.schema.keys)
        violation = tool.schema.violation(question.arguments) if key is None else Violation(key, SIMILAR_KEY)
        if violation is not None:
            pointer = f"/arguments{violation.pointer}"
            data = {"pointer": pointer, "keyword": violation.keyword}
            raise Refusal(Reason.BAD_ARGUMENTS, f"{pointer} does not satisfy {violation.keyword}", data=data)
        if tool.param_headers:
            if intent.era is Era.STATELESS and not request.plain:
                eras.check_parameter_headers(request.headers, tool.param_headers, question.arguments)
            request.parameter_headers = eras.parameter_headers(tool.param_headers, question.arguments)
        request.record.mark("arguments")
        return intent

    def carry_out(self, charged: Charged) -> Coroutine[Any, Any, web.StreamResponse]:
        charged.lease.forwarded = True
        return self.forwarder.carry_out(charged, charged.content)


def operation_of(request: RequestContext, intent: Intent) -> ParsedOperation:
    request.goes_to(intent.call.upstream)
    return ParsedOperation(intent.call, intent, begins(intent))
