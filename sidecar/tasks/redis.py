"""Whose task is it, at every replica?

One key (`shared_key.py`), worked on by one script (`tasks.lua`), each verb in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from sidecar.shared_key import Run, SharedKey
from sidecar.tasks.record import Namespace, TaskRecord
from sidecar.tasks.store import Bounds, TaskStoreOut

KEY: Final = "tasks"
SCRIPT: Final = Path(__file__).with_name("tasks.lua")


class RedisTaskStore:
    """Records in Redis or Valkey, which replicas share."""

    def __init__(self, run: Run) -> None:
        self._shared = SharedKey(run, KEY, SCRIPT, TaskStoreOut)

    @property
    def up(self) -> bool:
        """As `TaskStore.up`."""
        return self._shared.up

    async def claim(self, record: TaskRecord, bounds: Bounds) -> TaskRecord | None:
        """As `TaskStore.claim`."""
        standing = await self._shared.ask("claim", *record, bounds.per_owner, bounds.total)
        return None if standing is None else _record(standing)

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[TaskRecord]:
        """As `TaskStore.find`."""
        return [_record(one) for one in await self._shared.ask("find", namespace, server, now_s, *task_ids)]

    async def amend(self, record: TaskRecord) -> None:
        """As `TaskStore.amend`."""
        await self._shared.ask("amend", *record[:4], record.expires_at, record.state)

    async def has_room(self, bounds: Bounds) -> bool:
        """As `TaskStore.has_room`."""
        return bool(await self._shared.ask("has_room", bounds.total))

    async def sweep(self, now_s: float) -> int:
        """As `TaskStore.sweep`."""
        return await self._shared.sweep(now_s)

    async def close(self) -> None:
        """As `TaskStore.close`: the connection is that of the limits."""


def _record(raw: Sequence[bytes]) -> TaskRecord:
    namespace, server, task_id, owner, object_, action, method, created_at, expires_at, state = (
        one.decode() for one in raw
    )
    kept = (owner, object_, action, method, float(created_at), float(expires_at), state)
    return TaskRecord(cast(Namespace, namespace), server, task_id, *kept)
