"""Bounds each caller's share of an upstream.

A share, so that who floods a slow server leaves room for everybody else (threats D3). Calls beyond it wait for calls of
their own caller, first come, first served, within their deadlines; nobody else's call waits for them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.http.client.send_queue import SendQueue
from sidecar.vocabulary import Caller

MAX_WAITING: Final = 10_000  # calls of one caller

Owner = tuple[tuple[str, str], ...]
"""Issuer and name of everybody in a chain."""


class FairShares:
    """The shares of one upstream. `places` is how many calls of one caller go at once."""

    __slots__ = ("_lines", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        self._lines: dict[Owner, tuple[SendQueue, list[int]]] = {}

    def __len__(self) -> int:
        """How many callers have calls under way."""
        return len(self._lines)

    @property
    def waiting(self) -> int:
        """How many calls wait for others of their own caller."""
        return sum(len(line) for line, _ in self._lines.values())

    async def take(self, caller: Caller, deadline_s: float) -> tuple[Owner, float]:
        """A place, to be given back; and what is left of the deadline. Raises EgressError: NoPlace, Crowded."""
        owner = tuple([(principal.issuer, principal.name) for principal in caller.chain])
        standing = self._lines.get(owner)
        if standing is None:
            standing = self._lines[owner] = (SendQueue(self.places, MAX_WAITING), [0])
        line, inside = standing
        inside[0] += 1
        if line.step_in():
            return owner, deadline_s
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        try:
            await line.wait(until)
        except BaseException:
            self._leave(owner)
            raise
        return owner, until - loop.time()

    def give_back(self, owner: Owner) -> None:
        """The call is over."""
        self._lines[owner][0].step_out()
        self._leave(owner)

    def _leave(self, owner: Owner) -> None:
        inside = self._lines[owner][1]
        inside[0] -= 1
        if not inside[0]:
            del self._lines[owner]
