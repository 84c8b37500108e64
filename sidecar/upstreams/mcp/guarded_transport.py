"""Wraps an MCP transport with a breaker, fair shares and accounting, and learns which sessions a server lost.

Only a failure that callers cannot cause is a fault:

    fault        it cannot be reached, broke off, ended, answered HTTP 5xx or no protocol; took longer than a call may,
                 and answered no caller meanwhile, however much of an answer it had sent
    answer       anything else that it sends for a request: 4xx, JSON-RPC errors, `isError`; the head of a stream, while
                 the breaker tries whether it is there at all
    neither      it accepted a notification or a response, or opened an endless stream: a server whose calls all hang
                 does that too; the caller left or had a shorter deadline, the sidecar refused the answer or closed it,
                 or its line was full

MCP specifies 404 for a session that the server does not know; many servers answer 400. A 400 in a session is therefore
followed by a `ping` in it, and a 400 or 404 for the ping means that the session is lost: the answer becomes a 404.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import count
from types import TracebackType
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ENDLESS, Deadline
from sidecar.protocols.jsonrpc import Request
from sidecar.protocols.mcp.eras import STATELESS_SET
from sidecar.upstreams.fair_share import CallerShare, FairShares
from sidecar.upstreams.mcp.bridge.server_eras import UNFIT, ServerEras
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    JSON,
    MAX_ERROR_BYTES,
    SESSION_ID,
    BuiltUpstream,
    McpTransport,
    Outbound,
    TransportLayer,
    UpstreamAnswer,
)
from sidecar.upstreams.statuses import words_of
from sidecar.upstreams.upstream_account import CallOutcome, UpstreamAccount

WORDS_PART: Final = 8  # messages that are not calls have an extra share, of this fraction of the size
PING_S: Final = 5.0
MAX_LOST: Final = 1_024  # lost sessions that are remembered, so that each is pinged, counted and logged only once
_BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND = 400, 401, 404
_LOST: Final = frozenset({_BAD_REQUEST, _NOT_FOUND})
_EMPTY: Final = "its answer was empty"

log = logging.getLogger("sidecar.upstreams")


class GuardedTransport(TransportLayer):
    """A guarded upstream. `account` is its record, `share` the number of concurrent calls of one caller. Statuses that
    do not fit stateless revisions put `eras` in doubt."""

    def __init__(self, inner: McpTransport, account: UpstreamAccount, share: int, eras: ServerEras) -> None:
        super().__init__(inner)
        self.account, self._eras = account, eras
        self.shares = FairShares(share)
        # Notifications and responses to the server take connections too. They never wait for calls, because a call may
        # wait for one of them. Both shares together leave room for others.
        self.words = FairShares(max(1, share // WORDS_PART))
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._numbers = count(1)

    async def exchange(self, outbound: Outbound) -> UpstreamAnswer:
        """See `McpTransport.exchange`. Also raises UPSTREAM_OPEN and TOO_MANY_CONCURRENT, in both cases before anything
        is sent."""
        verb, message, version, deadline_s, session_id, caller, _, _, endless, own, expired = outbound
        method = message.method if isinstance(message, Request) else ""
        share, answer, waits = None, None, method not in ("", "subscriptions/listen")
        if caller is not None and not endless and message is not None:
            shares = self.shares if method else self.words
            share, has_place = shares.of(caller)
            if not has_place:
                deadline_s = await shares.wait(share, deadline_s)
                outbound = outbound._replace(deadline_s=deadline_s)
        try:
            is_own = caller is None or own
            answer = GuardedAnswer(self.account, deadline_s, self.timeout_s, own=is_own, counts=waits and not is_own)
            answer.waits, answer.expired, answer.share = waits, expired, share
            inner = await self.inner.exchange(outbound)
        except BaseException as error:
            if answer is not None and isinstance(error, Refusal):
                answer.refused(error)
            elif answer is not None:
                answer.left()
            if share is not None:
                share.step_out()
            raise
        answer.inner, answer.headers = inner, inner.headers
        answer.status = status = inner.status
        answer.media_type = media_type = inner.media_type
        if self._lost and session_id is None and SESSION_ID in inner.headers:  # ids may be reused after a restart
            self._lost.pop(inner.headers[SESSION_ID], None)
        if status == 200 and media_type == JSON and waits:
            return answer
        answer.begin()
        if status in UNFIT and version in STATELESS_SET:
            self._eras.doubt()
        if session_id is not None and status in _LOST and verb != "DELETE" and not own:
            return await self._judged(outbound, session_id, answer)
        return answer

    async def _judged(self, outbound: Outbound, session_id: str, answer: UpstreamAnswer) -> UpstreamAnswer:
        """Returns the answer to a message in a session, with status 400 or 404; in a lost session it becomes a 404."""
        if answer.status == _BAD_REQUEST:
            answer = await _released(answer)
            if session_id not in self._lost and not await self._is_lost(outbound):
                return answer
        self._note_lost(session_id, answer.status)
        return answer if answer.status == _NOT_FOUND else BuiltUpstream(_NOT_FOUND)

    async def _is_lost(self, outbound: Outbound) -> bool:
        """Whether the server does not know the session of a message that it answered with 400."""
        if isinstance(outbound.message, Request) and outbound.message.method == "ping":
            return True
        ping = Request(f"sidecar-ping-{next(self._numbers)}", "ping", {})
        within_s = min(outbound.deadline_s, PING_S)
        asked = Outbound("POST", ping, outbound.version, within_s, outbound.session_id, outbound.caller, own=True)
        try:
            with await self.exchange(asked) as answer:
                return answer.status in _LOST
        except Refusal:
            return False

    def _note_lost(self, session_id: str, status: int) -> None:
        if session_id in self._lost:
            return
        self._lost[session_id] = None
        if len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)
        self.account.session_lost()
        log.warning("an MCP server lost a session", extra={"upstream": self.name, "status": status})

    def message_dropped(self, why: str) -> None:
        self.account.message_dropped(why)

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        """See `McpTransport.end_session`. While the breaker is open, only sessions of this process end."""
        if not self.account.breaker.rest_s or not self.inner.roams(session_id):
            await self.inner.end_session(session_id, version, deadline_s)

    async def close(self) -> None:
        await self.inner.close()
        self.account.closed()


class GuardedAnswer(CallOutcome, UpstreamAnswer):
    """An exchange and its answer: it reports its outcome to the account, and then returns its place in the caller's
    `share`. `waits`: a request that is answered, not accepted or endless. `expired` is the message's."""

    inner: UpstreamAnswer
    waits: bool
    expired: Callable[[], bool]
    share: CallerShare | None

    def begin(self) -> None:
        """The head of the answer has arrived, which decides the outcome unless its body is to be read."""
        status, media_type, inner = self.status, self.media_type, self.inner
        if status >= 500:
            self.faulted(words_of(inner))
        elif not self.waits:
            self.given_up()
        elif status >= 300:
            self.answered(words_of(inner))
        elif media_type == EVENT_STREAM:
            self._account.breaker.seen(self._pass)
        elif media_type != JSON:
            self.faulted("its media type is neither JSON nor an event stream")
        if status == _UNAUTHORIZED:
            self._account.unwelcome(words_of(inner))
        elif 300 <= status < 400:
            self._account.redirected(words_of(inner))

    def left(self, *, said_something: bool = False) -> None:
        """The reader stopped, because it has enough or its time has ended."""
        if self._done:
            return
        if self._heard_mono_s is not None:
            self.answered()
        elif self.expired():
            self.refused(Refusal(Reason.UPSTREAM_TIMEOUT))
        elif said_something:
            self.answered()
        else:
            self.given_up()

    async def read(self, max_bytes: int) -> bytes:
        body = self.inner.arrived
        if body is None or len(body) > max_bytes:
            try:
                body = await self.inner.read(max_bytes)
            except Refusal as refusal:
                self.refused(refusal)
                raise
        if body:  # counted by `close`, after the caller has it
            self._heard_mono_s = now_s = self._account.clock_mono()
            if not self._own:
                self._account.answered_mono_s = now_s
        else:
            self.faulted(_EMPTY)
        return body

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        """See `UpstreamAnswer.chunks`. A reader that stops after the first bytes has enough."""
        said_something = False
        try:
            async with aclosing(self.inner.chunks(deadline=deadline)) as chunks:
                async for chunk in chunks:
                    said_something = True
                    yield chunk
        except Refusal as refusal:
            self.refused(refusal)
            raise
        except GeneratorExit:
            self.left(said_something=said_something)
            raise
        if said_something:
            self.answered()
        else:
            self.faulted(_EMPTY)

    def close(self) -> None:
        if not self._done:
            self.left()
        if self.inner.arrived is None:
            self.inner.close()
        share, self.share = self.share, None
        if share is not None:
            share.step_out()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            if error is None or self._heard_mono_s is not None:
                self.answered()  # it was read, or is an accepted message without an answer
            elif isinstance(error, Refusal):
                self.refused(error)
        self.close()


async def _released(answer: UpstreamAnswer) -> BuiltUpstream:
    """Returns the same answer after reading it, with its connection released so that a `ping` need not wait for it."""
    with answer:
        try:
            body = await answer.read(MAX_ERROR_BYTES)
        except Refusal:  # too large or broken off: only its status is left
            body = b""
    return answer.with_body(body)
