"""What is said to a program on its pipes, and what does it mean by what it says?"""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.protocols.a2a.messages import V10
from sidecar.tasks.programs.attempt import (
    DialogueBroken,
    Heard,
    OutputArtifact,
    OutputChunk,
    ProgramOrder,
    ProgressNote,
    Prompt,
    TurnAnswer,
    UnsayableError,
)
from sidecar.tasks.programs.json_rpc import MAX_ARTIFACTS, MAX_NOISE, STATES, RpcDialogue
from sidecar.tasks.programs.run_record import Category, Failure
from tests.drawn import containers
from tests.tables import tables

MESSAGE = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "say"}], "taskId": "t-1", "contextId": "c-1"}
PARTS = [{"text": "a"}, {"data": {"b": 1}}]


def order(text: str = "say", **message: Any) -> ProgramOrder:
    prompt = Prompt(text, {"--language": "de", "-v": "2"}, {}, None, MESSAGE | message)
    return ProgramOrder("x-1", "t-1", "c-1", "owner", prompt, deadline_s=5.0, attempt=2)


def asked(max_said_bytes: int = 100_000, **more: int) -> RpcDialogue:
    """A talk in its first turn."""
    talk = RpcDialogue(max_said_bytes, **more)
    talk.begin(order())
    return talk


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0"} | members).encode() + b"\n"


def heard(*lines: bytes, talk: RpcDialogue | None = None) -> list[Heard]:
    return list((talk or asked()).hear(b"".join(lines)))


def test_a_turn_is_one_line_with_the_whole_message() -> None:
    told = RpcDialogue(1_000).begin(order("two\nlines"))
    assert told.count(b"\n") == 1 and told.endswith(b"\n")
    assert json.loads(told) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "message/send",
        "params": {
            "message": MESSAGE,
            "text": "two\nlines",
            "parameters": {"language": "de", "v": "2"},
            "taskId": "t-1",
            "contextId": "c-1",
            "executionId": "x-1",
            "attempt": 2,
        },
    }


def test_ids_are_ours_and_counted() -> None:
    talk = RpcDialogue(1_000)
    assert talk.cancel() == b""
    for number in (1, 2, 3):
        assert json.loads(talk.begin(order()))["id"] == number
        assert json.loads(talk.cancel()) == {"jsonrpc": "2.0", "method": "cancel", "params": {"id": number}}
        assert heard(line(id=number, result=None), talk=talk) == [TurnAnswer()]
        assert talk.cancel() == b""


def test_what_cannot_be_written_is_told_to_nobody() -> None:
    talk = RpcDialogue(1_000)
    with pytest.raises(UnsayableError):
        talk.begin(order("\ud800"))
    assert json.loads(talk.begin(order()))["id"] == 1


NOTIFICATIONS: list[tuple[str, dict[str, Any], Heard]] = [
    ("progress", {"message": "half", "progress": 1, "total": 2.0}, ProgressNote("half", 1, 2.0)),
    ("progress", {"progress": 0.5, "message": None}, ProgressNote("", 0.5)),
    ("output", {"text": "a"}, OutputChunk("a")),
    ("output", {"text": "a", "id": 1}, OutputChunk("a")),
    (
        "artifact",
        {"artifact": {"artifact_id": "r", "name": "rows", "parts": PARTS}, "append": True, "lastChunk": False},
        OutputArtifact({"artifact": {"artifactId": "r", "name": "rows", "parts": PARTS}, "append": True}),
    ),
    ("artifact", {"artifact": {"parts": PARTS}, "taskId": None}, OutputArtifact({"artifact": {"parts": PARTS}})),
]


@pytest.mark.parametrize(("method", "params", "meant"), NOTIFICATIONS)
def test_what_it_tells_on_the_way_is_understood(method: str, params: dict[str, Any], meant: Heard) -> None:
    assert heard(line(method=method, params=params)) == [meant]


def question(state: str) -> TurnAnswer:
    return TurnAnswer(STATES[state], ({"text": "which?"}, *PARTS))


