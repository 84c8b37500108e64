"""Does `*` mean any run of characters, on every text and in linear time?"""

import re

import pytest
from hypothesis import given, strategies as st

from sidecar.policy.patterns import NamePattern, covers, glob, globs, meets, meets_prefix, who
from tests.tables import tables

TABLES = tables("policy/patterns")

TEXTS = st.text("ab/\n.", max_size=8)
PATTERNS = st.text("ab/\n.*", max_size=6)


def regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in pattern.split("*")), re.DOTALL)


@given(text=TEXTS, pattern=PATTERNS)
def test_a_pattern_fits_what_its_regular_expression_fits(text: str, pattern: str) -> None:
    fits = regex(pattern).fullmatch(text) is not None
    assert glob(text, pattern) is fits
    if "*" in pattern:
        assert NamePattern(pattern).among([text]) == [text] * fits


@given(outer=PATTERNS, inner=PATTERNS, text=TEXTS)
def test_a_covering_pattern_fits_whatever_the_covered_one_fits(outer: str, inner: str, text: str) -> None:
    if covers(outer, inner) and glob(text, inner):
        assert glob(text, outer)


@given(pattern=PATTERNS, prefix=st.text("ab/", min_size=1, max_size=4), rest=TEXTS)
def test_a_pattern_that_fits_something_below_a_prefix_meets_it(pattern: str, prefix: str, rest: str) -> None:
    if glob(prefix + rest, pattern):
        assert meets_prefix(pattern, prefix)


@given(pattern=PATTERNS, prefix=st.text("ab/", min_size=1, max_size=4))
def test_a_pattern_that_meets_a_prefix_fits_something_below_it(pattern: str, prefix: str) -> None:
    if meets_prefix(pattern, prefix):
        head, _, tail = pattern.partition("*")
        witness = head + tail.replace("*", "") if head.startswith(prefix) else prefix + tail.replace("*", "")
        assert witness.startswith(prefix)
        assert glob(witness, pattern)


@given(one=PATTERNS, other=PATTERNS, text=TEXTS)
def test_patterns_that_fit_one_text_meet(one: str, other: str, text: str) -> None:
    if glob(text, one) and glob(text, other):
        assert meets(one, other) and meets(other, one)


@given(one=PATTERNS, other=PATTERNS)
def test_patterns_that_meet_fit_one_text(one: str, other: str) -> None:
    if meets(one, other):
        heads, tails = ([text.split("*")[at] for text in (one, other)] for at in (0, -1))
        between = "".join(piece for text in (one, other) for piece in text.split("*")[1:-1])
        witness = max(heads, key=len) + between + max(tails, key=len)
        texts = (witness, *(text for text in (one, other) if "*" not in text))
        assert any(glob(text, one) and glob(text, other) for text in texts)


@pytest.mark.parametrize(("text", "pattern", "fits"), TABLES["globs"])
def test_only_the_star_is_special(text: str, pattern: str, fits: bool) -> None:
    """BL-034."""
    assert glob(text, pattern) is fits


def test_a_pattern_of_many_stars_is_not_slow() -> None:
    assert not glob("a" * 100_000, "*a" * 500 + "b")  # exponential where a matcher backtracks: it would not return


def test_a_list_of_patterns_fits_when_one_does() -> None:
    assert globs("tasks/get", "message/send|tasks/*")
    assert not globs("push/set", "message/send|tasks/*")
    assert not globs("", "message/send")


@pytest.mark.parametrize(("subject", "pattern", "effect", "fits"), TABLES["who"])
def test_anonymous_is_allowed_by_its_own_word_only(subject: str, pattern: str, effect: str, fits: bool) -> None:
    assert who(subject, pattern, effect) is fits
