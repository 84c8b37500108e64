"""Which way may a schedule go, what is owed to it, and what is left of it after it was kept?"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest

from sidecar.observability.metrics import SCHEDULE_RESULTS
from sidecar.settings.cron import CronSchedule
from sidecar.storage import RecordStoreOut
from sidecar.tasks.api.task_record import MOVES as TASK_MOVES
from sidecar.tasks.schedules.schedule_state import (
    KEPT_S,
    MOST_COUNTED,
    MOVES,
    SCHEDULES,
    DueResult,
    OwedTime,
    ScheduledRun,
    ScheduleStanding,
    ScheduleState,
    owed,
    was_wrong,
)
from sidecar.tasks.schedules.scheduler import ENDS

SALT = "01939393-0000-7000-8000-000000000000"
DAILY = "0 2 * * * UTC"
NEW = ScheduleStanding("nightly", 1.0, SALT, 1.0)
RUN, BY_HAND = ScheduledRun("t1", 60.0), ScheduledRun("t2", None)
ACTIVE = NEW.seen(DAILY, enabled=True, now_s=10.0)
EXECUTING = ACTIVE.ordered(RUN)
PAUSED = ACTIVE.paused("admin:operator", 20.0)
AT: Mapping[ScheduleState, tuple[ScheduleStanding, ...]] = {
    ScheduleState.CREATED: (NEW, EXECUTING.seen(DAILY, enabled=False, now_s=70.0)),
    ScheduleState.ACTIVE: (ACTIVE,),
    ScheduleState.EXECUTING: (EXECUTING, EXECUTING.ordered(BY_HAND)),
    ScheduleState.WAITING: (EXECUTING.waits(waits=True), EXECUTING.ordered(BY_HAND).waits(waits=True)),
    ScheduleState.PAUSED: (PAUSED, EXECUTING.paused("me", 70.0), NEW.paused("me", 5.0)),
}
VERBS: tuple[Callable[[ScheduleStanding], ScheduleStanding], ...] = (
    lambda was: was.seen(DAILY, enabled=True, now_s=80.0),
    lambda was: was.seen("@hourly UTC", enabled=True, now_s=80.0),
    lambda was: was.seen(DAILY, enabled=False, now_s=80.0),
    lambda was: was.paused("me", 80.0),
    lambda was: was.resumed(80.0),
    lambda was: was.ordered(ScheduledRun("t3", 120.0)),
    lambda was: was.ordered(ScheduledRun("t4", None)),
    lambda was: was.settled(120.0, DueResult.REFUSED, "expired"),
    lambda was: was.waits(waits=True),
    lambda was: was.waits(waits=False),
    lambda was: was.ended(RUN, DueResult.SUCCESS, "", 75.0),
    lambda was: was.ended(BY_HAND, DueResult.FAILURE, "no", None),
)


def test_every_verb_goes_along_the_table_and_each_way_in_it_is_gone() -> None:
    gone: set[tuple[ScheduleState, ScheduleState]] = set()
    for state, verb in product(ScheduleState, VERBS):
        for was in AT[state]:
            assert was.state is state
            then = verb(was)
            if then.state is not state:
                assert then.state in MOVES[state]
                gone.add((state, then.state))
            assert verb(then) is then or verb(then) == then, "who does it once more changes nothing"
    assert gone == {(state, after) for state in ScheduleState for after in MOVES[state]}


def test_what_ended_well_is_remembered_and_the_last_to_end_makes_it_active() -> None:
    both = EXECUTING.ordered(BY_HAND)
    one = both.ended(RUN, DueResult.SUCCESS, "", 75.0)
    assert (one.state, one.running, one.last_success_s) == (ScheduleState.EXECUTING, (BY_HAND,), 75.0)
    none = one.ended(BY_HAND, DueResult.FAILURE, "no", 76.0)
    assert (none.state, none.last_result, none.last_why, none.last_success_s) == (
        ScheduleState.ACTIVE,
        DueResult.FAILURE,
        "no",
        75.0,
    )


def test_a_due_time_is_settled_once() -> None:
    refused = ACTIVE.settled(60.0, DueResult.REFUSED, "expired")
    assert (refused.settled_s, refused.last_due_s) == (60.0, 60.0)
    assert refused.ordered(RUN) is refused and refused.settled(60.0, DueResult.MISSED) is refused
    assert EXECUTING.settled(60.0, DueResult.MISSED) is EXECUTING


def test_a_due_time_has_one_task_and_another_deployment_another() -> None:
    assert ACTIVE.task_for(60.0) == EXECUTING.task_for(60.0) != ACTIVE.task_for(120.0)
    assert ACTIVE._replace(salt=SALT.replace("7", "8")).task_for(60.0) != ACTIVE.task_for(60.0)


def test_one_that_is_gone_begins_anew_when_it_is_there_again() -> None:
    assert ACTIVE.expires_at == 1.0 + KEPT_S
    again = EXECUTING.paused("me", 2.0).removed().seen(DAILY, enabled=True, now_s=KEPT_S)
    assert (again.is_done, again.state, again.paused_by, again.settled_s) == (False, ScheduleState.PAUSED, "me", KEPT_S)


@pytest.mark.parametrize("standing", [one for some in AT.values() for one in some])
def test_what_is_kept_is_the_same(standing: ScheduleStanding) -> None:
    assert SCHEDULES.read(SCHEDULES.codec.encode(standing)) == standing
    assert standing.standing == standing.state.value


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", SCHEDULES.codec.encode(NEW).replace(b"created", b"late", 1)])
def test_what_cannot_be_read_is_no_schedule(body: bytes) -> None:
    with pytest.raises(RecordStoreOut):
        SCHEDULES.read(body)


def test_every_end_of_a_task_is_a_result_and_every_result_is_counted() -> None:
    assert set(ENDS) == {state for state, after in TASK_MOVES.items() if not after}
    assert tuple(DueResult) == SCHEDULE_RESULTS


MINUTELY, HOUR_S = CronSchedule("* * * * *"), 3600.0


@pytest.mark.parametrize(
    ("settled_s", "now_s", "late_s", "expected"),
    [
        (0.0, 59.0, 60.0, None),
        (0.0, 60.0, 60.0, OwedTime(60.0, True, 0)),
        (60.0, 119.9, 60.0, None),
        (0.0, 185.0, 60.0, OwedTime(180.0, True, 2)),
        (0.0, 190.0, 5.0, OwedTime(180.0, False, 2)),
        (120.0, 60.0, 60.0, None),
        (0.0, 30 * 86_400.0, HOUR_S, OwedTime(30 * 86_400.0, True, MOST_COUNTED)),
    ],
)
def test_of_what_was_due_the_last_alone_is_owed(settled_s: float, now_s: float, late_s: float, expected: Any) -> None:
    assert owed(MINUTELY, settled_s, now_s, late_s) == expected


def test_a_clock_is_wrong_that_was_hours_ahead() -> None:
    assert not was_wrong(3 * HOUR_S, 0.0) and was_wrong(3 * HOUR_S + 1, 0.0)
