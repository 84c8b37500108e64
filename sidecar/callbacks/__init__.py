"""What leaves because somebody asked to be called back?

    callback.py    one callback, where it can stand, and what moves it: a table
    schedule.py    which one is sent next
    outbox.py      how each gets there once at least
    signature.py   how its receiver knows that it is ours
    push.py        push notifications of agents: what callers register, and what agents push
    push_config.py what is known of one registration
    store.py       where both live: memory.py (this process), or sqlite.py (a file, which a restart survives); what is
                   registered also in redis.py (a server, which replicas share)

Where may it go? `egress/guarded.py` is asked when an address is named, and each time that something is sent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from sidecar.callbacks.callback import Behalf, Callback, Told, Waiting
from sidecar.callbacks.memory import MemoryCallbackStore
from sidecar.callbacks.outbox import Counts, Objection, Outbox, Witness
from sidecar.callbacks.push import PATH, IsAnothers, PushConfigs, Rewritten, Shows
from sidecar.callbacks.push_config import PushRecord
from sidecar.callbacks.redis import SharedPushes
from sidecar.callbacks.signature import CallbackKey, load_or_make_callback_key
from sidecar.callbacks.sqlite import SqliteCallbackStore, check_callback_file
from sidecar.callbacks.store import Bounds, CallbackStore, CallbackStoreOut
from sidecar.egress import Guard, SystemResolver
from sidecar.settings import Settings
from sidecar.shared_key import Run

__all__ = [
    "PATH",
    "Behalf",
    "Bounds",
    "Callback",
    "CallbackKey",
    "CallbackStore",
    "CallbackStoreOut",
    "Callbacks",
    "MemoryCallbackStore",
    "Outbox",
    "PushConfigs",
    "PushRecord",
    "Rewritten",
    "SharedPushes",
    "SqliteCallbackStore",
    "Told",
    "Waiting",
    "callbacks_from",
    "check_callback_file",
    "check_callbacks",
    "load_or_make_callback_key",
]

SWEEP_EVERY_S: Final = 60.0

log = logging.getLogger("sidecar.callbacks")


@dataclass(frozen=True, slots=True)
class Callbacks:
    """All of it: where something may go, how it gets there, and what agents push."""

    guard: Guard
    outbox: Outbox
    pushes: PushConfigs
    resolver: SystemResolver

    async def run_sweeps(self) -> None:
        """Forget push configurations that are over. Runs as long as the process."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await self.outbox.store.sweep(time.time())
            except CallbackStoreOut as out:
                log.warning("the store of callbacks is out", extra={"error": str(out)})

    async def close(self) -> None:
        """Let go of the file and of the threads that look names up. What waits is sent by the next run."""
        await self.outbox.store.close()
        self.resolver.close()


def check_callbacks(settings: Settings) -> None:
    """Whether a start could use what runs before it left. Reads only. Raises SettingsError."""
    if settings.tasks.store != "memory":
        check_callback_file(settings.callbacks_path)
    if settings.callback_key_path.exists():
        load_or_make_callback_key(settings.callback_key_path)


def callbacks_from(
    now: Callable[[], Settings],
    base_url: Callable[[], str],
    counts: Counts,
    objection: Objection,
    witness: Witness,
    is_anothers: IsAnothers,
    shows: Shows,
    run: Run,
) -> Callbacks:
    """As the settings say, which may change what is allowed and how patiently. File and key are made when they are
    first needed; `run` works on the store that replicas share. Raises SettingsError for those that are there and
    cannot be used."""
    settings = now()
    check_callbacks(settings)
    kept, key = settings.tasks.store, cache(partial(load_or_make_callback_key, settings.callback_key_path))
    store: CallbackStore = MemoryCallbackStore() if kept == "memory" else SqliteCallbackStore(settings.callbacks_path)
    if kept == "redis":
        store = SharedPushes(run, store, lambda: key().key)
    resolver = SystemResolver()
    guard = Guard(lambda: now().callbacks, resolver)
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
    return Callbacks(guard, outbox, pushes, resolver)
