"""Tracks which eras a server speaks.

A server shows them by its answers to `server/discover` and `initialize`. Callers' own messages and the sidecar's
conversation both count, so that nothing is asked twice. The result may become wrong when the server is replaced by
another version of itself; an answer that does not fit puts it in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import Deadline
from sidecar.protocols.jsonrpc import Id, Response
from sidecar.protocols.mcp.eras import SESSION_VERSIONS_SET, STATELESS_SET
from sidecar.protocols.sse import SseParser
from sidecar.protocols.streamed import Streamed
from sidecar.upstreams.mcp.bridge.translation import received, received_in
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, McpTransport, UpstreamAnswer, count_dropped

# The statuses that mean "unknown era", rather than "not you" (401, 403) or "not now" (429, 5xx).
REFUSALS: Final = frozenset({200, 400, 404, 405, 406, 415})
VERSION_UNSUPPORTED: Final = -32022
# An answer that does not fit may be an ordinary error: doubt costs one more request, but not after each of them.
DOUBT_AFTER_S: Final = 30.0


@dataclass(slots=True)
class ServerEras:
    """The eras of one server; None is not known yet. `learned_at_s` is monotonic."""

    stateless: bool | None = None
    sessions: bool | None = None
    learned_at_s: float = 0.0

    def learn_stateless(self, speaks: bool, now_s: float) -> None:
        self.stateless, self.learned_at_s = speaks, now_s

    def doubt(self, now_s: float, *, after_s: float = DOUBT_AFTER_S) -> None:
        """An answer did not fit: ask again, unless what is known is quite new."""
        if now_s - self.learned_at_s >= after_s:
            self.stateless = self.sessions = None


async def whole_answer(
    answer: UpstreamAnswer, request_id: Id, upstream: McpTransport, within_s: float
) -> tuple[bytes, Response | None]:
    """The one message of `upstream` that answers a request, from a body or a stream, as bytes and parsed; None if there
    is none. Raises Refusal.
    """
    if answer.media_type == EVENT_STREAM:
        reader = Streamed((request_id,), request_id, partial(count_dropped, upstream))
        return await _from_stream(answer, reader, upstream.max_response_bytes, within_s)
    body = await answer.read(upstream.max_response_bytes)
    if answer.media_type != JSON:
        return body, None
    try:
        message = received(body)
    except Refusal:
        return body, None  # its consumer reports what is wrong with it
    return body, message if isinstance(message, Response) else None


async def _from_stream(
    answer: UpstreamAnswer, reader: Streamed, max_bytes: int, within_s: float
) -> tuple[bytes, Response | None]:
    parser, size = SseParser(max_bytes), 0
    async for chunk in answer.chunks(deadline=Deadline.within(within_s)):
        size += len(chunk)
        if size > max_bytes:
            raise Refusal(Reason.RESPONSE_REFUSED, "it is larger than allowed")
        for event in parser.feed(chunk):
            message = received_in(reader, event.message) if event.message else None
            if isinstance(message, Response):
                return event.message.encode(), message
    return b"", None


def speaks_stateless(response: Response | None) -> bool:
    """Whether this answer to `server/discover` offers a known stateless revision."""
    return _names_stateless(_result(response).get("supportedVersions"))


def offers_stateless_instead(response: Response | None) -> bool:
    """Whether this refusal of a revision names a known stateless one: the era is the right one."""
    error = response.error if response is not None and response.error is not None else {}
    data = error.get("data")
    return (
        error.get("code") == VERSION_UNSUPPORTED
        and isinstance(data, Mapping)
        and _names_stateless(data.get("supported"))
    )


def _names_stateless(offered: object) -> bool:
    return isinstance(offered, list) and any(
        version in STATELESS_SET for version in offered if isinstance(version, str)
    )


def opens_session(response: Response | None) -> bool:
    """Whether this answer to `initialize` agrees on a revision."""
    version = _result(response).get("protocolVersion")
    return isinstance(version, str) and version in SESSION_VERSIONS_SET


def _result(response: Response | None) -> Mapping[str, Any]:
    return response.result if response is not None and isinstance(response.result, dict) else {}
