"""Do several sidecars together admit exactly what one limit says?"""

import asyncio
import sys

import pytest

from bench import crowd
from bench.costs import MOST, spend
from bench.process import ready
from sidecar.limits.topology import PREFIX
from tests.flow.forks import python
from tests.flow.limit_worker import DAY, HOUR, LIMIT
from tests.valkey import Valkey


@pytest.fixture(autouse=True)
def _forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes start at once."""
    monkeypatch.setattr(sys, "executable", python())


async def test_four_processes_of_64_tasks_admit_exactly_1000(valkey: Valkey) -> None:
    """BL-063."""
    async with ready(4, "tests.flow.limit_worker", valkey.url) as started, asyncio.timeout(120):
        for worker in started:
            assert worker.stdin
            worker.stdin.write(b"\n")
        through = [int(await worker.stdout.readline()) for worker in started if worker.stdout]
    assert sum(through) == LIMIT
    with valkey.client() as client:
        counted = {limit.key: int(client.hget(PREFIX + limit.key, "n") or 0) for limit in (HOUR, DAY)}
    assert counted == {HOUR.key: LIMIT, DAY.key: LIMIT}, "a call refused by the hour moved the day"


def test_two_sidecars_let_through_what_one_limit_says_and_no_call_that_it_refuses_moves_another() -> None:
    """`python -m bench.exactness --over-http` asks four of them a million times."""
    met = crowd.met(attempts=300, processes=2, limit=100)
    assert met.answers == {"admitted": 100, "429 rate-limited": 200}
    assert met.reached == 100
    assert met.counted == {"hour": 100, "day": 100, "month": 100 * crowd.COST}


async def test_two_processes_spend_a_budget_to_the_last_call_that_fits(valkey: Valkey) -> None:
    spent = await spend(valkey.url, str(valkey.path), 2, 40_000_000)
    assert (spent.errors, spent.over, spent.lost) == (0, 0, 0), spent
    assert spent.limit - spent.counted < MOST, spent
    assert spent.admitted > 80, "settled calls make room"
