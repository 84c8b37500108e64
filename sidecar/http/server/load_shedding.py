"""Sheds load when the event loop lags, and detects clock jumps.

One look every so often at how late a timer is. That it was late once is a stall: a thread beside the loop sees what
the loop is at, and one line says so. That it was late at every look for a while is pressure: more is asked than can be
done, and whoever waits longest waits longer still. Then a share of new calls is refused at once, a growing one while
that lasts and a shrinking one afterwards; what is under way, and health, go on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from sidecar.errors import Reason, Refusal

log = logging.getLogger("sidecar.http.server.load_shedding")

LOOK_EVERY_S: Final = 0.05
STANDING_S: Final = 1.0  # late at every look for so long: not one stall, but all of them
STEP: Final = 0.1  # what a whole period of pressure adds to the share that is refused; without, half of it goes
MOST: Final = 0.95  # the rest shows when the pressure is over
RETRY_AFTER_S: Final = 1.0
STALL_S: Final = 0.1
JUMP_S: Final = 5.0
TELL_EVERY_S: Final = 10.0
MAX_FRAMES: Final = 8

_HERE = Path(__file__).parents[3]


@dataclass(slots=True)
class LoadShedding:
    """`lagged` hears of each look, in seconds; `jumped` when the wall clock went another way than time did, by how
    many seconds. `max_lag_s` is how late the loop may be all the time."""

    max_lag_s: float
    lagged: Callable[[float], None]
    jumped: Callable[[float], Awaitable[None]]
    random: Callable[[], float]
    clock: Callable[[], float] = time.time
    clock_mono: Callable[[], float] = time.monotonic
    refused_share: float = 0.0
    _recent: deque[float] = field(default_factory=deque)
    _judged_mono_s: float = field(init=False)
    _offset_s: float | None = None

    def __post_init__(self) -> None:
        self._judged_mono_s = self.clock_mono()

    def or_refuse(self) -> None:
        """Raises Refusal(OVERLOADED) for the share of new calls that is refused now."""
        if self.refused_share and self.random() < self.refused_share:
            raise Refusal(Reason.OVERLOADED, retry_after_s=RETRY_AFTER_S)

    async def run(self) -> None:
        """Look. Runs as long as the process."""
        with StallSampler() as bystander:
            while True:
                due_s = self.clock_mono() + LOOK_EVERY_S
                await asyncio.sleep(LOOK_EVERY_S)
                bystander.seen_alive()
                self.look(max(0.0, self.clock_mono() - due_s))
                await self.look_at_clock()

    def look(self, lag_s: float) -> None:
        """What one look found."""
        self.lagged(lag_s)
        self._recent.append(lag_s)
        now_s = self.clock_mono()
        if now_s - self._judged_mono_s < STANDING_S:
            return
        standing_s, self._judged_mono_s = min(self._recent), now_s
        self._recent.clear()
        before = self.refused_share
        if standing_s > self.max_lag_s:
            self.refused_share = min(MOST, before + STEP)
        else:
            self.refused_share = before / 2 if before > STEP / 2 else 0.0
        if bool(before) != bool(self.refused_share):
            event = "the loop cannot keep up: some calls are refused" if self.refused_share else "the loop keeps up"
            log.warning(event, extra={"lag_ms": round(standing_s * 1e3)})

    async def look_at_clock(self) -> None:
        """Wall time and time that passes differ by a constant, until somebody sets the clock."""
        offset_s = self.clock() - self.clock_mono()
        before_s, self._offset_s = self._offset_s, offset_s
        if before_s is not None and abs(offset_s - before_s) > JUMP_S:
            log.warning("the clock jumped", extra={"seconds": round(offset_s - before_s, 3)})
            await self.jumped(offset_s - before_s)


class StallSampler:
    """A thread that looks at what holds the loop. Two glances in a second cost nothing beside what they tell."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self.stall_s = stall_s
        self._loop_thread = threading.get_ident()
        self._alive_mono_s = time.monotonic()
        self._seen: list[str] = []
        self._over = threading.Event()
        self._next_told_mono_s, self._untold = 0.0, 0
        self._thread = threading.Thread(target=self._watch, name="bystander", daemon=True)

    def __enter__(self) -> StallSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seen_alive(self) -> None:
        """The loop came round. Tells what held it, if that was long."""
        now_s = time.monotonic()
        held_s, self._alive_mono_s = now_s - self._alive_mono_s - LOOK_EVERY_S, now_s
        seen, self._seen = self._seen, []
        if held_s < self.stall_s:
            return
        if now_s < self._next_told_mono_s:
            self._untold += 1
            return
        log.warning(
            "the loop was held", extra={"held_ms": round(held_s * 1e3), "by": seen, "others_untold": self._untold}
        )
        self._next_told_mono_s, self._untold = now_s + TELL_EVERY_S, 0

    def _watch(self) -> None:
        while not self._over.wait(self.stall_s / 2):
            if time.monotonic() - self._alive_mono_s > self.stall_s and not self._seen:
                self._seen = places_of(sys._current_frames().get(self._loop_thread))


def places_of(frame: FrameType | None) -> list[str]:
    """Where a thread is, innermost first: file, line, function. No values, which could be a caller's."""
    places: list[str] = []
    while frame is not None and len(places) < MAX_FRAMES:
        code = frame.f_code
        path = Path(code.co_filename)
        shown = path.relative_to(_HERE) if path.is_relative_to(_HERE) else Path(*path.parts[-2:])
        places.append(f"{shown}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return places
