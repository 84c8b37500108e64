"""Admits request bodies by size, so that large ones do not starve small ones.

What a body will cost is told from its bytes, before anything is read of it: so much for each byte, so much for each
value that it may hold. Small ones, nearly all, go on at once. The others keep a distance from one another that grows
with what they cost: those of one principal, and then all of them together, have a share of the loop, and who has used
it up waits in line. Nobody who sends small bodies waits for one who sends large ones, and of those who do, nobody waits
for another's whole row: each has a line of its own. Who leaves a line leaves nothing owing in it.

Bodies that wait are memory, and so are those that come slowly: both together have a room (threats D5), and one
principal a part of it. What fits in a line but in no room is refused as what would wait too long is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import Reason, Refusal

SMALL_BYTES: Final = 8 * 1024  # not worth a count: at most 2 ms, if all of it were values
SMALL_S: Final = 0.002
BYTE_S: Final = 5e-9  # copied, compared, hashed, written anew
VALUE_S: Final = 2.5e-7  # read, checked against a schema, written anew
ONES_SHARE: Final = 0.1  # of the loop, for one principal
EVERYBODYS_SHARE: Final = 0.3
PATIENCE_S: Final = 5.0  # in each of the two lines
FREE_BYTES: Final = 64 * 1024  # of each body: as much lies in a connection's buffers anyway
ONES_ROOM: Final = 32 * 2**20
EVERYBODYS_ROOM: Final = 128 * 2**20
MAX_NAMES: Final = 1_000  # who finds no place in the table is one with all others who find none
OTHERS: Final = ""

_SHORT: Final = bytes(range(32))
_LONG_BYTES: Final = 33  # in Protocol Buffers: a value of at least 32 bytes, and its length


@dataclass(slots=True)
class AdmissionQueue:
    """Those who wait for a share of the loop, one after the other, and the memory that their bodies take."""

    share: float
    room: int
    free_s: float = 0.0  # when the share has room again
    ahead_s: float = 0.0  # what those who wait will use of it
    held: int = 0
    head: asyncio.Lock = field(default_factory=asyncio.Lock)

    def left_s(self, now_s: float) -> float:
        """How long a newcomer waits."""
        return max(0.0, self.free_s - now_s) + self.ahead_s

    def is_idle(self, now_s: float) -> bool:
        """Whether nobody waits, holds anything, or has used up its share."""
        return not self.held and not self.head.locked() and self.free_s <= now_s


@dataclass(slots=True)
class BodyAdmission:
    """Whose turn it is. `clock` and `sleep` are the loop's."""

    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    most: int = 0  # that bodies held together, since somebody set it back
    _all: AdmissionQueue = field(default_factory=lambda: AdmissionQueue(EVERYBODYS_SHARE, EVERYBODYS_ROOM))
    _ones: dict[str, AdmissionQueue] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._ones)

    @property
    def held(self) -> int:
        """How many bytes of large bodies come in or wait."""
        return self._all.held

    def room(self, who: str) -> BodyRoom:
        """For one body, until it is read."""
        return BodyRoom(self, who)

    def lines(self, who: str) -> tuple[AdmissionQueue, AdmissionQueue]:
        """The two in which a body of this one waits."""
        return self._line(who), self._all

    async def wait(self, who: str, cost_s: float) -> bool:
        """Come back when it is the turn of a body that costs so much; whether it is a large one. Raises
        Refusal(OVERLOADED) where it would have to wait longer than PATIENCE_S."""
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
        return self._ones.setdefault(who, AdmissionQueue(ONES_SHARE, ONES_ROOM))


@dataclass(slots=True)
class BodyRoom:
    """What one body takes of the memory of those whose it is, and of everybody's."""

    pace: BodyAdmission
    who: str
    lines: tuple[AdmissionQueue, ...] = ()
    held: int = 0

    def grow(self, size: int) -> None:
        """The body is so long now. Raises Refusal(OVERLOADED) where there is no room for it."""
        more = max(0, size - FREE_BYTES) - self.held
        if more <= 0:
            return
        self.lines = self.lines or self.pace.lines(self.who)  # not before: nearly all bodies are small
        if any(line.held + more > line.room for line in self.lines):
            raise Refusal(Reason.OVERLOADED, "too many large bodies at once", retry_after_s=1.0)
        for line in self.lines:
            line.held += more
        self.held += more
        self.pace.most = max(self.pace.most, self.pace.held)

    def close(self) -> None:
        """The body was read, or is none."""
        for line in self.lines:
            line.held -= self.held
        self.held = 0


def cost_of(body: bytes) -> float:
    """About how long the loop has to do with a body of JSON, in seconds; rather too much than too little."""
    if len(body) <= SMALL_BYTES:
        return 0.0
    return len(body) * BYTE_S + (body.count(b",") + body.count(b"[") + body.count(b"{")) * VALUE_S


def cost_of_wire(body: bytes) -> float:
    """The same of Protocol Buffers: there each value is long, or has a tag or a length of less than 32."""
    if len(body) <= SMALL_BYTES:
        return 0.0
    short = len(body) - len(body.translate(None, _SHORT))
    return len(body) * BYTE_S + (short + len(body) // _LONG_BYTES) * VALUE_S
