"""Where is kept what must outlive a request, and often the process?

    store      what a store of records does, and what it knows of one: memory.py (this process), sqlite.py (a file,
               which a restart survives), or redis.py (a server, which replicas share)
    histories  whose give way, where a target has too many that are done
    kind       how one kind of record is written down, and where

What a record is, is its owner's business: the task API's are tasks (`task_api/records.py`), those of agents that are
programs are runs (`agents/record.py`).
"""

from sidecar.records.kind import FINITE, Codec, Kind
from sidecar.records.memory import MemoryStore
from sidecar.records.redis import RedisStore
from sidecar.records.sqlite import SqliteStore, check_file
from sidecar.records.store import Added, Bounds, Kept, Page, Share, Store, StoreOut, Unreadable

__all__ = [
    "FINITE",
    "Added",
    "Bounds",
    "Codec",
    "Kept",
    "Kind",
    "MemoryStore",
    "Page",
    "RedisStore",
    "Share",
    "SqliteStore",
    "Store",
    "StoreOut",
    "Unreadable",
    "check_file",
]
