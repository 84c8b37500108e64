"""Is the right callback sent next, and does nobody wait for another's receiver?"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sidecar.storage.deliveries import MOVES, DeliveryState, Happening, PendingDelivery
from sidecar.tasks.webhooks.delivery_order import BURST, PLACES, PLACES_OF_OWNER, PLACES_OF_RECEIVER, DeliveryOrder

FAST = 1_000_000


def waiting(id_: str, owner: str = "alice", url: str = "https://a.example/", due_at: float = 0.0) -> PendingDelivery:
    return PendingDelivery(id_, "push", "ref", owner, url, 0.0, 0, due_at)


def scheduled(*given: PendingDelivery, receiver: str = "") -> DeliveryOrder:
    made = DeliveryOrder()
    for each in given:
        made.add(each, receiver or each.url)
    return made


def taken(schedule: DeliveryOrder, now_s: float = 0.0, per_minute: int = FAST) -> list[str]:
    found = []
    while (each := schedule.take(now_s, per_minute)) is not None:
        found.append(each.id)
    return found


@pytest.mark.parametrize("state", DeliveryState)
@pytest.mark.parametrize("happening", Happening)
def test_the_table_is_walked(state: DeliveryState, happening: Happening) -> None:
    if state not in (DeliveryState.WAITING, DeliveryState.SENDING):
        assert (state, happening) not in MOVES, "the end is the end"
        return
    schedule = scheduled(waiting("1"))
    if state is DeliveryState.SENDING:
        assert taken(schedule) == ["1"]
    if (state, happening) not in MOVES:
        with pytest.raises(KeyError):
            schedule.move("1", happening)
        return
    if happening is Happening.TURN:
        assert taken(schedule) == ["1"]
        return
    becomes = schedule.move("1", happening, due_at=5.0)
    assert becomes is MOVES[state, happening]
    assert schedule.sending == 0
    assert ("1" in schedule) == (becomes is DeliveryState.WAITING)
    assert taken(schedule, 4.9) == []
    assert taken(schedule, 5.0) == (["1"] if becomes is DeliveryState.WAITING else [])


@pytest.mark.parametrize("by_s", [-50_000.0, 50_000.0])
def test_a_clock_that_was_set_makes_nothing_later_sooner_or_older(by_s: float) -> None:
    now_s = 100_000.0
    schedule = scheduled(*(waiting(str(number), url=str(number), due_at=now_s + number) for number in range(1, 4)))
    schedule.shift(by_s)
    assert taken(schedule, now_s + by_s) == []
    assert schedule.wake_at() == now_s + by_s + 1
    assert taken(schedule, now_s + by_s + 2) == ["1", "2"]
    last = schedule.take(now_s + by_s + 3, FAST)
    assert (last.created_at, last.due_at) == (by_s, now_s + by_s + 3)


def test_a_url_is_sent_one_thing_at_a_time_in_order_and_what_failed_lets_the_next_one_go_first() -> None:
    for happening in (Happening.ACCEPTED, Happening.FAILED):
        schedule = scheduled(waiting("1"), waiting("2"), waiting("3", url="https://b.example/"), waiting("4", "bob"))
        assert taken(schedule) == ["1", "4", "3"]
        schedule.move("1", happening, due_at=9.0)
        assert taken(schedule) == ["2"]


def test_a_receiver_has_few_at_a_time_whoever_they_are_for() -> None:
    each = [waiting(str(n), f"owner {n}", f"https://a.example/{n}") for n in range(20)]
    schedule = scheduled(*each, waiting("other", "bob", "https://b.example/"), receiver="a.example")
    assert len(taken(schedule)) == PLACES_OF_RECEIVER
    schedule = scheduled(*each, receiver="a.example")
    schedule.add(waiting("other", "bob", "https://b.example/"), "b.example")
    assert "other" in taken(schedule)


def test_an_owner_has_a_share_and_the_others_the_rest() -> None:
    greedy = [waiting(f"g{n}", "greedy", f"https://{n}.example/") for n in range(200)]
    schedule = scheduled(*greedy, waiting("1", "bob", "https://bob.example/"))
    got = taken(schedule)
    assert "1" in got
    assert len(got) == PLACES_OF_OWNER + 1
    many = [waiting(str(n), f"owner {n}", f"https://{n}.example/") for n in range(200)]
    assert len(taken(scheduled(*many))) == PLACES


def test_a_receivers_rate_is_kept_and_it_says_when_it_is_free_again() -> None:
    schedule = scheduled(*(waiting(str(n), url=f"https://a.example/{n}") for n in range(60)), receiver="a.example")
    now_s, sent = 0.0, Counter[float]()
    while len(schedule):
        while (each := schedule.take(now_s, 60)) is not None:
            sent[now_s] += 1
            schedule.move(each.id, Happening.ACCEPTED)
        if len(schedule):
            at = schedule.wake_at()
            assert at > now_s
            now_s = at
    assert sent[0.0] == BURST + 1
    assert now_s == pytest.approx(60 - BURST - 1)


def test_a_clock_that_is_set_back_holds_up_nobody() -> None:
    schedule = scheduled(*(waiting(str(n)) for n in range(3)))
    for now_s in (1e9, 1e9 - 86_400, 5.0):
        each = schedule.take(now_s, 1)
        schedule.move(each.id, Happening.ACCEPTED)


def test_what_is_dropped_leaves_no_trace_wherever_it_stood() -> None:
    schedule = scheduled(waiting("later", due_at=9.0), waiting("due"), waiting("queued"), waiting("stays"))
    assert taken(schedule) == ["due"]
    assert {each.id for each in schedule.about("push", "ref")} == {"later", "due", "queued", "stays"}
    for each in ("later", "due", "queued"):
        assert schedule.move(each, Happening.DROPPED) is DeliveryState.FORGOTTEN
    assert (taken(schedule), taken(schedule, 10.0), len(schedule)) == (["stays"], [], 1)


@given(
    st.lists(st.tuples(st.sampled_from(["put", "take", "accepted", "failed", "dropped", "refused"]), st.integers(0, 9)))
)
def test_whatever_happens_each_is_sent_or_waits_and_the_places_add_up(steps: list[tuple[str, int]]) -> None:
    schedule, now_s, under_way, alive = DeliveryOrder(), 0.0, dict[str, Any](), set[str]()
    for number, (step, which) in enumerate(steps):
        now_s += 1.0
        if step == "put":
            schedule.add(waiting(str(number), f"o{which % 3}", f"https://{which % 2}.example/{which}"), f"{which % 2}")
            alive.add(str(number))
        elif step == "take":
            if (each := schedule.take(now_s, FAST)) is not None:
                assert each.id not in under_way
                under_way[each.id] = each
        elif under_way:
            id_ = sorted(under_way)[which % len(under_way)]
            del under_way[id_]
            if schedule.move(id_, Happening(step), now_s + which) is not DeliveryState.WAITING:
                alive.discard(id_)
        assert schedule.sending == len(under_way)
        assert len(schedule) == len(alive)
    while alive:
        now_s += 100.0
        for id_ in [*under_way, *taken(schedule, now_s)]:
            under_way.pop(id_, None)
            schedule.move(id_, Happening.ACCEPTED)
            alive.discard(id_)
    assert (len(schedule), schedule.sending, schedule.wake_at()) == (0, 0, None)
