"""The context of one request as it passes through the pipeline.

`RequestContext` is the caller's side of a request, `UpstreamExchange` the upstream's side of a decided call. The stages
fill them in; no stage reads them to repeat a decision of an earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

from aiohttp import web

from sidecar.audit.recorder import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.error_responses import AnswerShape, DenyManner, ErrorResponse
from sidecar.gateway.frontends.aggregate.names import AggregateNames
from sidecar.gateway.routing import EVERY, MCP, Headers
from sidecar.gateway.snapshot import Service, Snapshot
from sidecar.gateway.sse_session import SseSession
from sidecar.http.client import Deadline
from sidecar.http.server.body_admission import SMALL_BYTES, BodyAdmission, BodyRoom, cost_of
from sidecar.http.server.cors import Lines
from sidecar.http.server.event_stream import EventStream, open_stream
from sidecar.http.server.request import HttpRequest
from sidecar.http.server.response import NO_HEADERS, WholeResponse
from sidecar.limits import Lease, LimitPlan
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import Id, Message, Request, Response, message_from, parse_json, request_id_in
from sidecar.protocols.mcp import eras
from sidecar.protocols.mcp.eras import META_VERSION
from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.mcp.sessions import PendingRequest, Session
from sidecar.upstreams.mcp.transport import Outbound, UpstreamAnswer, never
from sidecar.vocabulary import Call, Caller, Decision

if TYPE_CHECKING:
    from sidecar.gateway.request_spans import RequestSpans, UpstreamSpan

_new = tuple.__new__
NO_META: Mapping[str, Any] = MappingProxyType({})
BAGGAGE = "baggage"
CORRELATIONS = frozenset({"run_id", "thread_id", "traceparent", BAGGAGE})


class RefusalWriter(Protocol):
    """Writes refusals of a protocol whose answers differ from MCP's."""

    def tell(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse: ...


class ParsedOperation(NamedTuple):
    """What a frontend read from a request: the call that policy decides on, and the frontend's own content.

    `begins`: it begins work, rather than being an answer to the server, a notification, or work that was admitted
    before. `charges` are the limits that it is charged to: `creation` are all except concurrency slots, for operations
    that are answered here or begin later; `slots` are the slots, once such an operation begins; `none` is for a
    decision alone.
    """

    call: Call
    content: Any
    begins: bool = True
    charges: Literal["all", "creation", "slots", "none"] = "all"


class ApprovalWait(NamedTuple):
    """How a call waits for a person's approval: for `hold_s`, with a regular `tick` to its caller, before `pending`
    refuses it. Both receive the request for approval and the address at which people answer it."""

    pending: Callable[[Any, str | None], Awaitable[Refusal]]
    hold_s: float = 0.0
    tick: Callable[[Any, str | None], Awaitable[None]] | None = None


async def pending_approval(record: Any, page: str | None) -> Refusal:
    """Returns the refusal of a call that waits for a person, who answers at `page`. The same call, repeated, uses the
    answer."""
    return Refusal(Reason.APPROVAL_PENDING, "call again to find the answer", data=approval_data(record, page))


def approval_data(record: Any, page: str | None) -> Mapping[str, Any]:
    """Returns the data about a request for approval that callers receive."""
    data = {"approval": record.name, "answer_before": rfc3339(record.deadline_s)}
    return data if page is None else {**data, "page": page}


NOT_HELD = ApprovalWait(pending_approval)


class CallContext:
    """A call with the results of its stages. In `shadow` mode `excused` are the refusals that did not stop it: by
    limits, and for a missing approval. `lease` holds the reserved limits of its `plan`; they are `charged` after that.
    `large`: the body is large enough to delay the loop, so other calls run between its stages. `wait` is how it waits
    for an approval; `approval` names the one that an earlier round of the call used, then the one that the call uses,
    if that can be used once. `held_s` is how many seconds the call was held for an approval; its time-out does not
    include them. A call that `defers` is stored and carried out later by another call, which uses the approval;
    `awaited` is the request for it."""

    wait = NOT_HELD
    approval, held_s = "", 0.0
    awaited: Any = None
    large = shadow = charged = defers = False
    server = ""
    plan: LimitPlan | None = None
    lease: Lease | None = None
    refusal: Refusal | None = None
    excused: tuple[Refusal, ...] = ()

    def __init__(self, now: Snapshot, record: Recording) -> None:
        self.now, self.record = now, record

    def excuse(self, refusal: Refusal) -> bool:
        """Reports whether shadow mode lets the call pass in spite of this refusal, and records it if so."""
        if self.shadow:
            self.excused = (*self.excused, refusal)
            name = f"limit:{refusal.limit.name}" if refusal.limit else refusal.reason.value
            self.record.excused = (*self.record.excused, name)
        return self.shadow


class RequestContext(CallContext):
    """One request with all data that the stages collect.

    `path` is the request target in origin form. `front` is the name in the address (EVERY is the aggregate address,
    None is an unknown one), `folder` the path before it, `alias` the agent's own path, if the request used one, and
    `server` the upstream called. `shared` are the CORS headers of its answers. `paired` is the stream that carries its
    answer, if that belongs to another request (`sse_session.py`): the HTTP answer is 202, and while `handed_on` is set
    the request ends later. `task` carries it out, if that is not its connection's. `prefix` is the path under which
    callers see the sidecar, `base` the base URL for a local caller. `presented_kind` is the kind of the caller's first
    credential. `begun` is the response, once a part of it was sent. `unanswered`: closed without an answer. `cut`:
    shutdown does not wait for it any more. `dialect` writes refusals in protocols other than MCP. `reason` is the
    reason of its refusal, once it has ended. `spans` describe it to OpenTelemetry. `held` is the stream of a held call
    until its answer is sent there; `last_event` writes a refusal as the end of that stream, in protocols other than
    MCP. `started_s` is in the loop's time.
    """

    # Most requests change few of these, so they are defaults of the class.
    handed_on = unanswered = cut = False
    task: asyncio.Task[Any] | None = None
    folder, alias, method, base = MCP, "", "", ""
    shape = AnswerShape.PLAIN
    front: str | None = None
    outward: AggregateNames | None = None
    dialect: RefusalWriter | None = None
    request_id: Id | None = None
    begun: web.StreamResponse | None = None
    paired: SseSession | None = None
    shared: Lines = ()
    presented_kind = "none"
    reason: Reason | None = None
    held: EventStream | None = None
    last_event: Callable[[Refusal], Awaitable[bytes]] | None = None
    parameter_headers: Sequence[tuple[str, str]] = ()
    spans: RequestSpans | None = None

    def __init__(
        self,
        http: HttpRequest,
        path: str,
        now: Snapshot,
        headers: Headers,
        record: Recording,
        body_admission: BodyAdmission,
        prefix: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.http, self.path, self.verb, self.now, self.prefix = http, path, http.method, now, prefix
        self.headers, self.record, self.body_admission = headers, record, body_admission
        self.loop, self.started_s = loop, loop.time()

    @property
    def protocol(self) -> str:
        return self.record.protocol

    @property
    def plain(self) -> bool:
        """Whether calls have no envelope of MCP or A2A."""
        return self.record.protocol in ("http", "authzen")

    async def body(self, *, a2a: bool = False) -> bytes:
        """Returns the whole body once it is admitted. Raises Refusal: see `routing.read_body`, `BodyAdmission.wait`."""
        raw = routing.arrived_body(self.http, self.headers, self.now.bounds, a2a=a2a)
        if raw is None or len(raw) > SMALL_BYTES:
            return await self.admitted(raw, a2a=a2a)
        self.record.bytes_in = len(raw)
        return raw

    async def admitted(
        self, raw: bytes | None, *, a2a: bool = False, cost: Callable[[bytes], float] = cost_of
    ) -> bytes:
        """Returns a body that is not small once it is admitted at its `cost`. If `raw` is None, it reads the body
        first. Raises Refusal like `body`."""
        caller, record = self.record.caller, self.record
        with closing(BodyRoom(self.body_admission, caller.last.name if caller else record.peer)) as room:
            if raw is None:
                raw = await routing.read_body(self.http, self.headers, self.now.bounds, room.grow, room.who, a2a=a2a)
            record.bytes_in = len(raw)
            room.grow(len(raw))
            self.large = await self.body_admission.wait(room.who, cost(raw))
        return raw

    def enter(self, server: str, folder: str, alias: str = "") -> None:
        """Sets the upstream of the address, so that refusals are written in its protocol."""
        record = self.record
        self.front = self.server = record.upstream = server
        self.folder, self.alias = folder, alias
        self.shape = AnswerShape.STATELESS if folder == MCP and record.protocol != "http" else AnswerShape.PLAIN

    def goes_to(self, server: str) -> None:
        """Sets the called upstream, as far as it is known."""
        self.server = self.record.upstream = server

    def asks(self, method: str) -> None:
        self.method = self.record.method = method

    def message_in(self, raw: bytes) -> Message:
        """Reads a body as an MCP message. From then on, refusals carry the message's id and have the form of its
        revision. Raises Refusal(MALFORMED_CALL), whose answer carries the id too if the body looks like a request."""
        record = self.record
        record.bytes_in = len(raw)
        envelope = parse_json(raw)
        try:
            message = message_from(envelope)
        except Refusal:
            self.request_id = record.request_id = request_id_in(envelope)
            if self.request_id is not None and not eras.speaks_stateless(self.headers, envelope):
                self.shape = AnswerShape.SESSION
            raise
        if isinstance(message, Request):
            self.request_id = record.request_id = message.id
        elif isinstance(message, Response):
            self.shape = AnswerShape.SESSION
            return message
        self.method = record.method = message.method
        meta = message.params.get("_meta", NO_META)
        if not CORRELATIONS.isdisjoint(meta):  # they take precedence over those of headers
            self.names_run(meta)
            record.trace_id = routing.trace_id_in(meta.get("traceparent")) or record.trace_id
            if self.spans is not None:
                self.spans.heard(meta)
            meta.pop(BAGGAGE, None)  # the caller's; no upstream receives it, as with the header
        if META_VERSION not in meta and not eras.names_stateless(self.headers, message):
            self.shape = AnswerShape.SESSION
        return message

    def names_run(self, meta: Mapping[str, Any]) -> None:
        """Records the run and the thread that a message names in its `_meta` or `metadata`."""
        record = self.record
        record.run_id = routing.correlation_in(meta.get("run_id")) or record.run_id
        record.thread_id = routing.correlation_in(meta.get("thread_id")) or record.thread_id

    def in_session(self) -> None:
        """Marks the message's session as existing, so that an error in the message does not end it."""
        if self.shape is AnswerShape.SESSION and (self.server == EVERY or self.server in self.now.services):
            self.shape = AnswerShape.LIVE

    def answered(self, result: Mapping[str, Any] | None = None) -> None:
        """Marks the upstream's answer as complete, before it is recorded: the unused part of the charge is returned.
        `result` may report the cost."""
        lease = self.lease
        if lease is None or not lease.plan.settles:
            return
        if result is not None:
            lease.heard(result)
        if lease.answered():
            self.record.limits = lease.states

    def tool_failed(self) -> None:
        """Notes that the delivered answer reports a failure of the tool."""
        if self.record.tool_error:
            return
        self.record.tool_error = True
        if (upstream := self.now.upstreams.get(self.server)) is not None:
            upstream.account.tool_failed()

    async def respond(
        self, status: int, body: bytes = b"", media_type: str = "", headers: Mapping[str, str] = NO_HEADERS
    ) -> web.StreamResponse:
        """Records that the upstream's answer is delivered, and sends it at once, so that the caller does not wait for
        the remaining work. An answer for a paired stream is returned unsent. Raises Refusal(AUDIT_UNAVAILABLE)."""
        await self.ended(status, len(body))
        if self.held is not None:
            return await self.end_held(sse.encode_event(body))
        response = WholeResponse(status, body, media_type, headers)
        if self.paired is None:
            if self.shared:
                response.add(self.shared)
            try:
                response.send(self.http, self.http.transport)
                self.begun = response
            except ConnectionResetError:
                pass  # the caller disconnected, as its connection will detect too
        return response

    def ended(self, status: int, bytes_out: int) -> Coroutine[Any, Any, None]:
        """Records that the upstream's answer was delivered. Raises Refusal(AUDIT_UNAVAILABLE)."""
        self.record.marks["upstream"] = self.record.now_s()
        return self.record.outcome(http_status=status if self.paired is None else 202, bytes_out=bytes_out)

    async def left(self, bytes_out: int) -> None:
        """Records that the caller left a stream, which is a normal end, unless the call has a final record. If that
        fails, AUDIT_UNAVAILABLE is remembered, not raised: it must not replace the cancellation."""
        if self.record.done:
            return
        try:
            await self.ended(200, bytes_out)
        except Refusal as unrecorded:
            await self.remember(unrecorded, 499)

    def break_off(self) -> None:
        """Ends a stream in a way that shows its reader that it is incomplete."""
        if self.http.transport is not None:
            self.http.transport.abort()

    async def remember(self, refusal: Refusal, status: int) -> Refusal:
        """Records a refusal unless the call has a final record. A refusal that cannot be recorded becomes
        AUDIT_UNAVAILABLE."""
        if self.record.done:
            return refusal
        self.refusal, self.record.names = refusal, self.now
        try:
            await self.record.refused(refusal, http_status=self._told(status))
            return refusal
        except asyncio.CancelledError:
            if not self.record.done:  # the caller disconnected while the arguments of a large body were hashed
                with suppress(Refusal):
                    await self.record.refused(refusal, http_status=499)
            raise
        except Refusal as unrecorded:
            self.refusal = unrecorded
            if not self.record.done:  # otherwise it may be recorded already, and must not be recorded twice
                await self.record.refused(unrecorded, http_status=self._told(unrecorded.answer.http))
            return unrecorded

    def _told(self, status: int) -> int:
        """Returns the HTTP status, which is 202 if the answer is sent on another stream."""
        return status if self.paired is None else 202

    async def hold_outlet(self) -> EventStream:
        """Returns the stream on which the caller of a held call is informed. Raises Refusal(CALLER_GONE)."""
        if self.held is None:
            outlet = await self.open_outlet()
            if self.paired is not None:  # it has an outlet for each answer, and its own end
                return outlet
            self.held = outlet
        return self.held

    async def end_held(self, event: bytes) -> web.StreamResponse:
        """Sends the answer on the stream of a held call and ends the stream. An empty answer sends no event."""
        assert self.held is not None
        outlet, self.held = self.held, None
        with suppress(Refusal):  # the caller disconnected; the outcome is recorded
            if event:
                await outlet.write(event)
            await outlet.end()
        return outlet.response

    async def open_outlet(self) -> EventStream:
        """Returns the event stream of the answer, which a held call has already begun. Raises Refusal(CALLER_GONE)."""
        if self.paired is not None:
            return self.paired.outlet()
        if self.held is not None:
            outlet, self.held = self.held, None
            return outlet
        outlet = await open_stream(self.http, self.shared)
        self.begun = outlet.response
        return outlet


def asked_of(call: Call, record: Recording) -> PendingRequest:
    """Returns the call as its session remembers it until the answer."""
    return PendingRequest(call.method, call.question.without_arguments, record.decision_id, record.args_hash)


class Charged(NamedTuple):
    """A permitted and charged operation whose decision is recorded: all data that a frontend needs to carry it out.
    `request` is its context. `timeout_s` is the smallest time-out of the limits that it was charged to."""

    request: Any
    caller: Caller
    content: Any
    decision: Decision
    lease: Lease
    timeout_s: float | None


class Closable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class OpenExchanges:
    """The exchanges on an event stream, and the calls in progress."""

    streams: set[WatchedExchange] = field(default_factory=set)
    calls: set[WatchedExchange] = field(default_factory=set)


class WatchedExchange:
    """A decided call or stream in progress, with its deadline.

    `open` are all exchanges of its kind. `endless` ones have no final answer: they last until their credential or grant
    ends (`until`, in seconds since the epoch, None never ends), and are decided again under every new snapshot
    (`judged_by`). `outlet` takes their events, `span` describes their last message. The fields from `reviewed_by` on
    belong to `reauthorization.py`: rules and time of the last decision, whether the permission was lost, and how much
    had been sent at what time.

    `with exchange:` allows the call to be cut off while it is carried out, and raises Refusal if it was.
    """

    endless = False
    cut: Reason | None = None
    answer: Closable | None = None
    outlet: EventStream | None = None
    span: UpstreamSpan | None = None
    reviewed_by: object = None
    reviewed_s = 0.0
    revoked: Reason | None = None
    revoked_s: float | None = None
    told_bytes = -1
    told_s = 0.0
    _deadline: Deadline | None = None
    _task: asyncio.Task[Any] | None = None
    _cancelling = 0

    def __init__(
        self,
        request: RequestContext,
        caller: Caller,
        call: Call,
        timeout_s: float | None,
        open_exchanges: OpenExchanges,
        until: float | None,
    ) -> None:
        self.request, self.caller, self.call, self.timeout_s = request, caller, call, timeout_s
        self.open, self.judged_by, self.until = open_exchanges, request.now, until

    def __enter__(self) -> Self:
        self.open.calls.add(self)
        task = self._task = asyncio.current_task(self.request.loop)
        assert task is not None
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open.calls.discard(self)
        task, self._task = self._task, None
        was_cut = kind is asyncio.CancelledError and self.cut is not None
        if was_cut and task is not None and task.uncancel() <= self._cancelling:  # otherwise the caller disconnected
            raise Refusal(self.cut or Reason.INTERNAL) from None

    def has_no_end(self) -> None:
        self.endless, self.timeout_s = True, None

    def left_s(self, endless_s: float) -> float:
        """The rest of the deadline, in seconds; `endless_s` without a deadline."""
        request, timeout_s = self.request, self.timeout_s
        if self._deadline is not None:
            ends_at = self.clock().at
        else:
            ends_at = None if timeout_s is None else request.started_s + request.held_s + timeout_s
        return endless_s if ends_at is None else max(0.0, ends_at - request.loop.time())

    def clock(self) -> Deadline:
        """The running deadline, for readers of the answer. They see changes to it."""
        deadline = self._deadline = self._deadline or Deadline(None)
        began_s = self.request.started_s + self.request.held_s
        ends_at = None if self.timeout_s is None else began_s + self.timeout_s
        deadline.at = None if ends_at is None else max(ends_at, deadline.at or ends_at)
        return deadline

    @contextmanager
    def streaming(self, answer: Closable, outlet: EventStream | None = None) -> Iterator[None]:
        """Allows an event stream to be closed from outside while it is passed on. Raises Refusal if it was cut off
        before."""
        if self.cut is not None:
            raise Refusal(self.cut)
        self.answer, self.outlet = answer, outlet
        self.open.streams.add(self)
        try:
            yield
        finally:
            self.open.streams.discard(self)
            self.answer = self.outlet = None  # it may refer back here, and reference cycles are freed late

    def cut_off(self, reason: Reason) -> None:
        """Ends the stream or call because its session or permission has ended or the sidecar stops. Idempotent."""
        if self.cut is not None:
            return
        self.cut = reason
        if self.answer is not None:
            self.answer.close()
        elif self._task is not None:
            self._task.cancel()


class UpstreamExchange(WatchedExchange):
    """One decided MCP call and its server. `outward` None is the server's own address, at which messages are unchanged.
    With progress, the call may take `longest_s` in total, if that is more than `timeout_s`."""

    outward: AggregateNames | None = None
    longest_s = 0.0

    def __init__(
        self,
        request: RequestContext,
        caller: Caller,
        call: Call,
        timeout_s: float | None,
        open_exchanges: OpenExchanges,
        until: float | None,
        service: Service,
        session: Session | None,
    ) -> None:
        super().__init__(request, caller, call, timeout_s, open_exchanges, until)
        self.service, self.session = service, session

    @property
    def asked(self) -> PendingRequest:
        return asked_of(self.call, self.request.record)

    def wait_for_caller(self) -> None:
        """Extends the deadline to at least `sessions.question_timeout_s` from now, because a person may have to answer
        the server's request."""
        if (deadline := self._deadline) is not None and deadline.at is not None:
            patience_s = self.request.now.settings.sessions.question_timeout_s
            deadline.at = max(deadline.at, self.request.loop.time() + patience_s)

    def progressed(self) -> None:
        """Handles a progress notification: if the server's settings say so, it restarts the time-out, up to
        `longest_s` in total."""
        deadline, timeout_s = self._deadline, self.timeout_s
        if deadline is None or deadline.at is None or timeout_s is None or self.longest_s <= timeout_s:
            return
        request = self.request
        again = min(request.loop.time() + timeout_s, request.started_s + request.held_s + self.longest_s)
        deadline.at = max(deadline.at, again)

    def post(self, message: Message | None, last_event_id: str | None = None) -> Coroutine[Any, Any, UpstreamAnswer]:
        """Sends a message to the upstream, or a GET if it is None. Awaited, it returns when the head of the answer has
        arrived."""
        request, session, service, verb, span = self.request, self.session, self.service, "POST", None
        if request.spans is not None:
            span, extra, message = request.spans.toward(self, message)
        else:
            extra = routing.trace_headers(request.headers) if "traceparent" in request.headers else []
        if message is None:
            verb = "GET"
        elif request.parameter_headers:
            extra += request.parameter_headers
        version, session_id = self.call.protocol_version, None if session is None else session.upstream_id
        left_s = self.left_s(service.timeout_s)
        sent = verb, message, version, left_s, session_id, self.caller, last_event_id, extra, self.endless, False, never
        answering = service.upstream.exchange(_new(Outbound, sent))
        return answering if span is None else span.followed(answering)

    def listen(self, last_event_id: str | None) -> Coroutine[Any, Any, UpstreamAnswer]:
        """Opens the upstream session's own stream, or resumes one of its streams."""
        return self.post(None, last_event_id)

    @property
    def patience_s(self) -> float:
        """How many seconds the upstream may take to begin its answer: the rest of the deadline, or its time-out."""
        return self.left_s(self.service.timeout_s)
