"""Describes requests in OpenTelemetry: a SERVER span toward the caller, a CLIENT span for each message to an upstream,
and the durations of both as metrics.

Names and attributes are those of the semantic conventions for MCP, generative AI and RPC. Arguments, results and
credentials are never recorded. Policy and limits are events, with the times of the audit record.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)

from sidecar.errors import Reason, Refusal
from sidecar.gateway.error_responses import AnswerShape
from sidecar.gateway.routing import Headers, trace_context, trace_headers
from sidecar.observability.metrics import ASKED, METHODS_OF_MCP, TOOL_ERROR
from sidecar.observability.telemetry import Telemetry
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import BY_ACTION, SEND, STREAM
from sidecar.protocols.jsonrpc import Message, Request, Response
from sidecar.upstreams.mcp.transport import UpstreamAnswer
from sidecar.vocabulary import Call

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sidecar.gateway.request import RequestContext, UpstreamExchange, WatchedExchange
    from sidecar.http.client import Deadline
    from sidecar.upstreams.agents import AgentUpstream

CARRIED: Final = ("traceparent", "tracestate")
"""The keys of W3C Trace Context, in headers and in `_meta`. The caller's baggage is not passed on."""
MAX_SESSION_CHARS: Final = 256  # of an id that may belong to no session
MAX_RULES: Final = 16
OPERATION_BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
DECISION, LIMITS, APPROVAL = "sidecar.decision", "sidecar.limits", "sidecar.approval"
_INVOKING: Final = frozenset({SEND.action, STREAM.action})
_NAMING: Final = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
_LOCATING: Final = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})
# Attributes of the metrics. The others are unbounded: callers may invent names of prompts.
_MEASURED: Final = frozenset(
    {"mcp.method.name", "mcp.protocol.version", "gen_ai.operation.name", "gen_ai.tool.name"}
    | {"network.transport", "network.protocol.name", "network.protocol.version", "server.address", "server.port"}
)
_RESERVED_CODES: Final = range(-32768, -31999)
OTHER_ERROR: Final = "_OTHER"
Attributes = dict[str, Any]


