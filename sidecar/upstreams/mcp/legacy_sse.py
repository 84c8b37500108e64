"""Speaks the HTTP+SSE transport of MCP 2024-11-05.

    GET  <url>         a stream: first `event: endpoint`, then one `event: message` for each message of the server
    POST <endpoint>    each message to the server; its responses come on the stream

Each session has a stream of its own (`line_sessions.py`), which is adapted to Streamable HTTP (`duplex_transport.py`).
The endpoint comes from the server, so it is accepted only within the configured origin: the upstream credential goes
with every POST. No redirect is followed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urljoin

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ClientResponse, EgressError, HttpClient, RequestForm, TargetOrigin, parse_origin
from sidecar.protocols.sse import SseEvent, SseParser
from sidecar.settings import upstreams as settings
from sidecar.upstreams.credentials import CredentialSource, Header, same, shown_within
from sidecar.upstreams.mcp.line_sessions import LineBounds, LineTransport
from sidecar.upstreams.mcp.streamable_http import MAX_STREAMS, media_type_of, refusal_from
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, BuiltUpstream, McpTransport, Outbound
from sidecar.upstreams.statuses import refusal_of, words_of
from sidecar.vocabulary import Caller

MAX_ENDPOINT_BYTES: Final = 8 * 1024  # of an event before the endpoint, and the endpoint itself
MAX_PROLOGUE_BYTES: Final = 64 * 1024  # of all that comes before it
MAX_ACKNOWLEDGEMENT_BYTES: Final = 64 * 1024  # "Accepted"
# A line costs a connection, not a process: a caller may have as many as it may have sessions.
_PLAIN = re.compile(r"[!-~]+")
BOUNDS: Final = LineBounds(max_per_caller=64, max_lines=MAX_STREAMS)


@dataclass(frozen=True, slots=True)
class MessageAddress:
    """One server's address: its URL and name, the sizes in bytes and times in seconds that bound it, and the headers of
    every request to it.
    """

    url: str
    credential: CredentialSource | None = field(compare=False)
    timeout_s: float
    max_message_bytes: int
    headers: Sequence[Header] = ()
    origin: TargetOrigin = field(init=False)

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid URL."""
        object.__setattr__(self, "origin", parse_origin(self.url))

    def get(self, shown: Sequence[Header]) -> bytes:
        """The request that opens a stream."""
        return self._form("GET", self.origin.path, [("Accept", EVENT_STREAM)]).message(shown, None)

    def post_to(self, endpoint: str) -> RequestForm:
        """The requests to the endpoint that a stream announced. Raises Refusal(RESPONSE_REFUSED)."""
        try:
            if not _PLAIN.fullmatch(endpoint):  # characters that some readers strip, and others not
                raise ValueError
            told = parse_origin(urljoin(self.url, endpoint))
        except ValueError:
            raise Refusal(Reason.RESPONSE_REFUSED, "its endpoint is no address") from None
        if (told.scheme, told.host, told.port) != (self.origin.scheme, self.origin.host, self.origin.port):
            raise Refusal(Reason.RESPONSE_REFUSED, "its endpoint is at another origin")
        return self._form("POST", told.path, [("Accept", JSON), ("Content-Type", JSON)])

    def _form(self, verb: str, path: str, headers: list[tuple[str, str]]) -> RequestForm:
        return RequestForm(verb, path, self.origin.host_header, [*headers, *self.headers])

    async def shown(self, caller: Caller | None, deadline_s: float) -> tuple[Sequence[Header], float]:
        """The credentials of one request, and the time that is left for it. Raises Unsent."""
        if self.credential is None:
            return (), deadline_s
        header, left_s = await shown_within(self.credential, caller, deadline_s)
        return (() if header is None else (header,)), left_s

    def heard(self, status: int, caller: Caller | None, shown: Sequence[Header]) -> None:
        """Report a rejected credential (HTTP 401), so that it is not shown again."""
        if status == 401 and self.credential is not None:
            for header in shown:
                self.credential.refused(caller, header)


