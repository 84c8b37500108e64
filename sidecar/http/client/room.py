"""Bounds the memory of all large answers that are read whole.

Small answers are not counted. A large answer reserves memory piece by piece; if none is left, reading pauses. One
answer at a time may exceed the bound, because several half-read answers could otherwise wait for one another forever.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

TOGETHER_BYTES: Final = 64 * 2**20
FREE_BYTES: Final = 256 * 1024  # of each answer: the buffers of a connection are as large


@dataclass(slots=True)
class Room:
    """The memory for answers in one process, in bytes. `most` is the maximum held since it was last reset."""

    total: int = TOGETHER_BYTES
    held: int = 0
    most: int = 0
    # By one answer, which is not stored here so that it can be garbage collected.
    _is_exceeded: bool = False
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def _try(self, share: Share, more: int) -> bool:
        if self.held + more > self.total:
            if self._is_exceeded and not share.is_ahead:
                return False
            self._is_exceeded = share.is_ahead = True
        self.held += more
        self.most = max(self.most, self.held)
        return True

    async def _wait(self, until: float | None) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout_at(until):
                await waiter
        finally:
            self._waiting.discard(waiter)

    def _gave_back(self, share: Share, size: int, *, over: bool) -> None:
        self.held -= size
        if over and share.is_ahead:
            self._is_exceeded = share.is_ahead = False
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


ANSWERS: Final = Room()
"""The memory for answers of this process."""


class Share:
    """The memory of one answer: `held` bytes. Releases it when it is closed or garbage collected."""

    __slots__ = ("_room", "held", "is_ahead")

    def __init__(self, room: Room = ANSWERS) -> None:
        self._room = room
        self.held = 0
        self.is_ahead = False

    async def hold(self, size: int, until: float | None) -> None:
        """Sets the size of the answer so far, and waits until there is room for all of it but FREE_BYTES. Raises
        TimeoutError at the loop time `until`; None is unlimited."""
        more = max(0, size - FREE_BYTES) - self.held
        if more < 0:
            self.held += more
            self._room._gave_back(self, -more, over=not self.held)
        if more <= 0:
            return
        while not self._room._try(self, more):
            await self._room._wait(until)
        self.held += more

    def close(self) -> None:
        if self.held:
            size, self.held = self.held, 0
            self._room._gave_back(self, size, over=True)

    __del__ = close
