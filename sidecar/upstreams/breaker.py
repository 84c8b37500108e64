"""A circuit breaker, as a state table.

    closed ──faults in a row──▶ open ──rest over──▶ half_open ──answer──▶ closed
                                 ▲                      │
                                 └────────fault─────────┘

Half open lets one exchange through: the first that checks the breaker before anything is charged for it. If that
exchange is refused later, the next may try after a second. The outcome of an exchange that began before the last change
of state is ignored. The sidecar's own requests (`own`) can decide a try, but do not end a series of faults in callers'
requests: a server may answer a `ping` but none of its callers. No I/O; `clock_mono` returns monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.errors import Reason, Refusal

AGAIN_S: Final = 1.0  # when to retry while another caller's try decides


class BreakerState(StrEnum):
    """The three states of the original data models."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(StrEnum):
    """An event that changes the state. `TOO_MANY` is the last fault of the series that opens the breaker."""

    ANSWER = "answer"
    FAULT = "fault"
    TOO_MANY = "too_many"
    RESTED = "rested"


TRANSITIONS: Final[Mapping[tuple[BreakerState, BreakerEvent], BreakerState]] = {
    (BreakerState.CLOSED, BreakerEvent.ANSWER): BreakerState.CLOSED,
    (BreakerState.CLOSED, BreakerEvent.FAULT): BreakerState.CLOSED,
    (BreakerState.CLOSED, BreakerEvent.TOO_MANY): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.RESTED): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.ANSWER): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, BreakerEvent.FAULT): BreakerState.OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.TOO_MANY): BreakerState.OPEN,
}


BreakerPass = int
"""The permission for one exchange: the number of changes of state before it was given."""


@dataclass(slots=True, eq=False)
class Breaker:
    """The breaker of one upstream: `failures` faults in a row open it for `open_s` seconds. `moved` is called with each
    new state. While it is `closed`, `check` and `enter` let everything pass, and `turn` is the pass."""

    clock_mono: Callable[[], float]
    failures: int = 5
    open_s: float = 30.0
    moved: Callable[[BreakerState], None] = lambda state: None
    state: BreakerState = BreakerState.CLOSED
    closed: bool = True
    turn: BreakerPass = 0
    in_a_row: int = 0
    _met_by_callers: bool = False  # at least one fault of the series
    _opened_at: float = 0.0
    _trial_until: float = 0.0
    _claimed_until: float = 0.0

    @property
    def falters(self) -> bool:
        return self.in_a_row * 2 >= self.failures

    @property
    def rest_s(self) -> float:
        """Seconds until a try is let through; 0 if one is possible now. While one decides, AGAIN_S."""
        if self.state is BreakerState.OPEN:
            return max(0.0, self._opened_at + self.open_s - self.clock_mono())
        if self.state is BreakerState.HALF_OPEN and self.clock_mono() < self._trial_until:
            return AGAIN_S
        return 0.0

    def check(self) -> None:
        """Raises Refusal(UPSTREAM_OPEN) if `enter` would, or while another exchange has reserved the try. Otherwise
        reserves the try for this exchange, for AGAIN_S."""
        if self.closed:
            return
        self._refuse(max(self.rest_s, AGAIN_S if self.clock_mono() < self._claimed_until else 0.0))
        self._claimed_until = self.clock_mono() + AGAIN_S

    def enter(self) -> BreakerPass:
        """Lets one exchange pass; give the pass to `answered`, `failed` or `given_up`. Raises
        Refusal(UPSTREAM_OPEN)."""
        if not self.closed:
            self._refuse(self.rest_s)
            if self.state is BreakerState.OPEN:
                self._happened(BreakerEvent.RESTED)
            # If the outcome is never reported, the next try is let through after another rest.
            self._trial_until = self.clock_mono() + self.open_s
            self._claimed_until = 0.0
        return self.turn

    def answered(self, given: BreakerPass, *, own: bool = False) -> None:
        if given != self.turn or (own and self._met_by_callers and self.closed):
            return
        self.in_a_row, self._met_by_callers = 0, False
        self._happened(BreakerEvent.ANSWER)

    def seen(self, given: BreakerPass) -> None:
        """The upstream began to answer: a try succeeds, but a series of faults continues, because the answer may break
        off."""
        if self.state is BreakerState.HALF_OPEN:
            self.answered(given)

    def failed(self, given: BreakerPass, *, own: bool = False) -> None:
        if given == self.turn:
            self.in_a_row += 1
            self._met_by_callers = self._met_by_callers or not own
            self._happened(BreakerEvent.TOO_MANY if self.in_a_row >= self.failures else BreakerEvent.FAULT)

    def given_up(self, given: BreakerPass) -> None:
        if given == self.turn:
            self._trial_until = 0.0

    def _refuse(self, rest_s: float) -> None:
        if rest_s:
            raise Refusal(Reason.UPSTREAM_OPEN, retry_after_s=rest_s)

    def _happened(self, event: BreakerEvent) -> None:
        state = TRANSITIONS[self.state, event]
        if state is self.state:
            return
        self.state, self.closed = state, state is BreakerState.CLOSED
        self.turn += 1
        self._trial_until = 0.0
        if state is BreakerState.OPEN:
            self._opened_at = self.clock_mono()
        self.moved(state)
