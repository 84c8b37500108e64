"""Sends operations to agents over gRPC.

The messages are encoded here and sent over a grpc channel. The gRPC status distinguishes an agent's error from a
failure of the connection; `google.rpc.ErrorInfo`, if the agent sends it, identifies the error.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
from grpc import aio

from sidecar.errors import Reason, Refusal
from sidecar.http.client import DIRECT, Deadline, Egress, TargetOrigin, parse_origin
from sidecar.http.tls import trusted_pem
from sidecar.protocols.a2a.errors import BY_NAME, BY_REASON, AgentError
from sidecar.protocols.a2a.forms import FORMS
from sidecar.protocols.a2a.operations import Operation, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.a2a.status import DETAILS, infos_in
from sidecar.protocols.a2a.v03 import request_name, response_name
from sidecar.protocols.a2a.wire import WIRES
from sidecar.protocols.jsonrpc import MAX_ANSWER_DEPTH, MAX_ANSWER_VALUES
from sidecar.upstreams.agents.transport import AgentEvents, Declined, OutgoingOperation, Result, unreadable, unsaid
from sidecar.upstreams.credentials.source import CredentialSource, Header

SERVICES: Final[Mapping[Version, str]] = {"1.0": "lf.a2a.v1.A2AService", "0.3": "a2a.v1.A2AService"}
# Failures of the connection. A caller can cause any other status outside A2A.
_TROUBLE: Final = frozenset({"UNAVAILABLE", "INTERNAL", "UNKNOWN", "DATA_LOSS"})
STREAMS_EACH: Final = 50  # per connection; servers allow a hundred by default
MAX_BACKOFF_MS: Final = 2000  # the breaker decides how often to reconnect; grpc's own limit is two minutes
_CODES: Final[Mapping[str, int]] = {
    "NOT_FOUND": -32001,
    "INVALID_ARGUMENT": -32602,
    "FAILED_PRECONDITION": -32004,
    "UNIMPLEMENTED": -32004,
    "OUT_OF_RANGE": -32602,
}


class GrpcAgent:
    """An agent over gRPC."""

    def __init__(
        self,
        url: str,
        version: Callable[[], Version],
        *,
        credential: CredentialSource,
        headers: Sequence[tuple[str, str]],
        max_response_bytes: int,
        egress: Egress = DIRECT,
    ) -> None:
        parts = urlsplit(url)
        self._proxy = egress.proxy_for(grpc_origin(url))
        self._target = parts.netloc
        self._secure = parts.scheme == "grpcs"
        self._trusted = trusted_pem(egress.authorities).encode() if self._secure else b""
        self._version = version
        self.secrets = credential
        self._headers = tuple((name.lower(), value) for name, value in headers)
        self._max_bytes = max_response_bytes
        self._calls: aio.Channel | None = None
        self._streams = Counter[aio.Channel]()  # the number of streams on each

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        version = self._version()
        if not outgoing.operation.grpc(version):  # not the agent's fault: 0.3 has no such method
            return AgentError(BY_REASON["METHOD_NOT_FOUND"].code, f"gRPC of A2A {version} has no such operation")
        path, body, metadata, shown, deadline_s = await self._written(outgoing, version)
        try:
            self._calls = self._calls or self._opened()
            method: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._calls.unary_unary(path)
            raw = await method(body, timeout=deadline_s, metadata=metadata)
        except aio.AioRpcError as error:
            self._unwelcome(outgoing, shown, error)
            return _said(error)
        except asyncio.CancelledError:
            raise _given_up() from None
        except aio.BaseError:
            raise _unsendable() from None
        return _read(outgoing.operation, version, raw)

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        version = self._version()
        path, body, metadata, shown, _ = await self._written(outgoing, version)
        # Never a connection of calls: an agent accepts a limited number of streams on each.
        channel = next((one for one, held in self._streams.items() if held < STREAMS_EACH), None) or self._opened()
        self._streams.setdefault(channel, 0)
        method: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
        try:
            call = method(body, metadata=metadata)
        except aio.BaseError:
            raise _unsendable() from None
        self._streams[channel] += 1
        over = partial(self._streams.subtract, (channel,))
        return GrpcStream(call, outgoing.operation, version, partial(self._unwelcome, outgoing, shown), over)

    def _unwelcome(self, outgoing: OutgoingOperation, shown: Header | None, error: aio.AioRpcError) -> None:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and shown is not None:
            self.secrets.refused(outgoing.caller, shown)

    async def _written(
        self, outgoing: OutgoingOperation, version: Version
    ) -> tuple[str, bytes, tuple[tuple[str, str], ...], Header | None, float]:
        operation = outgoing.operation
        method = operation.grpc(version)
        name = request_name(operation, version)
        try:
            body = WIRES[version].encode(name, FORMS[version, "grpc"].write_params(operation, outgoing.params))
        except UnreadableMessage as error:
            raise unsaid(error) from None
        metadata = [("a2a-version", version), *self._headers, *outgoing.extra]
        if outgoing.extensions:
            name = "a2a-extensions" if version == "1.0" else "x-a2a-extensions"
            metadata.append((name, ",".join(outgoing.extensions)))
        shown, deadline_s = await self.secrets.header_within(outgoing.caller, outgoing.deadline_s)
        if shown is not None:
            metadata.append((shown[0].lower(), shown[1]))
        return f"/{SERVICES[version]}/{method}", body, tuple(metadata), shown, deadline_s

    def _opened(self) -> aio.Channel:
        options = [
            ("grpc.max_receive_message_length", self._max_bytes),
            ("grpc.enable_retries", 0),
            *self._proxy_options(),
            ("grpc.max_reconnect_backoff_ms", MAX_BACKOFF_MS),
            ("grpc.use_local_subchannel_pool", 1),  # otherwise all channels would share one connection
        ]
        if self._secure:
            shown = grpc.ssl_channel_credentials(self._trusted or None)
            return aio.secure_channel(self._target, shown, options=options)
        return aio.insecure_channel(self._target, options=options)

    def _proxy_options(self) -> Iterator[tuple[str, int | str]]:
        yield "grpc.enable_http_proxy", int(self._proxy is not None)
        if self._proxy is not None:
            yield "grpc.http_proxy", self._proxy.url_with_login

    async def close(self) -> None:
        for channel in (self._calls, *self._streams):
            if channel is not None:
                await channel.close(0.0)
        await self.secrets.close()


def grpc_origin(url: str) -> TargetOrigin:
    """Returns the destination of a URL of gRPC, in the form that a proxy sees."""
    parts = urlsplit(url)
    return parse_origin(f"{'https' if parts.scheme == 'grpcs' else 'http'}://{parts.netloc}")


class GrpcStream:
    """The messages of a streaming call. `over` is called once, when the stream is no longer needed."""

    def __init__(
        self,
        call: Any,
        operation: Operation,
        version: Version,
        unwelcome: Callable[[aio.AioRpcError], None],
        over: Callable[[], None],
    ) -> None:
        self._call = call
        self._unwelcome = unwelcome
        self._over: Callable[[], None] | None = over
        self._operation = operation
        self._version = version

    async def events(self, deadline: Deadline, idle_s: float) -> AsyncGenerator[Result | AgentError | None, None]:
        loop = asyncio.get_running_loop()
        try:
            while True:
                until = min(loop.time() + idle_s, inf if deadline.at is None else deadline.at)
                async with asyncio.timeout_at(until):
                    raw = await self._call.read()
                if raw is aio.EOF:
                    return
                yield _read(self._operation, self._version, raw)
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT) from None
        except aio.AioRpcError as error:
            self._unwelcome(error)
            yield _said(error)
        except asyncio.CancelledError:
            raise _given_up() from None
        except aio.BaseError:
            raise _unsendable() from None

    def close(self) -> None:
        self._call.cancel()
        if self._over is not None:
            self._over()
            self._over = None


def _given_up() -> BaseException:
    """Returns the error to raise for a CancelledError of grpc, which raises it if the waiting task is cancelled and
    also if only the call is."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return Refusal(Reason.UPSTREAM_FAILED, "its answer broke off")


