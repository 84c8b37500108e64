"""The interface of a store of task owners.

Each method is one atomic step, which a dictionary, a file or a server shared by replicas can implement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sidecar.storage.task_owners.record import OwnerRecord


class OwnerStoreOut(Exception):
    """The store did not answer, or not in time."""


class OwnerBounds(NamedTuple):
    """The maximum number of records: per owner, whose oldest are evicted, those that ended first; and in total. Beyond
    the total, the owner with the most ended records loses one, so that one owner's many don't shut others out."""

    per_owner: int = 1_000
    total: int = 100_000


class OwnerStore(Protocol):
    """Stores records of owners. Every method raises OwnerStoreOut. `up` says whether the store answered last time."""

    @property
    def up(self) -> bool: ...

    async def claim(self, record: OwnerRecord, bounds: OwnerBounds) -> OwnerRecord | None:
        """Stores the record unless an unexpired one has its id, and returns the one that is stored then. Returns None
        if there is no room. Once this returns, no crash loses the record."""

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[OwnerRecord]:
        """Returns the unexpired records with these ids, of any owner, in any order."""

    async def amend(self, record: OwnerRecord) -> None:
        """Updates `expires_at`, and `state` unless it is set already: an end is final."""

    async def has_room(self, bounds: OwnerBounds) -> bool:
        """Whether there is room for one more record, after an eviction if need be."""

    async def sweep(self, now_s: float) -> int:
        """Deletes expired records, and returns how many."""

    async def close(self) -> None:
        """Closes the store. Closing twice is allowed."""
