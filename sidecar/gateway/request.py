"""The context of one request as it passes through the pipeline.

`RequestContext` is the request as the caller's side sees it, `UpstreamExchange` the decided call as the upstream's side
does. Both are filled as the stages go; what is in them is never read to decide what an earlier stage has decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from aiohttp import web

from sidecar.audit import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway.error_responses import AnswerShape, DenyManner, ErrorResponse
from sidecar.gateway.routing import (
    AGENTS,
    EVERY,
    MCP,
    TASK_API,
    Headers,
    correlation_in,
    origin_form,
    read_body,
    trace_headers,
    trace_id_in,
)
from sidecar.gateway.snapshot import Service, Snapshot
from sidecar.gateway.sse_session import SseSession
from sidecar.http.client import Deadline
from sidecar.http.server.body_admission import BodyAdmission, BodyRoom, cost_of, cost_of_wire
from sidecar.http.server.cors import Lines
from sidecar.http.server.event_stream import EventStream, open_stream
from sidecar.identity import NOTHING_PRESENTED, Presented
from sidecar.limits import Lease, LimitPlan
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Id, Message, Notification, Request
from sidecar.protocols.mcp import eras
from sidecar.protocols.mcp.eras import EraHeaders
from sidecar.upstreams import Outbound, UpstreamAnswer
from sidecar.upstreams.mcp.sessions import PendingRequest, Session
from sidecar.vocabulary import ANONYMOUS, Call, Caller


class RefusalWriter(Protocol):
    """A protocol in which answers look otherwise than MCP's."""

    def tell(
        self, refusal: Refusal, *, decision_id: str, request_id: Id | None, manner: DenyManner, resource_metadata: str
    ) -> ErrorResponse:
        """A refusal, in its words."""


class OutwardNames(Protocol):
    """How a server's messages look at the address that they leave by. Each is judged before."""

    def result(self, result: dict[str, Any]) -> dict[str, Any]: ...
    def notification(self, notification: Notification) -> Notification: ...
    def request(self, request: Request) -> Request | None:
        """None for one that cannot be asked there."""

    def event_id(self, sealed: str) -> str: ...


