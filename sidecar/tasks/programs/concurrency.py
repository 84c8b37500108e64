"""Queues runs where an agent has a bound on concurrent ones.

Owners take turns (round robin), so that whoever orders a hundred runs keeps nobody else waiting for all of them; each
owner's own come in their order. No owner may have more than half of the queue. What replicas must agree on beside that
is in `write_leases.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from sidecar.errors import Reason, Refusal


@dataclass(slots=True, eq=False)
class RunSlot:
    """Of one run: in the queue, and from its turn on among those at work."""

    owner: str
    at_work: bool = False
    """Whether it begins indeed: its turn may have come here and not yet among replicas."""
    _turn: asyncio.Event = field(default_factory=asyncio.Event)

    async def come(self) -> None:
        """Until it is its turn."""
        await self._turn.wait()


class RunSlots:
    """The runs of one agent in this process: `places` at once, `most` that wait."""

    def __init__(self, places: int, most: int) -> None:
        self._places, self._most = places, most
        self._taken: set[RunSlot] = set()
        self._waiting: dict[str, deque[RunSlot]] = {}  # by owner; whose turn is next comes first
        self._count = 0

    @property
    def running(self) -> int:
        """How many are at work."""
        return sum(place.at_work for place in self._taken)

    @property
    def waiting(self) -> int:
        """How many are not, yet."""
        return len(self._taken) - self.running + self._count

    @property
    def places(self) -> int:
        """How many may be at work at once."""
        return self._places

    def enter(self, owner: str) -> RunSlot:
        """Come to the end of one's own queue. Leave it with `leave`. Raises Refusal(TOO_MANY_CONCURRENT)."""
        place = RunSlot(owner)
        if len(self._taken) < self._places and not self._count:
            self._take(place)
            return place
        if self._count >= self._most:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many wait for this agent")
        if len(self._waiting.get(owner, ())) >= (self._most + 1) // 2:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many of one caller wait for this agent")
        self._waiting.setdefault(owner, deque()).append(place)
        self._count += 1
        return place

    def leave(self, place: RunSlot) -> None:
        """Be over, or do not wait any longer. Twice is no fault."""
        if place in self._taken:
            self._taken.discard(place)
        elif place in self._waiting.get(place.owner, ()):
            self._waiting[place.owner].remove(place)
            self._count -= 1
            if not self._waiting[place.owner]:
                del self._waiting[place.owner]
        self._go_on()

    def resized(self, places: int, most: int) -> None:
        """Other numbers are in force. Who is at work or waits by the old ones may stay."""
        self._places, self._most = places, most
        self._go_on()

    def order(self) -> Iterator[RunSlot]:
        """Who waits, in the order of their turns if nobody else comes."""
        for turn in count():
            row = [queue[turn] for queue in self._waiting.values() if turn < len(queue)]
            if not row:
                return
            yield from row

    def _go_on(self) -> None:
        while self._waiting and len(self._taken) < self._places:
            owner, queue = next(iter(self._waiting.items()))
            del self._waiting[owner]
            self._take(queue.popleft())
            self._count -= 1
            if queue:
                self._waiting[owner] = queue  # behind all others

    def _take(self, place: RunSlot) -> None:
        self._taken.add(place)
        place._turn.set()
