"""Queues runs of an agent in this process: owners take turns, and no owner has more than half of the queue."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from sidecar.errors import Reason, Refusal


@dataclass(slots=True, eq=False)
class RunSlot:
    """A run's slot: first in the queue, then, from its turn on, running."""

    owner: str
    at_work: bool = False
    """Whether the run has started. It may have its turn here while it still waits for one across replicas."""
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class RunSlots:
    """The runs of one agent in this process: at most `places` at work, and at most `most` waiting."""

    def __init__(self, places: int, most: int) -> None:
        self.places, self._most = places, most
        self._taken: set[RunSlot] = set()
        self._waiting: dict[str, deque[RunSlot]] = {}  # by owner; the owner whose turn is next comes first
        self._count = 0

    @property
    def running(self) -> int:
        return sum(place.at_work for place in self._taken)

    @property
    def waiting(self) -> int:
        return len(self._taken) - self.running + self._count

    def enter(self, owner: str) -> RunSlot:
        """Adds a run at the end of its owner's queue. Leave with `leave`. Raises Refusal(TOO_MANY_CONCURRENT)."""
        place = RunSlot(owner)
        if len(self._taken) < self.places and not self._count:
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
        """Frees the slot, or leaves the queue. Leaving twice is allowed."""
        if place in self._taken:
            self._taken.discard(place)
        elif place in self._waiting.get(place.owner, ()):
            self._waiting[place.owner].remove(place)
            self._count -= 1
            if not self._waiting[place.owner]:
                del self._waiting[place.owner]
        self._go_on()

    def resized(self, places: int, most: int) -> None:
        self.places, self._most = places, most
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._taken) < self.places:
            owner, queue = next(iter(self._waiting.items()))
            del self._waiting[owner]
            self._take(queue.popleft())
            self._count -= 1
            if queue:
                self._waiting[owner] = queue  # behind all others

    def _take(self, place: RunSlot) -> None:
        self._taken.add(place)
        place.turn.set()
