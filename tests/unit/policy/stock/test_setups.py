"""Ordinary Casbin setups are decided as pycasbin decides them."""

import random

import pytest

from tests.unit.policy.stock.judge import differences
from tests.unit.policy.stock.setups import SETUPS


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_is_decided_as_by_pycasbin(name: str) -> None:
    allowed, different = differences(SETUPS[name], 400, random.Random(name))
    assert different == 0
    assert allowed or name == "a second definition"
