"""Wraps an agent transport with a breaker, fair shares and accounting.

An agent's own error counts as an answer. The agent's address, which agent libraries often include in error texts, is
hidden from callers.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import Deadline
from sidecar.protocols.a2a.cards import hiding
from sidecar.protocols.a2a.errors import AgentError
from sidecar.upstreams.agents.transport import AgentEvents, AgentTransport, Declined, OutgoingOperation, Result
from sidecar.upstreams.fair_share import FairShares
from sidecar.upstreams.upstream_account import CallOutcome, UpstreamAccount

INSTEAD: Final = "(the agent)"


class GuardedAgent:
    """A guarded agent. One caller has at most `share` calls at a time, besides streams; a call may take `timeout_s`;
    `url` is the agent's address."""

    def __init__(self, inner: AgentTransport, account: UpstreamAccount, share: int, timeout_s: float, url: str) -> None:
        self.inner = inner
        self.secrets = inner.secrets
        self.account = account
        self.shares = FairShares(share)
        self._timeout_s = timeout_s
        self._hide = hiding(url, INSTEAD)

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        """See `AgentTransport.ask`. Also raises UPSTREAM_OPEN and TOO_MANY_CONCURRENT, in both cases before anything is
        sent."""
        share, own = None, outgoing.caller is None
        if outgoing.caller is not None:
            share, has_place = self.shares.of(outgoing.caller)
            if not has_place:
                outgoing = outgoing._replace(deadline_s=await self.shares.wait(share, outgoing.deadline_s))
        try:
            visit = CallOutcome(self.account, outgoing.deadline_s, self._timeout_s, own=own, counts=not own)
            try:
                answer = await self.inner.ask(outgoing)
            except BaseException as error:
                self._failed(visit, error)
                raise
            visit.answered()
        finally:
            if share is not None:
                share.step_out()
        return self._told(answer) if isinstance(answer, AgentError) else answer

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        """See `AgentTransport.listen`. Also raises UPSTREAM_OPEN. A stream counts as an answer from its first event
        on."""
        own = outgoing.caller is None
        visit = CallOutcome(self.account, outgoing.deadline_s, self._timeout_s, own=own, counts=not own)
        try:
            heard = await self.inner.listen(outgoing)
        except BaseException as error:
            self._failed(visit, error)
            raise
        if isinstance(heard, AgentError):
            visit.answered()
            return self._told(heard)
        return GuardedStream(heard, visit, self._told)

    def _told(self, error: AgentError) -> AgentError:
        return error._replace(message=self._hide(error.message), data=tuple(map(self._hide, error.data)))

    def _failed(self, visit: CallOutcome, error: BaseException) -> None:
        if isinstance(error, Refusal):
            _tell(visit, error)
            error.words = self._hide(error.words)
        else:
            visit.given_up()

    async def close(self) -> None:
        await self.inner.close()
        self.account.closed()


class GuardedStream:
    """A stream that reports its first event, or a failure before any event, to the account."""

    def __init__(self, inner: AgentEvents, visit: CallOutcome, told: Callable[[AgentError], AgentError]) -> None:
        self._inner = inner
        self._visit = visit
        self._told = told

    async def events(self, deadline: Deadline, idle_s: float) -> AsyncGenerator[Result | AgentError | None, None]:
        try:
            async with aclosing(self._inner.events(deadline, idle_s)) as events:
                async for event in events:
                    self._visit.answered()
                    yield self._told(event) if isinstance(event, AgentError) else event
        except Refusal as refusal:
            _tell(self._visit, refusal)
            raise
        finally:
            self._visit.given_up()

    def close(self) -> None:
        self._visit.given_up()
        self._inner.close()


def _tell(visit: CallOutcome, refusal: Refusal) -> None:
    if isinstance(refusal, Declined) or refusal.reason is Reason.UPSTREAM_LIMITED:
        visit.answered(refusal.detail)
    else:
        visit.refused(refusal)
