"""Charges busy limits in blocks, so that most calls need no question to the store.

A fast lane: where calls of one plan come quickly, this replica charges a block of them at once, and lets the next ones
in from it. The store was asked, only earlier, so that the limit holds whatever replicas do; what is left of a block
goes back once nobody wants it.

    direct     calls are rare, or little is left of a limit: each asks the store
    hot        a block is charged, as large as a tenth of a second needs, an eighth of what is left at most
    over       the block is used up, idle, or its minute has ended: what was not used is given back

Hours, days and months only: a rate that is charged before it is used would let a crowd through at once, places must
come back one by one, and what a call costs is not known before.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sidecar.limits.counters import MINUTE_US, SECOND_US, CounterState
from sidecar.limits.degraded import SharedCounters
from sidecar.limits.plan import Kind, LimitCharge
from sidecar.limits.store import Charges, Verdict

BLOCK_S: Final = 0.1  # of calls are charged at once
SHARE: Final = 8  # one part of what is left goes into a block, so that other replicas find room
SETTLE_WITHIN_S: Final = 10.0  # a call that was let in and is not forwarded has come back by then
MAX_WAYS: Final = 4_096
_KINDS: Final[frozenset[Kind]] = frozenset({"hour", "day", "month"})


@dataclass(slots=True, eq=False)
class _Block:
    """Calls that were charged ahead. `ends_us` is the end of its minute by the store's clock, `began_s` when it was
    asked for by ours: what lies between is at most as long as it seems."""

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
        """Whether what is left may still be used: a minute later it would be missed by the hour that slides."""
        now_us = self.verdict.now_us + (now_s - self.began_s) * SECOND_US
        return self.over_s is None and now_us < (self.verdict.now_us // MINUTE_US + 1) * MINUTE_US


@dataclass(slots=True, eq=False)
class _LaneState:
    """All calls of one plan. `pace` is how many came in a second, as far as that is known."""

    charges: Charges
    since_s: float
    came: int = 0
    pace: float = 0.0
    left: int = 0
    block: _Block | None = None
    asking: asyncio.Task[None] | None = None


class FastLane:
    """A Store in front of another. `most` is the largest block, `idle_s` how long what is left of one may lie about."""

    def __init__(
        self, inner: SharedCounters, *, most: int, idle_s: float, clock: Callable[[], float], new_id: Callable[[], str]
    ) -> None:
        self.inner = inner
        self.kind = inner.kind
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._new_id = new_id
        self._ways: OrderedDict[int, _LaneState] = OrderedDict()
        self._taken: dict[str, _Block] = {}
        self._over: set[_Block] = set()
        self._look: asyncio.TimerHandle | None = None

    @property
    def up(self) -> bool:
        return self.inner.up

    @property
    def trouble(self) -> str:
        return self.inner.trouble

    @property
    def warning(self) -> str:
        return self.inner.warning

    @property
    def degraded(self) -> bool:
        return self.inner.degraded

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

    def charge_later(self, charges: Charges, decision_id: str, within_s: float) -> None:
        self.inner.charge_later(charges, decision_id, within_s)

    async def look(self, charges: Charges) -> tuple[CounterState, ...]:
        """As `Store.look`: what is charged ahead counts as used."""
        return await self.inner.look(charges)

    async def reset(self, charges: Charges) -> None:
        """As `Store.reset`. What was charged ahead of these counters goes back before, or never."""
        keys = {charge.key for charge in charges}
        for way in self._ways.values():
            if any(charge.key in keys for charge in way.charges):
                self._end(way)
        for block in self._over:
            block.charges = tuple([charge for charge in block.charges if charge.key not in keys])
        await self.inner.reset(charges)

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> Any:
        return await self.inner.run(script, key, arguments)

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        """As `Store.close`: what is left of blocks goes back first."""
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
        """By the plan itself, which is remembered as long as it is in use: to compare charges would cost more."""
        way = self._ways.get(id(charges))
        if way is None:
            way = self._ways[id(charges)] = _LaneState(charges, self._clock())
            if len(self._ways) > MAX_WAYS:
                _, oldest = self._ways.popitem(last=False)
                self._end(oldest)
        else:
            self._ways.move_to_end(id(charges))  # many plans that are rare push no other out
        return way

    def _count(self, way: _LaneState) -> None:
        way.came += 1
        passed_s = self._clock() - way.since_s
        if passed_s >= BLOCK_S:
            way.pace, way.came, way.since_s = way.came / passed_s, 0, self._clock()

    def _size(self, way: _LaneState) -> int:
        return min(self._most, int(way.pace * BLOCK_S), way.left // SHARE)

    async def _ask(self, way: _LaneState, size: int) -> None:
        """Charge a block. Raises StoreUnavailable, to everybody who waits for it."""
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
            if self._ways.get(id(way.charges)) is not way:  # pushed out meanwhile: nobody would look after it
                way.pace = 0.0
                self._end(way)
            self._look_later()
        else:
            way.left = 0  # there is room for fewer, if for any: each asks for itself

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
        """What was not used goes back in one step, which a block has only once: as soon as no call of it may still come
        back itself."""
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
        asking.exception()  # whoever waits hears it; if nobody does, nobody needs to