FAILED = TurnAnswer(STATES["failed"], ({"text": "no"},), failure=Failure(Category.AGENT, "no"))
RESULTS: list[tuple[Any, list[Heard]]] = [
    ("done", [OutputChunk("done"), TurnAnswer()]),
    ("", [TurnAnswer()]),
    (None, [TurnAnswer()]),
    ({}, [TurnAnswer()]),
    ({"text": "done", "state": "completed"}, [OutputChunk("done"), TurnAnswer()]),
    ({"text": "a", "parts": PARTS}, [OutputChunk("a"), OutputArtifact({"artifact": {"parts": PARTS}}), TurnAnswer()]),
    (
        {"artifacts": [{"artifactId": "r", "parts": PARTS}]},
        [OutputArtifact({"artifact": {"artifactId": "r", "parts": PARTS}, "lastChunk": True}), TurnAnswer()],
    ),
    *[
        ({"state": state, "text": "which?", "parts": PARTS}, [question(state)])
        for state in ("input-required", "auth-required", "rejected", "canceled")
    ],
    ({"state": "failed", "text": "no"}, [FAILED]),
    ({"message": "hello"}, [TurnAnswer(message=({"text": "hello"},), alone=True)]),
    ({"message": {"role": "ROLE_AGENT", "parts": PARTS}}, [TurnAnswer(message=tuple(PARTS), alone=True)]),
]


@pytest.mark.parametrize(("result", "meant"), RESULTS)
def test_everything_that_a2a_can_say_can_be_a_result(result: Any, meant: list[Heard]) -> None:
    assert heard(line(id=1, result=result)) == meant


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ({"code": 1, "message": "busy", "data": {"category": "transient"}}, Failure(Category.TRANSIENT, "busy")),
        ({"code": 1, "message": "no", "data": {"category": "permanent"}}, Failure(Category.PERMANENT, "no")),
        ({"code": 1, "message": "no", "data": {"category": "system"}}, Failure(Category.AGENT, "no")),
        ({"code": 1, "message": "no", "data": {"category": ["transient"]}}, Failure(Category.AGENT, "no")),
        ({"code": 1, "message": "", "data": 7}, Failure(Category.AGENT, "it says that it failed, and not why")),
    ],
)
def test_an_error_is_the_end_and_says_whose_fault_it_was(error: dict[str, Any], failure: Failure) -> None:
    for number in (1, None):  # JSON-RPC: null where it could not read what it was asked
        assert heard(line(id=number, error=error)) == [TurnAnswer(STATES["failed"], failure=failure)]


BREAKS = [(raw.encode("latin-1"), why) for raw, why in tables("tasks/programs/json_rpc")["breaks"]]


@pytest.mark.parametrize(("said", "why"), BREAKS)
def test_what_would_have_to_be_guessed_at_breaks_it_and_says_why(said: bytes, why: str) -> None:
    with pytest.raises(DialogueBroken) as caught:
        heard(said)
    assert why in str(caught.value)


def test_what_it_asks_of_us_is_answered_that_there_is_no_such_method() -> None:
    (reply,) = heard(line(id="q", method="sampling/createMessage", params={}))
    answer = json.loads(reply.line)
    assert (answer["id"], answer["error"]["code"]) == ("q", -32601)


def test_a_banner_and_unknown_notifications_and_blank_lines_are_forgiven() -> None:
    said = [b"Welcome!\n", b"\r\n", b"\n", b"[1]\n", line(method="log", params={"a": 1}), line(id=1, result="a")]
    assert heard(*said) == [OutputChunk("a"), TurnAnswer()]


def test_a_log_in_place_of_messages_is_not_forgiven() -> None:
    with pytest.raises(DialogueBroken, match="lines that are not part of an answer"):
        heard(b"DEBUG\n" * (MAX_NOISE + 1))
    assert heard(b"\n" * (MAX_NOISE + 1), line(id=1, result=None)) == [TurnAnswer()]
    with pytest.raises(DialogueBroken, match="more than 100000 bytes"):
        heard(b"\n" * 7_000)


def test_what_is_said_without_being_asked_or_of_a_turn_that_is_over_goes_to_nobody() -> None:
    talk = RpcDialogue(1_000)
    assert heard(line(method="output", params={"text": "early"}), talk=talk) == []
    talk.begin(order())
    assert heard(line(id=1, result="one"), line(id=1, result="again"), talk=talk) == [OutputChunk("one"), TurnAnswer()]
    assert heard(line(method="output", params={"text": "late"}), talk=talk) == []
    talk.begin(order())
    late = line(id=1, result="again"), line(method="output", params={"id": 1, "text": "of the first"})
    assert heard(*late, line(id=2, result="two"), talk=talk) == [OutputChunk("two"), TurnAnswer()]


