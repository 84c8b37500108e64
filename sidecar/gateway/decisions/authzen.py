"""Decides AuthZEN requests. Each question is decided like a call.

A question about an MCP server that is served here, or a tool, prompt or resource of it, is made into the message that a
caller would send, and read and checked like it: pins and argument schemas are checked too. For other objects, policy,
kill switch and limits decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.decisions.authzen_messages import Evaluation, Evaluations
from sidecar.gateway.decisions.authzen_names import Vocabulary, nothing_valid
from sidecar.gateway.decisions.checked import Permit, PolicyQuestion
from sidecar.gateway.decisions.point import AskedRequest, Asking, DecisionPoint
from sidecar.gateway.error_responses import JSON, DenyManner, ErrorResponse, facts_of, message_of
from sidecar.gateway.frontends.mcp import operation_of
from sidecar.gateway.frontends.mcp_requests import AskIntent, PairIntent, ServerIntent
from sidecar.gateway.pipeline import Asked, Frontend
from sidecar.gateway.request import ParsedOperation, RequestContext
from sidecar.gateway.routing import AGENTS, MCP
from sidecar.gateway.snapshot import Snapshot
from sidecar.protocols.a2a.operations import VERSIONS
from sidecar.protocols.jsonrpc import Request
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import (
    META_CAPABILITIES,
    META_VERSION,
    SESSION,
    SESSION_VERSIONS,
    STATELESS,
    STATELESS_VERSIONS,
    TASKS_EXTENSION,
)
from sidecar.settings.timestamps import rfc3339
from sidecar.vocabulary import DELEGATE, Call, Question

PROTOCOL: Final = "authzen"
EVALUATION: Final = "evaluation"  # the method of a question about an object that no rule can name
# Reasons that prevent a decision, so that the answer is an error instead of a denial.
UNDECIDED: Final = frozenset(
    {Reason.AUDIT_UNAVAILABLE, Reason.STORE_UNAVAILABLE, Reason.DRAINING, Reason.OVERLOADED, Reason.INTERNAL}
)
YIELD_EVERY: Final = 16  # evaluations of one request, so that other requests run between them
_META: Final[Mapping[str, Any]] = {
    META_VERSION: STATELESS_VERSIONS[-1],
    META_CAPABILITIES: {"extensions": {TASKS_EXTENSION: {}}},
}
_NEEDED: Final[Mapping[str, Mapping[str, Any]]] = {  # of methods whose parameters policy does not read
    "initialize": {"protocolVersion": SESSION_VERSIONS[-1], "capabilities": {}},
    "subscriptions/listen": {"notifications": {}},
    "completion/complete": {"argument": {"name": "", "value": ""}},
}


class EvaluationOutcome(NamedTuple):
    """The answer to one question. `status` is that of HTTP if it was the only question."""

    status: int
    decision: Mapping[str, Any]

    @property
    def allowed(self) -> bool:
        return self.decision["decision"] is True


@dataclass(slots=True)
class DecisionWriter:
    """Writes refusals as decisions, and those for `undecided` reasons as errors. `told` is the decision written,
    `status` the HTTP status."""

    undecided: frozenset[Reason] = UNDECIDED
    status: int = 200
    told: Mapping[str, Any] = field(default_factory=dict)

    def tell(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse:
        facts = facts_of(refusal, decision_id, manner)
        if refusal.reason in self.undecided:
            self.status = refusal.answer.http
            facts = {**facts, "error": {"status": self.status, "message": message_of(refusal, facts)}}
        elif facts.get("reason") == refusal.reason.value:
            facts = {**refusal.data, **facts}
        self.told = {"decision": False, "context": facts}
        return ErrorResponse(self.status, orjson.dumps(self.told), JSON)


class AskedOperation(NamedTuple):
    """An operation before it belongs to a request: its frontend, its call, and MCP's content."""

    frontend: Frontend
    call: Call
    content: ServerIntent | None = None


