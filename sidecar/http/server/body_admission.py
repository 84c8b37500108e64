"""Admits request bodies by size, so that large ones do not starve small ones.

The cost of a body is estimated before it is parsed, from its bytes and the values that it may hold. Nearly all are
small and continue at once. Large ones wait in their principal's queue, then in a queue for all principals; each queue
has a share of the loop. A body whose sender leaves while it waits uses none of it. Waiting and slowly arriving bodies
use memory, which is bounded in total and for each principal; a body without memory is refused like one that would wait
too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import Reason, Refusal

SMALL_BYTES: Final = 8 * 1024  # not counted: at most 2 ms, if all of it were values
SMALL_S: Final = 0.002
BYTE_S: Final = 5e-9  # copying, comparing, hashing, writing
VALUE_S: Final = 2.5e-7  # parsing, schema validation, writing
PRINCIPAL_SHARE: Final = 0.1  # of the loop, for one principal
TOTAL_SHARE: Final = 0.3
PATIENCE_S: Final = 5.0  # in each of the two queues
FREE_BYTES: Final = 64 * 1024  # of each body: the buffers of a connection are as large
PRINCIPAL_ROOM: Final = 32 * 2**20
TOTAL_ROOM: Final = 128 * 2**20
MAX_NAMES: Final = 1_000  # principals beyond this number share one queue
OTHERS: Final = ""

_SHORT: Final = bytes(range(32))
_LONG_BYTES: Final = 33  # in Protocol Buffers: a value of at least 32 bytes, and its length


@dataclass(slots=True)
class AdmissionQueue:
    """A queue for a `share` of the loop, and the memory of its bodies: `held` of `room` bytes."""

    share: float
    room: int
    free_s: float = 0.0  # when the share is available again
    ahead_s: float = 0.0  # the cost of the bodies that wait
    held: int = 0
    head: asyncio.Lock = field(default_factory=asyncio.Lock)

    def left_s(self, now_s: float) -> float:
        """Returns how long a new body would wait, in seconds."""
        return max(0.0, self.free_s - now_s) + self.ahead_s

    def is_idle(self, now_s: float) -> bool:
        """Reports whether no body waits or holds memory, and the share is unused."""
        return not self.held and not self.head.locked() and self.free_s <= now_s


@dataclass(slots=True)
class BodyAdmission:
    """Schedules large bodies. `clock` and `sleep` are the loop's."""

    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    most: int = 0  # the maximum number of bytes held since it was last reset
    _all: AdmissionQueue = field(default_factory=lambda: AdmissionQueue(TOTAL_SHARE, TOTAL_ROOM))
    _ones: dict[str, AdmissionQueue] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._ones)

    @property
    def held(self) -> int:
        return self._all.held

    def lines(self, who: str) -> tuple[AdmissionQueue, AdmissionQueue]:
        return self._line(who), self._all

    async def wait(self, who: str, cost_s: float) -> bool:
        """Waits until a body of this cost is admitted; returns whether it is large. Raises Refusal(OVERLOADED) if it
        would wait longer than PATIENCE_S in one queue."""
        if cost_s <= SMALL_S:
            return False
        for line in self.lines(who):
            await self._turn(line, cost_s / line.share)
        return True

    async def _turn(self, line: AdmissionQueue, used_s: float) -> None:
        if (left_s := line.left_s(self.clock())) > PATIENCE_S:
            raise Refusal(Reason.OVERLOADED, "too many large bodies at once", retry_after_s=left_s)
        line.ahead_s += used_s
        try:
            async with line.head:
                while (left_s := line.free_s - self.clock()) > 0:
                    await self.sleep(left_s)
                line.free_s = self.clock() + used_s
        finally:
            line.ahead_s = max(0.0, line.ahead_s - used_s)

    def _line(self, who: str) -> AdmissionQueue:
        if (line := self._ones.get(who)) is not None:
            return line
        if len(self._ones) >= MAX_NAMES:
            now_s = self.clock()
            self._ones = {name: one for name, one in self._ones.items() if not one.is_idle(now_s)}
        if len(self._ones) >= MAX_NAMES:
            who = OTHERS
        return self._ones.setdefault(who, AdmissionQueue(PRINCIPAL_SHARE, PRINCIPAL_ROOM))


@dataclass(slots=True)
class BodyRoom:
    """The memory of one body, counted for its principal and for all."""

    pace: BodyAdmission
    who: str
    lines: tuple[AdmissionQueue, ...] = ()
    held: int = 0

    def grow(self, size: int) -> None:
        """Sets the size of the body so far. Raises Refusal(OVERLOADED) if there is no memory for it."""
        more = max(0, size - FREE_BYTES) - self.held
        if more <= 0:
            return
        self.lines = self.lines or self.pace.lines(self.who)  # created late, because nearly all bodies are small
        if any(line.held + more > line.room for line in self.lines):
            raise Refusal(Reason.OVERLOADED, "too many large bodies at once", retry_after_s=1.0)
        for line in self.lines:
            line.held += more
        self.held += more
        self.pace.most = max(self.pace.most, self.pace.held)

    def close(self) -> None:
        """Releases the memory when the body was parsed or abandoned."""
        for line in self.lines:
            line.held -= self.held
        self.held = 0


def cost_of(body: bytes) -> float:
    """Estimates the time that the loop spends on a JSON body, in seconds. The estimate tends to be too high."""
    if len(body) <= SMALL_BYTES:
        return 0.0
    return len(body) * BYTE_S + (body.count(b",") + body.count(b"[") + body.count(b"{")) * VALUE_S


def cost_of_wire(body: bytes) -> float:
    """Estimates the same for Protocol Buffers, where each value has at least 32 bytes, or a tag or length below 32."""
    if len(body) <= SMALL_BYTES:
        return 0.0
    short = len(body) - len(body.translate(None, _SHORT))
    return len(body) * BYTE_S + (short + len(body) // _LONG_BYTES) * VALUE_S
