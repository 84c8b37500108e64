"""What counts as a secret of which class, and how long may looking for it take?"""

import string
import time

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.gateway.redaction import SLICE_CHARS, Wiping, wiped
from sidecar.protocols.secret_patterns import CLASSES, is_card, passes_luhn
from tests import wire

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabcd\n-----END RSA PRIVATE KEY-----"
MARK = "[-]"

SECRET = wire.table("secrets")


def wipe(text: str, *classes: str) -> tuple[str, int]:
    steps = wiped(text, [Wiping(tuple(CLASSES[name] for name in classes or CLASSES), MARK)])
    while True:
        try:
            next(steps)
        except StopIteration as end:
            left: tuple[str, int] = end.value
            return left


@pytest.mark.parametrize(("name", "text", "left"), SECRET["found"])
def test_what_is_of_a_class_is_taken_out_wherever_slices_end(name: str, text: str, left: str) -> None:
    assert wipe(text, name)[0] == left
    for before in (SLICE_CHARS - 1, SLICE_CHARS - len(text) // 2, SLICE_CHARS - len(text) + 1):
        filler = " " * before
        assert wipe(filler + text, name)[0] == filler + left
    assert wipe(left, name) == (left, 0)


@pytest.mark.parametrize(("name", "text"), SECRET["left"])
def test_what_only_looks_alike_is_left(name: str, text: str) -> None:
    assert wipe(text, name) == (text, 0)


def luhn_by_the_book(digits: str) -> bool:
    total = 0
    for index, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + index % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


@given(st.integers(10**12, 10**19 - 1))
def test_a_second_luhn_agrees(number: int) -> None:
    assert passes_luhn(str(number)) == luhn_by_the_book(str(number))
    assert is_card(number) == (str(number)[0] in "23456" and luhn_by_the_book(str(number)))


def test_luhn_is_as_the_standard_has_it() -> None:
    assert all(map(passes_luhn, ("4111111111111111", "79927398713", "0", "18")))
    assert not any(map(passes_luhn, ("79927398710", "19")))


SECRETS = ["alice@example.com", "4111111111111111", f"Bearer {'a1' * 10}", JWT, "AKIAIOSFODNN7EXAMPLE", PEM,
           "DE89370400440532013000", "123-45-6789", "10.20.30.40", "4111-1111-1111-1111"]  # fmt: skip
AROUND = st.text(alphabet=string.ascii_letters + " .,:@-_/=\"'\n[]éß", max_size=30)


@settings(max_examples=60)
@given(st.lists(st.tuples(AROUND, st.sampled_from(SECRETS)), min_size=1, max_size=5), AROUND)
def test_nothing_of_any_class_survives_and_twice_is_once(parts: list[tuple[str, str]], tail: str) -> None:
    text = "".join(f"{around} {secret} " for around, secret in parts) + tail
    left, replaced = wipe(text)
    assert replaced > 0
    for _, secret in parts:
        assert secret.removeprefix("Bearer ") not in left
    assert wipe(left) == (left, 0)


@settings(max_examples=60)
@given(st.text(alphabet="ae1Y4J@.- \n\"'[]:eyJBEGINbearer_", max_size=200))
def test_screening_any_text_twice_is_screening_it_once(text: str) -> None:
    left, _ = wipe(text)
    assert wipe(left) == (left, 0)


@pytest.mark.parametrize("place", range(SLICE_CHARS - 60, SLICE_CHARS + 10, 3))
def test_a_credential_is_found_after_one_that_ends_with_its_keyword(place: int) -> None:
    text = " " * place + f"Bearer {'a1' * 10}bearer: {'b2' * 10}"
    assert wipe(text) == (" " * place + f"Bearer {MARK}: {MARK}", 2)


EVIL = {
    "at": "@" * 300_000,
    "local": "a" * 300_000 + "@",
    "domain": "a@" + "a." * 150_000,
    "mails": "a@b." * 75_000,
    "begins": "eyJ" * 100_000,
    "run": "eyJ" + "a" * 300_000,
    "digits": "4" * 300_000,
    "groups": "4111 " * 60_000,
    "bearers": "bearer " * 40_000,
    "blanks": "bearer" + " " * 300_000,
    "keys": "-----BEGIN PRIVATE KEY" * 14_000,
    "ibans": "DE89 3704 " * 30_000,
    "marks": "sk_live_" * 37_000,
    "dots": "1.1." * 75_000,
}


@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL)
def test_no_text_takes_long(text: str) -> None:
    """The measure is per character, and generous: 300 kB of what was built to be slow, in all classes."""
    started = time.thread_time()
    wipe(text)
    assert time.thread_time() - started < 5.0


def test_other_work_runs_between_the_slices() -> None:
    text = "word 4111 a@b c " * 50_000
    steps = wiped(text, [Wiping(tuple(CLASSES.values()), MARK)])
    assert sum(1 for _ in steps) >= len(text) // SLICE_CHARS
