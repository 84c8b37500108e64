"""Bounds each caller's share of an upstream: calls beyond it wait for its own calls alone (threats D3)."""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.errors import Reason, Unsent
from sidecar.http.client import EgressError
from sidecar.http.client.send_queue import SendQueue
from sidecar.vocabulary import Caller

MAX_WAITING: Final = 10_000  # calls of one caller


class CallerShare(SendQueue):
    """The share of one caller, with the number of its calls that are in it or wait for it."""

    __slots__ = ("_lines", "_owner", "inside")

    def __init__(self, lines: dict[str, CallerShare], owner: str, places: int) -> None:
        super().__init__(places, MAX_WAITING)
        self._lines, self._owner, self.inside = lines, owner, 0

    def give_back(self) -> None:
        """Returns a place that was taken."""
        if self._waiting:
            self.step_out()
        else:
            self._left += 1
        self.leave()

    def leave(self) -> None:
        self.inside -= 1
        if not self.inside:
            del self._lines[self._owner]


class FairShares:
    """The shares of one upstream. `places` is the number of concurrent calls of one caller."""

    __slots__ = ("_lines", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        self._lines: dict[str, CallerShare] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    def of(self, caller: Caller) -> tuple[CallerShare, bool]:
        """Returns the share of a caller, whose call is counted in it until `give_back`; whether it has a place, or else
        has to `wait` for one."""
        owner = caller.binding
        share = self._lines.get(owner)
        if share is None:
            share = self._lines[owner] = CallerShare(self._lines, owner, self.places)
        share.inside += 1
        has_place = share._left > 0
        if has_place:
            share._left -= 1
        return share, has_place

    async def wait(self, share: CallerShare, deadline_s: float) -> float:
        """Waits for a place; returns the seconds left. Raises Unsent(TOO_MANY_CONCURRENT), and uncounts the call."""
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        try:
            await share.wait(until)
        except BaseException as error:
            share.leave()
            if isinstance(error, EgressError):
                raise Unsent(Reason.TOO_MANY_CONCURRENT, "too many calls of one caller", retry_after_s=1.0) from error
            raise
        return until - loop.time()
