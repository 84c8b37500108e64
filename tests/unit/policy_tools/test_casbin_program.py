"""The files of a Casbin program become a working folder that decides as the program does.

python -m tests.unit.policy_tools.test_casbin_program --requests 100000
"""

import argparse
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.unit.policy.stock.judge import Judge, rows_of
from tests.unit.policy.stock.setups import SETUPS
from tests.unit.policy.stock.working_folder import Drawn, served, values_of


def compared(name: str, requests: int, folder: Path) -> tuple[int, int]:
    """The number of requests that were allowed, and of those that the served folder decides otherwise."""
    setup = SETUPS[name]
    ours = served(setup, folder / "program")
    judge = Judge(setup.model, rows_of(setup.policy), setup.options, setup.suffix)
    positions, drawn = values_of(setup), random.Random(name)

    @cache
    def expected(request: Drawn) -> bool:
        return judge.allows([values[at] for values, at in zip(setup.values, request, strict=True)])

    allowed = different = 0
    for _ in range(requests):
        request = tuple(drawn.choice(known) for known in positions)
        allowed += expected(request)
        different += ours.allows(request) is not expected(request)
    return allowed, different


@pytest.mark.parametrize("name", SETUPS)
def test_a_served_setup_decides_as_pycasbin(name: str, tmp_path: Path) -> None:
    allowed, different = compared(name, 1_000, tmp_path)
    assert different == 0
    assert allowed or name == "a second definition"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    given = parser.parse_args()
    for name in SETUPS:
        with TemporaryDirectory() as folder:
            allowed, different = compared(name, given.requests, Path(folder))
        print(f"{name}: {given.requests} requests, {allowed} allowed, {different} different", flush=True)


if __name__ == "__main__":
    main()
