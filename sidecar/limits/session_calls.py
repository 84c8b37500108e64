"""Limits lists, pings and other session calls of each principal, in this process: at most N in any 60 seconds.

Session calls (`initialize`, `ping`, lists, notifications) need no rule and no budget.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from sidecar.errors import LimitState, Reason, Refusal
from sidecar.limits.counters import SECOND_US, SlidingWindow
from sidecar.limits.plan import LimitCharge

LABEL = "session_calls_per_minute"
MAX_PRINCIPALS = 50_000  # 0.5 KB each; more than are expected within one minute
SWEPT_PER_CALL = 2


class SessionCalls:
    """At most `per_minute` session calls of each principal. `clock` returns monotonic seconds."""

    def __init__(self, per_minute: int, clock: Callable[[], float], *, max_principals: int = MAX_PRINCIPALS) -> None:
        self._charge = LimitCharge(LABEL, "hour", "", per_minute)
        self._clock = clock
        self._max_principals = max_principals
        self._counters: dict[str, SlidingWindow] = {}

    def charge(self, principal: str) -> None:
        """Counts one call. Raises Refusal RATE_LIMITED if the limit is exceeded."""
        now_us = int(self._clock() * SECOND_US)
        counter = self._counters.pop(principal, None) or self._fresh(now_us)
        self._counters[principal] = counter
        if counter.take(self._charge, now_us, "") is None:
            self._refuse(counter.ask(self._charge, now_us).wait_us)

    def _fresh(self, now_us: int) -> SlidingWindow:
        for known in list(islice(self._counters, SWEPT_PER_CALL)):
            if self._counters[known].idle(now_us):
                del self._counters[known]
        if len(self._counters) >= self._max_principals:
            self._refuse(60 * SECOND_US)  # forgetting a principal would lift its limit
        return SlidingWindow(bucket_us=SECOND_US)

    def _refuse(self, wait_us: int) -> None:
        state = LimitState(self._charge.limit, self._charge.most, 0, 60.0)
        raise Refusal(Reason.RATE_LIMITED, limit=state, retry_after_s=wait_us / SECOND_US)