class RequestTracing:
    """Begins the spans of requests."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.tracer, self.metrics = telemetry.tracer, telemetry.metrics
        self.server_s, self.client_s = (
            telemetry.meter.create_histogram(
                f"mcp.{side}.operation.duration",
                "s",
                f"Duration of MCP requests and notifications as observed by the {side}.",
                explicit_bucket_boundaries_advisory=OPERATION_BUCKETS_S,
            )
            for side in ("server", "client")
        )

    def begin(self, headers: Headers, began_s: float) -> RequestSpans:
        return RequestSpans(self, headers, began_s)

    def client(self, name: str, attributes: Attributes, parent: Span | None, creator: str = "") -> UpstreamSpan:
        """Begins a CLIENT span below `parent`, or one of a new trace that is linked to the context `creator`."""
        context = Context() if parent is None else set_span_in_context(parent, Context())
        creators = _context_in(trace_context(creator, None))
        links = [] if creators is None else [Link(_span_context(creators))]
        return UpstreamSpan(self, self.tracer.start_span(name, context, SpanKind.CLIENT, attributes, links), attributes)

    def later(self, agent: AgentUpstream, method: str, creator: str) -> tuple[UpstreamSpan, list[tuple[str, str]]]:
        """Begins the CLIENT span of an operation that is sent after its request was answered. Returns it, and its trace
        context as headers. `creator` is the trace context of that request."""
        name, attributes = _operation_name(method, agent.name), _of_operation(method, agent.name)
        span = self.client(name, attributes | _of_address(agent.url), None, creator)
        return span, span.headers


class RequestSpans:
    """The spans of one request. The SERVER span begins once the request has been read, but with its time of arrival,
    because its name and attributes decide whether it is sampled."""

    __slots__ = (
        "_attributes", "_began_ns", "_began_s", "_clients", "_last", "_links", "_parent", "_server", "tracing",
    )  # fmt: skip

    def __init__(self, tracing: RequestTracing, headers: Headers, began_s: float) -> None:
        self.tracing, self._began_s, self._began_ns = tracing, began_s, time.time_ns()
        self._parent = _context_in(trace_headers(headers))
        self._links: Sequence[Link] = ()
        self._server: Span | None = None
        self._attributes: Attributes = {}
        self._clients: list[UpstreamSpan] = []
        self._last: UpstreamSpan | None = None

    def heard(self, meta: Mapping[str, Any]) -> None:
        """Takes the parent from a message's `_meta`. A different one in the headers becomes a link."""
        found = _context_in(trace_context(meta.get("traceparent"), meta.get("tracestate")))
        if found is None:
            return
        if self._parent is not None and _span_context(self._parent) != _span_context(found):
            self._links = [Link(_span_context(self._parent))]
        self._parent = found

    async def reading(self, request: RequestContext, reading: Any) -> Any:
        """Returns what `reading` returns, and begins the SERVER span, also for a refused request, because the audit
        record names the trace."""
        try:
            return await reading
        finally:
            self.begin(request)

    def begin(self, request: RequestContext) -> Span:
        """Begins the SERVER span, once."""
        if self._server is None:
            self._attributes = about = _of_request(request) | _of_caller(request)
            self._server = self.tracing.tracer.start_span(
                _name_of(request), self._parent or Context(), SpanKind.SERVER, about, self._links, self._began_ns
            )
            if (context := self._server.get_span_context()).is_valid:
                request.record.trace_id = format_trace_id(context.trace_id)
        return self._server

    def toward(
        self, exchange: UpstreamExchange, message: Message | None
    ) -> tuple[UpstreamSpan | None, list[tuple[str, str]], Message | None]:
        """Begins the CLIENT span of a message to an MCP server, or of a stream that is opened there. Returns it, the
        trace context as headers, and the message with the context in `params._meta`. An answer to the server belongs to
        the server's own request, and has no span here."""
        request, session = exchange.request, exchange.session
        server = self.begin(request)
        if isinstance(message, Response):
            return None, [*_carrier(server).items()], message
        method = exchange.call.method if message is None else message.method
        attributes = _of_method(method, exchange.call) | _of_address(exchange.service.url)
        attributes["sidecar.upstream"] = exchange.service.name
        if isinstance(message, Request):
            attributes["jsonrpc.request.id"] = str(message.id)
        if exchange.call.protocol_version:
            attributes["mcp.protocol.version"] = exchange.call.protocol_version
        if session is not None and session.upstream_id is not None:
            attributes["mcp.session.id"] = session.upstream_id
        exchange.span = span = self._client(_named(method, exchange.call), attributes, server)
        if message is not None:
            meta = {**message.params.get("_meta", {}), **dict(span.headers)}
            message = message._replace(params={**message.params, "_meta": meta})
        return span, span.headers, message

    def toward_agent(self, exchange: WatchedExchange, agent: AgentUpstream) -> list[tuple[str, str]]:
        """Begins the CLIENT span of an operation at an agent. Returns the trace context as headers."""
        method = exchange.call.method
        attributes = _of_operation(method, agent.name) | _of_address(agent.url)
        exchange.span = span = self._client(_named(method, exchange.call), attributes, self.begin(exchange.request))
        return span.headers

    def traceparent(self, request: RequestContext) -> str:
        """Returns the context of the SERVER span as a `traceparent`; "" if there is none."""
        return _carrier(self.begin(request)).get("traceparent", "")

    def _client(self, name: str, attributes: Attributes, server: Span) -> UpstreamSpan:
        self._last = span = self.tracing.client(name, attributes, server)
        self._clients = [*(one for one in self._clients if not one.has_ended), span]  # a stream may be open for days
        return span

    def end(self, request: RequestContext) -> None:
        """Ends all spans of an answered request, and measures it."""
        server, record, refusal = self.begin(request), request.record, request.refusal
        for span in self._clients:
            span.end(refusal)
        error, code = "", None
        if refusal is not None:
            code = refusal.code if _is_told_as_error(request, refusal) else None
            error = refusal.reason.value if code is None else str(code)
            server.set_attribute("sidecar.reason", refusal.reason.value)
            server.set_status(Status(StatusCode.ERROR, refusal.answer.message))
        elif record.tool_error:
            code = None if self._last is None else self._last.code
            error = TOOL_ERROR if code is None else str(code)
            server.set_status(Status(StatusCode.ERROR))
        if error:
            server.set_attribute("error.type", error)
        if code is not None:
            server.set_attribute("rpc.response.status_code", str(code))
        if server.is_recording():
            self._tell_stages(server, request)
        server.end()
        duration_s = record.now_s() - record.started_s
        context = server.get_span_context()
        if context.trace_flags.sampled:
            trace_id, span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
            about = {"trace_id": trace_id, "span_id": span_id}
            self.tracing.metrics.request_traced(request.protocol, request.server, duration_s, about)
        measured = self._attributes
        if "mcp.method.name" in measured and record.protocol == "mcp":
            if not request.charged:  # a caller may name any number of nonexistent tools
                measured.pop("gen_ai.tool.name", None)
            _measure(self.tracing.server_s, duration_s, measured, error, code, server)

    def _tell_stages(self, server: Span, request: RequestContext) -> None:
        """Adds events for the decisions of policy and limits, without the values that they read."""
        record, refusal, decision = request.record, request.refusal, request.record.decision
        marks = record.marks
        if decision is not None:
            rules = [rule.id for link in decision.links if link.allowed == decision.allowed for rule in link.rules]
            facts: dict[str, Any] = {
                "sidecar.decision.allowed": decision.allowed,
                "sidecar.policy.revision": decision.revision,
            }
            facts |= {"sidecar.decision.rules": rules[:MAX_RULES], "sidecar.enforcement": record.enforcement}
            if decision.reason is not None:
                facts["sidecar.decision.reason"] = decision.reason.value
            server.add_event(DECISION, facts, self._at(marks.get("policy")))
        if (approval := _approval_of(request)) is not None:
            server.add_event(APPROVAL, approval, self._at(marks.get("approval")))
        limit = None if refusal is None else refusal.limit
        names = [state.name for state in record.limits]
        if names or limit is not None:
            charged: Attributes = {"sidecar.limits.names": names}
            if limit is not None:
                charged["sidecar.limits.refused"] = limit.name
            server.add_event(LIMITS, charged, self._at(marks.get("limits")))

    def _at(self, mark_s: float | None) -> int:
        return time.time_ns() if mark_s is None else self._began_ns + int((mark_s - self._began_s) * 1e9)


