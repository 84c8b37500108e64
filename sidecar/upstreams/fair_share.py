"""Bounds each caller's share of an upstream.

A caller that floods a slow server leaves room for all others (threats D3). Calls beyond a caller's share wait for calls
of the same caller, first come, first served, within their deadlines; they delay no other caller's calls.
"""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.errors import Reason, Unsent
from sidecar.http.client import EgressError
from sidecar.http.client.send_queue import SendQueue
from sidecar.vocabulary import Caller

MAX_WAITING: Final = 10_000  # calls of one caller

Owner = tuple[tuple[str, str], ...]
"""Issuer and name of each principal in a chain."""


class FairShares:
    """The shares of one upstream. `places` is the number of concurrent calls of one caller."""

    __slots__ = ("_lines", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        self._lines: dict[Owner, tuple[SendQueue, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def waiting(self) -> int:
        return sum(len(line) for line, _ in self._lines.values())

    async def take(self, caller: Caller, deadline_s: float) -> tuple[Owner, float]:
        """Take a place, to be returned with `give_back`; returns the owner and what is left of the deadline in seconds.
        Raises Unsent(TOO_MANY_CONCURRENT)."""
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
        except BaseException as error:
            self._leave(owner)
            if isinstance(error, EgressError):
                raise Unsent(Reason.TOO_MANY_CONCURRENT, "too many calls of one caller", retry_after_s=1.0) from error
            raise
        return owner, until - loop.time()

    def give_back(self, owner: Owner) -> None:
        self._lines[owner][0].step_out()
        self._leave(owner)

    def _leave(self, owner: Owner) -> None:
        inside = self._lines[owner][1]
        inside[0] -= 1
        if not inside[0]:
            del self._lines[owner]
