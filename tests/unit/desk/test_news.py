"""Does who follows a run hear all of it once, however it comes?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents.record import Usage
from sidecar.agents.running import Artifact, Ended, Progress, Said, Started
from sidecar.agents.telling import Told, after, anew, begun, stood
from sidecar.desk.news import ARTIFACT, OUTPUT, STATUS, Heard, Hearing, text_of

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}
DONE = Ended(None, Usage())


def told(task: Any, *events: Any) -> tuple[Any, list[Mapping[str, Any]]]:
    """A task after some events, and what was told of them."""
    responses: list[Mapping[str, Any]] = [{"task": task}]
    for event in events:
        step: Told = event(task) if callable(event) else after(task, event, 1.0)
        task, more = step
        responses += more
    return task, responses


def heard(responses: list[Mapping[str, Any]], hearing: Hearing | None = None) -> list[Heard]:
    hearing = hearing or Hearing()
    return [one for response in responses for one in hearing.of(response)]


def text(news: list[Heard]) -> str:
    """What stands on a screen in the end."""
    said = ""
    for one in news:
        if one.event == OUTPUT:
            said = one.data["text"] if one.data.get("anew") else said + one.data["text"]
    return said


def fresh() -> Any:
    return begun("r1", "c1", MESSAGE, 0.0)


def test_output_comes_piece_by_piece_between_how_it_stands() -> None:
    task, responses = told(fresh(), Started(7), Said("one\n"), Progress("half", 1, 2), Said("two"), DONE)
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
    _, responses = told(fresh(), Started(7), Said("wrong"), lambda task: anew(task, "again in 2 s", 2.0), Said("right"))
    news = heard(responses)
    assert text(news) == "right" and [one.data.get("anew") for one in news if one.event == OUTPUT] == [None, True]


def test_what_is_no_text_is_an_artifact() -> None:
    update = {"artifact": {"artifactId": "figure", "parts": [{"text": "a"}, {"data": {"x": 1}}]}}
    _, responses = told(fresh(), Artifact(update))
    assert [(one.event, one.data) for one in heard(responses)][1:] == [
        (OUTPUT, {"artifact": "figure", "text": "a"}),
        (ARTIFACT, {"artifact": "figure", "parts": [{"data": {"x": 1}}]}),
    ]


def test_the_same_status_is_told_once() -> None:
    waits = "waits for its turn: 3 before it"
    turns = [lambda task, at=at: stood(task, "TASK_STATE_SUBMITTED", waits, at) for at in (1.0, 2.0)]
    assert [one.data["message"] for one in heard(told(fresh(), *turns)[1])] == [None, waits]


@given(
    pieces=st.lists(st.text(max_size=5), max_size=12),
    missed=st.integers(0, 12),
    again=st.integers(0, 12),
    retried=st.integers(0, 12),
)
def test_whoever_missed_some_hears_the_whole_task_and_no_more_than_is_new(
    pieces: list[str], missed: int, again: int, retried: int
) -> None:
    """Some responses are lost and the whole task comes in their place, perhaps several times."""
    hearing, task = Hearing(), fresh()
    news = heard([{"task": task}], hearing)
    for index, piece in enumerate(pieces):
        if index == retried:
            task, responses = anew(task, "once more", 2.0)
            news += heard(list(responses), hearing)
        task, responses = after(task, Said(piece), 1.0)
        news += [] if index == missed else heard(list(responses), hearing)
        if index in (missed, again):
            news += heard([{"task": task}], hearing)
    assert text(news) == text_of(task) or not pieces
