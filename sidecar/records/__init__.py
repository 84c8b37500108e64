"""Where is kept what must outlive a request, and often the process?

    store      what a store of records does, and what it knows of one

What a record is, is its owner's business: the task API's are tasks (`task_api/records.py`), those of agents that are
programs are runs (`agents/record.py`).
"""

from sidecar.records.store import Added, Bounds, Kept, Page, Share, Store, StoreOut

__all__ = ["Added", "Bounds", "Kept", "Page", "Share", "Store", "StoreOut"]
