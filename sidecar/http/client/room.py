"""Bounds the memory of all large answers that are read whole.

Small ones are not counted. A large one takes its room piece by piece; where there is none, nothing more is read of it,
and its peer waits. One answer at a time may go beyond the bound: else several that are half read could all wait for one
another.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

TOGETHER_BYTES: Final = 64 * 2**20
FREE_BYTES: Final = 256 * 1024  # of each: as much lies in a connection's buffers anyway


@dataclass(slots=True)
class Room:
    """The memory of one process. `most` is the most that was held since somebody set it back."""

    total: int = TOGETHER_BYTES
    held: int = 0
    most: int = 0
    _is_exceeded: bool = False  # by the one answer that may; it is not known here, so that it can be forgotten
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def share(self) -> Share:
        """For one answer."""
        return Share(self)

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


class Share:
    """What one answer takes. It is given back at the latest when nobody knows the share any more."""

    __slots__ = ("_room", "held", "is_ahead")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held = 0
        self.is_ahead = False

    async def hold(self, size: int, until: float | None) -> None:
        """So many bytes of the answer are held now, or as soon as there is room for them. Raises TimeoutError at the
        loop time `until`."""
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
        """Nothing is held any more. Twice is no fault."""
        if self.held:
            size, self.held = self.held, 0
            self._room._gave_back(self, size, over=True)

    __del__ = close


ANSWERS: Final = Room()
"""That of this process."""
