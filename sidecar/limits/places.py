"""Which store does a URL mean?"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from sidecar.errors import SettingsError, fault_in
from sidecar.limits.memory import MemoryStore
from sidecar.limits.store import LEASE_S, Store


def open_store(url: str, clock: Callable[[], float], *, lease_s: float = LEASE_S) -> Store:
    """The store of `store.url`: `memory://`, `redis://`, `rediss://` or `unix://`. `clock` gives seconds since the
    epoch; Redis has its own. Nothing is connected yet. Raises SettingsError for any other URL.
    """
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return MemoryStore(clock, lease_s=lease_s)
    if scheme in {"redis", "rediss", "unix"}:
        from sidecar.limits.redis import RedisStore  # half a second of imports that `memory://` need not pay

        return RedisStore.at(url, lease_s=lease_s)
    hint = "Sentinel and Cluster come with a later version" if scheme.startswith("redis+") else ""
    raise SettingsError(
        [fault_in("store.url", "must be memory://, redis://, rediss:// or unix://", code="S201", hint=hint)]
    )
