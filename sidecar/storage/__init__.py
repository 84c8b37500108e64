"""Stores records in memory, SQLite or Redis behind one interface.

    record_store.py   the interface, which memory_store.py, sqlite_store.py and redis_store.py implement
    record_kind.py    the encoding of one kind of record, and its name in every store
    record_stores.py  opens the store of each kind at the configured place
    task_owners.py, push_configs.py   kinds of record that A2A and MCP use
    deliveries.py     waiting deliveries, in a table of their own
    sqlite_file.py    the file of the data folder, with group commit; redis_script.py loads the Lua in scripts/
    sealing.py        encrypts data that must not be readable in a store
    peers.py          the other replicas

The packages that own the other kinds define them: approvals (`gateway/approvals/approval_record.py`), tasks
(`tasks/api/task_record.py`), runs (`tasks/programs/run_record.py`), schedules (`tasks/schedules/schedule_state.py`).
"""

from sidecar.storage.memory_store import MemoryRecordStore
from sidecar.storage.record_kind import FINITE, RecordCodec, RecordKind
from sidecar.storage.record_store import (
    AddedRecord,
    RecordBounds,
    RecordPage,
    RecordShare,
    RecordStore,
    RecordStoreOut,
    StoredRecord,
    UnreadableRecord,
)
from sidecar.storage.record_stores import RecordStores
from sidecar.storage.redis_store import RedisRecordStore
from sidecar.storage.sqlite_file import SqliteFile, check_file
from sidecar.storage.sqlite_store import SqliteRecordStore

__all__ = [
    "FINITE", "AddedRecord", "MemoryRecordStore", "RecordBounds", "RecordCodec", "RecordKind", "RecordPage",
    "RecordShare", "RecordStore", "RecordStoreOut", "RecordStores", "RedisRecordStore", "SqliteFile",
    "SqliteRecordStore", "StoredRecord", "UnreadableRecord", "check_file",
]  # fmt: skip
