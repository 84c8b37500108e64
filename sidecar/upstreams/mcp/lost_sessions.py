"""Learns how a server reports sessions that it lost.

MCP specifies 404. Many servers answer 400 instead to any request in a session that they do not know, as they also do to
an invalid request. A 400 in a session is therefore followed by a `ping` in the same session, and an error status for
that `ping` means that the session is lost: the answer becomes a 404. The layers around this upstream handle 404 alone.
Lost sessions are counted and logged, each once.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from itertools import count
from typing import Final

from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import Request
from sidecar.upstreams.mcp.transport import (
    MAX_ERROR_BYTES,
    SESSION_ID,
    BuiltUpstream,
    McpTransport,
    Outbound,
    UpstreamAnswer,
)
from sidecar.upstreams.upstream_account import UpstreamAccount

PING_S: Final = 5.0
MAX_LOST: Final = 1_024  # lost sessions that are remembered, so that each is pinged and counted once
_NOT_FOUND: Final = 404
_BAD_REQUEST: Final = 400
_LOST: Final = frozenset({_BAD_REQUEST, _NOT_FOUND})

log = logging.getLogger("sidecar.upstreams")


class LostSessions:
    """An upstream whose lost sessions are always answered with 404. `account` counts them."""

    def __init__(self, inner: McpTransport, account: UpstreamAccount) -> None:
        self.inner = inner
        self._account = account
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._numbers = count(1)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def timeout_s(self) -> float:
        return self.inner.timeout_s

    @property
    def max_response_bytes(self) -> int:
        return self.inner.max_response_bytes

    async def exchange(self, outbound: Outbound) -> UpstreamAnswer:
        answer = await self.inner.exchange(outbound)
        session_id = outbound.session_id
        if session_id is None:
            if SESSION_ID in answer.headers:  # a server may reuse session ids after a restart
                self._lost.pop(answer.headers[SESSION_ID], None)
            return answer
        if answer.status not in _LOST or outbound.verb == "DELETE":
            return answer
        if answer.status == _BAD_REQUEST:
            answer = await _kept(answer)
            if session_id not in self._lost and not await self._is_lost(outbound):
                return answer
        self._note(session_id, answer.status)
        return answer if answer.status == _NOT_FOUND else BuiltUpstream(_NOT_FOUND)

    async def _is_lost(self, outbound: Outbound) -> bool:
        """Whether the server does not know the session of a message that it answered with 400."""
        if isinstance(outbound.message, Request) and outbound.message.method == "ping":
            return True
        ping = Request(f"sidecar-ping-{next(self._numbers)}", "ping", {})
        asked = Outbound(
            "POST",
            ping,
            outbound.version,
            min(outbound.deadline_s, PING_S),
            outbound.session_id,
            outbound.caller,
            own=True,
        )
        try:
            with await self.inner.exchange(asked) as answer:
                return answer.status in _LOST
        except Refusal:
            return False

    def _note(self, session_id: str, status: int) -> None:
        if session_id in self._lost:
            return
        self._lost[session_id] = None
        if len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)
        self._account.session_lost()
        log.warning("an MCP server lost a session", extra={"upstream": self.name, "status": status})

    def message_dropped(self, why: str) -> None:
        self._account.message_dropped(why)

    def roams(self, session_id: str | None) -> bool:
        return self.inner.roams(session_id)

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        await self.inner.end_session(session_id, version, deadline_s)

    def shows_the_same_as(self, other: McpTransport) -> bool:
        return self.inner.shows_the_same_as(other.inner if isinstance(other, LostSessions) else other)

    async def close(self) -> None:
        await self.inner.close()


async def _kept(answer: UpstreamAnswer) -> BuiltUpstream:
    """The same answer, read, with its connection released so that a `ping` need not wait for it."""
    with answer:
        try:
            body = await answer.read(MAX_ERROR_BYTES)
        except Refusal:  # too large or broken off: only its status is left
            body = b""
    return BuiltUpstream(answer.status, body, media_type=answer.media_type, headers=answer.headers)
