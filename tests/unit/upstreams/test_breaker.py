"""Does the breaker do what its table says, and does a status?"""

from collections.abc import Callable

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.upstreams import BreakerSettings
from sidecar.upstreams.agents.card import CardKeeper
from sidecar.upstreams.breaker import AGAIN_S, TRANSITIONS, Breaker, BreakerEvent, BreakerState
from sidecar.upstreams.upstream_account import (
    LATENCIES,
    TRANSITIONS as STANDINGS,
    UpstreamAccount,
    UpstreamNews,
    UpstreamState,
)
from tests.unit.upstreams.peer import Clock


def refused(asked: Breaker) -> float | None:
    """How long until the next try; None where there may be one."""
    try:
        asked.check()
    except Refusal as refusal:
        assert refusal.reason is Reason.UPSTREAM_OPEN
        return refusal.retry_after_s
    return None


def fault(asked: Breaker, _: Clock) -> None:
    asked.failed(asked.enter())


def answer(asked: Breaker, clock: Clock) -> None:
    asked.answered(asked.enter())


def rest(asked: Breaker, clock: Clock) -> None:
    clock.now += 30


def begin(asked: Breaker, clock: Clock) -> None:
    asked.enter()


def after(*steps: Callable[[Breaker, Clock], None]) -> tuple[Breaker, Clock]:
    """A breaker that opens at the second fault, after these steps."""
    clock = Clock()
    asked = Breaker(failures=2, open_s=30, clock_mono=clock)
    for step in steps:
        step(asked, clock)
    return asked, clock


WAYS: dict[BreakerState, list[Callable[[Breaker, Clock], None]]] = {
    BreakerState.CLOSED: [],
    BreakerState.OPEN: [fault, fault],
    BreakerState.HALF_OPEN: [fault, fault, rest, begin],
}


@pytest.mark.parametrize(("state", "event"), TRANSITIONS)
def test_the_table_is_walked_as_it_is_written(state: BreakerState, event: BreakerEvent) -> None:
    asked, clock = after(*WAYS[state])
    assert asked.state is state
    match event:
        case BreakerEvent.RESTED:
            clock.now += 30
            asked.enter()
        case BreakerEvent.ANSWER | BreakerEvent.FAULT:
            clock.now += 30  # a try that never ended gives way
            given = asked.enter()
            asked.in_a_row = 0
            asked.answered(given) if event is BreakerEvent.ANSWER else asked.failed(given)
        case BreakerEvent.TOO_MANY:
            clock.now += 30
            asked.in_a_row = 1
            asked.failed(asked.enter())
    assert asked.state is TRANSITIONS[state, event]


def test_an_open_breaker_must_be_half_open_before_it_closes() -> None:
    assert {state for state, _ in TRANSITIONS} == set(BreakerState)
    assert (BreakerState.OPEN, BreakerEvent.ANSWER) not in TRANSITIONS


def test_by_default_five_faults_in_a_row_open_it_for_thirty_seconds() -> None:
    clock, settings = Clock(), BreakerSettings()
    asked = Breaker(failures=settings.failures, open_s=settings.open_s, clock_mono=clock)
    for _ in range(4):
        fault(asked, clock)
    answer(asked, clock)  # in a row means in a row
    for _ in range(4):
        fault(asked, clock)
    assert asked.state is BreakerState.CLOSED
    fault(asked, clock)
    assert asked.state is BreakerState.OPEN and refused(asked) == 30
    clock.now += 29.5
    assert refused(asked) == 0.5
    clock.now += 0.5
    assert refused(asked) is None


def test_half_open_lets_one_through_and_goes_by_it() -> None:
    asked, clock = after(fault, fault, rest)
    given = asked.enter()
    assert asked.state is BreakerState.HALF_OPEN and refused(asked) == AGAIN_S
    with pytest.raises(Refusal):
        asked.enter()
    asked.failed(given)
    assert asked.state is BreakerState.OPEN and refused(asked) == 30
    clock.now += 30
    asked.answered(asked.enter())
    assert asked.state is BreakerState.CLOSED and asked.in_a_row == 0


def test_a_try_that_is_given_up_or_whose_end_is_never_told_makes_room_for_the_next() -> None:
    asked, _ = after(fault, fault, rest)
    asked.given_up(asked.enter())
    assert asked.state is BreakerState.HALF_OPEN and refused(asked) is None
    asked, _ = after(fault, fault, rest, begin, rest, answer)
    assert asked.state is BreakerState.CLOSED


def test_who_began_before_the_last_change_has_no_say() -> None:
    asked, clock = after()
    early, earlier = asked.enter(), asked.enter()
    for step in (fault, fault):
        step(asked, clock)
    asked.answered(early)
    assert asked.state is BreakerState.OPEN
    clock.now += 30
    given = asked.enter()
    asked.failed(earlier)
    assert asked.state is BreakerState.HALF_OPEN
    asked.answered(given)
    asked.failed(earlier)
    assert asked.in_a_row == 0