class UpstreamSpan:
    """A CLIENT span. It ends with the answer, with the answer's stream, or with its request. `code` is the JSON-RPC
    error code in the answer; `headers` carry the span's context."""

    __slots__ = ("_attributes", "_began_s", "_error", "_heard_ns", "_span", "_tracing", "code", "has_ended", "headers")

    def __init__(self, tracing: RequestTracing, span: Span, attributes: Attributes) -> None:
        self._tracing, self._span, self._attributes = tracing, span, attributes
        self._began_s, self._error, self.headers = time.monotonic(), "", [*_carrier(span).items()]
        self.code: int | None = None
        self.has_ended = False
        self._heard_ns: int | None = None

    async def followed(self, answering: Coroutine[Any, Any, UpstreamAnswer]) -> UpstreamAnswer:
        """Returns an MCP server's answer. The span ends when the answer is closed."""
        try:
            answer = await answering
        except BaseException as error:
            self.end(error)
            raise
        if answer.status >= 400:
            self.failed(str(answer.status))
        return TracedAnswer(answer, self)

    async def during(self, answering: Coroutine[Any, Any, Any]) -> Any:
        """Returns an agent's answer. The span ends with it, unless it is a stream."""
        try:
            answer = await answering
        except BaseException as error:
            self.end(error)
            raise
        if isinstance(answer, AgentError):
            self.failed(str(answer.code), answer.code)
        if isinstance(answer, AgentError | dict):
            self.end()
        return answer

    def heard(self, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> None:
        """Records how and when the message was answered."""
        self._heard_ns = time.time_ns()
        if error is not None:
            code = error.get("code")
            self.failed(str(code), code if isinstance(code, int) else None)
        elif result is not None and result.get("isError") is True:
            self.failed(TOOL_ERROR)

    def failed(self, error: str, code: int | None = None) -> None:
        self._error, self.code = error, code

    def end(self, cause: BaseException | None = None) -> None:
        """Ends the span, once. `cause` is the exception that ended it early, if any."""
        if self.has_ended:
            return
        self.has_ended = True
        if cause is not None and not self._error:
            self._error = cause.reason.value if isinstance(cause, Refusal) else Reason.CALLER_GONE.value
        if self._error:
            self._span.set_attribute("error.type", self._error)
            self._span.set_status(Status(StatusCode.ERROR))
        if self.code is not None:
            self._span.set_attribute("rpc.response.status_code", str(self.code))
        self._span.end(self._heard_ns)
        if "mcp.method.name" in self._attributes:
            duration_s, measured = time.monotonic() - self._began_s, self._tracing.client_s
            _measure(measured, duration_s, self._attributes, self._error, self.code, self._span)


class TracedAnswer(UpstreamAnswer):
    """An answer that ends a span at its own end."""

    __slots__ = ("_inner", "_span")

    def __init__(self, inner: UpstreamAnswer, span: UpstreamSpan) -> None:
        super().__init__(inner.status, inner.media_type, inner.headers)
        self._inner, self._span = inner, span

    @property
    def arrived(self) -> bytes | None:  # type: ignore[override]
        return self._inner.arrived

    async def read(self, max_bytes: int) -> bytes:
        return await self._inner.read(max_bytes)

    def chunks(self, **how: Deadline) -> AsyncGenerator[bytes, None]:
        return self._inner.chunks(**how)

    def withhold(self) -> None:
        self._inner.withhold()

    def close(self) -> None:
        self._inner.close()
        self._span.end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        self._inner.close()
        self._span.end(error)


def _measure(
    histogram: Any, duration_s: float, attributes: Attributes, error: str, code: int | None, span: Span
) -> None:
    bounded = {name: value for name, value in attributes.items() if name in _MEASURED}
    if code is not None and code not in _RESERVED_CODES:  # an upstream may invent any number
        error, code = OTHER_ERROR, None
    if error:
        bounded["error.type"] = error
    if code is not None:
        bounded["rpc.response.status_code"] = str(code)
    histogram.record(duration_s, bounded, set_span_in_context(span, Context()))


def _carrier(span: Span) -> dict[str, str]:
    found: dict[str, str] = {}
    inject(found, set_span_in_context(span, Context()))
    return {name: found[name] for name in CARRIED if name in found}


def _context_in(carried: Sequence[tuple[str, str]]) -> Context | None:
    return extract(dict(carried), Context()) if carried else None


def _span_context(context: Context) -> SpanContext:
    return get_current_span(context).get_span_context()


def _approval_of(request: RequestContext) -> Attributes | None:
    """Returns the approval that a call needed: its id, the result for the call, and how long the call was held for
    it."""
    used, refusal, awaited = request.record.approval, request.refusal, request.awaited
    if used is not None:
        name, outcome = used["id"], "used"
    elif awaited is not None:
        name, outcome = awaited.name, "pending"
    elif refusal is not None and "approval" in refusal.data:
        name, outcome = refusal.data["approval"], refusal.reason.value.removeprefix("approval-")
    else:
        return None
    return {
        "sidecar.approval.id": name,
        "sidecar.approval.outcome": outcome,
        "sidecar.approval.wait_s": round(request.held_s, 3),
    }


def _is_told_as_error(request: RequestContext, refusal: Refusal) -> bool:
    """Reports whether the caller receives a refusal as a JSON-RPC error of MCP."""
    if request.record.protocol != "mcp" or request.shape is AnswerShape.PLAIN or request.unanswered:
        return False
    as_result = request.now.manner.deny_style == "tool_result" and request.method == "tools/call"
    return refusal.reason is not Reason.BAD_ARGUMENTS and not as_result


def _name_of(request: RequestContext) -> str:
    record, call = request.record, request.record.call
    method = request.method or ("" if call is None else call.method)
    if not request.now.has_method(method):  # a caller may invent any
        return request.verb
    if record.protocol in ASKED:
        return f"{record.protocol} {method}"
    if call is not None:
        return _named(method, call)
    return BY_ACTION[method].rpc10 if method in BY_ACTION else method


def _named(method: str, call: Call) -> str:
    """Returns a span's name: `{mcp.method.name} {target}`, or that of an operation."""
    if call.protocol == "mcp":
        return f"{method} {call.question.name}" if method in _NAMING else method
    return _operation_name(method, call.upstream)


def _operation_name(method: str, agent: str) -> str:
    """Returns `invoke_agent {agent}`, or the operation's name in A2A 1.0."""
    if method in _INVOKING:
        return f"invoke_agent {agent}"
    return BY_ACTION[method].rpc10 if method in BY_ACTION else method


def _of_request(request: RequestContext) -> Attributes:
    record, method, call = request.record, request.method, request.record.call
    found: Attributes = {"sidecar.decision_id": record.decision_id, "sidecar.protocol": record.protocol}
    if request.server:
        found["sidecar.upstream"] = request.server
    if record.enforcement_point:
        found["sidecar.enforcement_point"] = record.enforcement_point
    if call is not None and call.protocol == "a2a":
        found |= _of_operation(method, call.upstream)
        if (binding := getattr(request.dialect, "binding", "")) in ("jsonrpc", "grpc"):
            found["rpc.system.name"] = binding
    elif call is not None or record.protocol == "mcp":
        found |= _of_method(method, call)
    if record.request_id is not None and record.protocol in ("mcp", "a2a"):
        found["jsonrpc.request.id"] = str(record.request_id)
    if call is not None and call.protocol == "mcp" and call.protocol_version:
        found["mcp.protocol.version"] = call.protocol_version
    if record.thread_id:
        found["gen_ai.conversation.id"] = record.thread_id
    return found


def _of_method(method: str, call: Call | None) -> Attributes:
    found: Attributes = {}
    if method in METHODS_OF_MCP:
        found["mcp.method.name"] = method
    if method == "tools/call":
        found["gen_ai.operation.name"] = "execute_tool"
    if call is not None and method in _NAMING:
        found[_NAMING[method]] = call.question.name
    elif call is not None and method in _LOCATING:
        found["mcp.resource.uri"] = call.question.name
    return found


def _of_operation(method: str, agent: str) -> Attributes:
    found: Attributes = {"gen_ai.agent.name": agent, "gen_ai.agent.id": f"nhi:{agent}", "sidecar.upstream": agent}
    if method in BY_ACTION:
        found["rpc.method"] = BY_ACTION[method].rpc10
    if method in _INVOKING:
        found["gen_ai.operation.name"] = "invoke_agent"
    return found


def _of_caller(request: RequestContext) -> Attributes:
    version, transport = request.http.version, request.http.transport
    is_grpc = getattr(request.dialect, "binding", "") == "grpc"
    found: Attributes = {
        "network.transport": "unix" if request.record.peer == "local" else "tcp",
        "network.protocol.name": "http",
        "network.protocol.version": "2" if is_grpc else f"{version.major}.{version.minor}",
    }
    if request.record.peer != "local":
        found["client.address"] = request.record.peer
    peer = None if transport is None else transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        found["client.port"] = peer[1]
    if len(lines := request.headers.get("mcp-session-id", ())) == 1:
        found["mcp.session.id"] = lines[0][:MAX_SESSION_CHARS]
    return found


def _of_address(url: str) -> Attributes:
    """Returns the target of the call: the address, without path and query, or a program."""
    if not url:
        return {"network.transport": "pipe"}
    parts = urlsplit(url)
    return {
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "network.protocol.version": "2" if parts.scheme.startswith("grpc") else "1.1",
        "server.address": parts.hostname or "",
        "server.port": parts.port or (443 if parts.scheme in ("https", "grpcs") else 80),
    }
