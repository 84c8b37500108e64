"""The frontend of MCP: Streamable HTTP at a server's own address, and its HTTP+SSE transport.

`mcp_requests.py` reads the messages, `forwarder.py` sends them. This module has the checks between policy and limits:
the server's breaker, switched-off tools, pinned definitions and argument schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.error_responses import AnswerShape
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.mcp_approval_wait import continued, wait_of
from sidecar.gateway.frontends.mcp_requests import AskIntent, Intent, LeaveIntent, RequestReader, ServerIntent
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import Charged, ParsedOperation, RequestContext
from sidecar.gateway.routing import Route
from sidecar.gateway.snapshot import Snapshot
from sidecar.http.server.body_admission import SMALL_BYTES
from sidecar.policy.similar_keys import SIMILAR_KEY, similar_key
from sidecar.protocols.jsonrpc import Message, Notification, Response
from sidecar.protocols.mcp import eras
from sidecar.protocols.mcp.eras import Era
from sidecar.upstreams.mcp.arguments import Violation
from sidecar.upstreams.mcp.sessions import Session
from sidecar.upstreams.mcp.tools import Tool
from sidecar.vocabulary import Caller, Decision, Question

_new = tuple.__new__


@dataclass(slots=True)
class McpFrontend:
    forwarder: Forwarder
    switch: KillSwitch
    clock: Callable[[], float]
    folder: str = routing.MCP
    reader: RequestReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = RequestReader(self.forwarder.sessions)

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        """Reads revision, session, method and parameters. Raises Refusal: MALFORMED_CALL, METHOD_UNKNOWN,
        SESSION_UNKNOWN, and others for a header or a body that cannot be used."""
        if request.verb != "POST":
            request.shape = AnswerShape.PLAIN  # opening a stream or ending a session has no JSON-RPC id to answer
            await self.forwarder.recall(request, caller)
            is_paired, reader = route.kind == routing.SSE, self.reader
            return operation_of(request, reader.of_stream(request) if is_paired else reader.of_verb(request, caller))
        # The message is read before its session is loaded, so that a session error carries the message's id; an invalid
        # request is answered in its session if that exists.
        try:
            raw = routing.arrived_body(request.http, request.headers, request.now.bounds)
            if raw is None or len(raw) > SMALL_BYTES:
                raw = await request.admitted(raw)
            message = request.message_in(raw)
        except Refusal:
            if request.request_id is not None and request.shape is AnswerShape.SESSION:
                with suppress(Refusal):
                    await self.forwarder.recall(request, caller)
                    self.reader.session(request, caller)
            raise
        if "mcp-session-id" in request.headers:
            await self.forwarder.recall(request, caller)
        return operation_of(request, self.reader.of_message(request, caller, message))

    def parse_paired(
        self, request: RequestContext, caller: Caller, session: Session, message: Message
    ) -> ParsedOperation:
        """Reads a message of HTTP+SSE that belongs to this session."""
        return operation_of(request, self.reader.of_message(request, caller, message, session))

    async def check(
        self, request: RequestContext, caller: Caller, intent: ServerIntent, decision: Decision
    ) -> ServerIntent:
        """Checks that the server exists, is on, and its breaker is closed; opens the `requestState` of a call that
        continues; checks a tool call against the tool's pinned definition and its schema."""
        now, call = request.now, intent.call
        service = now.services.get(request.server) or now.service(request.server)
        if not isinstance(intent, LeaveIntent):  # a session can end also while its upstream is unavailable
            if self.switch.ledger.flips:
                self.switch.ledger.switched_off.refuse_use(call, self.clock())
            if not service.account.breaker.closed:
                service.account.breaker.check()  # before waiting for the server's tools, and before charging
        if not isinstance(intent, AskIntent):
            return intent
        came_again = False
        if "requestState" in intent.message.params:  # of a call that continues; the state of another call is refused
            sealed = self.forwarder.states.open(caller, call, intent.message.params["requestState"])
            params = continued(intent.message.params, sealed)
            intent = intent._replace(message=intent.message._replace(params=params))
            came_again = sealed.state is None
            request.approval = "" if came_again else sealed.approval
        if decision.approvals and not request.plain:
            states = self.forwarder.states
            request.wait = wait_of(request, caller, intent, states, came_again=came_again)
        if call.method != "tools/call":
            if call.method == "tools/list":
                await service.catalogue.learn(service.timeout_s)  # a listed tool must be callable
            return intent
        question, record = call.questions[0], request.record
        arguments = question.arguments
        tool = service.catalogue.known(question.name) or await service.catalogue.tool(question.name, service.timeout_s)
        check_tool(now, tool, question, decision, record.bytes_in)
        if tool.param_headers:
            if intent.era is Era.STATELESS and not request.plain:
                eras.check_parameter_headers(request.headers, tool.param_headers, arguments)
            request.parameter_headers = eras.parameter_headers(tool.param_headers, arguments)
        record.marks["arguments"] = record.now_s()
        return intent

    def carry_out(self, charged: Charged) -> Coroutine[Any, Any, web.StreamResponse]:
        charged.lease.forwarded = True
        intent, forwarder = charged.content, self.forwarder
        exchange = forwarder.opened(charged, intent)
        return forwarder.ask(exchange, intent) if isinstance(intent, AskIntent) else forwarder.other(exchange, intent)


def check_tool(now: Snapshot, tool: Tool, question: Question, decision: Decision, size: int = 0) -> None:
    """Raises Refusal if pins do not allow a tool's definition, or its schema does not allow the arguments. `size` is
    the length of the arguments' JSON text, if known."""
    schema, arguments, key = tool.schema, question.arguments, None
    if schema is None:
        raise Refusal(Reason.SCHEMA_UNAVAILABLE, tool.quarantine_reason)
    if now.required and not now.approves(question.server, tool.name, tool.definition.digest):
        raise Refusal(Reason.PIN_MISMATCH)  # also in shadow mode: this definition of the tool was never approved
    if question.server not in now.lenient:
        key = similar_key(arguments, schema.keys, decision.names_read)
    if key is not None or not 0 < size <= schema.small_bytes or not schema.accepts(arguments):
        violation = schema.violation(arguments, size) if key is None else Violation(key, SIMILAR_KEY)
        if violation is not None:
            pointer = f"/arguments{violation.pointer}"
            data = {"pointer": pointer, "keyword": violation.keyword}
            raise Refusal(Reason.BAD_ARGUMENTS, f"{pointer} does not satisfy {violation.keyword}", data=data)


def operation_of(request: RequestContext, intent: Intent) -> ParsedOperation:
    """Returns an intent as an operation. Notifications and answers begin no work."""
    call = intent.call
    request.server = request.record.upstream = call.upstream
    begins = type(intent) is AskIntent or not isinstance(getattr(intent, "message", None), Notification | Response)
    return _new(ParsedOperation, (call, intent, begins, "all"))
