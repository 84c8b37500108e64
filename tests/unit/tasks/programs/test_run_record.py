"""Is the original data models' state machine walked as its table says?"""

import pytest

from sidecar.tasks.programs.run_events import begun
from sidecar.tasks.programs.run_record import ENDS, MOVES, Execution, RunState, Transition
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
