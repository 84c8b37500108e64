"""Sheds load when the event loop lags, and detects clock jumps.

The delay of a timer is measured periodically. A single delay is a stall: a thread samples what the loop is doing, and
one line is logged. Delays at every measurement for a while are overload: a share of new calls is refused at once, which
grows while the overload lasts and shrinks afterwards; calls in progress and health checks continue.
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
STANDING_S: Final = 1.0  # late at every measurement for this long: overload rather than a stall
STEP: Final = 0.1  # added to the refused share in each period of overload; without overload the share is halved
MOST: Final = 0.95  # the remainder shows when the overload ends
RETRY_AFTER_S: Final = 1.0
STALL_S: Final = 0.1
JUMP_S: Final = 5.0
TELL_EVERY_S: Final = 10.0
MAX_FRAMES: Final = 8

_HERE = Path(__file__).parents[3]


@dataclass(slots=True)
class LoadShedding:
    """`lagged` receives each lag, `jumped` the change of the wall clock, in seconds. Up to `max_lag_s` is no overload.
    `random` returns numbers from 0 to 1."""

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
        """Measures periodically. Runs as long as the process."""
        with StallSampler() as bystander:
            while True:
                due_s = self.clock_mono() + LOOK_EVERY_S
                await asyncio.sleep(LOOK_EVERY_S)
                bystander.seen_alive()
                self.look(max(0.0, self.clock_mono() - due_s))
                await self.look_at_clock()

    def look(self, lag_s: float) -> None:
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
        """Detects that the wall clock was set, by its changed offset from monotonic time."""
        offset_s = self.clock() - self.clock_mono()
        before_s, self._offset_s = self._offset_s, offset_s
        if before_s is not None and abs(offset_s - before_s) > JUMP_S:
            log.warning("the clock jumped", extra={"seconds": round(offset_s - before_s, 3)})
            await self.jumped(offset_s - before_s)


class StallSampler:
    """A thread that checks the loop twice in `stall_s`, and samples once what blocks it for longer."""

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
        """Notes that the loop runs. Logs what blocked it for longer than `stall_s`, at a limited rate."""
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
    """Returns the position of a thread, innermost first: file, line, function. It contains no values, because they
    could be a caller's."""
    places: list[str] = []
    while frame is not None and len(places) < MAX_FRAMES:
        code = frame.f_code
        path = Path(code.co_filename)
        shown = path.relative_to(_HERE) if path.is_relative_to(_HERE) else Path(*path.parts[-2:])
        places.append(f"{shown}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return places
