"""The decisions that Casbin publishes for its examples are those of the compiled models, and of pycasbin."""

import pytest

from tests.unit.policy.stock.judge import Judge, rows_of, rules_of
from tests.unit.policy.stock.published import EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_decided_as_published(name: str) -> None:
    example = EXAMPLES[name]
    rows = rows_of(example.policy)
    rules = rules_of(example.model, rows, example.options, example.suffix)
    judge = Judge(example.model, rows, example.options, example.suffix)
    for request, published in example.requests():
        assert rules.decide(request).allowed is published, request
        assert judge.allows(request) is published, request
