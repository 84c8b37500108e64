"""Orders deliveries so that one slow receiver delays only its own. It takes the time as an argument, and never waits.

Chains take turns, each with a share of the concurrent deliveries and one delivery at a time per URL. A receiver (host
and port) gets a few at a time and a bounded number per minute over all chains, because it may not have requested any.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

from sidecar.storage.deliveries import MOVES, DeliveryState, Happening, PendingDelivery

PLACES: Final = 64
PLACES_OF_OWNER: Final = 16
PLACES_OF_RECEIVER: Final = 4
BURST: Final = 10  # beyond a receiver's rate
MAX_RATES: Final = 10_000

Lane = tuple[str, str]  # owner and URL


@dataclass(slots=True)
class _QueuedDelivery:
    waiting: PendingDelivery
    receiver: str
    state: DeliveryState = DeliveryState.WAITING


@dataclass(slots=True)
class DeliveryOrder:
    """All deliveries that have not ended. `sending` counts those in progress."""

    sending: int = 0
    _entries: dict[str, _QueuedDelivery] = field(default_factory=dict)
    _later: list[tuple[float, int, str]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _due: OrderedDict[str, OrderedDict[str, deque[str]]] = field(default_factory=OrderedDict)  # owner, URL, ids
    _of_owner: Counter[str] = field(default_factory=Counter)
    _of_receiver: Counter[str] = field(default_factory=Counter)
    _lanes: set[Lane] = field(default_factory=set)
    _next_at: dict[str, float] = field(default_factory=dict)  # the time up to which a receiver's rate is used
    _wake_at: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._entries

    def add(self, waiting: PendingDelivery, receiver: str) -> None:
        if waiting.id not in self._entries:
            self._entries[waiting.id] = _QueuedDelivery(waiting, receiver)
            heappush(self._later, (waiting.due_at, next(self._order), waiting.id))

    def take(self, now_s: float, per_minute: int) -> PendingDelivery | None:
        """Returns the next delivery, which is in progress from then on; None if nothing can be sent now."""
        self._come_due(now_s)
        self._wake_at = None
        if self.sending >= PLACES:
            return None
        for owner, lanes in self._due.items():
            if self._of_owner[owner] >= PLACES_OF_OWNER:
                continue
            for url, queue in lanes.items():
                receiver = self._entries[queue[0]].receiver
                if (owner, url) not in self._lanes and self._may_have(receiver, now_s, per_minute):
                    return self._take(owner, url, receiver, now_s, per_minute)
        return None

    def wake_at(self) -> float | None:
        """Returns the time at which to call `take` again if nothing else happens; None means never."""
        times = [at for at in (self._wake_at, self._later[0][0] if self._later else None) if at is not None]
        return min(times, default=None)

    def move(self, id_: str, happening: Happening, due_at: float = 0.0) -> DeliveryState:
        """Applies an event; a delivery that must wait again is due at `due_at`."""
        entry = self._entries[id_]
        was, entry.state = entry.state, MOVES[entry.state, happening]
        if was is DeliveryState.SENDING:
            self._leave(entry)
        else:
            self._leave_queue(entry)
        if entry.state is DeliveryState.WAITING:
            attempts = entry.waiting.attempts + (happening is Happening.FAILED)
            entry.waiting = entry.waiting._replace(attempts=attempts, due_at=due_at)
            heappush(self._later, (due_at, next(self._order), id_))
        else:
            del self._entries[id_]  # `_later` may still have it, and skips it
        return entry.state

    def shift(self, by_s: float) -> None:
        for entry in self._entries.values():
            waiting = entry.waiting
            entry.waiting = waiting._replace(created_at=waiting.created_at + by_s, due_at=waiting.due_at + by_s)
        self._later = [(at + by_s, order, id_) for at, order, id_ in self._later]  # all alike: still a heap
        self._next_at = {receiver: at + by_s for receiver, at in self._next_at.items()}

    def about(self, kind: str, ref: str) -> Iterable[PendingDelivery]:
        known = [entry.waiting for entry in self._entries.values()]
        return [waiting for waiting in known if (waiting.kind, waiting.ref) == (kind, ref)]

    def _come_due(self, now_s: float) -> None:
        while self._later and self._later[0][0] <= now_s:
            _, _, id_ = heappop(self._later)
            if (entry := self._entries.get(id_)) is not None:
                lanes = self._due.setdefault(entry.waiting.owner, OrderedDict())
                lanes.setdefault(entry.waiting.url, deque()).append(id_)

    def _may_have(self, receiver: str, now_s: float, per_minute: int) -> bool:
        if self._of_receiver[receiver] >= PLACES_OF_RECEIVER:
            return False
        step_s = 60.0 / per_minute
        if self._next_at.get(receiver, 0.0) > now_s + (BURST + 2) * step_s:
            del self._next_at[receiver]  # the clock was set back
        free_at = self._next_at.get(receiver, 0.0) - BURST * step_s
        if free_at <= now_s:
            return True
        self._wake_at = free_at if self._wake_at is None else min(free_at, self._wake_at)
        return False

    def _take(self, owner: str, url: str, receiver: str, now_s: float, per_minute: int) -> PendingDelivery:
        lanes = self._due[owner]
        entry = self._entries[lanes[url].popleft()]
        self._forget_empty(owner, url)
        if owner in self._due:  # an owner goes to the end after its turn
            self._due.move_to_end(owner)
            if url in lanes:
                lanes.move_to_end(url)
        entry.state = MOVES[entry.state, Happening.TURN]
        self.sending += 1
        self._of_owner[owner] += 1
        self._of_receiver[receiver] += 1
        self._lanes.add((owner, url))
        step_s = 60.0 / per_minute
        self._next_at[receiver] = max(now_s, self._next_at.get(receiver, 0.0)) + step_s
        if len(self._next_at) > MAX_RATES:
            self._next_at = {each: at for each, at in self._next_at.items() if at > now_s}
        return entry.waiting

    def _leave(self, entry: _QueuedDelivery) -> None:
        owner, url = entry.waiting.owner, entry.waiting.url
        self.sending -= 1
        for counter, key in ((self._of_owner, owner), (self._of_receiver, entry.receiver)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]
        self._lanes.discard((owner, url))

    def _leave_queue(self, entry: _QueuedDelivery) -> None:
        owner, url = entry.waiting.owner, entry.waiting.url
        queue = self._due.get(owner, OrderedDict()).get(url)
        if queue is not None and entry.waiting.id in queue:
            queue.remove(entry.waiting.id)
            self._forget_empty(owner, url)

    def _forget_empty(self, owner: str, url: str) -> None:
        if not self._due[owner][url]:
            del self._due[owner][url]
        if not self._due[owner]:
            del self._due[owner]