@dataclass(slots=True)
class AuthzenPoint:
    """Answers evaluations."""

    point: DecisionPoint
    elsewhere: Frontend = field(default_factory=PolicyQuestion)

    async def evaluate_all(
        self, asked: Evaluations, names: Vocabulary, http: AskedRequest, name: str, request_id: str | None
    ) -> list[EvaluationOutcome]:
        """Returns the answers in the order of the questions, up to the one that ends them."""
        ends = {"deny_on_first_deny": False, "permit_on_first_permit": True}.get(asked.semantic)
        answers: list[EvaluationOutcome] = []
        for question in asked.questions:
            if len(answers) % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            if isinstance(question, Refusal):
                answers.append(_malformed(question))
            else:
                size = len(orjson.dumps(list(question))) if asked.many else http.content_length
                answers.append(await self.evaluate(question, names, http, name, request_id, size))
            if answers[-1].allowed is ends:
                break
        return answers

    async def evaluate(
        self, asked: Evaluation, names: Vocabulary, http: AskedRequest, name: str, request_id: str | None, size: int
    ) -> EvaluationOutcome:
        """Decides one question of `size` bytes, and records it."""
        writer = DecisionWriter()

        async def read(request: RequestContext) -> Asked:
            request.dialect, record = writer, request.record
            record.request_id, record.bytes_in = request_id, size
            request.asks(EVALUATION)
            caller = record.caller = names.caller(asked, name)
            record.marks["auth"] = record.now_s()
            operation = self.operation(request.now, *names.target(asked), names.arguments(asked))
            parsed = _parsed(request, operation)
            record.call = parsed.call
            record.marks["parse"] = record.now_s()
            return caller, operation.frontend, parsed

        asking = Asking(PROTOCOL, name, self.point.charges(asked.charge))
        request, response = await self.point.decide(http, asking, read)
        if isinstance(response, Permit):
            return EvaluationOutcome(200, {"decision": True, "context": permitted(response, request)})
        return EvaluationOutcome(writer.status, writer.told)

    def operation(self, now: Snapshot, name: str, action: str, arguments: Mapping[str, Any]) -> AskedOperation:
        """Returns the operation of a question. Raises Refusal, also for a question that no call could ask."""
        kind, _, rest = name.partition(":")
        server, _, of_server = rest.partition("/") if kind != "nhi" else (rest, "", "")
        if server in now.services:
            return self._of_server(kind, server, of_server, action, arguments)
        is_agent = kind == "nhi"
        question = Question(name, action, "" if is_agent else server, of_server, arguments)
        protocol, version = ("a2a", VERSIONS[-1]) if server in now.agents else (PROTOCOL, "")
        return AskedOperation(self.elsewhere, Call(protocol, version, server, action, (question,)))

    def _of_server(
        self, kind: str, server: str, name: str, action: str, arguments: Mapping[str, Any]
    ) -> AskedOperation:
        """Returns the operation at an MCP server, read from the message that a caller would send for it."""
        if kind == "nhi" and (action in messages.SERVER_REQUESTS or action == DELEGATE):
            question = messages.server_question(server, action)
            return AskedOperation(self.elsewhere, Call("mcp", SESSION_VERSIONS[-1], server, action, (question,)))
        if kind == "nhi" and action in messages.NOTIFICATIONS:
            question = messages.server_question(server, action)
            call = Call("mcp", SESSION_VERSIONS[-1], server, action, (question,), session=True)
            return AskedOperation(self.point.mcp, call, PairIntent(call))
        method, params = messages.METHODS.get(action), _params(kind, name, action, arguments)
        if method is None or params is None:
            raise nothing_valid()
        era = STATELESS if STATELESS in method.eras else SESSION
        version = STATELESS_VERSIONS[-1] if era is STATELESS else SESSION_VERSIONS[-1]
        message = Request(1, action, {**params, "_meta": dict(_META)} if era is STATELESS else dict(params))
        call = messages.call_from(message, era, version, server)._replace(request_id=None)
        return AskedOperation(self.point.mcp, call, AskIntent(call, message, era, None))


def _params(kind: str, name: str, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the parameters of MCP's message for an action on an object; None if there is no such message."""
    match kind, action:
        case ("tool", "tools/call") | ("prompt", "prompts/get"):
            return {"name": name, "arguments": arguments}
        case ("resource", "resources/read" | "resources/subscribe" | "resources/unsubscribe"):
            return {"uri": name}
        case ("prompt" | "resource", "completion/complete"):
            key = "name" if kind == "prompt" else "uri"
            return {**_NEEDED[action], **arguments, "ref": {"type": f"ref/{kind}", key: name}}
        case ("nhi", _) if (method := messages.METHODS.get(action)) is not None and method.session:
            return {**_NEEDED.get(action, {}), **arguments}
    return None


def _parsed(request: RequestContext, operation: AskedOperation) -> ParsedOperation:
    """Returns the operation as part of a request."""
    call, now = operation.call, request.now
    request.asks(call.method)
    if now.has_upstream(call.upstream):
        request.enter(call.upstream, AGENTS if call.upstream in now.agents else MCP)
    if operation.content is None:
        return ParsedOperation(call, call)
    return operation_of(request, operation.content)


def permitted(permit: Permit, request: RequestContext) -> Mapping[str, Any]:
    """Returns the context of a permit: its id, and the limits that were charged as obligations."""
    context: dict[str, Any] = {"decision_id": request.record.decision_id}
    obligations: Sequence[Mapping[str, Any]] = [
        {
            "id": limit.told if request.now.manner.disclosure == "reason" else "limit",
            "type": "limit",
            "properties": {
                "limit": limit.limit,
                "remaining": limit.remaining,
                **({"unit": limit.unit} if limit.unit else {}),
                **({} if limit.reset_at is None else {"reset_at": rfc3339(limit.reset_at)}),
            },
        }
        for limit in permit.limits
    ]
    return {**context, "obligations": obligations} if obligations else context


def _malformed(fault: Refusal) -> EvaluationOutcome:
    error = {"status": fault.answer.http, "message": fault.detail}
    return EvaluationOutcome(200, {"decision": False, "context": {"reason": fault.reason.value, "error": error}})
