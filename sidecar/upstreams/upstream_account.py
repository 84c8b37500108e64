"""Tracks the state, errors and latency of one upstream.

`status` and `connection` change together, by one table of the original data models:

    offline, disconnected      it has not answered yet, or is closed
    ready, connected           it answers
    degraded, connected        half the faults that open its breaker came in a row, or it accepts no conversation
    offline, degraded          its breaker is not closed
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final

from sidecar.errors import Reason, Refusal, Unsent
from sidecar.http.client import NoCapacity, QueueFull
from sidecar.observability.metrics import Metrics
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.upstreams import BreakerSettings
from sidecar.upstreams.breaker import Breaker, BreakerPass, BreakerState
from sidecar.upstreams.mcp.transport import FULL_PATIENCE, OfOneCaller

_DEFAULT: Final = BreakerSettings()
_FAULTS: Final = frozenset({Reason.UPSTREAM_FAILED, Reason.UPSTREAM_TIMEOUT})
_ERRORS: Final = _FAULTS | {Reason.RESPONSE_REFUSED}
log = logging.getLogger("sidecar.upstreams")
LATENCIES: Final = 100  # calls whose latency is averaged, by the original data models


class UpstreamState(Enum):
    """Status and connection, in the terms of the original data models."""

    UNKNOWN = ("offline", "disconnected")
    UP = ("ready", "connected")
    FALTERING = ("degraded", "connected")
    OUT = ("offline", "degraded")

    @property
    def status(self) -> str:
        return self.value[0]

    @property
    def connection(self) -> str:
        return self.value[1]


class UpstreamNews(StrEnum):
    """An event that changes the state."""

    ANSWERED = "answered"
    FALTERED = "faltered"  # half the faults that open the breaker, in a row
    UNWELCOME = "unwelcome"  # reachable, but a conversation cannot be begun or continued
    OPENED = "opened"  # its breaker
    CLOSED = "closed"  # by the sidecar


_SHOWN: Final = {
    UpstreamNews.ANSWERED: UpstreamState.UP,
    UpstreamNews.OPENED: UpstreamState.OUT,
    UpstreamNews.CLOSED: UpstreamState.UNKNOWN,
}
TRANSITIONS: Final[Mapping[tuple[UpstreamState, UpstreamNews], UpstreamState]] = {
    # An event that shows no new state leaves the old one, except that an available upstream falters.
    (state, news): _SHOWN.get(news) or (UpstreamState.FALTERING if state is UpstreamState.UP else state)
    for state in UpstreamState
    for news in UpstreamNews
}


class UpstreamAccount:
    """The state and statistics of one upstream. The sidecar's own requests change status and breaker, but no counts.
    `clock` gives seconds since the epoch, `clock_mono` monotonic seconds."""

    def __init__(
        self,
        name: str,
        breaker: BreakerSettings = _DEFAULT,
        *,
        clock: Callable[[], float] = time.time,
        clock_mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.breaker = Breaker(clock_mono, breaker.failures, breaker.open_s, self._breaker_moved)
        self.standing = UpstreamState.UNKNOWN
        self.clock_mono = clock_mono
        self.calls = self.successes = self.errors = self.tool_errors = 0
        self.sessions_lost = self.messages_dropped = 0
        self.last_error = self._redirected = ""
        self.last_error_at = self.last_call_at = self.last_check_at = self.breaker_moved_at = 0.0
        self.answered_mono_s = float("-inf")  # when a caller was last answered
        self.clock = clock
        self._latencies_s: deque[float] = deque(maxlen=LATENCIES)
        self._observer: Metrics | None = None

    @property
    def latency_s(self) -> float | None:
        """The average of the last LATENCIES answered calls, in seconds; None before the first."""
        return sum(self._latencies_s) / len(self._latencies_s) if self._latencies_s else None

    def observed_by(self, observer: Metrics | None) -> None:
        """Reports the state, and each later change, to `observer`; None stops that, when another account takes over."""
        self._observer = observer
        if observer is not None:
            observer.upstream_stands(self.name, self.standing.status)

    def answered(
        self,
        given: BreakerPass,
        *,
        own: bool = False,
        begun_mono_s: float | None = None,
        heard_mono_s: float | None = None,
    ) -> None:
        """The upstream answered, with a result or an error. `own` marks a request of the sidecar itself; a successful
        call of a caller has its start time. `heard_mono_s` is when the answer arrived, if not now."""
        breaker, at_mono_s = self.breaker, self.clock_mono() if heard_mono_s is None else heard_mono_s
        if not own:
            self.answered_mono_s = max(self.answered_mono_s, at_mono_s)
        if begun_mono_s is not None:
            self.successes += 1
            self._latencies_s.append(at_mono_s - begun_mono_s)
        if breaker.in_a_row or not breaker.closed:
            breaker.answered(given, own=own)
        if self.standing is not UpstreamState.UP and breaker.closed and not breaker.falters:
            self._heard(UpstreamNews.ANSWERED)

    def faulted(self, given: BreakerPass, why: str, *, own: bool = False) -> None:
        """The upstream failed; `why` is a sentence of the sidecar's."""
        self._note(why)
        self.breaker.failed(given, own=own)
        if self.breaker.falters:
            self._heard(UpstreamNews.FALTERED)

    def unwelcome(self, why: str) -> None:
        """The upstream is reachable, but no conversation with it succeeds."""
        self._note(why)
        self._heard(UpstreamNews.UNWELCOME)

    def checked(self) -> None:
        self.last_check_at = self.clock()

    def call_failed(self, error: str) -> None:
        """A caller's call ended with an error."""
        self.errors += 1
        self._note(error)

    def tool_failed(self) -> None:
        """A call was answered, and the answer reports a failure of the tool."""
        self.tool_errors += 1

    def session_lost(self) -> None:
        self.sessions_lost += 1
        if self._observer is not None:
            self._observer.session_lost(self.name)

    def redirected(self, said: str) -> None:
        """The upstream sent a redirect, which is not followed. Repeated redirects to the same target are logged
        once."""
        if self._redirected != said:
            self._redirected = said
            log.warning("an upstream answers with a redirect", extra={"upstream": self.name, "why": said})

    def message_dropped(self, why: str) -> None:
        """A message other than an answer was not valid JSON-RPC."""
        self.messages_dropped += 1
        if str(self.messages_dropped).strip("0") == "1":  # the first, tenth, hundredth: a stream may contain many
            told = {"upstream": self.name, "why": why, "dropped": self.messages_dropped}
            log.warning("a message of an MCP server was dropped", extra=told)
        if self._observer is not None:
            self._observer.message_dropped(self.name)

    def closed(self) -> None:
        self._heard(UpstreamNews.CLOSED)

    def plain(self) -> dict[str, Any]:
        """The account as JSON values. Calls that callers abandoned count neither as successes nor as errors."""
        breaker, latency_s = self.breaker, self.latency_s
        return {
            "status": self.standing.status,
            "connection": self.standing.connection,
            "breaker": {
                "state": breaker.state.value,
                "failures": breaker.in_a_row,
                "failure_threshold": breaker.failures,
                "open_s": breaker.open_s,
                "retry_after_s": round(breaker.rest_s, 3),
                "last_state_change": _moment(self.breaker_moved_at),
            },
            "calls": self.calls,
            "successes": self.successes,
            "errors": self.errors,
            "tool_errors": self.tool_errors,
            "sessions_lost": self.sessions_lost,
            "messages_dropped": self.messages_dropped,
            "average_latency_ms": None if latency_s is None else round(latency_s * 1000, 3),
            "last_error": self.last_error or None,
            "last_error_at": _moment(self.last_error_at),
            "last_health_check": _moment(self.last_check_at),
            "last_call": _moment(self.last_call_at),
        }

    def _note(self, why: str) -> None:
        self.last_error, self.last_error_at = why, self.clock()

    def _heard(self, news: UpstreamNews) -> None:
        standing = TRANSITIONS[self.standing, news]
        if standing is self.standing:
            return
        self.standing = standing
        if self._observer is not None:
            self._observer.upstream_stands(self.name, standing.status)

    def _breaker_moved(self, to: BreakerState) -> None:
        self.breaker_moved_at = self.clock()
        if to is not BreakerState.HALF_OPEN:
            self._heard(UpstreamNews.OPENED if to is BreakerState.OPEN else UpstreamNews.ANSWERED)
        if self._observer is not None:
            self._observer.breaker_moved(self.name, to.value)


