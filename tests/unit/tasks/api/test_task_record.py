"""Which way may a task go, and what is left of it after it was kept?"""

from itertools import product
from typing import Any

import pytest

from sidecar.protocols.a2a.messages import STATES
from sidecar.tasks.api.task_record import MOVES, SEEN, STEPS, TASKS, Task, TaskState, TaskStep, moment
from sidecar.vocabulary import Caller, Credential, Principal

ALICE = Caller(
    (
        Principal("user:alice", "https://idp", frozenset({"role:eng"}), frozenset({"read"})),
        Principal("nhi:planner", "https://idp"),
    ),
    (Credential("jwt", "https://idp"), Credential("certificate", "x", "thumb", "corp")),
    99.5,
)

BEFORE_IT_RUNS = (TaskState.PENDING, TaskState.WAITING)


def record(**more: Any) -> Task:
    made = Task("t1", ALICE.binding, ALICE, "researcher", "search", 1.0, 100.0, {"topic": "tides"})
    return made._replace(**more)


def through(state: TaskState) -> list[TaskState]:
    """Every state that can still come, by the arrows of the original data models."""
    seen, todo = [], [state]
    while todo:
        for after in MOVES[todo.pop()]:
            if after not in seen:
                seen.append(after)
                todo.append(after)
    return seen


@pytest.mark.parametrize(("before", "after"), [*product(TaskState, TaskState)])
def test_a_task_goes_along_the_seeds_arrows_and_no_other_way(before: TaskState, after: TaskState) -> None:
    started = None if before in BEFORE_IT_RUNS else 2.0
    standing = record(state=before, started_at=started)
    if after is before:
        assert standing.moved(after, 5.0) is standing
    elif after in through(before):
        moved = standing.moved(after, 5.0)
        assert moved.state is after
        at_once = (before, after) == (TaskState.WAITING, TaskState.FAILED)
        runs = after not in (*BEFORE_IT_RUNS, TaskState.CANCELLED) and not at_once
        assert moved.started_at == (started or (5.0 if runs else None)), "it passes through running"
        assert moved.completed_at == (5.0 if not MOVES[after] else None)
    else:
        with pytest.raises(ValueError, match="cannot be"):
            standing.moved(after, 5.0)


@pytest.mark.parametrize(("before", "after"), [*product(TaskStep, TaskStep)])
def test_our_own_part_goes_forward_only(before: TaskStep, after: TaskStep) -> None:
    if after in STEPS[before]:
        assert record(step=before).at(after).step is after
    else:
        with pytest.raises(ValueError, match="cannot be"):
            record(step=before).at(after)


def test_every_state_of_a2a_has_its_place_and_none_ends_a_task_that_did_not_end() -> None:
    assert set(SEEN) == set(STATES)
    ends = {said for said, state in SEEN.items() if not MOVES[state]}
    assert ends == {f"TASK_STATE_{word}" for word in ("COMPLETED", "FAILED", "REJECTED", "CANCELED")}


@pytest.mark.parametrize("url", ["", "https://hook.example/"])
def test_at_its_end_the_input_is_gone_and_who_asked_is_told(url: str) -> None:
    ended = record(callback_url=url).ended(TaskState.FAILED, 5.0, error_code="Timeout")
    assert (ended.input, ended.error_code, ended.state) == (None, "Timeout", TaskState.FAILED)
    assert ended.step is (TaskStep.TELLING if url else TaskStep.OVER)


def test_what_is_kept_comes_back_as_it_was() -> None:
    full = record(
        state=TaskState.RUNNING, step=TaskStep.SENT, started_at=2.0, a2a_task="t", result={"artifacts": []}, revision=3
    )
    for one in (record(), full):
        back = TASKS.codec.decode(TASKS.codec.encode(one))
        assert back == one
        assert back.caller.binding == one.owner
        assert [each.trust for each in back.caller.credentials] == ["", "corp"]
    caller = Caller(ALICE.chain, ALICE.credentials, 1.0, token="secret")
    assert b"secret" not in TASKS.codec.encode(record(caller=caller))


def test_what_a_newer_version_wrote_beside_is_left_out() -> None:
    assert TASKS.codec.decode(TASKS.codec.encode(record())[:-1] + b',"more":1}') == record()


def test_times_are_told_to_the_millisecond() -> None:
    assert moment(0.0015) == "1970-01-01T00:00:00.001Z"
    assert moment(None) is None
