"""Opens the store of limits that the settings name."""

from __future__ import annotations

from collections.abc import Callable

from sidecar.limits.degraded import DegradedStore
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.store import LEASE_S, UNSEEN, CounterStore, SharedCounters, StoreObserver
from sidecar.settings.store import StoreSettings


def open_store(
    chosen: StoreSettings,
    clock: Callable[[], float],
    *,
    lease_s: float = LEASE_S,
    observer: StoreObserver = UNSEEN,
) -> CounterStore:
    """Build the store of the settings without connecting. `clock` returns seconds since the epoch; Redis uses its
    own."""
    if chosen.is_memory:
        return MemoryCounters(clock, lease_s=lease_s)
    from sidecar.limits.redis_store import RedisCounters
    from sidecar.limits.topology import finder_of  # 0.5 s of imports that `memory://` does not need

    kind = {"sentinel": "redis+sentinel", "cluster": "redis+cluster"}.get(chosen.place.kind, "redis")
    shared: SharedCounters = RedisCounters(
        finder_of(chosen), lease_s=lease_s, deadline_s=chosen.timeout, observer=observer, kind=kind
    )
    if chosen.degraded_calls is None:
        return shared
    return DegradedStore(shared, MemoryCounters(clock, lease_s=lease_s), chosen.degraded_calls)