def _moment(at: float) -> str | None:
    return rfc3339(at) if at else None


class CallOutcome:
    """The outcome of one use of an upstream, which starts now. The account records the first reported outcome. The use
    may take `deadline_s`, any call at this upstream `timeout_s`; `own` marks a request of the sidecar itself, `counts`
    a caller's call. Faults are failures that callers cannot cause (listed in `mcp/guarded_transport.py`). Raises
    Refusal(UPSTREAM_OPEN)."""

    _done = False
    _heard_mono_s: float | None = None  # when the whole answer arrived, if `answered` is called later

    def __init__(
        self, account: UpstreamAccount, deadline_s: float, timeout_s: float, *, own: bool, counts: bool
    ) -> None:
        self._account, breaker = account, account.breaker
        self._pass = breaker.turn if breaker.closed else breaker.enter()
        self._patient = deadline_s >= timeout_s * FULL_PATIENCE
        self._own, self._counts = own, counts
        self._began_mono_s = account.clock_mono()
        if counts:
            account.calls += 1
            account.last_call_at = account.clock()

    def answered(self, error: str = "") -> None:
        if not self._done:
            self._done = True
            begun, heard = self._began_mono_s if self._counts and not error else None, self._heard_mono_s
            self._account.answered(self._pass, own=self._own, begun_mono_s=begun, heard_mono_s=heard)
            if error:
                self._count(error)

    def faulted(self, why: str) -> None:
        if not self._done:
            self._done = True
            self._account.faulted(self._pass, why, own=self._own)
            self._count(why)

    def refused(self, refusal: Refusal) -> None:
        if self._done:
            return
        ours = isinstance(refusal.__cause__, QueueFull | NoCapacity | OfOneCaller) or isinstance(refusal, Unsent)
        # A caller with a shorter deadline than a call's timeout proves nothing. A server that answered other callers in
        # the meantime is available: one caller's slow calls must not open the breaker for all.
        alive = self._account.answered_mono_s >= self._began_mono_s
        late = refusal.reason is Reason.UPSTREAM_TIMEOUT and (alive or not self._patient)
        why = refusal.detail or refusal.answer.message
        if refusal.reason in _FAULTS and not ours and not late:
            self.faulted(why)
            return
        self.given_up()
        if refusal.reason in _ERRORS:
            self._count(why)

    def given_up(self) -> None:
        if not self._done:
            self._done = True
            self._account.breaker.given_up(self._pass)

    def _count(self, error: str) -> None:
        if self._counts:
            self._account.call_failed(error)
