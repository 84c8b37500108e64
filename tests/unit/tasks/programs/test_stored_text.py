"""Is what is kept of prompts and answers without secrets, and short?"""

import pytest
from hypothesis import given, strategies as st

from sidecar.tasks.programs.stored_text import (
    MAX_WORK_CHARS,
    KeptEnd,
    SanitizedLines,
    all_sanitized,
    kept_beginning,
    sanitized,
)
from tests.tables import tables

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow==\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *tables("tasks/programs/stored_text")["kept"],
        (f"use {JWT} now", "use [redacted] now"),
        (f"key:\n{PEM}\nend", "key:\n[redacted]\nend"),
        ("AKIAIOSFODNN7EXAMPLE and ghp_" + "a" * 36, "[redacted] and [redacted]"),
        ("xoxb-1234567890-abcdef, AIza" + "b" * 35, "[redacted], [redacted]"),
    ],
)
def test_secrets_of_known_looks_are_not_kept(text: str, kept: str) -> None:
    assert sanitized(text) == kept


@given(st.text(alphabet="paswordtokn:=\"'\\ \n[]redact@/1", max_size=80))
def test_what_was_sanitized_is_at_rest(text: str) -> None:
    assert sanitized(sanitized(text)) == sanitized(text)


@pytest.mark.parametrize("text", ["password=" * 20_000, "://" * 60_000, 'token="' * 20_000, "a:b@" * 50_000])
def test_no_text_takes_long(text: str) -> None:
    sanitized(text)


async def test_what_comes_line_by_line_loses_the_same_as_what_comes_at_once() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIabc\nMIIdef\n-----END PRIVATE KEY-----\n"
    text = f"one\nthe password: hunter2 is old\n{key}two\nno end: ghp_{'a' * 36}"
    for size in (1, 7, len(text)):
        lines = SanitizedLines()
        pieces = [await lines.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join(pieces) + await lines.rest() == sanitized(text) == await all_sanitized(text)
        assert await lines.rest() == ""
    assert await SanitizedLines().feed("x" * 10_000) == "x" * 10_000, "who ends no line is not waited for without end"


def kept_end(text: str, max_chars: int) -> str:
    """However it comes."""
    one, many = KeptEnd(max_chars), KeptEnd(max_chars)
    one.add(text)
    for character in text:
        many.add(character)
    assert one.text() == many.text() == many.text()
    return one.text()


def test_what_is_kept_is_short_and_a_key_at_its_edge_is_gone() -> None:
    assert kept_beginning("x" * 50, 10) == "x" * 10 and kept_beginning("x" * 10, 10) == "x" * 10
    assert kept_end("x" * 50, 10) == "x" * 10 and kept_end("short", 10) == "short"
    token = "ghp_" + "a" * 36
    assert "a" * 9 not in kept_end("y" * 100 + " " + token + " " + "z" * 10, 30)
    assert "ghp_" not in kept_beginning("y" * 20 + " " + token, 30)
    assert len(sanitized("x" * (2 * MAX_WORK_CHARS))) == MAX_WORK_CHARS
