"""When is a share of new calls refused, what is said of a loop that was held, and who hears of a clock that jumped?"""

import asyncio
import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.http.server.load_shedding import MAX_FRAMES, MOST, STANDING_S, STEP, LoadShedding, StallSampler, places_of

LATE, SOON, LOOKS = 0.3, 0.01, 16


@dataclass
class Scene:
    """A loop whose lateness, clocks and luck are given."""

    wall_s: float = 1_000_000.0
    mono_s: float = 50.0
    luck: float = 0.5
    jumps: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pressure = LoadShedding(
            0.25, self.lags.append, self.jumped, lambda: self.luck, lambda: self.wall_s, lambda: self.mono_s
        )

    async def jumped(self, seconds: float) -> None:
        self.jumps.append(seconds)

    def period(self, *lags_s: float) -> float:
        """One period of looks; the share that is refused after it."""
        for number in range(LOOKS):
            self.mono_s += STANDING_S / LOOKS
            self.pressure.look(lags_s[number % len(lags_s)])
        return self.pressure.refused_share


def test_pressure_grows_by_steps_and_halves() -> None:
    scene = Scene()
    scene.period(SOON)
    assert [scene.period(LATE) for _ in range(3)] == pytest.approx([STEP, 2 * STEP, 3 * STEP])
    assert max(scene.period(LATE) for _ in range(20)) == MOST
    shares = [scene.period(SOON) for _ in range(8)]
    assert shares == sorted(shares, reverse=True) and shares[-1] == 0.0
    assert len(scene.lags) == 32 * LOOKS


def test_one_stall_is_no_pressure() -> None:
    scene = Scene()
    assert [scene.period(2.0, *[SOON] * (LOOKS - 1)) for _ in range(5)] == [0.0] * 5


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 5.5])
async def test_a_clock_that_is_set_is_told_once_and_one_that_is_drawn_slowly_is_not(step_s: float) -> None:
    scene = Scene()
    for number in range(100):
        scene.mono_s += 1.0
        scene.wall_s += 1.5 + (step_s if number == 3 else 0.0)
        await scene.pressure.look_at_clock()
    assert scene.jumps == [pytest.approx(step_s, abs=0.6)]


@pytest.mark.parametrize(("share", "luck", "refused"), [(0.0, 0.0, False), (0.4, 0.39, True), (0.4, 0.4, False)])
def test_the_share_is_refused_by_lot(share: float, luck: float, refused: bool) -> None:
    scene = Scene(luck=luck)
    scene.pressure.refused_share = share
    with pytest.raises(Refusal) if refused else nullcontext() as told:
        scene.pressure.or_refuse()
    assert not refused or (told.value.reason, told.value.retry_after_s) == (Reason.OVERLOADED, 1.0)


async def test_who_holds_the_loop_is_named_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    def hold_the_loop() -> None:
        time.sleep(0.12)

    caplog.set_level(logging.WARNING, "sidecar.http.server.load_shedding")
    with StallSampler(stall_s=0.04) as bystander:
        for _ in range(3):
            await asyncio.sleep(0)
            hold_the_loop()
            bystander.seen_alive()
    told = [vars(record) for record in caplog.records]
    assert [record["message"] for record in told] == ["the loop was held"]
    assert told[0]["held_ms"] >= 60 and any("hold_the_loop" in place for place in told[0]["by"])


def test_places_are_names_and_lines_and_few() -> None:
    def deeper(levels: int) -> list[str]:
        import sys

        return deeper(levels - 1) if levels else places_of(sys._getframe())

    places = deeper(30)
    assert len(places) == MAX_FRAMES and places_of(None) == []
    assert all(place.startswith("tests/unit/http/server/test_load_shedding.py:") for place in places)
