"""Opens the stores that replicas share.

The store of limits also holds the state that replicas share, such as task owners, the tasks of the task API, the state
of schedules, sessions, disabled principals and used proofs. A single instance stores each of them in memory or in its
data folder.
"""

import hmac
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

from sidecar.audit.recorder import Audit
from sidecar.errors import Reason, Refusal
from sidecar.identity.key_proofs import KEY
from sidecar.limits import Limiter, StoreUnavailable, open_store
from sidecar.limits.store_monitor import StoreMonitor
from sidecar.observability.metrics import Metrics
from sidecar.settings.secrets import MAX_BYTES
from sidecar.settings.sidecar_file import Settings
from sidecar.storage import RecordBounds, RecordStore, RecordStores
from sidecar.storage.redis_script import script_text
from sidecar.storage.task_owners import OWNERS, TaskOwners
from sidecar.tasks.api.task_record import TASKS, Task

DIGESTED: Final = b"sidecar/shared-key/1"

log = logging.getLogger("sidecar.app.shared_store")


def key_digests(keys: Mapping[str, Path]) -> Mapping[str, str]:
    """A digest of each key, by its setting. It identifies the key among replicas without disclosing it; keys that do
    not exist yet are omitted."""
    found = {}
    for setting, path in keys.items():
        with suppress(OSError):
            changed = path.stat()
            found[setting] = _key_digest(path, changed.st_mtime_ns, changed.st_ino)
    return found


@lru_cache(maxsize=32)
def _key_digest(path: Path, _changed_ns: int, _inode: int) -> str:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES)
    return hmac.digest(content.strip(), DIGESTED, "sha256")[:8].hex()


@dataclass(frozen=True, slots=True)
class SharedStore:
    """Counters and records, in a shared store or local."""

    limiter: Limiter
    counting: StoreMonitor
    records: RecordStores
    tasks: TaskOwners
    task_store: RecordStore[Task]

    @classmethod
    def open(cls, settings: Settings, metrics: Metrics, audit: Audit, undo: AsyncExitStack) -> Self:
        """Creates the stores without connecting. `undo` closes them if the start fails. Raises SettingsError."""
        counting = StoreMonitor(metrics, audit.control, settings.store.degraded_calls)
        limiter = Limiter(open_store(settings.store, time.time, observer=counting))
        undo.push_async_callback(limiter.close)
        records = RecordStores.open(settings.tasks.store, settings.records_path, limiter.store.run)
        undo.push_async_callback(records.close)
        chosen = settings.tasks
        bounds = RecordBounds(chosen.max_per_principal, chosen.max, evicts_open=True)
        owners = TaskOwners(records.of(OWNERS), time.time, audit.key.secret, chosen.keep_s, bounds)
        return cls(limiter, counting, records, owners, records.of(TASKS))

    async def greet(self, settings: Settings) -> None:
        """Connects before the first call. An outage does not prevent the start: calls with limits are refused during
        it."""
        if (unshared := settings.unshared_keys) and settings.server.worker <= 1:  # workers share keys
            log.warning(
                "other replicas on this store need the keys of this one", extra={"settings": ", ".join(unshared)}
            )
        try:
            await self.limiter.store.ping()
        except StoreUnavailable as error:
            log.warning(
                "the store is unavailable: calls with limits are refused until it answers", extra={"error": str(error)}
            )

    async def proof(self, name: str, for_ms: int) -> bool | None:
        """Whether a proof is new to all replicas, which remember it for `for_ms`; None if no store is shared. Raises
        Refusal(STORE_UNAVAILABLE)."""
        try:
            answer = await self.limiter.store.run(script_text("proof_once"), f"{KEY}{name}", [str(for_ms)])
        except StoreUnavailable:
            raise Refusal(Reason.STORE_UNAVAILABLE) from None
        return None if answer is None else bool(answer)
