"""Delivers webhooks: completion callbacks and push notifications.

    delivery_order.py   which delivery is sent next
    outbox.py           sends each delivery at least once
    signature.py        signs deliveries

`storage/webhooks/` stores deliveries, with their state table, and push configurations. The A2A frontend registers push
configurations (`gateway/frontends/a2a/push_notifications.py`). `http/client/guarded_client.py` checks an address when
it is registered and before each delivery.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from sidecar.gateway.frontends.a2a.push_notifications import PATH, IsAnothers, PushConfigs, RewrittenConfig, Shows
from sidecar.http.client import GuardedClient, SystemResolver
from sidecar.settings import Settings
from sidecar.storage.redis_script import Run
from sidecar.storage.webhooks.delivery import Delivery, DeliveryOutcome, OnBehalfOf, PendingDelivery
from sidecar.storage.webhooks.memory import MemoryDeliveryStore
from sidecar.storage.webhooks.push_config import PushRecord
from sidecar.storage.webhooks.redis import RedisPushStore
from sidecar.storage.webhooks.sqlite import SqliteDeliveryStore, check_callback_file
from sidecar.storage.webhooks.store import DeliveryBounds, DeliveryStore, DeliveryStoreOut
from sidecar.tasks.webhooks.outbox import DeliveryCounts, Objection, Outbox
from sidecar.tasks.webhooks.signature import CallbackKey, load_or_make_callback_key
from sidecar.vocabulary import Witness

__all__ = [
    "PATH",
    "CallbackKey",
    "Delivery",
    "DeliveryBounds",
    "DeliveryOutcome",
    "DeliveryStore",
    "DeliveryStoreOut",
    "MemoryDeliveryStore",
    "OnBehalfOf",
    "Outbox",
    "PendingDelivery",
    "PushConfigs",
    "PushRecord",
    "RedisPushStore",
    "RewrittenConfig",
    "SqliteDeliveryStore",
    "Webhooks",
    "callbacks_from",
    "check_callback_file",
    "check_callbacks",
    "load_or_make_callback_key",
]


@dataclass(frozen=True, slots=True)
class Webhooks:
    guard: GuardedClient
    outbox: Outbox
    pushes: PushConfigs
    resolver: SystemResolver

    async def close(self) -> None:
        """Closes the file and the resolver's threads. Waiting deliveries are sent after the next start."""
        await self.outbox.store.close()
        self.resolver.close()


def check_callbacks(settings: Settings) -> None:
    """Checks that a start could use the stored files. Only reads. Raises SettingsError."""
    if settings.tasks.store != "memory":
        check_callback_file(settings.callbacks_path)
    if settings.callback_key_path.exists():
        load_or_make_callback_key(settings.callback_key_path)


def callbacks_from(
    now: Callable[[], Settings],
    base_url: Callable[[], str],
    counts: DeliveryCounts,
    objection: Objection,
    witness: Witness,
    is_anothers: IsAnothers,
    shows: Shows,
    run: Run,
) -> Webhooks:
    """Builds the webhooks from the settings, whose limits may change later. File and key are created on first use;
    `run` runs scripts in the store that replicas share. Raises SettingsError if an existing file or key is unusable."""
    settings = now()
    check_callbacks(settings)
    kept, key = settings.tasks.store, cache(partial(load_or_make_callback_key, settings.callback_key_path))
    store: DeliveryStore = MemoryDeliveryStore() if kept == "memory" else SqliteDeliveryStore(settings.callbacks_path)
    if kept == "redis":
        store = RedisPushStore(run, store, lambda: key().key)
    resolver = SystemResolver()
    guard = GuardedClient(lambda: now().callbacks, resolver)
    outbox = Outbox(
        store=store,
        post=guard.post,
        objection=objection,
        witness=witness,
        rules=lambda: now().callbacks,
        key=key,
        counts=counts,
        clock=time.time,
        chance=secrets.SystemRandom().random,
        new_id=lambda: f"msg_{secrets.token_hex(16)}",
    )
    pushes = PushConfigs(
        store=store,
        outbox=outbox,
        check=guard.check,
        is_anothers=is_anothers,
        shows=shows,
        base_url=base_url,
        rules=lambda: now().callbacks,
        clock=time.time,
        new_secret=lambda: secrets.token_urlsafe(32),
        keep_s=lambda: now().tasks.keep_s,
    )
    return Webhooks(guard, outbox, pushes, resolver)
