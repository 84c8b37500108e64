"""Is there one text for bytes, and no other?"""

import string

import pytest
from hypothesis import given, strategies as some

from sidecar.protocols import base64url

ALPHABET = string.ascii_letters + string.digits + "-_"


@given(some.binary(max_size=40))
def test_what_was_written_is_read(raw: bytes) -> None:
    text = base64url.encode(raw)
    assert base64url.decode(text) == raw and not set(text) - set(ALPHABET)


@given(some.text(alphabet=ALPHABET + "=+/ \n.é\0", max_size=12))
def test_every_other_text_is_refused(text: str) -> None:
    try:
        raw = base64url.decode(text)
    except ValueError:
        return
    assert base64url.encode(raw) == text


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("more", ["=", "==", "=-TAMPERED", "==-TAMPERED", "-TAMPERED", "\n", " ", "A===", "é"])
def test_nothing_may_stand_behind_it(size: int, more: str) -> None:
    """As an official suite tampers with a state: Python's own reader stops at the padding."""
    raw = bytes(range(100, 100 + size))
    try:
        assert base64url.decode(base64url.encode(raw) + more) != raw
    except ValueError:
        return
