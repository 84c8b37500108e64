"""Sends messages to MCP servers over Streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import lru_cache
from typing import Final

from sidecar.errors import Refusal
from sidecar.http.client import ENDLESS, ClientResponse, Deadline, EgressError, RequestForm
from sidecar.protocols.jsonrpc import Request, encode_message, encode_request
from sidecar.protocols.mcp.eras import STATELESS_SET, name_of, routing_headers
from sidecar.upstreams.http_address import HttpAddress, refusal_from
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, McpTransport, Outbound, UpstreamAnswer

_EXTRA = frozenset({"traceparent", "tracestate"})
_PARAMETER_PREFIX = "mcp-param-"
_ACCEPTED = {"POST": f"{JSON}, {EVENT_STREAM}", "GET": EVENT_STREAM, "DELETE": JSON}
ELSEWHERE: Final = frozenset({400, 404, 405})
MAX_FORMS: Final = 256  # combinations of verb, revision, method and name
MAX_KEPT_CHARS: Final = 256


class HttpAnswer(UpstreamAnswer):
    """An answer whose body comes over a connection."""

    __slots__ = ("_response", "arrived")

    def __init__(self, response: ClientResponse) -> None:
        self.status, self.headers, self.media_type = response.head[:3]
        self._response, self.arrived = response, response.take() if response.complete else None

    async def read(self, max_bytes: int) -> bytes:
        if self.arrived is not None:
            return await super().read(max_bytes)
        try:
            return await self._response.read(max_bytes)
        except EgressError as failure:
            raise refusal_from(failure) from failure

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        if self.arrived:
            yield self.arrived
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
    """One MCP server over Streamable HTTP. `is_legacy`: it was found to use HTTP+SSE (`transport_detection.py`)."""

    is_legacy = False

    def __init__(
        self, name: str, address: HttpAddress, *, timeout_s: float = 30.0, max_response_bytes: int = 10 * 2**20
    ) -> None:
        super().__init__(name, timeout_s, max_response_bytes, address.credential)
        self._address = address
        self._forms: dict[tuple[str, str, tuple[str, str | None] | None], RequestForm] = {}

    @property
    def open_connections(self) -> int:
        return self._address.open_connections

    async def exchange(self, outbound: Outbound) -> UpstreamAnswer:
        """See `McpTransport.exchange`. Raises MALFORMED_CALL if no header can carry a value; Unsent without a
        credential."""
        if self.is_legacy:
            return await self.over_sse(outbound)
        verb, message, version, deadline_s, session_id, caller, last_event_id, extra, endless, _, _ = outbound
        headers, routing, body = [], None, None
        if session_id is not None:
            headers.append(("Mcp-Session-Id", session_id))
        if last_event_id is not None:
            headers.append(("Last-Event-ID", last_event_id))
        for header in extra:
            if not _goes_upstream(header[0]):
                raise ValueError(f"{header[0]} is not a header that goes upstream")
            headers.append(header)
        if isinstance(message, Request):
            body = encode_request(message)
            if version in STATELESS_SET:
                routing = message.method, name_of(message)
        elif message is not None:
            body = encode_message(message)
        kind = verb, version, routing
        form = self._forms.get(kind) or self._form(*kind)
        try:
            response = await self._address.exchange(form, headers, body, caller, deadline_s, endless or verb == "GET")
        except EgressError as failure:
            raise refusal_from(failure) from failure
        answer = HttpAnswer(response)
        return answer if answer.status not in ELSEWHERE else await self.refused(outbound, answer, response.until)

    async def over_sse(self, outbound: Outbound) -> UpstreamAnswer:
        """Sends a message over HTTP+SSE, if the server was found to use it."""
        raise NotImplementedError

    async def refused(self, outbound: Outbound, answer: UpstreamAnswer, until_s: float) -> UpstreamAnswer:
        """Returns the answer to a message that may have been refused because the server uses another transport.
        `until_s` is its deadline in the loop's time."""
        return answer

    def _form(self, verb: str, version: str, routing: tuple[str, str | None] | None) -> RequestForm:
        """Returns the common part of all requests of one kind. Raises Refusal(MALFORMED_CALL)."""
        first = [("Accept", _ACCEPTED[verb])]
        if verb == "POST":
            first.append(("Content-Type", JSON))
        if version:
            first.append(("MCP-Protocol-Version", version))
        if routing is not None:
            first += routing_headers(*routing)
        form = self._address.form(verb, self._address.origin.path, first)
        if sum(map(len, first[-1])) <= MAX_KEPT_CHARS:
            while len(self._forms) >= MAX_FORMS:
                del self._forms[next(iter(self._forms))]
            self._forms[verb, version, routing] = form
        return form

    def roams(self, session_id: str | None) -> bool:
        return True

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        """See `McpTransport.end_session`. It belongs to no caller, so it is sent with the sidecar's own credential."""
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
