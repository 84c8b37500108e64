"""The store interface of deliveries and push configurations.

Verbs that are one atomic step each: fit for a dictionary, a file, or a server that several replicas share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sidecar.storage.webhooks.delivery import Delivery, PendingDelivery
from sidecar.storage.webhooks.push_config import PushRecord


class DeliveryStoreOut(Exception):
    """The store did not answer, or not in time."""


class DeliveryBounds(NamedTuple):
    """How much may wait: callbacks of one owner, of all together, and the bytes of all together."""

    per_owner: int
    total: int
    total_bytes: int


class DeliveryStore(Protocol):
    """Where both live. Everything raises CallbackStoreOut. `up` says whether it answered last."""

    @property
    def up(self) -> bool: ...

    async def put(self, callback: Delivery, due_at: float, bounds: DeliveryBounds) -> bool:
        """Keep it until its end; False where there is no room. When this returns, no crash loses it."""

    async def waiting(self) -> Sequence[PendingDelivery]:
        """All that are kept, those that came first first."""

    async def get(self, id_: str) -> Delivery | None:
        """One of them, whole."""

    async def again(self, id_: str, attempts: int, due_at: float) -> None:
        """An attempt failed: so many were made, and the next is due then."""

    async def ended(self, ids: Sequence[str]) -> None:
        """Forget these."""

    async def keep_push(self, record: PushRecord, per_owner: int, total: int) -> bool:
        """Keep a push configuration; False where its owner, or all together, have as many as they may."""

    async def push(self, handle: str, now_s: float) -> PushRecord | None:
        """The configuration behind an address of ours that is not over, whoever owns it."""

    async def pushes_of(self, owner: str, server: str, task_id: str, now_s: float) -> Sequence[PushRecord]:
        """Those of one task that are not over."""

    async def bind_push(self, handle: str, task_id: str) -> str:
        """The task that it is for: this one, unless it was for one already. "" where there is no such handle."""

    async def name_push(self, handle: str, task_id: str, config_id: str) -> Sequence[str]:
        """The agent said what they are called. An older one of that name gives way; the handles of those that did."""

    async def forget_pushes(self, handles: Sequence[str]) -> None:
        """Forget these."""

    async def sweep(self, now_s: float) -> int:
        """Forget push configurations that are over; how many that were."""

    async def close(self) -> None:
        """Let go of it. Twice is no fault."""
