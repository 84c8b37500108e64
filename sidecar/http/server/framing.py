"""Checks chunked coding outside the parser.

Two faults of the parser are corrected by this and `listeners.py`. It keeps the last trailer field of a request and
reports it as the first header of the next request on the connection. And it does not bound chunks: a body in chunks of
one byte costs a hundred times as much as the same body in one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import StreamReader, web

PLAIN_END: Final = b"\r\n0\r\n\r\n"
"""The end of a chunked body without trailers. No trailer field can end like this, because a field has a colon."""
FREE_BYTES: Final = 16 * 1024  # of framing, for each body: about 3,000 chunks, which cost 2 ms
PAYLOAD_PER_FRAMING: Final = 4  # beyond that: chunks of 24 bytes and more
BYTES_S: Final = 512 * 1024  # of framing, for one peer: 5% of the loop
BURST_BYTES: Final = 1024 * 1024
SMALL_BYTES: Final = 1024  # smaller amounts are not counted for a peer
MAX_PEERS: Final = 1_000
OTHERS: Final = "others"


class TooManyChunks(web.RequestPayloadError):
    """A body has more chunk framing than its payload justifies, or its peer sent too much of it recently."""


@dataclass(slots=True)
class ChunkedBody:
    """One chunked body: the connection's bytes since its head, and the framing that was counted for its peer."""

    payload: StreamReader
    received: int = 0
    counted: int = 0

    @property
    def is_whole(self) -> bool:
        return self.payload.is_eof()

    @property
    def framing_bytes(self) -> int:
        return max(0, self.received - self.payload.total_bytes)

    @property
    def is_excessive(self) -> bool:
        return self.framing_bytes > FREE_BYTES + self.payload.total_bytes // PAYLOAD_PER_FRAMING


@dataclass(slots=True)
class FramingBudget:
    """The framing that each peer may send over all its connections: a bucket that drains at BYTES_S."""

    clock_mono: Callable[[], float]
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)  # level, and time of the level

    def __len__(self) -> int:
        return len(self._buckets)

    def count(self, peer: str, body: ChunkedBody) -> bool:
        """Counts the framing of a body so far for its peer; returns False if it exceeds the budget."""
        size = body.framing_bytes - body.counted
        if size < SMALL_BYTES:
            return True
        body.counted += size
        now_s = self.clock_mono()
        if peer not in self._buckets and len(self._buckets) >= MAX_PEERS:
            self._buckets = {peer: bucket for peer, bucket in self._buckets.items() if self._fill(peer, now_s)}
            peer = peer if len(self._buckets) < MAX_PEERS else OTHERS
        fill = self._fill(peer, now_s) + size
        self._buckets[peer] = min(fill, 2.0 * BURST_BYTES), now_s
        return fill <= BURST_BYTES

    def _fill(self, peer: str, now_s: float) -> float:
        fill, then_s = self._buckets.get(peer, (0.0, now_s))
        return max(0.0, fill - (now_s - then_s) * BYTES_S)
