"""Whose turn is it, where an agent runs so many times at once and no more?"""

from collections import deque

from hypothesis import given, strategies as st

from sidecar.errors import Reason, Refusal
from sidecar.tasks.programs.concurrency import RunSlot, RunSlots
from tests.refusals import refused


def has_come(place: RunSlot) -> bool:
    return place.turn.is_set()


def test_owners_take_turns_however_many_one_of_them_has_waiting() -> None:
    turns = RunSlots(1, 100)
    at_work = turns.enter("alice")
    waiting = {turns.enter("alice"): f"alice {n}" for n in range(4)}
    waiting |= {turns.enter(owner): owner for owner in ("bob", "carol")}
    for whose in ("alice 0", "bob", "carol", "alice 1", "alice 2", "alice 3"):
        turns.leave(at_work)
        at_work = next(place for place in waiting if has_come(place))
        assert waiting.pop(at_work) == whose


def test_a_full_queue_refuses_and_so_does_half_of_it_to_one_owner() -> None:
    turns = RunSlots(1, 4)
    for owner in ("alice", "alice", "alice"):
        turns.enter(owner)
    with refused(Reason.TOO_MANY_CONCURRENT, "too many of one caller wait for this agent"):
        turns.enter("alice")
    turns.enter("bob")
    turns.enter("carol")
    with refused(Reason.TOO_MANY_CONCURRENT, "too many wait for this agent"):
        turns.enter("dora")
    turns = RunSlots(1, 1)
    turns.enter("alice")
    turns.enter("alice")
    with refused(Reason.TOO_MANY_CONCURRENT):
        turns.enter("bob")


def test_more_places_let_more_in_and_fewer_end_nobodys() -> None:
    turns = RunSlots(1, 10)
    places = [turns.enter("alice") for _ in range(4)]
    turns.resized(3, 10)
    assert [has_come(one) for one in places] == [True, True, True, False]
    turns.resized(1, 10)
    turns.leave(places[0])
    turns.leave(places[1])
    assert not has_come(places[3])
    turns.leave(places[2])
    assert has_come(places[3])


def test_who_is_at_work_is_who_says_so() -> None:
    turns = RunSlots(1, 10)
    first, _ = turns.enter("alice"), turns.enter("bob")
    assert (turns.running, turns.waiting, turns.places) == (0, 2, 1)
    first.at_work = True
    assert (turns.running, turns.waiting) == (1, 1)
    turns.leave(first)
    assert (turns.running, turns.waiting) == (0, 1)


OWNERS = st.sampled_from(["alice", "bob", "carol"])


@given(st.integers(1, 3), st.lists(st.one_of(OWNERS, st.integers(0, 30)), max_size=60))
def test_however_they_come_and_go_nobody_is_passed_over(places: int, steps: list[str | int]) -> None:
    """Never more than places; nobody waits while there is one; an owner's own in their order; and while one of yours
    waits, nobody else has two turns more than you."""
    turns, there = RunSlots(places, 20), list[RunSlot]()
    queues: dict[str, deque[RunSlot]] = {}
    passed: dict[str, dict[str, int]] = {}  # by who waits: how many turns others had meanwhile
    for step in steps:
        if isinstance(step, str):
            try:
                place = turns.enter(step)
            except Refusal:
                continue
            there.append(place)
            queues.setdefault(step, deque()).append(place)
        elif there:
            place = there.pop(step % len(there))
            for _ in range(2):  # a second time changes nothing
                turns.leave(place)
            if place in queues.get(place.owner, ()):
                queues[place.owner].remove(place)
        for owner, queue in queues.items():
            came = [one for one in queue if has_come(one)]
            assert came == list(queue)[: len(came)]
            for _ in came:
                queue.popleft()
                passed.pop(owner, None)
                for other, waits in queues.items():
                    if other != owner and waits and not has_come(waits[0]):
                        had = passed.setdefault(other, {})
                        had[owner] = had.get(owner, 0) + 1
                        assert had[owner] <= 2
        for owner in [owner for owner in passed if not queues.get(owner)]:
            del passed[owner]
        at_once = sum(has_come(one) for one in there)
        assert at_once <= places
        assert at_once == places or not any(queues.values())
