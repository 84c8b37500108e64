"""Wraps an MCP transport with a breaker, fair shares and accounting.

No caller gets more than its share, and nothing passes while the breaker is open. The account records the outcome of
everything that passes. Only a failure that callers cannot cause is a fault:

    fault        it cannot be reached, broke off, ended, answered HTTP 5xx or no protocol; took longer than a call may,
                 and answered no caller meanwhile, however much of an answer it had sent
    answer       anything else that it sends for a request: 4xx, JSON-RPC errors, `isError`; the head of a stream, while
                 the breaker tries whether it is there at all
    neither      it accepted a notification or a response, or opened an endless stream: a server whose calls all hang
                 does that too; the caller left or had a shorter deadline, the sidecar refused the answer or closed it,
                 or its line was full
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
WORDS_PART: Final = 8  # messages that are no calls have an extra share, of this part of the size


class GuardedTransport:
    """A guarded upstream. `inner` is the transport itself, `account` its record, `share` the number of concurrent calls
    of one caller.
    """

    def __init__(self, inner: McpTransport, account: UpstreamAccount, share: int) -> None:
        self.inner = inner
        self.account = account
        self.shares = FairShares(share)
        # Notifications and responses to the server take connections too. They never wait for calls, because a call may
        # wait for one of them. Both shares together leave room for others.
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
        """See `McpTransport.exchange`. Also raises Refusal as UPSTREAM_OPEN and TOO_MANY_CONCURRENT; in both cases
        nothing was sent.
        """
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
        """See `McpTransport.end_session`. Skipped while the breaker is open, so as to delay no other session's end."""
        if not self.account.breaker.rest_s or isinstance(self.inner, LineTransport):  # a line is closed on our side
            await self.inner.end_session(session_id, version, deadline_s)

    def shows_the_same_as(self, other: McpTransport) -> bool:
        return self.inner.shows_the_same_as(other.inner if isinstance(other, GuardedTransport) else other)

    async def close(self) -> None:
        await self.inner.close()
        self.account.closed()


class ExchangeOutcome(CallOutcome):
    """The outcome of one exchange for the account."""

    __slots__ = ("_expired", "_waits")

    def __init__(self, account: UpstreamAccount, outbound: Outbound, timeout_s: float) -> None:
        message, own = outbound.message, outbound.own or outbound.caller is None
        self._waits = isinstance(message, Request) and message.method != "subscriptions/listen"
        self._expired = outbound.expired
        super().__init__(account, outbound.deadline_s, timeout_s, own=own, counts=self._waits and not own)

    def head(self, answer: UpstreamAnswer) -> None:
        """The head of the answer has arrived, which often decides the outcome."""
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
        """The reader stopped: it has what it wanted, or its time is over."""
        if self._expired():
            self.refused(Refusal(Reason.UPSTREAM_TIMEOUT))
        elif read_something:
            self.complete()
        else:
            self.given_up()

    def complete(self) -> None:
        """The whole answer was read, or as much of it as the caller wanted."""
        self.answered()

    def empty(self) -> None:
        """The answer ended before its first byte."""
        self.faulted("its answer was empty")


class GuardedAnswer:
    """An answer that reports its end to the account. `leave` is called once, when it is over."""

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
        """See `UpstreamAnswer.chunks`. A reader that stops after the first bytes has what it wanted."""
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
            self._visit.complete()  # an accepted message without an answer to read
        elif isinstance(error, Refusal):
            self._visit.refused(error)
        else:
            self._visit.left()
        self._over()


def _nothing() -> None:
    """For exchanges that take no share."""
