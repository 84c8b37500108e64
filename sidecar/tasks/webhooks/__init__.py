"""Delivers webhooks: completion callbacks, push notifications, and notifications of requests for approval.

approval_notices.py   notifies people of requests for approval
delivery_order.py     which delivery is sent next
outbox.py             sends each delivery at least once
signature.py          signs deliveries
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from sidecar.gateway.frontends.a2a.push_notifications import IsAnothers, PushConfigs, Shows
from sidecar.http.client import Egress, GuardedClient, SystemResolver
from sidecar.observability.metrics import Metrics
from sidecar.settings.sidecar_file import Settings
from sidecar.storage import RecordStores
from sidecar.storage.push_configs import PUSHES
from sidecar.storage.sealing import AesSeal
from sidecar.tasks.webhooks.outbox import Objection, Outbox
from sidecar.tasks.webhooks.signature import load_or_make_callback_key
from sidecar.vocabulary import Witness

PURPOSE: Final = b"sidecar/push/1"


@dataclass(frozen=True, slots=True)
class Webhooks:
    guard: GuardedClient
    outbox: Outbox
    pushes: PushConfigs
    resolver: SystemResolver

    async def close(self) -> None:
        """Closes the resolver's threads. Waiting deliveries are sent after the next start."""
        self.resolver.close()


def check_callbacks(settings: Settings) -> None:
    """Checks that a start could use the stored key. Only reads. Raises SettingsError."""
    if settings.callback_key_path.exists():
        load_or_make_callback_key(settings.callback_key_path)


def callbacks_from(
    now: Callable[[], Settings],
    base_url: Callable[[], str],
    counts: Metrics,
    objection: Objection,
    witness: Witness,
    is_anothers: IsAnothers,
    shows: Shows,
    stores: RecordStores,
    egress: Callable[[], Egress],
) -> Webhooks:
    """Builds the webhooks; the key is created on first use. Raises SettingsError if an existing key is unusable."""
    settings = now()
    check_callbacks(settings)
    key = cache(partial(load_or_make_callback_key, settings.callback_key_path))
    # Sealed in a store that replicas share: a configuration holds credentials for the caller's receiver.
    kind = PUSHES.sealed(cache(lambda: AesSeal(key().key, PURPOSE))) if stores.where == "redis" else PUSHES
    resolver = SystemResolver()
    guard = GuardedClient(lambda: now().callbacks, resolver, egress)
    outbox = Outbox(
        store=stores.deliveries,
        post=guard.post,
        objection=objection,
        witness=witness,
        key=key,
        counts=counts,
        clock=time.time,
        chance=secrets.SystemRandom().random,
        new_id=lambda: f"msg_{secrets.token_hex(16)}",
    )
    pushes = PushConfigs(
        store=stores.of(kind),
        outbox=outbox,
        check=guard.check,
        is_anothers=is_anothers,
        shows=shows,
        base_url=base_url,
        clock=time.time,
        new_secret=lambda: secrets.token_urlsafe(32),
        keep_s=lambda: now().tasks.keep_s,
    )
    return Webhooks(guard, outbox, pushes, resolver)
