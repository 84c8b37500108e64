"""Is what a program says safe to show, however it is cut into pieces?"""

import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from sidecar.tasks.programs.output_cleaner import (
    REPLACEMENT,
    CleaningRules,
    ControlStripper,
    OutputCleaner,
    SecretRedactor,
)
from tests.tables import tables

# A second reading of ECMA-48, for a text that is whole.
SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[\x20-\x3f]*(?:[\x40-\x7e]|(?=[^\x20-\x7e])|\Z)"
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b\x9c]*(?:[\x07\x18\x1a\x9c]|\x1b\\|(?=\x1b)|\Z)"
    r"|\x1b[\x20-\x2f]*(?:[\x30-\x7e]|)"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)
RETURN = re.compile(r"\r(?!\n)")


def seen(text: str) -> str:
    """What of a whole text is to be seen."""
    kept, at = "", 0
    while at < len(text):
        special = SEQUENCE.match(text, at)
        if special:
            at = special.end()
        else:
            kept += RETURN.sub("\n", text[at : at + 2])[: -1 if text[at + 1 : at + 2] else None]
            at += 1
    return kept


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(at)]


CUTS = st.lists(st.integers(0, 200), max_size=12)
TERMINAL = st.text(alphabet="\x1b\x9b\x9d\x07\x9c\\[]P0;31mH @\x18\r\n\tab\x00é", max_size=60)


@given(TERMINAL, CUTS)
def test_what_a_terminal_would_obey_is_taken_out_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    stripper = ControlStripper()
    got = "".join(map(stripper.feed, pieces(text, cuts))) + stripper.end()
    assert got == seen(text)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)", got)


SECRETS = ("abcd", "cdef", "bbbb", "dddddd")
SPOKEN = st.text(alphabet="abcdef", max_size=60)


def hidden(text: str) -> str:
    """Every character of every occurrence, and each run of them as one."""
    covered = [False] * len(text)
    for secret in SECRETS:
        for at in range(len(text)):
            if text.startswith(secret, at):
                covered[at : at + len(secret)] = [True] * len(secret)
    marked = "".join("*" if cover else character for cover, character in zip(covered, text, strict=True))
    return re.sub(r"\*+", lambda _: REPLACEMENT, marked)


@given(SPOKEN, CUTS)
def test_a_secret_is_taken_out_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    redactor = SecretRedactor(SECRETS)
    assert "".join(map(redactor.feed, pieces(text, cuts))) + redactor.end() == hidden(text)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_bytes_are_utf_8_wherever_they_are_cut(said: bytes, cuts: list[int]) -> None:
    cleaner = OutputCleaner(strip_control=False, secrets=())
    at = sorted({0, len(said), *(cut % (len(said) + 1) for cut in cuts)})
    got = "".join(cleaner.feed(said[start:end]) for start, end in itertools.pairwise(at))
    assert got + cleaner.end() == said.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("said", "shown"),
    [*tables("tasks/programs/output_cleaner")["shown"], ("never ended \x1b]0;" + "x" * 1000, "never ended ")],
)
def test_control_sequences_are_not_shown(said: str, shown: str) -> None:
    assert CleaningRules().text(said) == shown
    byte_by_byte = CleaningRules().cleaner()
    assert "".join(byte_by_byte.feed(bytes([byte])) for byte in said.encode()) + byte_by_byte.end() == shown


def test_control_sequences_stay_where_the_operator_wants_them_but_never_in_last_words() -> None:
    raw = CleaningRules(strip_control=False)
    assert raw.text("\x1b[1mbold") == "\x1b[1mbold"
    assert raw.text("\x1b[1mbold", plain=True) == "bold"


def test_a_secret_is_found_behind_colours_in_json_and_in_addresses() -> None:
    cleaning = CleaningRules(secrets=('p"ss w/rd',))
    for said in ('p"ss\x1b[0m w/rd', '{"x": "p\\"ss w/rd"}', "https://h/?k=p%22ss%20w%2Frd"):
        assert REPLACEMENT in cleaning.text(said) and "ss" not in cleaning.text(said)


def test_a_value_as_short_as_a_word_is_no_secret() -> None:
    assert CleaningRules(secrets=("1", "yes")).text("1 yes") == "1 yes"


def test_every_text_of_a_value_is_heard() -> None:
    cleaning = CleaningRules(secrets=("secret",))
    assert cleaning.value({"a secret": ["x\x1b[1m", {"b": "secret"}, 1, None]}) == {
        f"a {REPLACEMENT}": ["x", {"b": REPLACEMENT}, 1, None]
    }


def test_a_control_string_without_an_end_takes_no_memory() -> None:
    stripper = ControlStripper()
    assert not any(stripper.feed("\x1b]" if not n else "x" * 65536) for n in range(64))
    assert len(vars(stripper)) == 1
