"""Models and patterns that are drawn are decided as pycasbin decides them."""

from collections import Counter
from random import Random

import pytest
from casbin import util

from sidecar.policy.stock.functions import COMPILED
from tests.unit.policy.stock import generated
from tests.unit.policy.stock.judge import model_differences, pattern_differences


def test_models_of_any_form_are_decided_as_by_pycasbin() -> None:
    found = list(model_differences(80, 20, Random(18)))
    assert [detail for outcome, detail in found if outcome == "different"] == []
    counts = Counter(outcome for outcome, _ in found)
    assert counts["allowed"] > 200
    assert counts["denied"] > 200
    assert counts["refused by pycasbin"] == 0


def test_functions_match_patterns_as_those_of_pycasbin_do() -> None:
    found = list(pattern_differences(150, Random(18)))
    assert [detail for outcome, detail in found if outcome == "different"] == []
    counts = Counter(outcome for outcome, _ in found)
    assert all(counts[f"{name} equal"] > 200 for name in generated.FUNCTIONS)


@pytest.mark.parametrize(
    ("pattern", "text"), [("a,b/**", "a,b/c"), ("a,b/**", "a"), ("{a,b}/**", "b"), ("a,b/*", "a,b/c"), ("/a/**", "/a")]
)
def test_a_glob_with_commas_matches_as_in_pycasbin(pattern: str, text: str) -> None:
    assert COMPILED["globMatch"](pattern)(text) is util.glob_match(text, pattern)