def test_the_head_of_an_answer_ends_a_try_but_no_row_of_faults() -> None:
    asked, clock = after()
    given = asked.enter()
    asked.seen(given)
    asked.failed(given)
    assert asked.in_a_row == 1
    for step in (fault, rest):
        step(asked, clock)
    asked.seen(asked.enter())
    assert asked.state is BreakerState.CLOSED


# --- status -----------------------------------------------------------------------------------------------------------


class Heard:
    """What an observer heard."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.upstream_stands = self.breaker_moved = lambda upstream, word: self.said.append(word)


def account(clock: Clock, failures: int = 4) -> UpstreamAccount:
    settings = BreakerSettings(failures=failures)
    return UpstreamAccount("github", settings, clock=clock, clock_mono=clock)


def in_state(standing: UpstreamState, clock: Clock) -> tuple[UpstreamAccount, int]:
    """An account that stands so, and a pass from before."""
    made = account(clock)
    early = made.breaker.enter()
    if standing is not UpstreamState.UNKNOWN:
        made.answered(made.breaker.enter())
    faults = {UpstreamState.FALTERING: 2, UpstreamState.OUT: 4}.get(standing, 0)
    for _ in range(faults):
        made.faulted(made.breaker.enter(), "it broke off")
    assert made.standing is standing
    return made, early


@pytest.mark.parametrize(("standing", "news"), STANDINGS)
def test_the_table_of_a_status_is_walked_as_it_is_written(standing: UpstreamState, news: UpstreamNews) -> None:
    clock = Clock()
    made, early = in_state(standing, clock)
    clock.now += 30
    match news:
        case UpstreamNews.ANSWERED:
            made.answered(made.breaker.enter())
        case UpstreamNews.FALTERED:
            for _ in range(max(1, 2 - made.breaker.in_a_row)):
                made.faulted(early, "it broke off")
        case UpstreamNews.UNWELCOME:
            made.unwelcome("it answered HTTP 401")
        case UpstreamNews.OPENED:
            for _ in range(4 - made.breaker.in_a_row or 1):
                made.faulted(made.breaker.enter(), "it broke off")
            assert made.breaker.state is BreakerState.OPEN
        case UpstreamNews.CLOSED:
            made.closed()
    assert made.standing is STANDINGS[standing, news]


def test_a_life_is_heard_in_its_order() -> None:
    clock, heard = Clock(), Heard()
    made = account(clock, failures=2)
    made.observed_by(heard)
    made.answered(made.breaker.enter())
    made.faulted(made.breaker.enter(), "it broke off")
    made.faulted(made.breaker.enter(), "it broke off")
    clock.now += 30
    made.answered(made.breaker.enter())
    made.closed()
    expected = ["offline", "ready", "degraded", "offline", "open", "half_open", "ready", "closed", "offline"]
    assert heard.said == expected


def test_latency_is_the_average_of_the_last_hundred() -> None:
    clock = Clock()
    made = account(clock)
    assert made.latency_s is None
    for took_s in [100.0] * 50 + [1.0] * 50 + [3.0] * 50:
        made.answered(0, begun_mono_s=clock() - took_s)
    assert made.latency_s == 2.0 and LATENCIES == 100


def test_what_went_wrong_last_and_when_the_breaker_changed_is_told() -> None:
    clock = Clock(1_800_000_000)
    made = account(clock, failures=1)
    assert made.plain()["last_error"] is made.plain()["breaker"]["last_state_change"] is None
    made.faulted(made.breaker.enter(), "it broke off")
    clock.now += 5
    told = made.plain()
    assert (told["last_error"], told["last_error_at"]) == ("it broke off", "2027-01-15T08:00:00Z")
    assert (told["breaker"]["state"], told["breaker"]["last_state_change"]) == ("open", rfc3339(1_800_000_000.0))


def test_the_try_is_kept_for_who_asked_first_and_for_a_second() -> None:
    asked, clock = after(fault, fault, rest)
    assert refused(asked) is None  # whoever asks is about to enter
    assert refused(asked) == AGAIN_S
    given = asked.enter()
    assert refused(asked) == AGAIN_S
    asked.given_up(given)
    assert refused(asked) is None  # and is refused by a limit, say
    clock.now += AGAIN_S
    assert refused(asked) is None


async def test_a_card_that_is_served_ends_no_series_of_callers_faults() -> None:
    account = UpstreamAccount("x", BreakerSettings(failures=2), clock_mono=Clock())

    async def get(_: float) -> bytes:
        return b"{}"

    keeper = CardKeeper(get, "jsonrpc", None, Clock(), account)
    for _ in range(2):
        assert account.breaker.state is BreakerState.CLOSED
        account.faulted(account.breaker.enter(), "its calls fail")
        if account.breaker.closed:
            await keeper.probe(1.0)
    assert account.breaker.state is BreakerState.OPEN
    assert account.answered_mono_s == float("-inf")
