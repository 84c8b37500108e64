"""Does the algebra of patterns find a name exactly where there is one? The judge tries every short name."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.policy.patterns import glob
from sidecar.policy_tools import glob_algebra
from sidecar.policy_tools.glob_algebra import OBJECTS, GlobShape, TooManyStates, classes, may_overlap, witness
from sidecar.vocabulary import PermissionKind
from tests.tables import tables

TOOLS = OBJECTS[PermissionKind.AGENT_TO_TOOL]
# A language so small that all of its names can be tried: two letters, one that no pattern names, at most five of them.
SMALL = (GlobShape("u:", frozenset("abx"), 5),)
NAMES = ["u:" + "".join(letters) for size in range(1, 6) for letters in itertools.product("abx", repeat=size)]
PATTERNS = st.text("ab*", min_size=1, max_size=4).map(lambda text: f"u:{text}") | st.just("*")


def fitting(all_of: list[str], none_of: list[str], avoid: set[str]) -> list[str]:
    found = [name for name in NAMES if name not in avoid and all(glob(name, pattern) for pattern in all_of)]
    return [name for name in found if not any(glob(name, pattern) for pattern in none_of)]


@settings(max_examples=60)
@given(st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, max_size=4), st.sets(st.sampled_from(NAMES[:9]), max_size=4))
def test_a_name_is_found_exactly_if_there_is_one(all_of: list[str], none_of: list[str], avoid: set[str]) -> None:
    found = witness(SMALL, all_of, none_of, avoid)
    there = fitting(all_of, none_of, avoid)
    assert (found in there) if there else (found is None)


@settings(max_examples=60)
@given(st.lists(PATTERNS, max_size=2), st.lists(PATTERNS, max_size=4, unique=True))
def test_every_way_to_meet_other_patterns_is_found(all_of: list[str], others: list[str]) -> None:
    found = dict(classes(SMALL, all_of, others))
    for met, name in found.items():
        assert {pattern for pattern in others if glob(name, pattern)} == met
    assert found.keys() == {
        frozenset(pattern for pattern in others if glob(name, pattern)) for name in fitting(all_of, [], set())
    }


@settings(max_examples=60)
@given(PATTERNS, PATTERNS)
def test_what_cannot_overlap_does_not(one: str, other: str) -> None:
    if not may_overlap(one, other):
        assert not fitting([one, other], [], set())
    assert may_overlap(one, other) == may_overlap(other, one)


@pytest.mark.parametrize(("all_of", "none_of", "expected"), tables("policy_tools/diff_globs")["examples"])
def test_a_witness_is_a_name_that_can_exist(all_of: list[str], none_of: list[str], expected: str | None) -> None:
    assert witness(TOOLS, all_of, none_of) == expected


def test_too_much_is_said_and_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glob_algebra, "MAX_STATES", 10)
    with pytest.raises(TooManyStates):
        witness(TOOLS, ["tool:*a*b*c*"])
