"""The interface of a store of task owners.

Five verbs, each one atomic step: fit for a dictionary, a file, or a server that several replicas share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sidecar.storage.task_owners.record import OwnerRecord


class OwnerStoreOut(Exception):
    """The store did not answer, or not in time."""


class OwnerBounds(NamedTuple):
    """How many records there may be: of one owner, whose oldest give way, those that ended first; and in all. Beyond
    that gives way what ended, of whoever has most of it: nobody's many keep another out."""

    per_owner: int = 1_000
    total: int = 100_000


class OwnerStore(Protocol):
    """Where records live. Everything raises TaskStoreOut. `up` says whether it answered last."""

    @property
    def up(self) -> bool: ...

    async def claim(self, record: OwnerRecord, bounds: OwnerBounds) -> OwnerRecord | None:
        """Keep the record, unless one that is not over has its id: the one that stands. None where nothing gives way.
        When this returns, no crash loses it."""

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[OwnerRecord]:
        """The records with these ids that are not over, whoever owns them, in any order."""

    async def amend(self, record: OwnerRecord) -> None:
        """Its `expires_at` as given; its `state` too, unless it has one: an end is final."""

    async def has_room(self, bounds: OwnerBounds) -> bool:
        """Whether one more record fits, or something would give way to it."""

    async def sweep(self, now_s: float) -> int:
        """Forget what is over; how many that were."""

    async def close(self) -> None:
        """Let go of it. Twice is no fault."""