@dataclass(slots=True)
class RequestContext:
    """One request on its way: what is known of it so far. The stages fill it in.

    `front` is the name in its address (EVERY is the address of all servers, None is none that we have), `folder` what
    stands before it, `server` whom the call is for. In `shadow` mode `excused` are the limits' refusals that it passed
    by. `shared` is what answers say to a web page that may read them. `paired` is the stream on which its answer goes
    out, where that is another request's (`sse_session.py`); HTTP has heard 202 then, and while it is `handed_on`, the
    turn has an end still to come. `prefix` is the path under which callers see us, `base` our address as a local caller
    knows it. `presented` is what the caller brought to prove who it is. `unanswered`: it was closed without a word.
    `cut`: the sidecar goes, and waits for it no more. `dialect` is how refusals are told where not as MCP tells them.
    `lease` is what the call holds of its limits. `large`: its body is one that the loop feels. `alias` is the path that
    an agent was called by, where that is one of its own.
    """

    request: web.BaseRequest
    now: Snapshot
    headers: Headers
    record: Recording
    pace: BodyAdmission
    protocol: str = "mcp"
    large: bool = False
    front: str | None = None
    folder: str = MCP
    alias: str = ""
    server: str = ""
    outward: OutwardNames | None = None
    shape: AnswerShape = AnswerShape.PLAIN
    dialect: RefusalWriter | None = None
    request_id: Id | None = None
    method: str = ""
    plan: LimitPlan | None = None
    lease: Lease | None = None
    shadow: bool = False
    excused: list[Refusal] = field(default_factory=list)
    refusal: Refusal | None = None
    begun: web.StreamResponse | None = None
    paired: SseSession | None = None
    handed_on: bool = False
    unanswered: bool = False
    cut: bool = False
    shared: Lines = ()
    prefix: str = ""
    base: str = ""
    presented: Presented = NOTHING_PRESENTED
    parameter_headers: list[tuple[str, str]] = field(default_factory=list)
    started_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def plain(self) -> bool:
        """Whether this is HTTP for people and scripts, without MCP's envelope."""
        return self.protocol == "http"

    @property
    def raw_path(self) -> str:
        """Path and query, however the target was written."""
        return origin_form(self.request.raw_path)

    @property
    def verb(self) -> str:
        return self.request.method

    @property
    def presented_kind(self) -> str:
        """The kind of credential that came, believed or not."""
        kind = self.presented.kinds[0]
        return kind if kind != ANONYMOUS else "none"

    async def body(self, *, a2a: bool = False) -> bytes:
        """The whole body, when it is its turn. Raises Refusal, as `arrival.read_body` and `BodyAdmission.wait` do."""
        with self._room() as room:
            raw = await read_body(self.request, self.headers, self.now.bounds, room.grow, who=room.who, a2a=a2a)
            self.record.bytes_in = len(raw)
            self.large = await self.pace.wait(room.who, cost_of(raw))
        return raw

    async def came(self, raw: bytes) -> None:
        """A message of Protocol Buffers is there as a whole; come back when it is its turn. Raises Refusal."""
        with self._room() as room:
            self.record.bytes_in = len(raw)
            room.grow(len(raw))
            self.large = await self.pace.wait(room.who, cost_of_wire(raw))

    def _room(self) -> closing[BodyRoom]:
        caller = self.record.caller
        return closing(self.pace.room(caller.last.name if caller else self.record.peer))

    async def breathe(self) -> None:
        """Between two steps that take long with a large body: the others' calls go on."""
        if self.large:
            await asyncio.sleep(0)

    def enter(self, server: str, folder: str, alias: str = "") -> None:
        """The address is an upstream's: from here on refusals are told in its protocol."""
        self.front, self.folder, self.alias = server, folder, alias
        self.shape = AnswerShape.PLAIN if self.plain or folder in (AGENTS, TASK_API) else AnswerShape.STATELESS
        self.goes_to(server)

    def goes_to(self, server: str) -> None:
        """Whom the call is for, as far as it is known."""
        self.server = self.record.upstream = server

    def asks(self, method: str) -> None:
        """What it will be a call of, before its body is read."""
        self.method = self.record.method = method

    def address(self, message: jsonrpc.Message, head: EraHeaders) -> None:
        """There is a message: refusals are told to its id, in its era."""
        if isinstance(message, Request):
            self.request_id = self.record.request_id = message.id
        if isinstance(message, jsonrpc.Response):
            self.shape = AnswerShape.SESSION
            return
        self.asks(message.method)
        self._correlate(message.params.get("_meta"))
        if not eras.names_stateless(head, message):
            self.shape = AnswerShape.SESSION

    def _correlate(self, meta: Mapping[str, Any] | None) -> None:
        """Which run, thread and trace the message says that it is of: nearer to the call than a header is."""
        if meta:
            record = self.record
            record.run_id = correlation_in(meta.get("run_id")) or record.run_id
            record.thread_id = correlation_in(meta.get("thread_id")) or record.thread_id
            record.trace_id = trace_id_in(meta.get("traceparent")) or record.trace_id

    def address_faulty(self, envelope: object, head: EraHeaders) -> None:
        """There is a JSON value that is no message: its refusal is told to its id, if it is meant as a request."""
        self.request_id = self.record.request_id = jsonrpc.request_id_in(envelope)
        if self.request_id is not None and not eras.speaks_stateless(head, envelope):
            self.shape = AnswerShape.SESSION

    def in_session(self) -> None:
        """The session that a message of the session era names is there, and so is its server: whatever is wrong with
        the message, the session goes on."""
        if self.shape is AnswerShape.SESSION and (self.server == EVERY or self.server in self.now.services):
            self.shape = AnswerShape.LIVE

    def excuse(self, refusal: Refusal) -> bool:
        """Whether shadow mode lets the call pass that a limit refused; then it is on record that it would not have."""
        if self.shadow:
            self.excused.append(refusal)
            name = f"limit:{refusal.limit.name}" if refusal.limit else refusal.reason.value
            self.record.excused = (*self.record.excused, name)
        return self.shadow

    def answered(self, result: Mapping[str, Any] | None = None) -> None:
        """The upstream's answer is whole, before it is on record: what the call did not cost comes back."""
        if self.lease is None:
            return
        if result is not None:
            self.lease.heard(result)
        if self.lease.answered():
            self.record.limits = self.lease.states

    def tool_failed(self) -> None:
        """The answer that is delivered says that what was asked for failed there."""
        if self.record.tool_error:
            return
        self.record.tool_error = True
        if (upstream := self.now.upstreams.get(self.server)) is not None:
            upstream.account.tool_failed()

    async def ended(self, status: int, bytes_out: int) -> None:
        """Put on record that the answer is the upstream's. Raises Refusal(AUDIT_UNAVAILABLE)."""
        self.record.mark("upstream")
        await self.record.outcome(http_status=self._told(status), bytes_out=bytes_out)

    def break_off(self) -> None:
        """End a stream so that its reader sees that it is not whole."""
        if self.request.transport is not None:
            self.request.transport.abort()

    async def remember(self, refusal: Refusal, status: int) -> Refusal:
        """Put a refusal on record, if nothing terminal is. What cannot be recorded is refused as exactly that."""
        if self.record.done:
            return refusal
        self.refusal, self.record.names = refusal, self.now
        try:
            await self.record.refused(refusal, http_status=self._told(status))
            return refusal
        except Refusal as unrecorded:
            self.refusal = unrecorded
            if not self.record.done:  # else it may be on record by now, and two would be one too many
                await self.record.refused(unrecorded, http_status=self._told(unrecorded.answer.http))
            return unrecorded

    def let_go(self) -> None:
        """It is over. Of what leads back here nothing is kept: a body of a megabyte must not wait for the collector."""
        self.refusal = self.lease = None
        self.excused.clear()

    def _told(self, status: int) -> int:
        """What HTTP says, and said already where the answer goes another way."""
        return status if self.paired is None else 202

    async def open_outlet(self) -> EventStream:
        """The way out for an answer of several events. Raises Refusal(CALLER_GONE)."""
        if self.paired is not None:
            return self.paired.outlet()
        outlet = await open_stream(self.request, self.shared)
        self.begun = outlet.response
        return outlet


