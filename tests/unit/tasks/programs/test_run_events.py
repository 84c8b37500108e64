"""What does a caller hear of a run?"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import pytest

from sidecar.protocols.a2a.messages import V10
from sidecar.tasks.programs import run_events
from sidecar.tasks.programs.attempt import AttemptEnd, Event, OutputArtifact, OutputChunk, ProgressNote, Started
from sidecar.tasks.programs.run_record import Category, Failure, Usage

NOW_S = 1_800_000_000.25
SAID = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "say"}]}
TASK = run_events.begun("run-1", "context-1", SAID, NOW_S)
DONE = AttemptEnd(None, Usage())
QUESTION = AttemptEnd(None, Usage(), state="TASK_STATE_INPUT_REQUIRED", message=({"text": "which?"},))
TABLE = OutputArtifact({"artifact": {"artifactId": "table", "name": "rows", "parts": [{"data": [1]}]}})
MORE = OutputArtifact(
    {"artifact": {"artifactId": "table", "parts": [{"data": [2]}]}, "append": True, "lastChunk": True}
)


def told(*events: Event) -> tuple[run_events.Task, list[Mapping[str, Any]]]:
    """A new task after these events, and all that was told."""
    task, heard = TASK, list[Mapping[str, Any]]()
    for event in events:
        task, said = run_events.after(task, event, NOW_S)
        heard += said
    return task, heard


def test_it_begins_with_what_its_caller_said() -> None:
    assert TASK == {
        "id": "run-1",
        "contextId": "context-1",
        "status": {"state": "TASK_STATE_SUBMITTED", "timestamp": "2027-01-15T08:00:00.250Z"},
        "history": [{**SAID, "contextId": "context-1", "taskId": "run-1"}],
    }


@pytest.mark.parametrize(
    "events",
    [
        [Started(7)],
        [Started(7), OutputChunk("a"), OutputChunk("b")],
        [Started(7), TABLE, MORE],
        [Started(7), ProgressNote("half"), ProgressNote("all", 2.0, 2.0)],
        [Started(7), OutputChunk("a"), DONE],
        [Started(7), QUESTION],
        [Started(7), AttemptEnd(None, Usage(), Failure(Category.AGENT, "exit code 1"))],
        [Started(7), AttemptEnd(None, Usage(), message=({"text": "hello"},), alone=True)],
    ],
)
def test_whatever_happens_both_the_task_and_what_is_told_are_in_the_canonical_form(events: list[Event]) -> None:
    task, heard = told(*events)
    for name, value in (("Task", task), *(("StreamResponse", one) for one in heard)):
        assert V10.read(name, value) == value


def test_what_it_says_is_one_artifact_told_chunk_by_chunk_and_one_text_in_the_end() -> None:
    task, heard = told(Started(7), OutputChunk("one "), OutputChunk("two"), OutputChunk(" three"), DONE)
    assert task["artifacts"] == [{"artifactId": "output", "parts": [{"text": "one two three"}]}]
    chunks = [one["artifactUpdate"] for one in heard if "artifactUpdate" in one]
    assert [chunk["artifact"]["parts"][0]["text"] for chunk in chunks] == ["one ", "two", " three"]
    assert [chunk.get("append", False) for chunk in chunks] == [False, True, True]
    assert [one["statusUpdate"]["status"]["state"] for one in heard if "statusUpdate" in one] == [
        "TASK_STATE_WORKING",
        "TASK_STATE_COMPLETED",
    ]


def test_many_small_chunks_are_few_parts_and_not_one_letter_is_lost() -> None:
    letters = [chr(97 + number % 26) for number in range(5_000)]
    task = reduce(lambda task, letter: run_events.after(task, OutputChunk(letter), NOW_S)[0], letters, TASK)
    parts = task["artifacts"][0]["parts"]
    assert len(parts) < 14  # about the logarithm
    assert "".join(part["text"] for part in parts) == "".join(letters)


def test_what_a_program_makes_itself_is_kept_part_by_part_and_replaced_when_it_says_so() -> None:
    task, heard = told(Started(7), TABLE, MORE, DONE)
    assert task["artifacts"] == [{"artifactId": "table", "name": "rows", "parts": [{"data": [1]}, {"data": [2]}]}]
    assert [one["artifactUpdate"].get("lastChunk") for one in heard if "artifactUpdate" in one] == [None, True]
    task, _ = told(Started(7), TABLE, MORE, TABLE, DONE)
    assert task["artifacts"] == [TABLE.update["artifact"]]


def test_progress_is_a_message_with_its_figures_beside_it() -> None:
    task, _ = told(Started(7), ProgressNote("3 of 4", 3.0, 4.0))
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    message = task["status"]["message"]
    assert (message["parts"], message["metadata"]) == ([{"text": "3 of 4"}], {"progress": 3.0, "total": 4.0})
    assert task["history"] == TASK["history"]  # a word on the way is no part of the conversation


def test_one_that_failed_says_why() -> None:
    for late, about in ((False, None), (True, {"error_code": "Timeout"})):
        task, _ = told(Started(7), AttemptEnd(None, Usage(), Failure(Category.AGENT, "no answer"), timed_out=late))
        message = task["status"]["message"]
        assert (task["status"]["state"], message["parts"]) == ("TASK_STATE_FAILED", [{"text": "no answer"}])
        assert message.get("metadata") == about and run_events.is_over(task)


def test_one_that_asked_goes_on_with_the_answer_and_its_next_output_is_another() -> None:
    asked, _ = told(Started(7), OutputChunk("one"), QUESTION)
    assert not run_events.is_over(asked)
    task, heard = run_events.went_on(asked, {**SAID, "messageId": "m-2"}, NOW_S)
    assert [one["messageId"] for one in task["history"]] == ["m-1", asked["status"]["message"]["messageId"], "m-2"]
    assert [one["statusUpdate"]["status"]["state"] for one in heard] == ["TASK_STATE_SUBMITTED"]
    task, _ = run_events.after(task, OutputChunk("two"), NOW_S)
    assert [one["artifactId"] for one in task["artifacts"]] == ["output", "output-2"]


def test_one_more_try_begins_its_output_anew_and_leaves_what_it_made_before_alone() -> None:
    failed, _ = told(Started(7), OutputChunk("hal"), TABLE)
    task, _ = run_events.anew(failed, "once more in 2 s", NOW_S)
    assert task["artifacts"] == [TABLE.update["artifact"]]
    _, heard = run_events.after(task, OutputChunk("whole"), NOW_S)
    assert "append" not in heard[0]["artifactUpdate"]


def test_an_answer_that_is_no_task_names_none() -> None:
    alone, _ = told(Started(7), AttemptEnd(None, Usage(), message=({"text": "hello"},), alone=True))
    said = run_events.answer_alone(alone)
    assert (said["parts"], said["contextId"]) == ([{"text": "hello"}], "context-1")
    usual, _ = told(Started(7), AttemptEnd(None, Usage(), message=({"text": "hello"},)))
    assert run_events.answer_alone(usual) is None


def test_no_task_is_changed_in_place() -> None:
    before, _ = told(Started(7), OutputChunk("a"))
    kept = repr(before)
    for event in (OutputChunk("b"), TABLE, ProgressNote("x"), DONE):
        run_events.after(before, event, NOW_S)
    assert repr(before) == kept


def test_an_artifact_without_a_name_is_more_of_the_answer() -> None:
    task, heard = told(
        Started(7), OutputChunk("a"), OutputArtifact({"artifact": {"parts": [{"data": [1]}]}}), OutputChunk("b"), DONE
    )
    assert task["artifacts"] == [{"artifactId": "output", "parts": [{"text": "a"}, {"data": [1]}, {"text": "b"}]}]
    assert [one["artifactUpdate"].get("append") for one in heard if "artifactUpdate" in one] == [None, True, True]


def test_a_sentence_that_stays_is_in_the_history_of_what_is_over() -> None:
    task, _ = told(
        Started(7), ProgressNote("an earlier process ended", stays=True), ProgressNote("half"), OutputChunk("a"), DONE
    )
    assert [one["parts"][0]["text"] for one in task["history"]] == ["say", "an earlier process ended"]
    assert V10.read("Task", task) == task
