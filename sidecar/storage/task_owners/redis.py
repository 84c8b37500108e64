"""Stores task owners in Redis, shared by replicas.

One key (`storage/redis_script.py`), and one script that works on it (`task_owners.lua`); each verb is one atomic step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from sidecar.storage.redis_script import RedisScript, Run, script_text
from sidecar.storage.task_owners.record import Namespace, OwnerRecord
from sidecar.storage.task_owners.store import OwnerBounds, OwnerStoreOut

KEY: Final = "tasks"
SCRIPT: Final = script_text("task_owners")


class RedisOwnerStore:
    """Stores records in Redis or Valkey, shared by replicas."""

    def __init__(self, run: Run) -> None:
        self._shared = RedisScript(run, KEY, SCRIPT, OwnerStoreOut)

    @property
    def up(self) -> bool:
        return self._shared.up

    async def claim(self, record: OwnerRecord, bounds: OwnerBounds) -> OwnerRecord | None:
        standing = await self._shared.ask("claim", *record, bounds.per_owner, bounds.total)
        return None if standing is None else _record(standing)

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[OwnerRecord]:
        return [_record(one) for one in await self._shared.ask("find", namespace, server, now_s, *task_ids)]

    async def amend(self, record: OwnerRecord) -> None:
        await self._shared.ask("amend", *record[:4], record.expires_at, record.state)

    async def has_room(self, bounds: OwnerBounds) -> bool:
        return bool(await self._shared.ask("has_room", bounds.total))

    async def sweep(self, now_s: float) -> int:
        return await self._shared.sweep(now_s)

    async def close(self) -> None:
        """Does nothing: the connection belongs to the limits."""


def _record(raw: Sequence[bytes]) -> OwnerRecord:
    namespace, server, task_id, owner, object_, action, method, created_at, expires_at, state = (
        one.decode() for one in raw
    )
    kept = (owner, object_, action, method, float(created_at), float(expires_at), state)
    return OwnerRecord(cast(Namespace, namespace), server, task_id, *kept)