def test_nobody_can_answer_before_being_asked() -> None:
    with pytest.raises(DialogueBroken, match="never asked"):
        heard(line(id=1, result="a"), talk=RpcDialogue(1_000))


def test_the_end_of_its_output_ends_a_line_too() -> None:
    talk = asked()
    assert heard(line(id=1, result="a").rstrip(), talk=talk) == []
    assert list(talk.over()) == [OutputChunk("a"), TurnAnswer()]


def test_lines_and_turns_are_bounded() -> None:
    with pytest.raises(DialogueBroken, match="a line of more than 1000 bytes"):
        heard(b"{" + b" " * 1_000, talk=asked(max_line_bytes=1_000))
    for lines in (
        [line(method="output", params={"text": "a" * 100})] * 10,
        [line(method="progress")] * 60,
        [line(id=1, result="a" * 999)],
        [line(id=1, result="a" * 100)] * 11,  # also what nobody asked for
    ):
        with pytest.raises(DialogueBroken, match="more than 1000 bytes"):
            heard(*lines, talk=asked(1_000))
    talk = asked(1_000)
    for number in range(1, 20):  # each turn may say as much
        assert heard(line(id=number, result="a" * 900), talk=talk) == [OutputChunk("a" * 900), TurnAnswer()]
        talk.begin(order())


def test_a_turn_has_so_many_artifacts_told_or_in_its_result() -> None:
    some = [{"artifactId": f"a-{number}", "parts": [{"text": ""}]} for number in range(MAX_ARTIFACTS + 1)]
    told = [line(method="artifact", params={"artifact": one}) for one in some]
    assert len(heard(*told[:-1], told[0])) == MAX_ARTIFACTS + 1  # one that is known is no other one
    for said in (told, [line(id=1, result={"artifacts": some})]):
        with pytest.raises(DialogueBroken, match="more than 1000 artifacts"):
            heard(*said, talk=asked(1_000_000))
    talk = asked(1_000_000)
    heard(*told[:-1], line(id=1, result=None), talk=talk)
    talk.begin(order())
    assert heard(told[-1], talk=talk)


def test_a_line_of_four_mebibytes_comes_through() -> None:
    text = "ä" * (2 * 2**20 - 100)
    talk = asked(4 * 2**20 + 100)
    raw = b'{"jsonrpc":"2.0","id":1,"result":"' + text.encode() + b'"}\n'
    said = [one for at in range(0, len(raw), 65_536) for one in talk.hear(raw[at : at + 65_536])]
    assert said == [OutputChunk(text), TurnAnswer()]


SCRIPT = (
    b"banner\n"
    + b"".join(line(method=method, params=params) for method, params, _ in NOTIFICATIONS)
    + line(id=1, result={"text": "ä", "parts": PARTS})
)


@given(cuts=st.lists(st.integers(0, len(SCRIPT)), max_size=20))
@settings(max_examples=50)
def test_it_means_the_same_however_the_pipe_cuts_it(cuts: list[int]) -> None:
    talk, places = asked(), sorted({0, len(SCRIPT), *cuts})
    said = [one for a, b in pairwise(places) for one in talk.hear(SCRIPT[a:b])]
    assert said == heard(SCRIPT)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    containers(st.sampled_from(
        ["text", "parts", "artifacts", "artifact", "state", "message", "append", "data", "artifactId", "x"]
    ), 4),
    max_leaves=12,
)  # fmt: skip


@given(method=st.sampled_from(["progress", "output", "artifact", ""]), value=ANYTHING)
@settings(max_examples=60)
def test_whatever_it_says_is_understood_in_the_canonical_form_or_breaks_it(method: str, value: Any) -> None:
    said = line(method=method, params=value) if method else line(id=1, result=value)
    try:
        meant = heard(said)
    except DialogueBroken:
        return
    for one in meant:
        if isinstance(one, OutputArtifact):
            assert V10.read("TaskArtifactUpdateEvent", one.update) == one.update
        if isinstance(one, TurnAnswer):
            for part in one.message:
                assert V10.read("Part", part) == part
