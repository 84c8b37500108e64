"""Does who follows a run hear all of it once, however it comes?"""

from collections.abc import Mapping
from typing import Any

from hypothesis import given, strategies as st

from sidecar.admin.run_stream import ARTIFACT, OUTPUT, STATUS, RunNews, RunStream, text_of
from sidecar.tasks.programs.attempt import AttemptEnd, OutputArtifact, OutputChunk, ProgressNote, Started
from sidecar.tasks.programs.run_events import Told, after, anew, begun, stood
from sidecar.tasks.programs.run_record import Usage

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}
DONE = AttemptEnd(None, Usage())


def told(task: Any, *events: Any) -> tuple[Any, list[Mapping[str, Any]]]:
    """A task after some events, and what was told of them."""
    responses: list[Mapping[str, Any]] = [{"task": task}]
    for event in events:
        step: Told = event(task) if callable(event) else after(task, event, 1.0)
        task, more = step
        responses += more
    return task, responses


def heard(responses: list[Mapping[str, Any]], hearing: RunStream | None = None) -> list[RunNews]:
    hearing = hearing or RunStream()
    return [one for response in responses for one in hearing.of(response)]


def text(news: list[RunNews]) -> str:
    """What stands on a screen in the end."""
    said = ""
    for one in news:
        if one.event == OUTPUT:
            said = one.data["text"] if one.data.get("anew") else said + one.data["text"]
    return said


def fresh() -> Any:
    return begun("r1", "c1", MESSAGE, 0.0)


def test_output_comes_piece_by_piece_between_how_it_stands() -> None:
    task, responses = told(
        fresh(), Started(7), OutputChunk("one\n"), ProgressNote("half", 1, 2), OutputChunk("two"), DONE
    )
    assert [(one.event, one.data) for one in heard(responses)] == [
        (STATUS, {"state": "TASK_STATE_SUBMITTED", "message": None}),
        (STATUS, {"state": "TASK_STATE_WORKING", "message": None}),
        (OUTPUT, {"artifact": "output", "text": "one\n"}),
        (STATUS, {"state": "TASK_STATE_WORKING", "message": "half", "progress": 1, "total": 2}),
        (OUTPUT, {"artifact": "output", "text": "two"}),
        (STATUS, {"state": "TASK_STATE_COMPLETED", "message": None}),
    ]
    assert text_of(task) == "one\ntwo"


def test_one_more_try_begins_the_output_anew() -> None:
    _, responses = told(
        fresh(), Started(7), OutputChunk("wrong"), lambda task: anew(task, "again in 2 s", 2.0), OutputChunk("right")
    )
    news = heard(responses)
    assert text(news) == "right" and [one.data.get("anew") for one in news if one.event == OUTPUT] == [None, True]


def test_what_is_no_text_is_an_artifact() -> None:
    update = {"artifact": {"artifactId": "figure", "parts": [{"text": "a"}, {"data": {"x": 1}}]}}
    _, responses = told(fresh(), OutputArtifact(update))
    assert [(one.event, one.data) for one in heard(responses)][1:] == [
        (OUTPUT, {"artifact": "figure", "text": "a"}),
        (ARTIFACT, {"artifact": "figure", "parts": [{"data": {"x": 1}}]}),
    ]


def test_the_same_status_is_told_once() -> None:
    waits = "waits for its turn: 3 before it"
    turns = [lambda task, at=at: stood(task, "TASK_STATE_SUBMITTED", waits, at) for at in (1.0, 2.0)]
    assert [one.data["message"] for one in heard(told(fresh(), *turns)[1])] == [None, waits]


PLACE = st.integers(0, 12)


@given(pieces=st.lists(st.text(max_size=5), max_size=12), missed=PLACE, again=PLACE, retried=PLACE)
def test_whoever_missed_some_hears_the_whole_task_and_no_more_than_is_new(
    pieces: list[str], missed: int, again: int, retried: int
) -> None:
    """Some responses are lost and the whole task comes in their place, perhaps several times."""
    hearing, task = RunStream(), fresh()
    news = heard([{"task": task}], hearing)
    for index, piece in enumerate(pieces):
        if index == retried:
            task, responses = anew(task, "once more", 2.0)
            news += heard(list(responses), hearing)
        task, responses = after(task, OutputChunk(piece), 1.0)
        news += [] if index == missed else heard(list(responses), hearing)
        if index in (missed, again):
            news += heard([{"task": task}], hearing)
    assert text(news) == text_of(task) or not pieces
