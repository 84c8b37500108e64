"""Do large bodies leave the loop to the others, and to one another their turn?"""

from __future__ import annotations

import asyncio
import math

import pytest

from sidecar import pacing
from sidecar.errors import Reason, Refusal
from sidecar.pacing import EVERYBODYS_SHARE, ONES_SHARE, PATIENCE_S, Pace, cost_of

SMALL = b'{"a":[' + b"1," * 1_000 + b"1]}"
TEXT = b'{"a":"' + b"x" * 100_000 + b'"}'  # large, and nothing to read in it
LARGE = b'{"a":[' + b"1," * 40_000 + b"1]}"


class Clock:
    """Time that passes only as the test says."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.pace = Pace(clock=lambda: self.now_s, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            await asyncio.sleep(0)

    async def passes(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.001
            for _ in range(5):
                await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_small_bodies_and_long_texts_never_wait(clock: Clock) -> None:
    pace = clock.pace
    await pace.wait("nhi:a", LARGE)
    for body in (SMALL, TEXT, b"", b"[" * 8 * 1024):
        assert not await pace.wait("nhi:a", body)


async def test_the_first_large_one_goes_on_at_once_and_the_next_when_its_share_has_room(clock: Clock) -> None:
    pace, done = clock.pace, []

    async def one(number: int) -> None:
        assert await pace.wait("nhi:a", LARGE)
        done.append((number, round(clock.now_s - 1_000.0, 3)))

    tasks = [asyncio.create_task(one(number)) for number in range(3)]
    await clock.passes(1.0)
    distance_s = cost_of(LARGE) / ONES_SHARE
    assert [number for number, _ in done] == [0, 1, 2]
    assert [at_s for _, at_s in done] == pytest.approx([0, distance_s, 2 * distance_s], abs=0.003)
    await asyncio.gather(*tasks)


async def test_who_has_sent_none_waits_for_one_of_anothers_and_not_for_its_row(clock: Clock) -> None:
    pace, other = clock.pace, []

    async def one(who: str) -> None:
        await pace.wait(who, LARGE)
        if who == "nhi:b":
            other.append(clock.now_s - 1_000.0)

    tasks = [asyncio.create_task(one(who)) for who in ["nhi:a"] * 20 + ["nhi:b"]]
    await clock.passes(3.0)
    assert other[0] <= cost_of(LARGE) / EVERYBODYS_SHARE + 0.003
    await asyncio.gather(*tasks)


async def test_who_would_wait_too_long_is_told_when_to_come_again(clock: Clock) -> None:
    pace = clock.pace
    fit = int(PATIENCE_S * ONES_SHARE / cost_of(LARGE)) + 1
    waiting = [asyncio.create_task(pace.wait("nhi:a", LARGE)) for _ in range(fit)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as caught:
        await pace.wait("nhi:a", LARGE)
    assert caught.value.reason is Reason.OVERLOADED
    assert caught.value.retry_after_s == pytest.approx(PATIENCE_S, rel=0.1)
    assert await pace.wait("nhi:b", SMALL) is False
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_table_of_names_is_bounded_and_forgets_who_has_its_share_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "MAX_NAMES", 3)
    monkeypatch.setattr(pacing, "EVERYBODYS_SHARE", math.inf)
    pace = clock.pace
    for number in range(5):
        await pace.wait(f"nhi:{number}", LARGE)
    assert len(pace) == 3
    clock.now_s += 10
    await pace.wait("nhi:5", LARGE)
    assert len(pace) == 1


def test_what_a_body_costs_is_never_less_than_its_bytes_and_values() -> None:
    assert cost_of(LARGE) == pytest.approx(40_000 * 2.5e-7, rel=0.1)
    assert cost_of(b"x" * 2**20) == pytest.approx(0.0052, rel=0.1)
