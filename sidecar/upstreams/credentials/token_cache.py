"""Caches tokens until they expire.

    none, or expired       fetch; concurrent callers wait for the same fetch
    valid, soon expired    fetch in the background; concurrent callers get the old one
    valid                  no fetch, no waiting
    refused lately         the same refusal, for some seconds: no caller can force a fetch with each call

A fetch belongs to no single caller. A caller that stops waiting does not end it for the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from sidecar.errors import Reason, Unsent

FETCH_S: Final = 10.0
PAUSE_S: Final = 5.0
MAX_TOKENS: Final = 10_000
RENEW_BEFORE_S: Final = 30.0  # or a quarter of its lifetime, if that is shorter
LATE = (Reason.UPSTREAM_TIMEOUT, "its token endpoint did not answer in time")


@dataclass(frozen=True, slots=True)
class GrantedToken:
    """A token and its lifetime in seconds. Its value is never printed."""

    value: str = field(repr=False)
    life_s: float


@dataclass(slots=True, eq=False)
class _CachePlace:
    """The token of one key, "" for none, and its last failure. Times are monotonic seconds."""

    value: str = field(default="", repr=False)
    renew_at: float = -inf
    ends_at: float = -inf
    failure: Unsent = field(default_factory=lambda: Unsent(*LATE))
    failed_at: float = -inf
    dropped_at: float = -inf
    flight: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class TokenCache:
    """Tokens by key; the least recently used is evicted first. `clock_mono` gives monotonic seconds."""

    clock_mono: Callable[[], float]
    max_tokens: int = MAX_TOKENS
    _places: OrderedDict[bytes, _CachePlace] = field(default_factory=OrderedDict)
    _flights: set[asyncio.Task[None]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._places)

    async def get(self, key: bytes, fetch: Callable[[], Awaitable[GrantedToken]], deadline_s: float) -> str:
        """Returns a valid token. Raises Unsent, like `fetch`, and if none arrives within `deadline_s`."""
        place = self._place(key)
        now = self.clock_mono()
        if now < place.renew_at:
            return place.value
        if place.flight is None and now - place.failed_at >= PAUSE_S:
            place.flight = asyncio.create_task(self._fetch(place, fetch), name="fetches a token")
            self._flights.add(place.flight)
            place.flight.add_done_callback(self._flights.discard)
        if now < place.ends_at:
            return place.value
        flight = place.flight
        if flight is not None:
            # Waited for instead of awaited, so that cancelling a caller does not cancel the fetch, and vice versa.
            done, _ = await asyncio.wait({flight}, timeout=max(0.0, deadline_s))
            if not done or flight.cancelled():
                raise Unsent(*LATE)
            flight.result()
        if self.clock_mono() < place.ends_at:
            return place.value
        raise _once_more(place.failure)

    def drop(self, key: bytes, value: str) -> None:
        """The upstream rejected this token. At most one is dropped every few seconds, so that calls cannot cause a
        fetch each."""
        place, now = self._places.get(key), self.clock_mono()
        if place is not None and place.value == value and now - place.dropped_at >= PAUSE_S:
            place.value, place.renew_at, place.ends_at = "", -inf, -inf
            place.dropped_at, place.failed_at = now, -inf

    async def close(self) -> None:
        """Ends the fetches in progress, and drops every token."""
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)
        self._places.clear()

    def _place(self, key: bytes) -> _CachePlace:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _CachePlace()
            if len(self._places) > self.max_tokens:
                self._places.popitem(last=False)
        else:
            self._places.move_to_end(key)
        return place

    async def _fetch(self, place: _CachePlace, fetch: Callable[[], Awaitable[GrantedToken]]) -> None:
        began = self.clock_mono()
        try:
            async with asyncio.timeout(FETCH_S):
                granted = await fetch()
        except (Unsent, TimeoutError) as error:
            place.failure = _once_more(error) if isinstance(error, Unsent) else Unsent(*LATE)
            place.failed_at = self.clock_mono()
            return
        finally:
            place.flight = None
        place.value, place.ends_at = granted.value, began + granted.life_s
        place.renew_at = place.ends_at - min(RENEW_BEFORE_S, granted.life_s / 4)
        place.failed_at = -inf


def _once_more(failure: Unsent) -> Unsent:
    """Returns a new exception for each waiting call: one that is raised repeatedly grows with each raise."""
    fault = failure.credential_fault
    return Unsent(failure.reason, failure.detail, challenge=failure.challenge, credential_fault=fault)
