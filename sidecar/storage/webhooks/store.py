"""The store interface of deliveries and push configurations.

Each method is one atomic step, which a dictionary, a file or a server shared by replicas can implement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sidecar.storage.record_store import RecordStoreOut
from sidecar.storage.webhooks.delivery import Delivery, PendingDelivery
from sidecar.storage.webhooks.push_config import PushRecord


class DeliveryStoreOut(RecordStoreOut):
    """The store did not answer, or not in time."""


class DeliveryBounds(NamedTuple):
    """How many deliveries may wait: per owner and in total, and their total size in bytes."""

    per_owner: int
    total: int
    total_bytes: int


class DeliveryStore(Protocol):
    """Stores deliveries and push configurations. Every method raises DeliveryStoreOut. `up` says whether the store
    answered last time."""

    @property
    def up(self) -> bool: ...

    async def put(self, callback: Delivery, due_at: float, bounds: DeliveryBounds) -> bool:
        """Stores a delivery until its end; returns False if there is no room. Once this returns, no crash loses it."""

    async def waiting(self) -> Sequence[PendingDelivery]:
        """Returns all stored deliveries, the oldest first."""

    async def get(self, id_: str) -> Delivery | None:
        """Returns one delivery with its content, or None."""

    async def again(self, id_: str, attempts: int, due_at: float) -> None:
        """Records that `attempts` attempts have failed, and when the next is due."""

    async def ended(self, ids: Sequence[str]) -> None:
        """Deletes these deliveries."""

    async def keep_push(self, record: PushRecord, per_owner: int, total: int) -> bool:
        """Stores a push configuration; returns False if the owner, or all owners together, have the maximum."""

    async def push(self, handle: str, now_s: float) -> PushRecord | None:
        """Returns the unexpired configuration with this handle, of any owner, or None."""

    async def pushes_of(self, owner: str, server: str, task_id: str, now_s: float) -> Sequence[PushRecord]:
        """Returns the unexpired configurations of one task."""

    async def bind_push(self, handle: str, task_id: str) -> str:
        """Binds a configuration to a task, unless it is bound already; returns the task it is bound to. Returns "" if
        the handle is unknown."""

    async def name_push(self, handle: str, task_id: str, config_id: str) -> Sequence[str]:
        """Sets the ids that the agent reported. Deletes older configurations with the same id and returns their
        handles."""

    async def forget_pushes(self, handles: Sequence[str]) -> None:
        """Deletes these configurations."""

    async def sweep(self, now_s: float) -> int:
        """Deletes expired push configurations, and returns how many."""

    async def close(self) -> None:
        """Closes the store. Closing twice is allowed."""
