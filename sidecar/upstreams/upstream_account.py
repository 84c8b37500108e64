"""Tracks the state, errors and latency of one upstream.

`status` and `connection` move together, by one table, as the seeds draw them:

    offline, disconnected      nobody has heard of it yet, or we have let go of it
    ready, connected           it answers
    degraded, connected        it falters: half the faults that open its breaker came in a row, or it does not take us
    offline, degraded          its breaker is not closed; we go on trying
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Protocol

from sidecar.settings.timestamps import rfc3339
from sidecar.settings.upstream_health import BreakerSettings as BreakerSettings
from sidecar.upstreams.breaker import Breaker, BreakerPass, BreakerState

_DEFAULT: Final = BreakerSettings()
log = logging.getLogger("sidecar.upstreams")
LATENCIES: Final = 100  # calls whose latency is averaged, as the seed says


class UpstreamState(Enum):
    """Status and connection, in the seeds' words."""

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
    """What moves it."""

    ANSWERED = "answered"
    FALTERED = "faltered"  # half the faults that open the breaker, in a row
    UNWELCOME = "unwelcome"  # it is there, and a conversation with it cannot be begun or gone on with
    OPENED = "opened"  # its breaker
    CLOSED = "closed"  # by us


_ANSWERED = dict.fromkeys(((standing, UpstreamNews.ANSWERED) for standing in UpstreamState), UpstreamState.UP)
_OPENED = dict.fromkeys(((standing, UpstreamNews.OPENED) for standing in UpstreamState), UpstreamState.OUT)
_CLOSED = dict.fromkeys(((standing, UpstreamNews.CLOSED) for standing in UpstreamState), UpstreamState.UNKNOWN)
TRANSITIONS: Final[Mapping[tuple[UpstreamState, UpstreamNews], UpstreamState]] = {
    **_ANSWERED,
    **_OPENED,
    **_CLOSED,
    (UpstreamState.UNKNOWN, UpstreamNews.FALTERED): UpstreamState.UNKNOWN,
    (UpstreamState.UNKNOWN, UpstreamNews.UNWELCOME): UpstreamState.UNKNOWN,
    (UpstreamState.UP, UpstreamNews.FALTERED): UpstreamState.FALTERING,
    (UpstreamState.UP, UpstreamNews.UNWELCOME): UpstreamState.FALTERING,
    (UpstreamState.FALTERING, UpstreamNews.FALTERED): UpstreamState.FALTERING,
    (UpstreamState.FALTERING, UpstreamNews.UNWELCOME): UpstreamState.FALTERING,
    (UpstreamState.OUT, UpstreamNews.FALTERED): UpstreamState.OUT,
    (UpstreamState.OUT, UpstreamNews.UNWELCOME): UpstreamState.OUT,
}


class AccountObserver(Protocol):
    """Who hears of each change: the metrics."""

    def upstream_stands(self, upstream: str, status: str) -> None:
        """Its status is this one now."""

    def breaker_moved(self, upstream: str, to: str) -> None:
        """Its breaker came into this state."""

    def session_lost(self, upstream: str) -> None:
        """It lost a session."""

    def message_dropped(self, upstream: str) -> None:
        """A message of its was dropped."""


