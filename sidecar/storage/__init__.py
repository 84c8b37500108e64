"""Stores durable records in memory, SQLite or Redis behind one interface.

    record_store.py   the interface: memory_store.py, sqlite_store.py, redis_store.py
    record_kind.py    the encoding of one kind of record, and where it is stored
    eviction.py       which finished records are evicted when there are too many
    task_owners/      who owns each task at an upstream
    webhooks/         deliveries and push configurations
    sqlite_file.py    a SQLite file with group commit; redis_script.py runs the Lua in scripts/
    peers.py          the other replicas; caller_codec.py encodes callers

The packages that own the records define what they mean: tasks (`tasks/api/task_record.py`), runs
(`tasks/programs/run_record.py`), schedules (`tasks/schedules/schedule_state.py`).
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
from sidecar.storage.redis_store import RedisRecordStore
from sidecar.storage.sqlite_store import SqliteRecordStore, check_file

__all__ = [
    "FINITE",
    "AddedRecord",
    "MemoryRecordStore",
    "RecordBounds",
    "RecordCodec",
    "RecordKind",
    "RecordPage",
    "RecordShare",
    "RecordStore",
    "RecordStoreOut",
    "RedisRecordStore",
    "SqliteRecordStore",
    "StoredRecord",
    "UnreadableRecord",
    "check_file",
]
