"""Sends messages to MCP servers over Streamable HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import lru_cache
from typing import Final

from sidecar.errors import Refusal
from sidecar.http.client import ENDLESS, ClientResponse, Deadline, EgressError, RequestForm
from sidecar.protocols.jsonrpc import Request, encode_message
from sidecar.protocols.mcp.eras import STATELESS_SET, routing_headers
from sidecar.upstreams.http_address import HttpAddress, media_type_of, refusal_from
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, McpTransport, Outbound, UpstreamAnswer

_EXTRA = frozenset({"traceparent", "tracestate"})
_PARAMETER_PREFIX = "mcp-param-"
_ACCEPTED = {"POST": f"{JSON}, {EVENT_STREAM}", "GET": EVENT_STREAM, "DELETE": JSON}
ELSEWHERE: Final = frozenset({400, 404, 405})
MAX_FORMS: Final = 64  # there are fewer combinations of verb, revision and Accept


class HttpAnswer(UpstreamAnswer):
    """An answer whose body comes over a connection."""

    __slots__ = ("_response",)

    def __init__(self, response: ClientResponse) -> None:
        self.status, self.media_type, self.headers = response.status, media_type_of(response), response.headers
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


class HttpUpstream(McpTransport):
    """One MCP server over Streamable HTTP. `is_legacy` says that it turned out to speak HTTP+SSE
    (`transport_detection.py`)."""

    is_legacy = False

    def __init__(
        self, name: str, address: HttpAddress, *, timeout_s: float = 30.0, max_response_bytes: int = 10 * 2**20
    ) -> None:
        super().__init__(name, timeout_s, max_response_bytes, address.credential)
        self._address = address
        self._forms: dict[tuple[str, str, bool], RequestForm] = {}

    @property
    def open_connections(self) -> int:
        return self._address.open_connections

    async def exchange(self, outbound: Outbound) -> UpstreamAnswer:
        """See `McpTransport.exchange`. Raises MALFORMED_CALL if no header can carry a value; Unsent without a
        credential."""
        if self.is_legacy:
            return await self.over_sse(outbound)
        verb, message = outbound.verb, outbound.message
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
        body = None if message is None else encode_message(message)
        form = self._form(verb, outbound.version, body is not None)
        streams, began_s = outbound.endless or verb == "GET", asyncio.get_running_loop().time()
        answer = HttpAnswer(
            await self._address.send(form, headers, body, outbound.caller, outbound.deadline_s, streams=streams)
        )
        return answer if answer.status not in ELSEWHERE else await self.refused(outbound, answer, began_s)

    async def over_sse(self, outbound: Outbound) -> UpstreamAnswer:
        """Sends a message over the transport that the server turned out to speak."""
        raise NotImplementedError

    async def refused(self, outbound: Outbound, answer: UpstreamAnswer, began_s: float) -> UpstreamAnswer:
        """Returns the answer to a message that may have been refused because the server speaks another transport.
        `began_s` is the loop's time at which it was sent."""
        return answer

    def _form(self, verb: str, version: str, has_body: bool) -> RequestForm:
        """The common part of all requests of one kind. Raises Refusal(MALFORMED_CALL)."""
        kind = (verb, version, has_body)
        form = self._forms.get(kind)
        if form is None:
            first = [("Accept", _ACCEPTED[verb])]
            if has_body:
                first.append(("Content-Type", JSON))
            if version:
                first.append(("MCP-Protocol-Version", version))
            form = self._address.form(verb, self._address.origin.path, first)
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
        await self._address.close()


@lru_cache(maxsize=256)  # the same few names with every call
def _goes_upstream(header: str) -> bool:
    name = header.lower()
    return name in _EXTRA or name.startswith(_PARAMETER_PREFIX)
