"""Records the outcome of one use of an upstream.

Only what callers cannot cause is a fault (`mcp/guarded_transport.py` has the list); the account hears it once, by
whatever ends the use first.
"""

from __future__ import annotations

from typing import Final

from sidecar.errors import Reason, Refusal, Unsent
from sidecar.http.client import NoCapacity, QueueFull
from sidecar.upstreams.breaker import BreakerPass
from sidecar.upstreams.mcp.transport import FULL_PATIENCE, OfOneCaller
from sidecar.upstreams.upstream_account import UpstreamAccount

_FAULTS: Final = frozenset({Reason.UPSTREAM_FAILED, Reason.UPSTREAM_TIMEOUT})
_ERRORS: Final = _FAULTS | {Reason.RESPONSE_REFUSED}


class CallOutcome:
    """One use, from now on. It may take `deadline_s`, and a call there `timeout_s`; `own` says whether it is the
    sidecar that asks and no caller, `counts` whether it is a caller's call. Raises Refusal as UPSTREAM_OPEN."""

    __slots__ = ("_account", "_began_mono_s", "_counts", "_done", "_own", "_pass", "_patient")

    def __init__(
        self, account: UpstreamAccount, deadline_s: float, timeout_s: float, *, own: bool, counts: bool
    ) -> None:
        self._pass: BreakerPass = account.breaker.enter()
        self._account = account
        self._patient = deadline_s >= timeout_s * FULL_PATIENCE
        self._own = own
        self._counts = counts
        self._began_mono_s = account.clock_mono()
        self._done = False
        if counts:
            account.called()

    def answered(self, error: str = "") -> None:
        """It said something, perhaps that this is an `error`."""
        if self._done:
            return
        self._done = True
        self._account.answered(self._pass, own=self._own)
        if not self._counts:
            return
        if error:
            self._account.call_failed(error)
        else:
            self._account.call_answered(self._account.clock_mono() - self._began_mono_s)

    def faulted(self, why: str) -> None:
        """It did not do its part."""
        if self._done:
            return
        self._done = True
        self._account.faulted(self._pass, why, own=self._own)
        if self._counts:
            self._account.call_failed(why)

    def refused(self, refusal: Refusal) -> None:
        """The use, or reading its answer, came to nothing."""
        if self._done:
            return
        ours = isinstance(refusal.__cause__, QueueFull | NoCapacity | OfOneCaller) or isinstance(refusal, Unsent)
        # Who had less patience than a call may have cannot say; and a server that answered other callers meanwhile is
        # there: one caller's slow calls must not close it to everybody.
        alive = self._account.answered_mono_s >= self._began_mono_s
        late = refusal.reason is Reason.UPSTREAM_TIMEOUT and (alive or not self._patient)
        why = refusal.detail or refusal.answer.message
        if refusal.reason in _FAULTS and not ours and not late:
            self.faulted(why)
            return
        self.given_up()
        if self._counts and refusal.reason in _ERRORS:
            self._account.call_failed(why)

    def given_up(self) -> None:
        """Nobody waits for it any more."""
        if not self._done:
            self._done = True
            self._account.breaker.given_up(self._pass)
