"""Wraps an MCP transport with a breaker, fair shares and accounting.

An upstream around an upstream: it lets no caller have more than a share, and nothing through while the breaker is open,
and tells the account what came of what it let through. Only what callers cannot cause is a fault:

    fault        it cannot be reached, broke off, ended, answered HTTP 5xx or no protocol; took longer than a call may,
                 and answered no caller meanwhile, however much of an answer it had sent
    answer       anything else that it says to a request: 4xx, JSON-RPC errors, `isError`; the head of a stream, when
                 the breaker wants to know whether it is there at all
    neither      it took a notification or an answer, or opened a stream that has no end: a server whose calls all hang
                 does that too; the caller left or had less patience, we refused the answer or hung up, our own line
                 was full
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Final

from sidecar.errors import Reason, Refusal, Unsent
from sidecar.http.client import ENDLESS, Deadline, EgressError
from sidecar.protocols.jsonrpc import Request
from sidecar.upstreams.call_outcome import CallOutcome
from sidecar.upstreams.fair_share import FairShares
from sidecar.upstreams.mcp.line_sessions import LineTransport
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, McpTransport, Outbound, UpstreamAnswer
from sidecar.upstreams.statuses import words_of
from sidecar.upstreams.upstream_account import UpstreamAccount

_UNAUTHORIZED: Final = 401
WORDS_PART: Final = 8  # of a share, beside it, for what is no call


class GuardedTransport:
    """One upstream, watched over. `inner` is the upstream itself, `account` what is known of it, `share` how many calls
    of one caller it has at once."""

    def __init__(self, inner: McpTransport, account: UpstreamAccount, share: int) -> None:
        self.inner = inner
        self.account = account
        self.shares = FairShares(share)
        # Notifications and answers to the server take connections too. They never wait for calls: a call may wait for
        # one of them. Together both shares leave room for others.
        self.words = FairShares(max(1, share // WORDS_PART))

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
        """As `McpTransport.exchange`. Raises Refusal also as UPSTREAM_OPEN and TOO_MANY_CONCURRENT, and then nothing
        was sent."""
        if outbound.caller is None or outbound.endless or outbound.message is None:
            return await self._exchange(outbound, _nothing)
        shares = self.shares if isinstance(outbound.message, Request) else self.words
        try:
            owner, left_s = await shares.take(outbound.caller, outbound.deadline_s)
        except EgressError as full:
            raise Unsent(Reason.TOO_MANY_CONCURRENT, "too many calls of one caller", retry_after_s=1.0) from full
        leave = partial(shares.give_back, owner)
        try:
            return await self._exchange(outbound._replace(deadline_s=left_s), leave)
        except BaseException:
            leave()
            raise

    async def _exchange(self, outbound: Outbound, leave: Callable[[], None]) -> UpstreamAnswer:
        visit = ExchangeOutcome(self.account, outbound, self.timeout_s)
        try:
            answer = await self.inner.exchange(outbound)
        except Refusal as refusal:
            visit.refused(refusal)
            raise
        except BaseException:
            visit.left()
            raise
        visit.head(answer)
        return GuardedAnswer(answer, visit, leave)

    def roams(self, session_id: str | None) -> bool:
        return self.inner.roams(session_id)

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        """As `McpTransport.end_session`; not told to one that is given a rest, so that it holds up no other's."""
        if not self.account.breaker.rest_s or isinstance(self.inner, LineTransport):  # there it is ours to hang up
            await self.inner.end_session(session_id, version, deadline_s)

    def shows_the_same_as(self, other: McpTransport) -> bool:
        return self.inner.shows_the_same_as(other.inner if isinstance(other, GuardedTransport) else other)

    async def close(self) -> None:
        await self.inner.close()
        self.account.closed()


class ExchangeOutcome(CallOutcome):
    """One exchange, as the account sees it."""

    __slots__ = ("_expired", "_waits")

    def __init__(self, account: UpstreamAccount, outbound: Outbound, timeout_s: float) -> None:
        message, own = outbound.message, outbound.own or outbound.caller is None
        self._waits = isinstance(message, Request) and message.method != "subscriptions/listen"
        self._expired = outbound.expired
        super().__init__(account, outbound.deadline_s, timeout_s, own=own, counts=self._waits and not own)

    def head(self, answer: UpstreamAnswer) -> None:
        """The answer has begun: often that says it all."""
        status = answer.status
        if status >= 500:
            self.faulted(words_of(answer))
        elif not self._waits:
            self.given_up()
        elif status >= 300:
            self.answered(words_of(answer))
        elif answer.media_type == EVENT_STREAM:
            self._account.breaker.seen(self._pass)
        elif answer.media_type != JSON:
            self.faulted("its media type is neither JSON nor an event stream")
        if status == _UNAUTHORIZED:
            self._account.unwelcome(words_of(answer))
        elif 300 <= status < 400:
            self._account.redirected(words_of(answer))

    def left(self, *, read_something: bool = False) -> None:
        """Who waited reads no further: they have what was wanted, or the time is over."""
        if self._expired():
            self.refused(Refusal(Reason.UPSTREAM_TIMEOUT))
        elif read_something:
            self.complete()
        else:
            self.given_up()

    def complete(self) -> None:
        """The whole answer is there, or as much of it as anybody wanted."""
        self.answered()

    def empty(self) -> None:
        """The answer ended before it said anything."""
        self.faulted("its answer was empty")


class GuardedAnswer:
    """An answer whose end is told to the account. `leave` is called once, when it is over."""

    __slots__ = ("_inner", "_leave", "_visit", "headers", "media_type", "status")

    def __init__(self, inner: UpstreamAnswer, visit: ExchangeOutcome, leave: Callable[[], None]) -> None:
        self.status: int = inner.status
        self.headers: Mapping[str, str] = inner.headers
        self.media_type: str = inner.media_type
        self._inner = inner
        self._visit = visit
        self._leave = leave

    async def read(self, max_bytes: int) -> bytes:
        try:
            body = await self._inner.read(max_bytes)
        except Refusal as refusal:
            self._visit.refused(refusal)
            raise
        self._visit.complete() if body else self._visit.empty()
        return body

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        """As `UpstreamAnswer.chunks`. Who has read something and reads no further had what was wanted."""
        said_something = False
        try:
            async with aclosing(self._inner.chunks(deadline=deadline)) as chunks:
                async for chunk in chunks:
                    said_something = True
                    yield chunk
        except Refusal as refusal:
            self._visit.refused(refusal)
            raise
        except GeneratorExit:
            self._visit.left(read_something=said_something)
            raise
        self._visit.complete() if said_something else self._visit.empty()

    def close(self) -> None:
        self._visit.left()
        self._over()

    def _over(self) -> None:
        self._inner.close()
        leave, self._leave = self._leave, _nothing
        leave()

    def __enter__(self) -> GuardedAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._visit.complete()  # a message that was taken, and whose answer nobody has to read
        elif isinstance(error, Refusal):
            self._visit.refused(error)
        else:
            self._visit.left()
        self._over()


def _nothing() -> None:
    """What has no share gives none back."""
