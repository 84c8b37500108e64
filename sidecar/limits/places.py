"""Which store do the settings mean?"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from sidecar.limits.degraded import Degraded, Shared
from sidecar.limits.lane import FastLane
from sidecar.limits.memory import MemoryStore
from sidecar.limits.store import LEASE_S, UNSEEN, Observer, Store
from sidecar.settings.store import StoreSettings


def open_store(
    chosen: StoreSettings,
    clock: Callable[[], float],
    *,
    lease_s: float = LEASE_S,
    observer: Observer = UNSEEN,
) -> Store:
    """The store of the settings. `clock` gives seconds since the epoch; Redis has its own. Nothing is connected yet."""
    if chosen.is_memory:
        return MemoryStore(clock, lease_s=lease_s)
    from sidecar.limits.nodes import finder_of  # half a second of imports that `memory://` need not pay
    from sidecar.limits.redis import RedisStore

    kind = {"sentinel": "redis+sentinel", "cluster": "redis+cluster"}.get(chosen.place.kind, "redis")
    shared: Shared = RedisStore(
        finder_of(chosen), lease_s=lease_s, deadline_s=chosen.timeout, observer=observer, kind=kind
    )
    if (lane := chosen.fast_lane) is not None:
        shared = FastLane(
            shared, most=lane.max_calls, idle_s=lane.idle_s, clock=time.monotonic, new_id=lambda: secrets.token_hex(8)
        )
    if chosen.degraded_calls is None:
        return shared
    return Degraded(shared, MemoryStore(clock, lease_s=lease_s), chosen.degraded_calls)
