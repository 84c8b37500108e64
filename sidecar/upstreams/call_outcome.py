"""Records the outcome of one use of an upstream.

Only a failure that callers cannot cause is a fault (`mcp/guarded_transport.py` has the list). The account records the
first outcome; later ones are ignored.
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
    """One use, starting now. Its deadline is `deadline_s`, and a call's timeout at this upstream `timeout_s`; `own`
    marks a request of the sidecar itself, `counts` a caller's call. Raises Refusal as UPSTREAM_OPEN.
    """

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
        """The upstream answered, perhaps with an `error`."""
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
        """The upstream failed."""
        if self._done:
            return
        self._done = True
        self._account.faulted(self._pass, why, own=self._own)
        if self._counts:
            self._account.call_failed(why)

    def refused(self, refusal: Refusal) -> None:
        """The use, or reading its answer, raised a refusal."""
        if self._done:
            return
        ours = isinstance(refusal.__cause__, QueueFull | NoCapacity | OfOneCaller) or isinstance(refusal, Unsent)
        # A caller with a shorter deadline than a call's timeout proves nothing; and a server that answered other
        # callers meanwhile is up: one caller's slow calls must not open the breaker for all.
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
        """The caller gave up."""
        if not self._done:
            self._done = True
            self._account.breaker.given_up(self._pass)
