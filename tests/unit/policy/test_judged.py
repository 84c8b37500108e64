"""Is every answer pycasbin's, for models that nobody wrote by hand?"""

import random

import pytest

from sidecar.vocabulary import EngineName
from tests.unit.policy.judged import EFFECTS, drawn_case, judged


def test_many_models_and_policies_answer_as_pycasbin_does() -> None:
    """The first of the long run's cases: python -m tests.unit.policy.judged."""
    assert sum(judged(random.Random(f"1/{case}"), 20, reasons=True) for case in range(100)) == 2000


@pytest.mark.parametrize("engine", ["casbin", "both"])
def test_pycasbin_alone_and_beside_compiled_rules_answers_the_same(engine: EngineName) -> None:
    assert sum(judged(random.Random(f"2/{case}"), 10, reasons=True, by=engine) for case in range(25)) == 250


def test_what_is_drawn_has_every_effect_and_domains() -> None:
    cases = [drawn_case(random.Random(seed)) for seed in range(200)]
    assert {case.effect for case in cases} == set(EFFECTS)
    assert {case.by_domain for case in cases} == {True, False}
    assert any("dom" in case.columns for case in cases)