def _unsendable() -> Refusal:
    """Returns the refusal of a call that grpc rejects: the connection is closed, or a header is invalid."""
    return Refusal(Reason.UPSTREAM_FAILED, "the call cannot be sent over gRPC")


def _read(operation: Operation, version: Version, raw: bytes | None) -> Result:
    name = response_name(operation, version)
    if not name:
        return {}
    if raw is None:
        raise Refusal(Reason.RESPONSE_REFUSED, "it answered without a message")
    try:
        given = WIRES[version].decode(name, raw, MAX_ANSWER_DEPTH, MAX_ANSWER_VALUES)
        return FORMS[version, "grpc"].read_result(operation, given)
    except UnreadableMessage as error:
        raise unreadable(error) from None


def _said(error: aio.AioRpcError) -> AgentError:
    """Returns the agent's own error. Raises Refusal if the error does not come from the agent."""
    status = error.code().name
    metadata = error.trailing_metadata() or ()
    details = [value for name, value in metadata if name == DETAILS and isinstance(value, bytes)]
    infos = [info for raw in details for info in infos_in(raw)]
    kind = next((BY_REASON[info["reason"]] for info in infos if info["reason"] in BY_REASON), None)
    message = (error.details() or "")[:1024]
    if kind is not None:
        return AgentError(kind.code, message, tuple(infos))
    name, _, rest = message.partition(": ")
    if name in BY_NAME:
        return AgentError(BY_NAME[name].code, rest, tuple(infos))
    if status == "DEADLINE_EXCEEDED":
        raise Refusal(Reason.UPSTREAM_TIMEOUT)
    if status in _TROUBLE:
        raise Refusal(Reason.UPSTREAM_FAILED, f"it answered {status}")
    if status not in _CODES:
        raise Declined(f"it answered {status}")
    return AgentError(_CODES[status], message, tuple(infos))
