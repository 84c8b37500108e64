"""Logs the beginning and end of an outage once each, and a flapping outage at a limited rate."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import Logger
from typing import Final

TELL_EVERY_S: Final = 10.0


@dataclass(slots=True)
class Outage:
    """The outage of one store. `store` is its name in the log; `clock_mono` is in seconds."""

    log: Logger
    store: str
    clock_mono: Callable[[], float] = time.monotonic
    _is_told: bool = False
    _next_s: float = float("-inf")

    def fell(self, why: object) -> None:
        now_s = self.clock_mono()
        if not self._is_told and now_s >= self._next_s:
            self._is_told, self._next_s = True, now_s + TELL_EVERY_S
            self.log.warning("a store is unavailable", extra={"store": self.store, "error": str(why)})

    def rose(self) -> None:
        if self._is_told:
            self._is_told = False
            self.log.warning("a store is back", extra={"store": self.store})