class SseWire:
    """A `duplex_transport.DuplexWire`: one stream, and its POSTs. `caller` is the one it was opened for; messages of no
    particular caller are sent with the credential of the last one.
    """

    def __init__(
        self, stream: ClientResponse, address: MessageAddress, client: HttpClient, caller: Caller | None
    ) -> None:
        self._stream = stream
        self._caller = caller
        self._address = address
        self._client = client
        self._parser = SseParser(MAX_ENDPOINT_BYTES)
        self._events = self._read()
        self._form: RequestForm | None = None
        self._failure: Refusal | None = None

    async def begin(self) -> None:
        """Wait for the endpoint. Raises Refusal."""
        async for event in self._events:
            if event.event == "endpoint":
                self._form = self._address.post_to(event.data or "")
                return
        raise Refusal(Reason.UPSTREAM_FAILED, "it hung up before it told its endpoint")

    async def send(self, message: bytes, caller: Caller | None) -> None:
        if caller is not None:
            self._caller = caller
        caller = self._caller
        assert self._form is not None, "nothing is sent before the endpoint is known"
        if self._failure is not None:
            raise Refusal(self._failure.reason, self._failure.detail)
        shown, left_s = await self._address.shown(caller, self._address.timeout_s)
        try:
            with await self._client.send(self._form.message(shown, message), deadline_s=left_s) as taken:
                await taken.read(MAX_ACKNOWLEDGEMENT_BYTES)
        except EgressError as failure:
            raise refusal_from(failure) from failure
        self._address.heard(taken.status, caller, shown)
        if taken.status in (404, 410):  # the server lost the session, so its further messages are of no use
            self._fail(Refusal(Reason.UPSTREAM_FAILED, "it forgot the session"))
        if not 200 <= taken.status < 300:
            raise refusal_of(taken)

    async def messages(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._events):
            async for event in self._events:
                if event.message:  # a second endpoint is ignored
                    yield event.message.encode()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        self._stream.close()

    def _fail(self, failure: Refusal) -> None:
        self._failure = failure
        self._stream.close()

    async def _read(self) -> AsyncGenerator[SseEvent, None]:
        """Every event. Until the endpoint arrives, the size is bounded tightly: it should be the first event."""
        heard = 0
        try:
            async with aclosing(self._stream.chunks(idle_s=None)) as chunks:
                async for chunk in chunks:
                    heard += len(chunk)
                    for event in self._parser.feed(chunk):
                        yield event
                    if self._form is not None:
                        self._parser.max_event_bytes = self._address.max_message_bytes
                    elif heard > MAX_PROLOGUE_BYTES:
                        raise Refusal(Reason.RESPONSE_REFUSED, "it says much, and not its endpoint")
        except EgressError as failure:
            raise self._failure or refusal_from(failure) from failure


class SseUpstream:
    """One MCP server over HTTP+SSE. It has the session era only. `offered` says whether the newest GET was answered
    with a stream.
    """

    def __init__(self, name: str, address: MessageAddress, *, connect_timeout_s: float, max_connections: int) -> None:
        self.name = name
        self.timeout_s = address.timeout_s
        self.max_response_bytes = address.max_message_bytes
        self.offered = True
        self._address = address
        self._posts = HttpClient(address.origin, connect_timeout_s=connect_timeout_s, max_connections=max_connections)
        self._streams = HttpClient(
            address.origin, connect_timeout_s=connect_timeout_s, max_idle=0, max_connections=2 * MAX_STREAMS
        )
        self._lines = LineTransport(
            name,
            self._open,
            timeout_s=self.timeout_s,
            max_response_bytes=self.max_response_bytes,
            stateless=False,
            bounds=BOUNDS,
        )

    @property
    def open_connections(self) -> int:
        return self._posts.open_connections + self._streams.open_connections

    def shows_the_same_as(self, other: McpTransport) -> bool:
        return (
            isinstance(other, SseUpstream)
            and self._address == other._address
            and same(self._address.credential, other._address.credential)
        )

    async def exchange(self, outbound: Outbound) -> BuiltUpstream:
        return await self._lines.exchange(outbound)

    def roams(self, session_id: str | None) -> bool:
        """See `McpTransport.roams`: a session is bound to a connection of this process."""
        return False

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        await self._lines.end_session(session_id, version, deadline_s)

    async def close(self) -> None:
        await self._lines.close()
        await self._posts.close()
        await self._streams.close()
        if self._address.credential is not None:
            await self._address.credential.close()

    async def is_there(self, caller: Caller | None, within_s: float) -> bool:
        """Whether the address opens a stream of this transport."""
        try:
            async with asyncio.timeout(within_s):
                wire = await self._open("", caller)
        except (Refusal, TimeoutError):
            return False
        await wire.close()
        return True

    async def _open(self, owner: str, caller: Caller | None) -> SseWire:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._begun(caller)
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "it did not tell its endpoint in time") from None
        except EgressError as failure:
            raise refusal_from(failure) from failure

    async def _begun(self, caller: Caller | None) -> SseWire:
        shown, left_s = await self._address.shown(caller, self.timeout_s)
        stream = await self._streams.send(self._address.get(shown), deadline_s=left_s)
        self._address.heard(stream.status, caller, shown)
        try:
            self.offered = stream.status == 200 and media_type_of(stream) == EVENT_STREAM
            if not self.offered:
                raise Refusal(Reason.UPSTREAM_FAILED, f"it opens no stream: {words_of(stream)}")
            wire = SseWire(stream, self._address, self._posts, caller)
            await wire.begin()
        except BaseException:
            stream.close()
            raise
        return wire


def sse_upstream_from(
    name: str, section: settings.UpstreamSettings, credential: CredentialSource | None, *, max_response_bytes: int
) -> SseUpstream:
    """An upstream as configured."""
    mcp = section.mcp
    if mcp is None or mcp.url is None:
        raise ValueError("the settings promise an MCP upstream its URL")
    address = MessageAddress(mcp.url, credential, mcp.timeout_s, max_response_bytes, tuple(mcp.headers.items()))
    return SseUpstream(name, address, connect_timeout_s=mcp.connect_timeout_s, max_connections=mcp.max_connections)
