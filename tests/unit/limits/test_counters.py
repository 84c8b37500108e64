"""Do the counters say what a naive reader of the limits would count?

Hours, days and months are judged by the model in test_costs.py.
"""

from collections.abc import Callable

from hypothesis import given, strategies as st

from sidecar.limits.counters import ConcurrencySlots, Counter, RateLimit, SlidingWindow, by_day, by_month
from sidecar.limits.plan import LimitCharge
from tests.unit.limits.stages import DAY_US, HOUR_US, MINUTE_US, START_US, charge


def test_a_steady_caller_exactly_at_the_limit_passes_no_more_than_the_limit_across_hour_edges() -> None:
    """BL-068: three hours at the limit, then a burst."""
    limit, counter, now_us, moments = charge("hour", 120), SlidingWindow(), START_US, list[int]()
    for pause_us in [30_000_000 - 7] * 120 * 3 + [1_000_000] * 600:
        now_us += pause_us
        if counter.take(limit, now_us, "") is not None:
            moments.append(now_us)
    assert max(sum(first <= moment < first + HOUR_US for moment in moments) for first in moments) == 120


@given(st.lists(st.integers(0, 3_000), max_size=120), st.integers(1, 5), st.integers(1, 1_000))
def test_a_rate_admits_a_burst_and_what_time_has_paid(pauses_us: list[int], burst: int, interval_us: int) -> None:
    limit, counter = charge("rate", burst, interval_us=interval_us), RateLimit()
    level_us, now_us = burst * interval_us, START_US  # a bucket of time: what a call costs flows back
    for pause_us in pauses_us:
        now_us += pause_us
        level_us = min(burst * interval_us, level_us + pause_us)
        standing = counter.ask(limit, now_us)
        assert standing.remaining == level_us // interval_us
        assert standing.wait_us == max(0, interval_us - level_us)
        told = counter.take(limit, now_us, "")
        assert (told is None) == (standing.wait_us > 0)
        if told is not None:
            assert told == (standing.remaining - 1, 0, standing.reset_us + interval_us)
            level_us -= interval_us


STEPS = st.tuples(st.integers(0, 90), st.sampled_from(["take", "free", "keep"]), st.integers(0, 5))


@given(st.lists(STEPS, max_size=80))
def test_slots_hold_living_leases_only(steps: list[tuple[int, str, int]]) -> None:
    slots, limit, now_us = ConcurrencySlots(lease_us=60), charge("concurrency", 3), START_US
    ends: dict[str, int] = {}
    for pause_us, verb, number in steps:
        now_us, owner = now_us + pause_us, str(number)
        ends = {name: end for name, end in ends.items() if end > now_us}
        standing = slots.ask(limit, now_us)
        assert standing.remaining == 3 - len(ends)
        if verb == "take" and owner not in ends and not standing.wait_us:
            slots.take(limit, now_us, owner)
            ends[owner] = now_us + 60
        elif verb == "free":
            slots.give_back(limit, now_us, owner)
            ends.pop(owner, None)
        elif verb == "keep" and owner in ends:
            slots.extend(now_us, owner)
            ends[owner] = now_us + 60


MAKERS: list[tuple[LimitCharge, Callable[[], Counter]]] = [
    (charge("hour", 2), SlidingWindow),
    (charge("day", 2), by_day),
    (charge("month", 2), by_month),
    (charge("rate", 2, interval_us=1_000_000), RateLimit),
    (charge("concurrency", 2), lambda: ConcurrencySlots(60_000_000)),
]


@given(st.lists(st.sampled_from([0, 1, 400_000, 1_000_000, MINUTE_US, HOUR_US, DAY_US]), max_size=12), st.data())
def test_a_counter_is_after_what_was_undone_as_if_it_had_never_been_asked(
    pauses_us: list[int], data: st.DataObject
) -> None:
    for limit, make in MAKERS:
        asked, spared, now_us, calls = make(), make(), START_US, list[tuple[str, int]]()
        for number, pause_us in enumerate(pauses_us):
            now_us += pause_us
            if calls and data.draw(st.booleans()):
                owner, charged_us = calls.pop()
                for counter in (asked, spared):
                    counter.give_back(limit, charged_us, owner)
            owner = str(number)
            if data.draw(st.booleans()) and asked.take(limit, now_us, owner) is not None:
                asked.undo(limit, owner)
            if data.draw(st.booleans()):
                told = asked.take(limit, now_us, owner)
                assert told == spared.take(limit, now_us, owner)
                calls += [(owner, now_us)] if told else []
            assert asked.ask(limit, now_us) == spared.ask(limit, now_us)


@given(st.integers(0, 40 * DAY_US))
def test_what_is_idle_stands_where_a_fresh_counter_stands(pause_us: int) -> None:
    for limit, make in MAKERS:
        used, now_us = make(), START_US + pause_us
        used.take(limit, START_US, "owner")
        if used.idle(now_us):
            assert used.ask(limit, now_us) == make().ask(limit, now_us)


@given(st.lists(st.integers(0, 2_500), min_size=1, max_size=40), st.data())
def test_a_call_of_a_rate_given_back_never_leaves_more(pauses_us: list[int], data: st.DataObject) -> None:
    limit, used, spared = charge("rate", 5, interval_us=1_000), RateLimit(), RateLimit()
    unused = data.draw(st.integers(0, len(pauses_us) - 1))
    now_us, charged_us = START_US, 0
    for number, pause_us in enumerate(pauses_us):
        now_us += pause_us
        if used.take(limit, now_us, "") is None:
            continue
        if number == unused:
            charged_us = now_us
        else:
            spared.take(limit, now_us, "")
    if not charged_us:
        return
    before_us = used.ask(limit, now_us).reset_us
    used.give_back(limit, charged_us, "")
    assert spared.ask(limit, now_us).reset_us <= used.ask(limit, now_us).reset_us <= before_us
