"""Opens the store of each kind of record at the configured place."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from sidecar.storage.deliveries import DeliveryStore
from sidecar.storage.memory_store import MemoryRecordStore
from sidecar.storage.record_kind import RecordKind
from sidecar.storage.record_store import R, RecordStore, RecordStoreOut
from sidecar.storage.redis_script import Run
from sidecar.storage.redis_store import RedisRecordStore
from sidecar.storage.sqlite_file import SqliteFile, check_file
from sidecar.storage.sqlite_store import SqliteRecordStore

SWEEP_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RecordStores:
    """All stores of records of a deployment. `run` runs scripts in the store that replicas share."""

    where: Literal["memory", "file", "redis"]
    file: SqliteFile
    run: Run
    _swept: list[RecordStore[Any]] = field(default_factory=list)

    @classmethod
    def open(cls, where: Literal["memory", "file", "redis"], path: Path, run: Run) -> Self:
        """Returns the stores, without creating a file yet. Raises SettingsError for an unusable file."""
        if where != "memory":
            check_file(path)
        return cls(where, SqliteFile(None if where == "memory" else path), run)

    def of(self, kind: RecordKind[R]) -> RecordStore[R]:
        """Opens the store of one kind of record. `run_sweeps` also sweeps it, unless the kind is work."""
        store: RecordStore[R]
        match self.where:
            case "memory":
                store = MemoryRecordStore(kind.is_work)
            case "file":
                store = SqliteRecordStore(self.file, kind)
            case "redis":
                store = RedisRecordStore(self.run, kind)
        if not kind.is_work:  # the worker sweeps work
            self._swept.append(store)
        return store

    @property
    def deliveries(self) -> DeliveryStore:
        """Opens the store of deliveries, which wait at the replica that accepted them."""
        return DeliveryStore(self.file)

    async def run_sweeps(self) -> None:
        """Deletes expired records of kinds that are not work, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for store in self._swept:
                with suppress(RecordStoreOut):  # the store logs its outages
                    await store.sweep(time.time())

    async def close(self) -> None:
        """Closes the file. Closing twice is allowed."""
        await self.file.close()
