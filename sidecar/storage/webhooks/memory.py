"""Stores deliveries and push configurations in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sidecar.storage.webhooks.delivery import Delivery, PendingDelivery
from sidecar.storage.webhooks.push_config import PushRecord
from sidecar.storage.webhooks.store import DeliveryBounds


@dataclass(slots=True)
class MemoryDeliveryStore:
    """Keeps both in dictionaries. A restart loses them."""

    up: bool = True
    _callbacks: dict[str, tuple[Delivery, PendingDelivery]] = field(default_factory=dict)
    _pushes: dict[str, PushRecord] = field(default_factory=dict)

    async def put(self, callback: Delivery, due_at: float, bounds: DeliveryBounds) -> bool:
        kept = [each for each, _ in self._callbacks.values()]
        if (
            len(kept) >= bounds.total
            or sum(each.size for each in kept) + callback.size > bounds.total_bytes
            or sum(each.owner == callback.owner for each in kept) >= bounds.per_owner
        ):
            return False
        self._callbacks[callback.id] = callback, PendingDelivery(*callback[:6], 0, due_at)
        return True

    async def waiting(self) -> Sequence[PendingDelivery]:
        return [waiting for _, waiting in self._callbacks.values()]

    async def get(self, id_: str) -> Delivery | None:
        kept = self._callbacks.get(id_)
        return kept and kept[0]

    async def again(self, id_: str, attempts: int, due_at: float) -> None:
        if (kept := self._callbacks.get(id_)) is not None:
            self._callbacks[id_] = kept[0], kept[1]._replace(attempts=attempts, due_at=due_at)

    async def ended(self, ids: Sequence[str]) -> None:
        for id_ in ids:
            self._callbacks.pop(id_, None)

    async def keep_push(self, record: PushRecord, per_owner: int, total: int) -> bool:
        mine = sum(each.owner == record.owner for each in self._pushes.values())
        if len(self._pushes) >= total or mine >= per_owner:
            return False
        self._pushes[record.handle] = record
        return True

    async def push(self, handle: str, now_s: float) -> PushRecord | None:
        record = self._pushes.get(handle)
        return record if record is not None and record.expires_at > now_s else None

    async def pushes_of(self, owner: str, server: str, task_id: str, now_s: float) -> Sequence[PushRecord]:
        return [
            each for each in self._pushes.values() if each[1:4] == (owner, server, task_id) and each.expires_at > now_s
        ]

    async def bind_push(self, handle: str, task_id: str) -> str:
        if (record := self._pushes.get(handle)) is None:
            return ""
        if not record.task_id:
            record = self._pushes[handle] = record._replace(task_id=task_id)
        return record.task_id

    async def name_push(self, handle: str, task_id: str, config_id: str) -> Sequence[str]:
        if (record := self._pushes.get(handle)) is None:
            return []
        named = record._replace(task_id=task_id, config_id=config_id)
        older = [each.handle for each in self._pushes.values() if each[1:5] == named[1:5] and each.handle != handle]
        await self.forget_pushes(older)
        self._pushes[handle] = named
        return older

    async def forget_pushes(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self._pushes.pop(handle, None)

    async def sweep(self, now_s: float) -> int:
        over = [each.handle for each in self._pushes.values() if each.expires_at <= now_s]
        await self.forget_pushes(over)
        return len(over)

    async def close(self) -> None:
        pass
