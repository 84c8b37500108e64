"""Serves A2A over gRPC.

One handler serves every method of both versions, unary and streaming. Each call becomes a request like any other and
passes `gateway/pipeline.py`; only its encoding differs: Protocol Buffers, and gRPC's own status in place of HTTP's. The
port, the tenant (1.0) or the authority identifies the agent. A proxy passes the authority in a header because grpc does
not expose it. If there is only one agent, it is the default.

`frontends/grpc_listener.py` has the parts that all services of the listener share.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
from aiohttp import HttpVersion11, web
from grpc import aio

from sidecar.errors import Refusal
from sidecar.gateway.error_responses import DenyManner, ErrorResponse, facts_of
from sidecar.gateway.frontends.a2a import response_writers
from sidecar.gateway.frontends.a2a.request_reader import CalledName
from sidecar.gateway.frontends.a2a.response_writers import ResponseWriter, info_of, sentence_for, word_for
from sidecar.gateway.frontends.grpc_listener import GrpcService, WriterStuck, peer_at, send
from sidecar.http.server.event_stream import EventStream
from sidecar.http.server.response import SilentResponse, WholeResponse
from sidecar.http.tls import NOTHING, ShownCertificate
from sidecar.protocols.a2a.errors import AgentError, AgentErrorKind
from sidecar.protocols.a2a.forms import FORMS
from sidecar.protocols.a2a.operations import BY_GRPC, Operation, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.a2a.status import DETAILS, encode_status
from sidecar.protocols.a2a.v03 import request_name, response_name
from sidecar.protocols.a2a.wire import WIRES
from sidecar.protocols.jsonrpc import INVALID_PARAMS, MAX_DEPTH, has_nul, malformed

SERVICES: Final[dict[str, Version]] = {"lf.a2a.v1.A2AService": "1.0", "a2a.v1.A2AService": "0.3"}
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
NOWHERE: Final = "/agents/-"  # no agent can have this name
# Clients accept 8 KiB of trailers. A sentence occurs in them twice, once with three characters for each byte.
MAX_SENTENCE_BYTES, MAX_DETAILS_BYTES = 1024, 3072
MAX_SENT_VALUES: Final = 40_000  # in one request: each value becomes a Python object, at 1 us each
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_STATUS = {code.name: code for code in grpc.StatusCode}


@dataclass(slots=True)
class GrpcWriter(ResponseWriter):
    """Writes answers in Protocol Buffers. `failure` is the status of a failed call."""

    failure: tuple[str, str, bytes] | None = None

    binding = "grpc"

    def result(self, operation: Operation, result: dict[str, Any]) -> ErrorResponse:
        return ErrorResponse(200, self.event(operation, result), "application/grpc")

    def event(self, operation: Operation, event: dict[str, Any]) -> bytes:
        name = response_name(operation, self.version)
        said = response_writers.written(self, operation, event) if name else {}
        try:
            return WIRES[self.version].encode(name, said)
        except UnreadableMessage as error:
            raise response_writers.unsayable(error) from None

    def error(self, error: AgentError) -> ErrorResponse:
        kind = error.kind
        self._fail(kind.grpc, kind, error.message or kind.message, response_writers.details_of(error))
        return ErrorResponse(kind.http, b"", "application/grpc")

    def error_event(self, error: AgentError) -> bytes:
        self.error(error)
        return b""

    def refusal(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse:
        facts, word = facts_of(refusal, decision_id, manner), word_for(refusal)
        self._fail(response_writers.grpc_status(refusal), word, sentence_for(refusal, facts), [info_of(word, facts)])
        return ErrorResponse(refusal.answer.http if refusal.answer.http >= 400 else 400, b"", "application/grpc")

    def refusal_event(self, refusal: Refusal, decision_id: str, manner: DenyManner) -> bytes:
        self.refusal(refusal, decision_id, manner, "")
        return b""

    def _fail(self, status: str, word: AgentErrorKind | None, message: str, infos: Sequence[dict[str, Any]]) -> None:
        said = f"{word.name}: {message}" if word is not None and self.version == "0.3" else message
        said = said.encode()[:MAX_SENTENCE_BYTES].decode(errors="ignore")
        details = encode_status(status, said, list(infos))
        if len(details) > MAX_DETAILS_BYTES:  # clients abort a call whose trailers are too long
            details = encode_status(status, said, [{**info, "metadata": {}} for info in infos[:1]])
        self.failure = status, said, details


@dataclass(slots=True)
class GrpcRequest(CalledName):
    """A call as the pipeline sees it: the parts of an HTTP request that it reads, and the call itself. `broken` is the
    reason why the message is unusable, None for a complete one."""

    agent: str
    operation: Operation
    body: bytes
    broken: Refusal | None
    context: Any
    raw_headers: Sequence[tuple[bytes, bytes]]
    dialect: GrpcWriter
    sent: GrpcEventStream
    method: str = "POST"
    version: Any = HttpVersion11
    transport: None = None
    shown: ShownCertificate = NOTHING
    head: None = None

    @property
    def raw_path(self) -> str:
        return f"/agents/{self.agent}/" if self.agent else NOWHERE

    @property
    def remote(self) -> str:
        return peer_at(self.context)[0]

    def params(self) -> dict[str, Any]:
        if self.broken is not None:
            raise self.broken
        name = request_name(self.operation, self.dialect.version)
        try:
            given = WIRES[self.dialect.version].decode(name, self.body, MAX_DEPTH, MAX_SENT_VALUES)
            params = FORMS[self.dialect.version, "grpc"].read_params(self.operation, given)
        except UnreadableMessage as error:
            raise malformed(str(error), INVALID_PARAMS) from None
        if b"\0" in self.body and has_nul(params):  # as for JSON; a zero byte alone does not prove a NUL character
            raise malformed("the message has a NUL character", INVALID_PARAMS)
        if params.get("tenant") == self.agent:
            del params["tenant"]  # it named the agent
        return params

    def outlet(self) -> EventStream:
        return self.sent


@dataclass(slots=True)
class GrpcEventStream(EventStream):
    """The messages of an answer. `is_stuck` is set when the caller does not read them. HTTP/2 has its own pings, and
    returning from the call ends the answer."""

    context: Any
    is_stuck: bool = False

    async def write(self, data: bytes) -> None:
        """Sends events as messages. Comments are dropped, because gRPC has none; failures become the status."""
        if not data or data.startswith(b":"):
            return
        self.bytes_out += len(data)
        await self.send(data)

    async def send(self, message: bytes) -> None:
        """Sends one message. Raises Refusal(CALLER_GONE) if the caller disconnected or does not read."""
        try:
            await send(self.context, message)
        except WriterStuck:
            self.is_stuck = True
            raise


@dataclass(slots=True, kw_only=True, eq=False)
class GrpcCalls(GrpcService):
    """Handles every method of every version of A2A at one port. `agent` is the agent of the port; for a call that names
    no agent, `meant` finds one by the first label of the authority that a proxy passes on in the header `authority` (""
    for none)."""

    handle: Handle
    agent: str
    meant: Callable[[str], str]
    authority: str

    def service(self, details: Any) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Returns the handler of a method (grpc's interface)."""
        service, _, method = details.method[1:].partition("/")
        version = SERVICES.get(service)
        operation = BY_GRPC[version].get(method) if version is not None else None
        if version is None or operation is None:
            return None

        async def called(messages: AsyncIterator[bytes], context: Any) -> None:
            await self._answer(operation, version, messages, context)

        return self.handler(called)

    async def _answer(
        self, operation: Operation, version: Version, messages: AsyncIterator[bytes], context: Any
    ) -> None:
        body, broken = b"", None
        try:
            body = await self.message(messages)
        except Refusal as refusal:
            broken = refusal
        tenant = WIRES["1.0"].text_in(operation.request, body, "tenant") if version == "1.0" else ""
        agent = self.agent or tenant or self.meant(_label(context, self.authority))
        dialect, sent = GrpcWriter(version), GrpcEventStream(web.StreamResponse(), context)
        name = agent if _NAME.fullmatch(agent) else ""
        request = GrpcRequest(name, operation, body, broken, context, _headers(context, version), dialect, sent)
        response = await self.handle(request)  # type: ignore[arg-type]
        if isinstance(response, SilentResponse):  # the connection may carry other callers' calls: end this call only
            dialect.failure = "CANCELLED", "", b""
        if dialect.failure is None and isinstance(response, WholeResponse):
            with suppress(Refusal):
                await sent.send(response.body or b"")
        if sent.is_stuck:
            dialect.failure = "CANCELLED", "the caller does not read the answer", b""
        if dialect.failure is not None:
            status, message, details = dialect.failure
            if details:
                context.set_trailing_metadata(((DETAILS, details),))
            with suppress(aio.InternalError):  # the caller may have disconnected
                await context.abort(_STATUS[status], message)


def _label(context: Any, header: str) -> str:
    """Returns the first label of the authority that the call was sent to, if a proxy passes it on exactly once."""
    found = {value for name, value in context.invocation_metadata() or () if name == header}
    label, dot, _ = str(found.pop()).partition(".") if len(found) == 1 else ("", "", "")
    return label if dot else ""


def _headers(context: Any, version: Version) -> list[tuple[bytes, bytes]]:
    """Returns all metadata as headers. The version is that of the service, whatever version the metadata has."""
    found = [(b"a2a-version", version.encode())]
    for name, value in context.invocation_metadata() or ():
        if name != "a2a-version" and not name.endswith("-bin"):
            found.append((name.encode(), value.encode() if isinstance(value, str) else value))
    return found
