"""Implements the HTTP+SSE transport of MCP 2024-11-05, adapted to Streamable HTTP (`duplex_transport.py`).

    GET  <url>         a stream: first `event: endpoint`, then one `event: message` for each message of the server
    POST <endpoint>    each message to the server; its responses come on the stream

The endpoint comes from the server, so it is accepted only within the configured origin: the upstream credential is sent
with every POST. No redirect is followed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from urllib.parse import urljoin

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ClientResponse, EgressError, RequestForm, parse_origin
from sidecar.protocols.sse import SseEvent, SseParser
from sidecar.upstreams.http_address import MAX_STREAMS, HttpAddress, body_of, refusal_from
from sidecar.upstreams.mcp.duplex_transport import DuplexWire
from sidecar.upstreams.mcp.line_sessions import LineBounds, LineTransport
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON
from sidecar.upstreams.statuses import refusal_of, words_of
from sidecar.vocabulary import Caller

MAX_ENDPOINT_BYTES: Final = 8 * 1024  # of an event before the endpoint, and the endpoint itself
MAX_PROLOGUE_BYTES: Final = 64 * 1024  # of everything before it
MAX_ACKNOWLEDGEMENT_BYTES: Final = 64 * 1024  # "Accepted"
# A line costs a connection, not a process: a caller may have as many as it may have sessions.
BOUNDS: Final = LineBounds(max_per_caller=64, max_lines=MAX_STREAMS)
_PLAIN = re.compile(r"[!-~]+")


class SseWire(DuplexWire):
    """One stream, and its POSTs. `caller` opened it; messages without a caller carry the last caller's credential."""

    def __init__(
        self,
        stream: ClientResponse,
        address: HttpAddress,
        caller: Caller | None,
        *,
        timeout_s: float,
        max_message_bytes: int,
    ) -> None:
        self._stream, self._address, self._caller = stream, address, caller
        self._timeout_s, self._max_message_bytes = timeout_s, max_message_bytes
        self._parser = SseParser(MAX_ENDPOINT_BYTES)
        self._events = self._read()
        self._form: RequestForm | None = None
        self._failure: Refusal | None = None

    async def begin(self) -> None:
        """Reads the stream up to its endpoint. Raises Refusal."""
        async for event in self._events:
            if event.event == "endpoint":
                path = _path_of(event.data or "", self._address)
                self._form = self._address.form("POST", path, [("Accept", JSON), ("Content-Type", JSON)])
                return
        raise Refusal(Reason.UPSTREAM_FAILED, "it closed the stream before it sent its endpoint")

    async def send(self, message: bytes, caller: Caller | None) -> None:
        self._caller = caller or self._caller
        assert self._form is not None, "nothing is sent before the endpoint is known"
        if self._failure is not None:
            raise Refusal(self._failure.reason, self._failure.detail)
        with await self._address.send(self._form, (), message, self._caller, self._timeout_s) as taken:
            await body_of(taken, MAX_ACKNOWLEDGEMENT_BYTES)
        if taken.status in (404, 410):  # the server lost the session, so its further messages are of no use
            self._failure = Refusal(Reason.UPSTREAM_FAILED, "it no longer knows the session")
            self._stream.close()
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

    async def _read(self) -> AsyncGenerator[SseEvent, None]:
        """Yields every event. Until the endpoint arrives, which should be the first event, the size is tightly
        bounded."""
        heard = 0
        try:
            async with aclosing(self._stream.chunks(idle_s=None)) as chunks:
                async for chunk in chunks:
                    heard += len(chunk)
                    for event in self._parser.feed(chunk):
                        yield event
                    if self._form is not None:
                        self._parser.max_event_bytes = self._max_message_bytes
                    elif heard > MAX_PROLOGUE_BYTES:
                        raise Refusal(Reason.RESPONSE_REFUSED, "it sent too much before its endpoint")
        except EgressError as failure:
            raise self._failure or refusal_from(failure) from failure


def _path_of(endpoint: str, address: HttpAddress) -> str:
    """Returns the path, with its query, of an endpoint that a stream announced. Raises Refusal(RESPONSE_REFUSED)."""
    try:
        if not _PLAIN.fullmatch(endpoint):  # characters that some readers strip, and others not
            raise ValueError
        told = parse_origin(urljoin(address.url, endpoint))
    except ValueError:
        raise Refusal(Reason.RESPONSE_REFUSED, "its endpoint is not a valid address") from None
    if (told.scheme, told.host, told.port) != (address.origin.scheme, address.origin.host, address.origin.port):
        raise Refusal(Reason.RESPONSE_REFUSED, "its endpoint is at another origin")
    return told.path


class SseUpstream(LineTransport):
    """One MCP server over HTTP+SSE. `offered`: the newest GET was answered with a stream."""

    def __init__(self, name: str, address: HttpAddress, *, timeout_s: float, max_response_bytes: int) -> None:
        super().__init__(name, timeout_s, max_response_bytes, address.credential, stateless=False, bounds=BOUNDS)
        self.offered = True
        self._address = address

    @property
    def open_connections(self) -> int:
        return self._address.open_connections

    async def close(self) -> None:
        await super().close()
        await self._address.close()

    async def is_there(self, caller: Caller | None, within_s: float) -> bool:
        """Whether the GET is answered with a stream that has an endpoint."""
        try:
            async with asyncio.timeout(within_s):
                wire = await self.open_wire("", caller)
        except (Refusal, TimeoutError):
            return False
        await wire.close()
        return True

    async def open_wire(self, owner: str, caller: Caller | None) -> SseWire:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._streaming(caller)
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "it did not send its endpoint in time") from None

    async def _streaming(self, caller: Caller | None) -> SseWire:
        form = self._address.form("GET", self._address.origin.path, [("Accept", EVENT_STREAM)])
        stream = await self._address.send(form, (), None, caller, self.timeout_s, streams=True)
        try:
            self.offered = stream.status == 200 and stream.media_type == EVENT_STREAM
            if not self.offered:
                raise Refusal(Reason.UPSTREAM_FAILED, f"it opens no stream: {words_of(stream)}")
            size = self.max_response_bytes
            wire = SseWire(stream, self._address, caller, timeout_s=self.timeout_s, max_message_bytes=size)
            await wire.begin()
        except BaseException:
            stream.close()
            raise
        return wire
