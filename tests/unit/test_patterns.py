"""Does what is read from others cost time in proportion to its length, whatever stands in it?

Python 3.11.2 has no possessive quantifiers (tests/unit/test_house.py), so that a pattern may go back: each must have
little to go back to. What takes quadratic time takes minutes here, and what takes linear time takes less than 0.1 s.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.gateway.redaction import _BASE64, _JSON
from sidecar.http.client.http1 import _HEAD
from sidecar.protocols.secret_patterns import find_bearers, find_emails, find_jwts
from sidecar.tasks.programs.stored_text import find_pairs

CHARS = 1 << 17
MAX_CPU_S = 3.0


def spans(find: Callable[..., int]) -> Callable[[str], list[Any]]:
    def found(text: str) -> list[Any]:
        spans: list[Any] = []
        find(text, 0, len(text), spans)
        return spans

    return found


@pytest.mark.parametrize(
    ("read", "before", "again", "after"),
    [
        (_HEAD.fullmatch, "HTTP/1.1 200 OK", "\r\nA: b", "\r\n\0\r\n\r\n"),
        (_HEAD.fullmatch, "HTTP/1.1 200 OK", "\r\n:", "\r\n\r\n"),
        (_HEAD.fullmatch, "HTTP/1.1 200 ", " ", "\0"),
        (_HEAD.fullmatch, "HTTP/1.1 200 OK\r\n", "A", "\r\n\r\n"),
        (_BASE64.fullmatch, "", "\r\n", "!"),
        (_BASE64.fullmatch, "==", "\r\n", "!"),
        (_JSON.match, "", " ", "x"),
        (spans(find_emails), "", "@", ""),
        (spans(find_emails), "", "a@", ""),
        (spans(find_emails), "", "a@a-.1", ""),
        (spans(find_bearers), "", "bearer" + " " * 34, ""),
        (spans(find_bearers), "", "bearer =" + " " * 17, ""),
        (spans(find_bearers), "", "bearer aaaaaaaaaaaaaa!", ""),
        (spans(find_jwts), "", "eyJ", ""),
        (spans(find_jwts), "", "eyJaaaaaaaa.aaa", ""),
        (spans(find_pairs), "", "password=", ""),
        (spans(find_pairs), "", 'password="', ""),
        (spans(find_pairs), 'password="', "\\", ""),
        (spans(find_pairs), "", "password         ", ""),
        (spans(find_pairs), "", "://a:", ""),
        (spans(find_pairs), "://a:", "b", ""),
    ],
)
def test_time_grows_with_the_text_alone(read: Callable[[str], Any], before: str, again: str, after: str) -> None:
    text = before + again * (CHARS // len(again)) + after
    begun = time.process_time()
    read(text)
    assert time.process_time() - begun < MAX_CPU_S


def test_a_credential_is_found_behind_what_may_stand_before_it() -> None:
    token = "A1b2" * 5
    for between in (" ", ": ", "=", '":"', '\\": \\"', " " * 32, " " * 16 + "=" + " " * 16):
        assert spans(find_bearers)(f"bearer{between}{token}") == [(6 + len(between), 26 + len(between))]
    for between in ("", " " * 33, " " * 17 + "= ", "= =", "x "):
        assert spans(find_bearers)(f"bearer{between}{token}") == []