def asked_of(call: Call, record: Recording) -> PendingRequest:
    """What a call is remembered as."""
    return PendingRequest(call.method, call.question.without_arguments, record.decision_id, record.args_hash)


class Closable(Protocol):
    """What can be ended from outside."""

    def close(self) -> None:
        """Twice is no fault."""


@dataclass(slots=True, eq=False)
class WatchedExchange:
    """What was decided and is under way: a call, or a stream, with the deadline that it has.

    `streams` are all that pass an event stream on right now. `endless` ones have no answer to end with: they last until
    their credential or grant does (`until`, in seconds since the epoch, None never ends), and are decided anew under
    every new snapshot (`judged_by`). `outlet` is where its events go out. From `reviewed_by` on, all is
    `reauthorization.py`'s: by what and when it was judged last, whether it lost its permission, and what its reader was
    sent by when.
    """

    turn: RequestContext
    caller: Caller
    call: Call
    timeout_s: float | None
    streams: set[WatchedExchange]
    judged_by: Snapshot
    until: float | None
    endless: bool = False
    cut: Reason | None = None
    answer: Closable | None = None
    outlet: EventStream | None = None
    cancelling: asyncio.Timeout | None = None
    reviewed_by: object = None
    reviewed_s: float = 0.0
    revoked: Reason | None = None
    revoked_s: float | None = None
    told_bytes: int = -1
    told_s: float = 0.0
    deadline: Deadline = field(default_factory=lambda: Deadline(None))

    def has_no_end(self) -> None:
        """This is a stream that goes on until somebody ends it."""
        self.endless, self.timeout_s = True, None

    @property
    def _ends_at(self) -> float | None:
        return None if self.timeout_s is None else self.turn.started_s + self.timeout_s

    @property
    def left_s(self) -> float | None:
        """What is left of the deadline, in seconds."""
        ends_at = self.clock().at
        return None if ends_at is None else max(0.0, ends_at - asyncio.get_running_loop().time())

    def clock(self) -> Deadline:
        """The deadline, running, for who reads the answer. What moved it holds."""
        ends_at = self._ends_at
        self.deadline.at = None if ends_at is None else max(ends_at, self.deadline.at or ends_at)
        return self.deadline

    @contextmanager
    def streaming(self, answer: Closable, outlet: EventStream | None = None) -> Iterator[None]:
        """While an event stream is passed on: it is counted, and it can be cut off from outside. Raises Refusal if
        it was cut off before it began."""
        if self.cut is not None:
            raise Refusal(self.cut)
        self.answer, self.outlet = answer, outlet
        self.streams.add(self)
        try:
            yield
        finally:
            self.streams.discard(self)
            self.answer = self.outlet = None  # it may lead back here, and what goes round in circles is freed late

    @asynccontextmanager
    async def under_way(self, calls: set[WatchedExchange]) -> AsyncIterator[None]:
        """While a call is carried out, it is one of `calls`, and whatever it waits for, it can be cut off. Raises
        Refusal if it was."""
        calls.add(self)
        try:
            async with asyncio.timeout(None) as self.cancelling:
                yield
        except TimeoutError:
            if self.cut is None:
                raise
            raise Refusal(self.cut) from None
        finally:
            calls.discard(self)
            self.cancelling = None

    def cut_off(self, reason: Reason) -> None:
        """End the stream or the call: its session is over, or its permission, or the sidecar is. Twice is no fault."""
        if self.cut is not None:
            return
        self.cut = reason
        if self.answer is not None:
            self.answer.close()
        elif self.cancelling is not None:
            self.cancelling.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True, eq=False)
