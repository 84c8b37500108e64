"""Is the seed's state machine walked as its table says?"""

from __future__ import annotations

from itertools import pairwise

import pytest

from sidecar.tasks.programs.run_events import begun, left_behind
from sidecar.tasks.programs.run_record import ENDS, MOVES, Category, Execution, Failure, RunState, RunStatus, Transition
from tests.unit.tasks.programs.staging import ALICE, prompt

ANEW = Execution(
    "run", "alice", ALICE, "writer", "context", 0.0, 9.0, "say", begun("run", "context", prompt().message, 0.0)
)
# The shortest way to each state.
WAYS = {
    RunState.IDLE: (),
    RunState.STARTING: (RunState.STARTING,),
    RunState.RUNNING: (RunState.STARTING, RunState.RUNNING),
    RunState.COMPLETED: (RunState.STARTING, RunState.RUNNING, RunState.COMPLETED),
    RunState.FAILED: (RunState.STARTING, RunState.FAILED),
    RunState.TIMEOUT: (RunState.STARTING, RunState.TIMEOUT),
    RunState.CANCELLED: (RunState.CANCELLED,),
    RunState.CLEANUP: (RunState.CANCELLED, RunState.CLEANUP),
}


def at(state: RunState) -> Execution:
    record = ANEW
    for time_s, step in enumerate(WAYS[state]):
        record = record.moved(step, float(time_s), "so")
    return record


@pytest.mark.parametrize("before", RunState)
@pytest.mark.parametrize("after", RunState)
def test_each_way_of_the_table_can_be_gone_and_no_other(before: RunState, after: RunState) -> None:
    record = at(before)
    if after not in MOVES[before]:
        with pytest.raises(ValueError, match=f"a run that is {before} cannot be {after}"):
            record.moved(after, 9.0)
        return
    moved = record.moved(after, 9.0, "because")
    assert (moved.state, moved.transitions[-1]) == (after, Transition(after, 9.0, "because"))
    assert moved.previous_state in (before, None)
    if after in ENDS:
        assert (moved.status, moved.ended_at) == (ENDS[after], 9.0)
    if after in (RunState.STARTING, RunState.RUNNING):
        assert moved.started_at == (9.0 if after is RunState.RUNNING else None)


def test_every_state_is_on_the_way_and_every_way_ends() -> None:
    assert MOVES.keys() == set(RunState) == set(WAYS)
    for state in RunState:
        ends, seen = {state}, set[RunState]()
        while ends - seen:
            seen |= ends
            ends = {after for before in ends for after in MOVES[before]}
        assert RunState.IDLE in seen


def test_what_is_over_goes_nowhere() -> None:
    over = at(RunState.CLEANUP).moved(RunState.IDLE, 3.0)
    assert (over.is_done, over.standing) == (True, "cancelled")
    for state in RunState:
        with pytest.raises(ValueError):
            over.moved(state, 4.0)


@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("asked", [False, True])
def test_what_was_left_behind_in_any_state_comes_to_an_end_on_ways_of_the_table(state: RunState, asked: bool) -> None:
    before = at(state)._replace(
        cancel_requested=asked, transitions=(Transition(RunState.IDLE, 0.0), *at(state).transitions)
    )
    after = left_behind(before, "the sidecar stopped", 50.0, 100.0)
    assert after.is_done
    assert (after.revision, after.expires_at) == (before.revision + 1, 150.0)
    for one, next_ in pairwise(one.state for one in after.transitions):
        assert next_ in MOVES[one]
    if state in (RunState.IDLE, RunState.STARTING, RunState.RUNNING):
        assert after.status is (RunStatus.CANCELLED if asked else RunStatus.FAILURE)
        wanted = "TASK_STATE_CANCELED" if asked else "TASK_STATE_FAILED"
        assert after.task["status"]["state"] == wanted
        if not asked:
            assert after.failure is not None
            assert after.failure.category is Category.SYSTEM
            assert after.failure.message.startswith("the sidecar stopped ")
    elif state is not RunState.FAILED:
        assert after.status is before.status  # the end that it had come to stands


def test_what_rested_before_its_next_try_has_failed_for_good() -> None:
    rested = at(RunState.FAILED)._replace(failure=Failure(Category.TRANSIENT, "busy"))
    after = left_behind(rested, "the sidecar stopped", 50.0, 100.0)
    assert after.failure == Failure(Category.SYSTEM, "the sidecar stopped before its next try")
    assert (after.status, after.task["status"]["state"]) == (RunStatus.FAILURE, "TASK_STATE_FAILED")
