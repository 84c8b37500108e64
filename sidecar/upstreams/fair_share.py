"""Bounds each caller's share of an upstream. Calls beyond the share wait only for the same caller's calls."""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.errors import Reason, Unsent
from sidecar.http.client import EgressError
from sidecar.http.client.send_queue import SendQueue
from sidecar.vocabulary import Caller

MAX_WAITING: Final = 10_000  # calls of one caller
MAX_UNUSED: Final = 256  # shares that are retained for a caller's next call


class CallerShare(SendQueue):
    """The share of one caller."""

    __slots__ = ("_places",)

    def __init__(self, places: int) -> None:
        super().__init__(places, MAX_WAITING)
        self._places = places

    @property
    def inside(self) -> int:
        """The number of calls that have a place or wait for one."""
        return self._places - self._left + len(self._waiting)


class FairShares:
    """The shares of one upstream. `places` is the number of concurrent calls of one caller."""

    __slots__ = ("_shares", "_swept_at", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        self._shares: dict[str, CallerShare] = {}
        self._swept_at = MAX_UNUSED

    def __len__(self) -> int:
        """The number of callers with a call that has a place or waits for one."""
        return sum(share.inside > 0 for share in self._shares.values())

    @property
    def waiting(self) -> int:
        return sum(map(len, self._shares.values()))

    def of(self, caller: Caller) -> tuple[CallerShare, bool]:
        """Returns the share of a caller, and whether its call has a place, until `step_out`. Otherwise the call must
        `wait` for one immediately."""
        share = self._shares.get(caller.binding)
        if share is None:
            if len(self._shares) >= self._swept_at:
                self._shares = {owner: used for owner, used in self._shares.items() if used.inside}
                self._swept_at = max(MAX_UNUSED, 2 * len(self._shares))
            share = self._shares[caller.binding] = CallerShare(self.places)
        if share._left <= 0:
            return share, False
        share._left -= 1
        return share, True

    async def wait(self, share: CallerShare, deadline_s: float) -> float:
        """Waits for a place, at most `deadline_s`; returns the remaining seconds. Raises
        Unsent(TOO_MANY_CONCURRENT)."""
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        try:
            await share.wait(until)
        except EgressError as error:
            raise Unsent(Reason.TOO_MANY_CONCURRENT, "too many calls of one caller", retry_after_s=1.0) from error
        return until - loop.time()
