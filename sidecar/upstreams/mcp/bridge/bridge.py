"""Sends each message directly or over a bridge, depending on the server's MCP revisions.

    the caller's       the server supports    the message goes
    stateless          stateless, or both     unchanged
    stateless          sessions only          over `StatelessToSession`: a session that is held for its owner
    session            sessions, or both      unchanged
    session            stateless only         over `SessionToStateless`: a session that is emulated for its caller

The sidecar's own requests are sent unchanged. The answers to `server/discover` and `initialize`, of callers too, show
which revisions the server supports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Request
from sidecar.protocols.mcp.eras import META_CAPABILITIES, META_CLIENT, META_VERSION, STATELESS_SET, STATELESS_VERSIONS
from sidecar.upstreams.mcp.bridge.server_eras import REFUSALS, ServerEras, opens_session
from sidecar.upstreams.mcp.bridge.session_to_stateless import SessionToStateless
from sidecar.upstreams.mcp.bridge.stateless_to_session import StatelessToSession
from sidecar.upstreams.mcp.bridge.translation import without_parameters
from sidecar.upstreams.mcp.streams import whole_answer
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    JSON,
    OURSELVES,
    SESSION_ID,
    BuiltUpstream,
    McpTransport,
    Outbound,
    TransportLayer,
    UpstreamAnswer,
    unknown_method,
)

DISCOVER: Final = "server/discover"
FRESH_S: Final = 60.0  # how long the sidecar's own conversation reuses facts from a caller's request
_KEPT: Final = (SESSION_ID, "retry-after", "location")


class Bridge(TransportLayer):
    """An upstream for callers of session and stateless revisions. An input request is stored for `question_s` seconds,
    an unused session for `idle_s`."""

    def __init__(self, inner: McpTransport, eras: ServerEras, question_s: float, idle_s: float) -> None:
        super().__init__(inner)
        self.eras = eras
        self._lender = StatelessToSession(inner, question_s, idle_s, self.eras)
        self._player = SessionToStateless(inner, idle_s)
        self._asking = asyncio.Lock()

    def exchange(self, outbound: Outbound) -> Coroutine[Any, Any, UpstreamAnswer]:
        """See `McpTransport.exchange`. A message that needs no translation uses the inner transport's own coroutine."""
        message = outbound.message
        if outbound.version in STATELESS_SET:
            if self.eras.stateless and not (isinstance(message, Request) and message.method == DISCOVER):
                return self.inner.exchange(outbound)
            return self._stateless(outbound)
        if outbound.caller is not None and outbound.session_id in self._player:
            _refuse_tasks(outbound)
            return self._player.exchange(outbound)
        if isinstance(message, Request) and message.method == "initialize":
            return self._initialize(outbound, message)
        return self.inner.exchange(without_parameters(outbound))

    def roams(self, session_id: str | None) -> bool:
        """See `McpTransport.roams`. An emulated session does not."""
        return session_id not in self._player and self.inner.roams(session_id)

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        if session_id in self._player:
            self._player.end(session_id)
        else:
            await self.inner.end_session(session_id, version, deadline_s)

    async def close(self) -> None:
        self._player.close()
        await self._lender.close()
        await self.inner.close()

    async def _stateless(self, outbound: Outbound) -> UpstreamAnswer:
        message, own = outbound.message, outbound.caller is None
        if isinstance(message, Request) and message.method == DISCOVER:
            if own and self.eras.stateless is False and self.eras.age_s < FRESH_S:
                return BuiltUpstream.of_response(unknown_method(message.id), 404)
            if own or self.eras.stateless is not False:
                answer: UpstreamAnswer = await self._discovered(outbound, message)
                if own or self.eras.stateless is not False:
                    return answer
        elif self.eras.stateless is None and not own:
            await self._find_out(outbound)
        if not own and self.eras.stateless is False:
            _refuse_tasks(outbound)
            return await self._lender.exchange(outbound)
        return await self.inner.exchange(outbound)

    async def _find_out(self, outbound: Outbound) -> None:
        async with self._asking:
            if self.eras.stateless is not None:
                return  # another call asked in the meantime
            version = STATELESS_VERSIONS[-1]
            meta = {META_VERSION: version, META_CAPABILITIES: {}, META_CLIENT: OURSELVES}
            question = Request("sidecar-era", DISCOVER, {"_meta": meta})
            asked = Outbound("POST", question, version, outbound.deadline_s, caller=outbound.caller, own=True)
            await self._discovered(asked, question)

    async def _discovered(self, outbound: Outbound, message: Request) -> BuiltUpstream:
        """Returns the answer to `server/discover`, and records the revisions that it shows. Raises Refusal."""
        with await self.inner.exchange(outbound) as answer:
            body, response = await whole_answer(answer, message.id, self.inner, outbound.deadline_s)
            self.eras.learn(answer.status, response)
            return _again(answer, body)

    async def _initialize(self, outbound: Outbound, message: Request) -> UpstreamAnswer:
        if outbound.caller is None or self.eras.sessions is not False:
            with await self.inner.exchange(outbound) as answer:
                body, response = await whole_answer(answer, message.id, self.inner, outbound.deadline_s)
                told = _again(answer, body)
            if answer.status == 200 and opens_session(response):
                self.eras.sessions = True
                return told
            if outbound.caller is None or answer.status not in REFUSALS:
                return told
            if answer.status == 200 and (response is None or response.error is None):
                return told  # it broke off, or agreed on an unknown revision, which proves nothing
            if self.eras.sessions:  # an ordinary failure, or a new version of the server: the next call asks
                self.eras.doubt()
                return told
            if self.eras.stateless is None:
                await self._find_out(outbound)
            if not self.eras.stateless:
                return told
            self.eras.sessions = False
        return await self._player.begin(outbound, message)


def _again(answer: UpstreamAnswer, body: bytes) -> BuiltUpstream:
    """Returns an answer whose body was read, so that it can be read again."""
    media_type = JSON if answer.media_type == EVENT_STREAM and body else answer.media_type
    headers = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    return BuiltUpstream(answer.status, body, media_type=media_type, headers=headers)


def _refuse_tasks(outbound: Outbound) -> None:
    """Raises Refusal(METHOD_UNKNOWN) for a method of tasks, which differ in session and stateless revisions."""
    message = outbound.message
    if isinstance(message, Request) and message.method.startswith("tasks/"):
        raise Refusal(Reason.METHOD_UNKNOWN, "this server has no tasks of this revision")
