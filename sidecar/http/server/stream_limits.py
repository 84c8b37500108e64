"""Limits open streams, in total and for each caller.

Streams use no quota, so they have a separate bound: a caller that opens thousands does not block others. A refused
caller receives a randomized time to retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sidecar.errors import LimitState, Reason, Refusal
from sidecar.settings.server import StreamSettings
from sidecar.vocabulary import Caller

MIN_RETRY_S, MAX_RETRY_S = 1.0, 10.0


@dataclass(slots=True)
class StreamLimits:
    """The places of streams that are open or being opened. `random` returns numbers from 0 to 1."""

    random: Callable[[], float]
    taken: dict[str, int] = field(default_factory=dict)
    count: int = 0

    @contextmanager
    def place(self, caller: Caller, bounds: StreamSettings) -> Iterator[None]:
        """Holds a place for the duration of the block. Raises Refusal(TOO_MANY_CONCURRENT)."""
        owner = caller.binding
        if self.taken.get(owner, 0) >= bounds.max_per_principal:
            limit = LimitState("streams.max_per_principal", bounds.max_per_principal, 0)
            raise self._refusal("too many open streams of one caller", limit)
        if self.count >= bounds.max:
            raise self._refusal("too many open streams", LimitState("streams.max", bounds.max, 0))
        self.taken[owner] = self.taken.get(owner, 0) + 1
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            self.taken[owner] -= 1
            if not self.taken[owner]:
                del self.taken[owner]

    def _refusal(self, detail: str, limit: LimitState) -> Refusal:
        wait_s = MIN_RETRY_S + self.random() * (MAX_RETRY_S - MIN_RETRY_S)
        return Refusal(Reason.TOO_MANY_CONCURRENT, detail, limit=limit, retry_after_s=wait_s)