class UpstreamAccount:
    """What is known of one upstream for as long as its definition stays the same.

    Calls are what callers asked: our own questions move status and breaker, and are not counted. `clock` gives seconds
    since the epoch, `clock_mono` monotonic ones.
    """

    def __init__(
        self,
        name: str,
        breaker: BreakerSettings = _DEFAULT,
        *,
        clock: Callable[[], float] = time.time,
        clock_mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.breaker = Breaker(
            failures=breaker.failures, open_s=breaker.open_s, clock_mono=clock_mono, moved=self._breaker_moved
        )
        self.standing = UpstreamState.UNKNOWN
        self.clock_mono = clock_mono
        self.calls = self.successes = self.errors = self.tool_errors = 0
        self.sessions_lost = self.messages_dropped = 0
        self.last_error = self._redirected = ""
        self.last_error_at = self.last_call_at = self.last_check_at = self.breaker_moved_at = 0.0
        self.answered_mono_s = float("-inf")  # when a caller was answered last
        self._clock = clock
        self._latencies_s: deque[float] = deque(maxlen=LATENCIES)
        self._observer: AccountObserver | None = None

    @property
    def latency_s(self) -> float | None:
        """The average of the last LATENCIES calls that were answered, in seconds; None before the first."""
        return sum(self._latencies_s) / len(self._latencies_s) if self._latencies_s else None

    def observed_by(self, observer: AccountObserver | None) -> None:
        """From now on `observer` hears what changes, and first how it is; None: nobody, another stands in its place."""
        self._observer = observer
        if observer is not None:
            observer.upstream_stands(self.name, self.standing.status)

    def answered(self, given: BreakerPass, *, own: bool = False) -> None:
        """It answered, whatever it said. `own`: what the sidecar asked by itself."""
        if not own:
            self.answered_mono_s = self.clock_mono()
        self.breaker.answered(given, own=own)
        if self.breaker.state is BreakerState.CLOSED and not self._falters:
            self._heard(UpstreamNews.ANSWERED)

    def faulted(self, given: BreakerPass, why: str, *, own: bool = False) -> None:
        """A fault of its own, in a sentence of ours."""
        self._note(why)
        self.breaker.failed(given, own=own)
        if self._falters:
            self._heard(UpstreamNews.FALTERED)

    @property
    def _falters(self) -> bool:
        return self.breaker.in_a_row * 2 >= self.breaker.failures

    def unwelcome(self, why: str) -> None:
        """It is there, but no conversation with it succeeds."""
        self._note(why)
        self._heard(UpstreamNews.UNWELCOME)

    def checked(self) -> None:
        """A probe came to its end."""
        self.last_check_at = self._clock()

    def called(self) -> None:
        """A caller's call goes to it."""
        self.calls += 1
        self.last_call_at = self._clock()

    def call_answered(self, took_s: float) -> None:
        self.successes += 1
        self._latencies_s.append(took_s)

    def call_failed(self, why: str) -> None:
        self.errors += 1
        self._note(why)

    def tool_failed(self) -> None:
        """A call was answered, and the answer says that what was asked for failed."""
        self.tool_errors += 1

    def session_lost(self) -> None:
        """It does not know a session any more that it had opened."""
        self.sessions_lost += 1
        if self._observer is not None:
            self._observer.session_lost(self.name)

    def redirected(self, said: str) -> None:
        """It led elsewhere, which is not followed. Each target is logged once in a row."""
        if self._redirected != said:
            self._redirected = said
            log.warning("an upstream answers with a redirect", extra={"upstream": self.name, "why": said})

    def message_dropped(self, why: str) -> None:
        """A message of its, beside an answer, was not as JSON-RPC says."""
        self.messages_dropped += 1
        if str(self.messages_dropped).strip("0") == "1":  # the first, the tenth, the hundredth: a stream may be full
            told = {"upstream": self.name, "why": why, "dropped": self.messages_dropped}
            log.warning("a message of an MCP server was dropped", extra=told)
        if self._observer is not None:
            self._observer.message_dropped(self.name)

    def closed(self) -> None:
        """We have let go of it."""
        self._heard(UpstreamNews.CLOSED)

    def plain(self) -> dict[str, Any]:
        """In values that JSON has. What callers gave up is neither a success nor an error."""
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
        self.last_error, self.last_error_at = why, self._clock()

    def _heard(self, news: UpstreamNews) -> None:
        standing = TRANSITIONS[self.standing, news]
        if standing is self.standing:
            return
        self.standing = standing
        if self._observer is not None:
            self._observer.upstream_stands(self.name, standing.status)

    def _breaker_moved(self, to: BreakerState) -> None:
        self.breaker_moved_at = self._clock()
        if to is not BreakerState.HALF_OPEN:
            self._heard(UpstreamNews.OPENED if to is BreakerState.OPEN else UpstreamNews.ANSWERED)
        if self._observer is not None:
            self._observer.breaker_moved(self.name, to.value)


def _moment(at: float) -> str | None:
    return rfc3339(at) if at else None
