"""Does this agent do its part, operation by operation?

A wire around a wire: nobody has more than a share of an agent, nothing goes out while its breaker is open, and the
account hears what came of everything. An agent's own no is an answer, as any other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from sidecar.egress import Crowded, Deadline, EgressError, NoPlace
from sidecar.errors import Reason, Refusal, Unsent
from sidecar.protocols.a2a.errors import AgentError
from sidecar.upstreams.agents.wire import AgentWire, Heard, Outgoing, Result
from sidecar.upstreams.breaker import Pass
from sidecar.upstreams.registry import Account
from sidecar.upstreams.shares import Shares

FULL_PATIENCE: Final = 0.9
_FAULTS: Final = frozenset({Reason.UPSTREAM_FAILED, Reason.UPSTREAM_TIMEOUT})


class WatchedAgent:
    """One agent, watched over. `share` is how many calls of one caller it has at once, `timeout_s` how long one may
    take."""

    def __init__(self, inner: AgentWire, account: Account, share: int, timeout_s: float) -> None:
        self.inner = inner
        self.account = account
        self.shares = Shares(share)
        self._timeout_s = timeout_s

    async def ask(self, outgoing: Outgoing) -> Result | AgentError:
        """As `AgentWire.ask`. Raises Refusal also as UPSTREAM_OPEN and TOO_MANY_CONCURRENT; then nothing was sent."""
        if outgoing.caller is None:
            return await self._ask(outgoing)
        try:
            owner, left_s = await self.shares.take(outgoing.caller, outgoing.deadline_s)
        except EgressError as full:
            raise Unsent(Reason.TOO_MANY_CONCURRENT, "too many calls of one caller", retry_after_s=1.0) from full
        try:
            return await self._ask(outgoing._replace(deadline_s=left_s))
        finally:
            self.shares.give_back(owner)

    async def _ask(self, outgoing: Outgoing) -> Result | AgentError:
        visit = _Visit(self.account, outgoing, self._timeout_s)
        try:
            answer = await self.inner.ask(outgoing)
        except Refusal as refusal:
            visit.refused(refusal)
            raise
        except BaseException:
            visit.given_up()
            raise
        visit.answered()
        return answer

    async def listen(self, outgoing: Outgoing) -> Heard | AgentError:
        """As `AgentWire.listen`. A stream that has begun is an answer."""
        visit = _Visit(self.account, outgoing, self._timeout_s)
        try:
            heard = await self.inner.listen(outgoing)
        except Refusal as refusal:
            visit.refused(refusal)
            raise
        except BaseException:
            visit.given_up()
            raise
        if isinstance(heard, AgentError):
            visit.answered()
            return heard
        return WatchedStream(heard, visit)

    def shows_the_same_as(self, other: AgentWire) -> bool:
        """As `AgentWire.shows_the_same_as`."""
        return self.inner.shows_the_same_as(other.inner if isinstance(other, WatchedAgent) else other)

    async def close(self) -> None:
        """As `AgentWire.close`."""
        await self.inner.close()
        self.account.closed()


class _Visit:
    """One operation, as the account sees it: told once, by whatever ends it first."""

    __slots__ = ("_account", "_began_mono_s", "_counts", "_done", "_pass", "_patient")

    def __init__(self, account: Account, outgoing: Outgoing, timeout_s: float) -> None:
        self._pass: Pass = account.breaker.enter()
        self._account = account
        self._patient = outgoing.deadline_s >= timeout_s * FULL_PATIENCE
        self._counts = outgoing.caller is not None
        self._began_mono_s = account.clock_mono()
        self._done = False
        if self._counts:
            account.called()

    def answered(self) -> None:
        """It said something."""
        if self._done:
            return
        self._done = True
        self._account.answered(self._pass)
        if self._counts:
            self._account.call_answered(self._account.clock_mono() - self._began_mono_s)

    def refused(self, refusal: Refusal) -> None:
        """It came to nothing."""
        if self._done:
            return
        ours = isinstance(refusal.__cause__, Crowded | NoPlace) or isinstance(refusal, Unsent)
        alive = self._account.heard_mono_s >= self._began_mono_s
        late = refusal.reason is Reason.UPSTREAM_TIMEOUT and (alive or not self._patient)
        why = refusal.detail or refusal.answer.message
        if refusal.reason in _FAULTS and not ours and not late:
            self._done = True
            self._account.faulted(self._pass, why)
        else:
            self.given_up()
        if self._counts and refusal.reason in _FAULTS | {Reason.RESPONSE_REFUSED}:
            self._account.call_failed(why)

    def given_up(self) -> None:
        """Nobody waits for it any more."""
        if not self._done:
            self._done = True
            self._account.breaker.given_up(self._pass)


class WatchedStream:
    """A stream whose first event, or whose failure before any, is told to the account."""

    def __init__(self, inner: Heard, visit: _Visit) -> None:
        self._inner = inner
        self._visit = visit

    async def events(self, deadline: Deadline, idle_s: float) -> AsyncGenerator[Result | AgentError | None, None]:
        """As `Heard.events`."""
        try:
            async with aclosing(self._inner.events(deadline, idle_s)) as events:
                async for event in events:
                    self._visit.answered()
                    yield event
        except Refusal as refusal:
            self._visit.refused(refusal)
            raise
        finally:
            self._visit.given_up()

    def close(self) -> None:
        """As `Heard.close`."""
        self._visit.given_up()
        self._inner.close()
