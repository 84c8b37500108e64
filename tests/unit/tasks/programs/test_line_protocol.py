"""How is a turn told to a program that reads lines, and where does its answer end?"""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.settings.agents import Newlines
from sidecar.tasks.programs.attempt import (
    DialogueBroken,
    Heard,
    OutputChunk,
    ProgramOrder,
    Prompt,
    TurnAnswer,
    UnsayableError,
)
from sidecar.tasks.programs.line_protocol import LineDialogue

# What ends a line for C, Python's text files, Java, JavaScript and others.
LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def order(text: str = "say") -> ProgramOrder:
    return ProgramOrder("x", "t", "c", "owner", Prompt(text, {}, {}, None, {}), deadline_s=5.0)


def talking(
    turn_end: str = "\n", newlines: Newlines = "refuse", *, greets: bool = False, most: int = 1_000
) -> LineDialogue:
    return LineDialogue(turn_end, newlines, greets=greets, max_said_bytes=most)


def asked(turn_end: str = "\n", *, greets: bool = False, most: int = 1_000) -> LineDialogue:
    talk = talking(turn_end, greets=greets, most=most)
    talk.begin(order())
    return talk


def heard(talk: LineDialogue, *chunks: bytes) -> list[Heard]:
    return [one for chunk in chunks for one in talk.hear(chunk)]


def text(said: list[Heard]) -> str:
    return "".join(one.text for one in said if isinstance(one, OutputChunk))


@pytest.mark.parametrize("prompt", ["say", "", "--version", "@/etc/hosts", "ä\tb", "\\n", "x" * 100_000])
def test_a_prompt_of_one_line_is_told_as_it_is(prompt: str) -> None:
    assert talking().begin(order(prompt)) == prompt.encode() + b"\n"
    assert talking().begin(order(prompt + "\n")) == prompt.encode() + b"\n"  # its line end is the line's


@pytest.mark.parametrize("end", LINE_ENDS)
def test_no_prompt_is_two_turns_for_any_reader_of_lines(end: str) -> None:
    prompt = f"one{end}two"
    with pytest.raises(UnsayableError, match="is one line"):
        talking().begin(order(prompt))
    assert talking(newlines="space").begin(order(prompt)) == b"one two\n"
    written = talking(newlines="json").begin(order(prompt))
    assert written.isascii() and len(written.decode().splitlines()) == 1
    assert json.loads(written) == prompt


@given(prompt=st.text(max_size=50), newlines=st.sampled_from(["space", "json"]))
@settings(max_examples=60)
def test_whatever_the_prompt_it_is_one_line(prompt: str, newlines: Newlines) -> None:
    written = talking(newlines=newlines).begin(order(prompt)).decode("utf-8")
    assert len(written.splitlines()) == 1 and written.endswith("\n")


def test_the_answer_is_heard_as_it_comes_up_to_its_end() -> None:
    talk = asked("\n.\n")
    assert heard(talk, b"one\n") == [OutputChunk("one")]  # a line end may be the beginning of the answer's
    assert heard(talk, b"two\n.", b"\nthree") == [OutputChunk("\ntwo"), TurnAnswer()]


def test_what_follows_the_answer_belongs_to_no_turn() -> None:
    talk = asked()
    assert heard(talk, b"one\ntwo\nthr", b"ee\n") == [OutputChunk("one"), TurnAnswer()]
    talk.begin(order())
    assert heard(talk, b"four\n") == [OutputChunk("four"), TurnAnswer()]


def test_half_an_end_between_two_turns_is_none_in_the_next() -> None:
    talk = asked("END")
    assert heard(talk, b"oneENDEN") == [OutputChunk("one"), TurnAnswer()]
    talk.begin(order())
    assert heard(talk, b"D twoEND") == [OutputChunk("D two"), TurnAnswer()]


def test_half_a_letter_at_the_end_of_an_answer_is_none_in_the_next() -> None:
    talk = asked()
    assert text(heard(talk, b"\xc3\n")) == "\ufffd"
    talk.begin(order())
    assert text(heard(talk, b"\xa4", b"\n")) == "\ufffd"


@pytest.mark.parametrize("early", [True, False])
def test_a_greeting_is_no_answer_whenever_it_comes(early: bool) -> None:
    talk = talking("> ", greets=True)
    if early:
        assert heard(talk, b"Welcome\n", b"> ") == []
    talk.begin(order("1 + 1"))
    if not early:
        assert heard(talk, b"Welcome\n>", b" ") == []
    assert heard(talk, b"2\n> ") == [OutputChunk("2\n"), TurnAnswer()]
    talk.begin(order("2 + 2"))
    assert heard(talk, b"4\n", b"> ") == [OutputChunk("4\n"), TurnAnswer()]


def test_a_greeting_and_the_answer_may_come_at_once() -> None:
    assert heard(asked("> ", greets=True), b"Welcome\n> 2\n> ") == [OutputChunk("2\n"), TurnAnswer()]


def test_an_answer_a_greeting_and_what_nobody_asked_for_are_bounded() -> None:
    for talk in (asked("."), asked(".", greets=True), talking(".")):
        with pytest.raises(DialogueBroken, match="more than 1000 bytes"):
            heard(talk, *[b"a" * 100] * 11)
    talk = asked()
    for _ in range(5):  # each turn may say as much
        assert text(heard(talk, b"a" * 900 + b"\n")) == "a" * 900
        talk.begin(order())


def test_when_its_output_ends_what_was_held_back_is_said() -> None:
    talk = asked("END")
    assert text([*heard(talk, b"the EN"), *talk.over()]) == "the EN"
    assert list(talking("END").over()) == []


@given(
    said=st.text(alphabet="aä>E ND\n", max_size=30),
    end=st.sampled_from(["\n", "END", "\n> ", "EE"]),
    cuts=st.lists(st.integers(0, 60), max_size=10),
)
@settings(max_examples=60)
def test_it_means_the_same_however_the_pipe_cuts_it(said: str, end: str, cuts: list[int]) -> None:
    raw = (said + end).encode()
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    meant = heard(asked(end), *[raw[a:b] for a, b in pairwise(places)])
    assert text(meant) == (said + end).split(end)[0]
    assert meant[-1] == TurnAnswer() and meant.count(TurnAnswer()) == 1
