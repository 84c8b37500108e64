"""Does looking patterns up find exactly those that matching them one by one finds?"""

from hypothesis import given, strategies as st

from sidecar.policy.pattern_index import MANY, PatternIndex
from sidecar.policy.patterns import glob, meets_prefix

pieces = st.text("ab/:", max_size=3)
patterns = st.lists(st.lists(pieces, min_size=2, max_size=4).map("*".join), max_size=12)
texts = st.text("ab/:*", max_size=8)


@given(patterns, texts)
def test_what_is_looked_up_is_what_matches(found: list[str], text: str) -> None:
    index = PatternIndex((pattern, number) for number, pattern in enumerate(found))
    assert sorted(index.matches(text)) == [number for number, pattern in enumerate(found) if glob(text, pattern)]


@given(st.lists(st.tuples(pieces, pieces), min_size=MANY, max_size=3 * MANY), texts)
def test_also_where_many_share_head_and_tail(middles: list[tuple[str, str]], text: str) -> None:
    found = [f"a*{one}*{other}*b" for one, other in middles]
    index = PatternIndex((pattern, number) for number, pattern in enumerate(found))
    assert sorted(index.matches(f"a{text}b")) == [n for n, pattern in enumerate(found) if glob(f"a{text}b", pattern)]


@given(patterns, st.text("ab/:", min_size=1, max_size=5))
def test_patterns_that_some_text_with_a_prefix_fits_are_found_by_it(found: list[str], prefix: str) -> None:
    index = PatternIndex((pattern, number) for number, pattern in enumerate(found))
    met = {number for number, pattern in enumerate(found) if meets_prefix(pattern, prefix)}
    begin = {number for number, pattern in enumerate(found) if pattern.startswith(prefix)}
    assert set(index.meeting(prefix)) | begin == met | begin
    assert set(index.meeting(prefix)) <= met


def test_a_hundred_thousand_patterns_cost_what_those_that_match_cost() -> None:
    index = PatternIndex((f"tool:*/delete_{number}*", number) for number in range(100_000))
    assert sorted(index.matches("tool:s/delete_77")) == [7, 77]
    (tails,) = index._by_head.values()
    (between,) = tails.by_tail.values()
    assert len(between.by_first) == 100_000
    assert between.lengths == {"/": (9, 10, 11, 12, 13)}  # so many look-ups for each slash in the text, and no more