class UpstreamExchange(WatchedExchange):
    """One decided call of MCP, and its server. `outward` None is the server's own address: all goes as it is. With
    progress it may take `longest_s` in all, where that is more than `timeout_s`."""

    service: Service = field(kw_only=True)
    session: Session | None = field(kw_only=True)
    outward: OutwardNames | None = None
    longest_s: float = 0.0

    @property
    def asked(self) -> PendingRequest:
        """What an answer to it is an answer to, also when it comes on another stream."""
        return asked_of(self.call, self.turn.record)

    def wait_for_caller(self) -> None:
        """The server asked the caller something: a person may have to think, and the call's clock stands still for as
        long as `sessions.question_timeout_s` says."""
        if self.deadline.at is not None:
            patience_s = self.turn.now.settings.sessions.question_timeout_s
            self.deadline.at = max(self.deadline.at, asyncio.get_running_loop().time() + patience_s)

    def progressed(self) -> None:
        """The server told of progress, which gives the call its time anew where its settings say so."""
        if self.deadline.at is not None and self.timeout_s is not None and self.longest_s > self.timeout_s:
            again = min(asyncio.get_running_loop().time() + self.timeout_s, self.turn.started_s + self.longest_s)
            self.deadline.at = max(self.deadline.at, again)

    async def post(self, message: Message) -> UpstreamAnswer:
        """Send one message and wait for the head of what comes back."""
        return await self.service.upstream.exchange(self._outbound("POST", message, None))

    async def listen(self, last_event_id: str | None) -> UpstreamAnswer:
        """Open the upstream session's own stream, or the rest of one of its streams."""
        return await self.service.upstream.exchange(self._outbound("GET", None, last_event_id))

    def _outbound(self, verb: Literal["POST", "GET"], message: Message | None, last_event_id: str | None) -> Outbound:
        return Outbound(
            verb,
            message,
            self.call.protocol_version,
            self.patience_s,
            self.session.upstream_id if self.session else None,
            self.caller,
            last_event_id,
            trace_headers(self.turn.headers) + (self.turn.parameter_headers if verb == "POST" else []),
            self.endless,
        )

    @property
    def patience_s(self) -> float:
        """How long the upstream may take to begin its answer: what is left, or its own time-out for endless streams."""
        left_s = self.left_s
        return self.service.timeout_s if left_s is None else left_s
