"""Sends messages to MCP servers over Streamable HTTP.

The request is built from what was decided: allow-listed headers, the upstream's own Host, the upstream credential.
Nothing of the caller's request is copied, its credential least of all (CONTRACT 1.1, invariant I5). Every failure below
becomes one of three refusals; none is ever retried, because the upstream may have executed what it did not answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from types import TracebackType
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import (
    ENDLESS,
    ClientResponse,
    ClientTimeout,
    ConnectFailed,
    ConnectionBroken,
    Deadline,
    EgressError,
    HttpClient,
    InvalidRequest,
    NoRoom,
    QueueFull,
    RequestForm,
    ResponseTooLarge,
    Share,
    UnacceptableResponse,
    parse_origin,
)
from sidecar.protocols.jsonrpc import Request, encode_message
from sidecar.protocols.mcp.eras import STATELESS_SET, routing_headers
from sidecar.settings import upstreams as settings
from sidecar.upstreams.credentials import CredentialSource, Header, same, shown_within
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, McpTransport, Outbound

_EXTRA = frozenset({"traceparent", "tracestate"})
_PARAMETER_PREFIX = "mcp-param-"
_ACCEPTED = {"POST": f"{JSON}, {EVENT_STREAM}", "GET": EVENT_STREAM, "DELETE": JSON}
# Streams that stay open have connections of their own: callers that listen never delay another's call (threats D3).
# `settings.streams` bounds them where they are opened; this is a last bound.
MAX_STREAMS: Final = 65_536
MAX_FORMS: Final = 64  # there are fewer combinations of verb, revision and Accept


class HttpAnswer:
    """A `transport.UpstreamAnswer` whose body comes over a connection."""

    __slots__ = ("_response", "headers", "media_type", "status")

    def __init__(self, response: ClientResponse) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.media_type: str = media_type_of(response)
        self._response = response

    async def read(self, max_bytes: int) -> bytes:
        try:
            return await self._response.read(max_bytes)
        except EgressError as failure:
            raise refusal_from(failure) from failure

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._response.chunks(idle_s=None, deadline=deadline)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except EgressError as failure:
            raise refusal_from(failure) from failure

    def close(self) -> None:
        """See `UpstreamAnswer.close`: the connection closes at once."""
        self._response.close()

    def __enter__(self) -> HttpAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HttpUpstream:
    """One MCP server over Streamable HTTP."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        credential: CredentialSource | None = None,
        headers: Sequence[Header] = (),
        timeout_s: float = 30.0,
        max_response_bytes: int = 10 * 2**20,
        connect_timeout_s: float = 5.0,
        max_connections: int = 100,
    ) -> None:
        """`headers` go with every request. Raises ValueError for an invalid URL."""
        self.name = name
        self.timeout_s = timeout_s
        self.max_response_bytes = max_response_bytes
        self._origin = parse_origin(url)
        self._credential = credential
        self._headers = headers
        self._fixed = None if credential is None else credential.fixed
        self._forms: dict[tuple[str, str, bool], RequestForm] = {}
        self._client = HttpClient(self._origin, connect_timeout_s=connect_timeout_s, max_connections=max_connections)
        self._streams = HttpClient(
            self._origin, connect_timeout_s=connect_timeout_s, max_idle=0, max_connections=MAX_STREAMS
        )

    @property
    def open_connections(self) -> int:
        return self._client.open_connections + self._streams.open_connections

    def shows_the_same_as(self, other: McpTransport) -> bool:
        return isinstance(other, HttpUpstream) and same(self._credential, other._credential)

    async def exchange(self, outbound: Outbound) -> HttpAnswer:
        """See `McpTransport.exchange`. Raises Refusal: UPSTREAM_FAILED, UPSTREAM_TIMEOUT, RESPONSE_REFUSED;
        MALFORMED_CALL for a value that no header can carry; Unsent if there is no credential for it.
        """
        verb, message, deadline_s = outbound.verb, outbound.message, outbound.deadline_s
        headers = []
        if outbound.session_id is not None:
            headers.append(("Mcp-Session-Id", outbound.session_id))
        if outbound.last_event_id is not None:
            headers.append(("Last-Event-ID", outbound.last_event_id))
        if isinstance(message, Request) and outbound.version in STATELESS_SET:
            headers += routing_headers(message)
        for header in outbound.extra:
            if not _goes_upstream(header[0]):
                raise ValueError(f"{header[0]} is not a header that goes upstream")
            headers.append(header)
        shown = None
        if self._credential is not None and self._fixed is None:
            shown, deadline_s = await shown_within(self._credential, outbound.caller, deadline_s)
            if shown is not None:
                headers.append(shown)
        body = None if message is None else encode_message(message)
        client = self._streams if outbound.endless or verb == "GET" else self._client
        try:
            written = self._form(verb, outbound.version, body is not None).message(headers, body)
            response = await client.send(written, deadline_s=deadline_s)
        except EgressError as failure:
            raise refusal_from(failure) from failure
        if response.status == 401 and shown is not None and self._credential is not None:
            self._credential.refused(outbound.caller, shown)
        return HttpAnswer(response)

    def _form(self, verb: str, version: str, has_body: bool) -> RequestForm:
        """The common part of all requests of one kind. Raises InvalidRequest."""
        kind = (verb, version, has_body)
        form = self._forms.get(kind)
        if form is None:
            first = [("Accept", _ACCEPTED[verb])]
            if has_body:
                first.append(("Content-Type", JSON))
            if version:
                first.append(("MCP-Protocol-Version", version))
            first += self._headers
            last = [] if self._fixed is None else [self._fixed]
            form = RequestForm(verb, self._origin.path, self._origin.host_header, first, last)
            if len(self._forms) < MAX_FORMS:
                self._forms[kind] = form
        return form

    def roams(self, session_id: str | None) -> bool:
        return True

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        """See `McpTransport.end_session`. It is no caller's call, so it is sent with the sidecar's own credential."""
        try:
            answer = await self.exchange(Outbound("DELETE", None, version, deadline_s, session_id))
        except Refusal:
            return
        answer.close()

    async def close(self) -> None:
        await self._client.close()
        await self._streams.close()
        if self._credential is not None:
            await self._credential.close()


