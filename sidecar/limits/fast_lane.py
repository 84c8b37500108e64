"""Charges busy limits in blocks, so that most calls need no round trip to the store.

When calls of one plan come quickly, this replica charges a block of them at once and admits the next calls from it. The
charge is made in the store before the calls, so the limit holds across replicas; the unused rest of a block is returned
when it is idle.

    direct     calls are rare, or little is left of a limit: each call is charged in the store
    hot        a block is charged: what a tenth of a second needs, at most an eighth of what is left
    over       the block is used up, idle, or its minute has ended: the unused rest is returned

Only hours, days and months are charged in blocks: a rate charged in advance would admit a burst, slots must be returned
one by one, and the cost of a call is not known in advance.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.limits.counters import MINUTE_US, SECOND_US
from sidecar.limits.plan import Kind, LimitCharge
from sidecar.limits.store import Charges, SharedCounters, Verdict, WrappedCounters

BLOCK_S: Final = 0.1  # the time that one block should last
SHARE: Final = 8  # a block takes at most one part in eight of what is left, so that other replicas find room
SETTLE_WITHIN_S: Final = 10.0  # after this, an admitted call that is not forwarded has been given back
MAX_WAYS: Final = 4_096
_KINDS: Final[frozenset[Kind]] = frozenset({"hour", "day", "month"})


@dataclass(slots=True, eq=False)
class _Block:
    """Calls charged in advance. `ends_us` is the end of its minute by the store's clock, `began_s` when it was
    requested by ours: the difference never understates the block's age."""

    charges: Charges
    id: str
    verdict: Verdict
    began_s: float
    size: int
    left: int
    out: set[str] = field(default_factory=set)
    touched_s: float = 0.0
    over_s: float | None = None

    def lives(self, now_s: float) -> bool:
        """Whether the rest may still be used; a minute later the sliding hour would no longer count it."""
        now_us = self.verdict.now_us + (now_s - self.began_s) * SECOND_US
        return self.over_s is None and now_us < (self.verdict.now_us // MINUTE_US + 1) * MINUTE_US


@dataclass(slots=True, eq=False)
class _LaneState:
    """All calls of one plan. `pace` is the estimated number of calls a second."""

    charges: Charges
    since_s: float
    came: int = 0
    pace: float = 0.0
    left: int = 0
    block: _Block | None = None
    asking: asyncio.Task[None] | None = None


class FastLane(WrappedCounters):
    """A CounterStore in front of another. `most` is the largest block, `idle_s` how long the rest of one may stay
    unused."""

    def __init__(
        self, inner: SharedCounters, *, most: int, idle_s: float, clock: Callable[[], float], new_id: Callable[[], str]
    ) -> None:
        super().__init__(inner)
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._new_id = new_id
        self._ways: OrderedDict[int, _LaneState] = OrderedDict()
        self._taken: dict[str, _Block] = {}
        self._over: set[_Block] = set()
        self._look: asyncio.TimerHandle | None = None

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        if not all(map(_may_be_ahead, charges)):
            return await self.inner.reserve(charges, decision_id)
        way = self._way(charges)
        self._count(way)
        while (block := way.block) is None or not block.left or not block.lives(self._clock()):
            self._end(way)
            size = self._size(way)
            if size < 2:
                verdict = await self.inner.reserve(charges, decision_id)
                way.left = min(verdict.numbers[::3])
                return verdict
            if way.asking is None:
                way.asking = asyncio.create_task(self._ask(way, size))
                way.asking.add_done_callback(_heard)
            await asyncio.shield(way.asking)
        return self._take(block, decision_id)

    def give_back(self, charges: Charges, decision_id: str) -> None:
        block = self._taken.pop(decision_id, None)
        if block is None:
            self.inner.give_back(charges, decision_id)
        elif decision_id in block.out:
            block.out.discard(decision_id)
            block.left += 1
            self._settle(block)

    def release(self, charges: Charges, decision_id: str) -> None:
        block = self._taken.pop(decision_id, None)
        if block is None:
            self.inner.release(charges, decision_id)
        else:
            block.out.discard(decision_id)
            self._settle(block)

    def extend(self, charges: Charges, decision_id: str) -> None:
        if decision_id not in self._taken:
            self.inner.extend(charges, decision_id)

    async def reset(self, charges: Charges) -> None:
        """Reset in the store. What was charged in advance on these counters is returned first, or never."""
        keys = {charge.key for charge in charges}
        for way in self._ways.values():
            if any(charge.key in keys for charge in way.charges):
                self._end(way)
        for block in self._over:
            block.charges = tuple([charge for charge in block.charges if charge.key not in keys])
        await super().reset(charges)

    async def close(self) -> None:
        """Return what is left of blocks, then close the store."""
        if self._look is not None:
            self._look.cancel()
        for way in self._ways.values():
            if way.asking is not None:
                await asyncio.wait([way.asking])
            self._end(way)
        for block in list(self._over):
            block.out.clear()
            self._settle(block)
        await self.inner.close()

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _way(self, charges: Charges) -> _LaneState:
        """The lane of a plan, keyed by the plan object itself while it is in use: comparing charges would cost more."""
        way = self._ways.get(id(charges))
        if way is None:
            way = self._ways[id(charges)] = _LaneState(charges, self._clock())
            if len(self._ways) > MAX_WAYS:
                _, oldest = self._ways.popitem(last=False)
                self._end(oldest)
        else:
            self._ways.move_to_end(id(charges))  # many rare plans do not evict a busy one
        return way

    def _count(self, way: _LaneState) -> None:
        way.came += 1
        passed_s = self._clock() - way.since_s
        if passed_s >= BLOCK_S:
            way.pace, way.came, way.since_s = way.came / passed_s, 0, self._clock()

    def _size(self, way: _LaneState) -> int:
        return min(self._most, int(way.pace * BLOCK_S), way.left // SHARE)

    async def _ask(self, way: _LaneState, size: int) -> None:
        """Charge a block. Raises StoreUnavailable to all calls that wait for it."""
        began_s = self._clock()
        many = tuple(replace(charge, amount=size) for charge in way.charges)
        block_id = f"lane-{self._new_id()}"
        try:
            verdict = await self.inner.reserve(many, block_id)
        finally:
            way.asking = None
        way.left = min(verdict.numbers[::3])
        if verdict.admitted:
            way.block = _Block(way.charges, block_id, verdict, began_s, size, size, touched_s=began_s)
            if self._ways.get(id(way.charges)) is not way:  # evicted meanwhile: no timer would settle the block
                way.pace = 0.0
                self._end(way)
            self._look_later()
        else:
            way.left = 0  # there is room for fewer or none: each call is charged directly

    def _take(self, block: _Block, decision_id: str) -> Verdict:
        block.touched_s = self._clock()
        if decision_id not in self._taken:
            block.left -= 1
            block.out.add(decision_id)
            self._taken[decision_id] = block
        numbers = list(block.verdict.numbers)
        numbers[::3] = [remaining + block.left for remaining in numbers[::3]]
        return Verdict(True, block.verdict.now_us, tuple(numbers))

    def _end(self, way: _LaneState) -> None:
        block, way.block = way.block, None
        if block is not None:
            block.over_s = self._clock()
            self._over.add(block)
            self._settle(block)

    def _settle(self, block: _Block) -> None:
        """Return the unused rest in one step, which a block can do only once: as soon as no call of it can still be
        given back."""
        if block not in self._over or (block.out and self._clock() - (block.over_s or 0.0) < SETTLE_WITHIN_S):
            return
        self._over.discard(block)
        for decision_id in block.out:
            self._taken.pop(decision_id, None)
        if block.left:
            unused = tuple(replace(charge, amount=block.left) for charge in block.charges)
            self.inner.give_back(unused, block.id)

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(self._idle_s, self._look_around)

    def _look_around(self) -> None:
        self._look = None
        now_s = self._clock()
        for way in self._ways.values():
            if way.block is not None and now_s - way.block.touched_s >= self._idle_s:
                self._end(way)
        for block in list(self._over):
            self._settle(block)
        if self._over or any(way.block is not None for way in self._ways.values()):
            self._look_later()


def _may_be_ahead(charge: LimitCharge) -> bool:
    return charge.kind in _KINDS and not charge.unit and charge.amount == 1


def _heard(asking: asyncio.Task[None]) -> None:
    if not asking.cancelled():
        asking.exception()  # waiting calls get the exception; without any, it is dropped
