"""Sends each message directly or over a bridge, depending on the server's era.

    the caller's era   the server speaks      the message goes
    stateless          stateless, or both     unchanged
    stateless          sessions only          over `StatelessToSession`: a session that is kept for its owner
    session            sessions, or both      unchanged
    session            stateless only         over `SessionToStateless`: a session that is emulated for its caller

The sidecar's own requests go unchanged, whatever the server speaks: its own conversation handles both eras. Their
answers and those to callers show which eras the server speaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from sidecar import __version__
from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Request, encode
from sidecar.protocols.mcp.eras import META_CAPABILITIES, META_VERSION, STATELESS_SET, STATELESS_VERSIONS
from sidecar.upstreams.mcp.bridge.server_eras import (
    REFUSALS,
    ServerEras,
    offers_stateless_instead,
    opens_session,
    speaks_stateless,
    whole_answer,
)
from sidecar.upstreams.mcp.bridge.session_to_stateless import SessionToStateless
from sidecar.upstreams.mcp.bridge.stateless_to_session import StatelessToSession
from sidecar.upstreams.mcp.bridge.translation import META_CLIENT
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    SESSION_ID,
    BuiltUpstream,
    McpTransport,
    Outbound,
    UpstreamAnswer,
)

DISCOVER: Final = "server/discover"
FRESH_S: Final = 60.0  # for so long our own conversation reuses what a caller's request has shown
_KEPT: Final = (SESSION_ID, "retry-after", "location")
_PARAMETER_PREFIX: Final = "mcp-param-"
_NOT_FOUND: Final = {"code": -32601, "message": "Method not found"}


class BridgeDeadlines(NamedTuple):
    """How long state of callers is kept: an unanswered input request, and an idle session."""

    question_s: float = 300.0
    idle_s: float = 1800.0


PATIENT: Final = BridgeDeadlines()


class Bridge:
    """An upstream that callers of either era can use. `clock_mono` gives monotonic seconds."""

    def __init__(
        self, inner: McpTransport, patience: BridgeDeadlines = PATIENT, *, clock_mono: Callable[[], float] | None = None
    ) -> None:
        self.inner = inner
        self.eras = ServerEras()
        self._clock = clock_mono
        self._lender = StatelessToSession(inner, patience.question_s, patience.idle_s, self._doubt)
        self._player = SessionToStateless(inner, patience.idle_s)
        self._asking = asyncio.Lock()

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
        if outbound.version in STATELESS_SET:
            return await self._stateless(outbound)
        if outbound.caller is not None and outbound.session_id in self._player:
            _refuse_tasks(outbound)
            return await self._player.exchange(outbound)
        message = outbound.message
        if isinstance(message, Request) and message.method == "initialize":
            return await self._initialize(outbound)
        return await self.inner.exchange(_without_parameters(outbound))

    def roams(self, session_id: str | None) -> bool:
        """See `McpTransport.roams`: an emulated session does not."""
        return session_id not in self._player and self.inner.roams(session_id)

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        if session_id in self._player:
            self._player.end(session_id)
        else:
            await self.inner.end_session(session_id, version, deadline_s)

    def shows_the_same_as(self, other: McpTransport) -> bool:
        return self.inner.shows_the_same_as(other.inner if isinstance(other, Bridge) else other)

    async def close(self) -> None:
        self._player.close()
        await self._lender.close()
        await self.inner.close()

    # --- the stateless era ------------------------------------------------------------------------------------------

    async def _stateless(self, outbound: Outbound) -> UpstreamAnswer:
        message = outbound.message
        if isinstance(message, Request) and message.method == DISCOVER:
            answer = await self._discover(outbound, message)
            if answer is not None:
                return answer
        elif self.eras.stateless is None and outbound.caller is not None:
            await self._find_out(outbound)
        if outbound.caller is not None and self.eras.stateless is False:
            _refuse_tasks(outbound)
            return await self._lender.exchange(outbound)
        answer = await self.inner.exchange(outbound)
        if answer.status in (400, 404, 405):
            self._doubt()
        return answer

    async def _discover(self, outbound: Outbound, message: Request) -> UpstreamAnswer | None:
        """The server's own answer; None if the caller must get a synthesised one."""
        own = outbound.caller is None
        if self.eras.stateless is False:
            if not own:
                return None
            if self._now() - self.eras.learned_at_s < FRESH_S:
                error = {"jsonrpc": "2.0", "id": message.id, "error": _NOT_FOUND}
                return BuiltUpstream(404, encode(error))
        answer = await self._asked(outbound, message)
        return None if self.eras.stateless is False and not own else answer

    async def _find_out(self, outbound: Outbound) -> None:
        async with self._asking:
            if self.eras.stateless is not None:
                return  # another call asked meanwhile
            meta = {
                META_VERSION: STATELESS_VERSIONS[-1],
                META_CAPABILITIES: {},
                META_CLIENT: {"name": "sidecar", "version": __version__},
            }
            question = Request("sidecar-era", DISCOVER, {"_meta": meta})
            version, caller = STATELESS_VERSIONS[-1], outbound.caller
            asked = Outbound("POST", question, version, outbound.deadline_s, caller=caller, own=True)
            await self._asked(asked, question)

    async def _asked(self, outbound: Outbound, message: Request) -> UpstreamAnswer:
        """The answer to `server/discover`; the eras that it shows are recorded."""
        with await self.inner.exchange(outbound) as answer:
            body, response = await whole_answer(answer, message.id, self.inner, outbound.deadline_s)
            if answer.status == 200 and speaks_stateless(response):
                self.eras.learn_stateless(True, self._now())
            elif answer.status in REFUSALS and not offers_stateless_instead(response):
                self.eras.learn_stateless(False, self._now())
            return _again(answer, body)

    # --- the session era --------------------------------------------------------------------------------------------

    async def _initialize(self, outbound: Outbound) -> UpstreamAnswer:
        message = outbound.message
        assert isinstance(message, Request)
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
                return told  # it broke off, or agreed on an unknown revision: that shows no era
            if self.eras.sessions:  # an ordinary failure, or a new version of the server: the next call asks
                self._doubt()
                return told
            if self.eras.stateless is None:
                await self._find_out(outbound)
            if not self.eras.stateless:
                return told
            self.eras.sessions = False
        return await self._player.begin(outbound, message)

    def _doubt(self, *, at_once: bool = False) -> None:
        self.eras.doubt(self._now(), **({"after_s": 0.0} if at_once else {}))

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()


def _again(answer: UpstreamAnswer, body: bytes) -> BuiltUpstream:
    """An answer with its body, which was read, to be read again."""
    media_type = "application/json" if answer.media_type == EVENT_STREAM and body else answer.media_type
    headers = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    return BuiltUpstream(answer.status, body, media_type=media_type, headers=headers)


def _refuse_tasks(outbound: Outbound) -> None:
    """The two eras' tasks differ, and a task created in one era cannot be used in the other."""
    message = outbound.message
    if isinstance(message, Request) and message.method.startswith("tasks/"):
        raise Refusal(Reason.METHOD_UNKNOWN, "tasks do not cross from one era to the other")


def _without_parameters(outbound: Outbound) -> Outbound:
    """A server with sessions only knows no mirrored arguments."""
    if not outbound.extra:
        return outbound
    extra = [header for header in outbound.extra if not header[0].lower().startswith(_PARAMETER_PREFIX)]
    return outbound._replace(extra=extra)