@lru_cache(maxsize=256)  # the same few names with every call
def _goes_upstream(header: str) -> bool:
    name = header.lower()
    return name in _EXTRA or name.startswith(_PARAMETER_PREFIX)


def http_upstream_from(
    name: str, section: settings.UpstreamSettings, credential: CredentialSource | None, *, max_response_bytes: int
) -> HttpUpstream:
    """An upstream as configured."""
    mcp = section.mcp
    if mcp is None or mcp.url is None:
        raise ValueError("the settings promise an MCP upstream its URL")
    return HttpUpstream(
        name,
        mcp.url,
        credential=credential,
        headers=tuple(mcp.headers.items()),
        timeout_s=mcp.timeout_s,
        max_response_bytes=max_response_bytes,
        connect_timeout_s=mcp.connect_timeout_s,
        max_connections=mcp.max_connections,
    )


def media_type_of(response: ClientResponse) -> str:
    """The media type in lower case, without its parameters; "" if there is none."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def hold(share: Share, size: int, deadline: Deadline) -> None:
    """Wait for buffer space for so many bytes of an answer. Raises Refusal(RESPONSE_REFUSED) at the deadline."""
    try:
        await share.hold(size, deadline.at)
    except TimeoutError:
        raise refusal_from(NoRoom()) from None


def refusal_from(failure: EgressError) -> Refusal:
    """The caller's refusal for a failure of the upstream: only its kind, never addresses or bytes."""
    match failure:
        case ClientTimeout():
            return Refusal(Reason.UPSTREAM_TIMEOUT)
        case ResponseTooLarge():
            return Refusal(Reason.RESPONSE_REFUSED, "it is larger than allowed")
        case NoRoom():
            return Refusal(Reason.RESPONSE_REFUSED, "too many large answers at once")
        case UnacceptableResponse():
            return Refusal(Reason.RESPONSE_REFUSED, "it came in a form that was not asked for")
        case ConnectFailed():
            return Refusal(Reason.UPSTREAM_FAILED, "it cannot be reached")
        case QueueFull():
            return Refusal(Reason.UPSTREAM_FAILED, "too many calls wait for it")
        case InvalidRequest():
            return Refusal(Reason.MALFORMED_CALL, "a value cannot be sent in a header")
        case ConnectionBroken():
            return Refusal(Reason.UPSTREAM_FAILED, "its answer broke off or is not HTTP")
        case _:
            return Refusal(Reason.UPSTREAM_FAILED)
