"""A large body takes milliseconds of the loop. When is its turn, so that everybody else's call goes on?

What a body will cost is told from its bytes, before anything is read of it: so much for each byte, so much for each
value that it may hold. Small ones, nearly all, go on at once. The others keep a distance from one another that grows
with what they cost: those of one principal, and then all of them together, have a share of the loop, and who has used
it up waits. Nobody who sends small bodies waits for one who sends large ones, and of those who do, nobody waits for
another's whole row: as in fair queueing, each has a clock of its own.
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
PATIENCE_S: Final = 5.0
MAX_NAMES: Final = 10_000


@dataclass(slots=True)
class Pace:
    """Whose turn it is. `clock` and `sleep` are the loop's."""

    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    _everybody_s: float = 0.0
    _ones_s: dict[str, float] = field(default_factory=dict)  # until when each has used up its share

    def __len__(self) -> int:
        return len(self._ones_s)

    async def wait(self, who: str, body: bytes) -> bool:
        """Come back when it is this body's turn; whether it is a large one. Raises Refusal(OVERLOADED) where `who`
        would have to wait longer than PATIENCE_S."""
        if len(body) <= SMALL_BYTES or (cost_s := cost_of(body)) <= SMALL_S:
            return False
        now_s = self.clock()
        turn_s = max(now_s, self._ones_s.get(who, 0.0))
        if turn_s - now_s > PATIENCE_S:
            raise Refusal(Reason.OVERLOADED, "too many large bodies at once", retry_after_s=turn_s - now_s)
        self._remember(who, turn_s + cost_s / ONES_SHARE, now_s)
        await self._until(turn_s)
        turn_s = max(self.clock(), self._everybody_s)
        self._everybody_s = turn_s + cost_s / EVERYBODYS_SHARE
        await self._until(turn_s)
        return True

    async def _until(self, turn_s: float) -> None:
        if (left_s := turn_s - self.clock()) > 0:
            await self.sleep(left_s)

    def _remember(self, who: str, until_s: float, now_s: float) -> None:
        if len(self._ones_s) >= MAX_NAMES and who not in self._ones_s:
            self._ones_s = {name: end_s for name, end_s in self._ones_s.items() if end_s > now_s}
        if len(self._ones_s) < MAX_NAMES or who in self._ones_s:
            self._ones_s[who] = until_s  # who finds no room has a share of everybody's


def cost_of(body: bytes) -> float:
    """About how long the loop has to do with a body, in seconds; rather too much than too little."""
    values = body.count(b",") + body.count(b"[") + body.count(b"{")
    return len(body) * BYTE_S + values * VALUE_S
