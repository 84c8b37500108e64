"""Whose task is it, at every replica?

One key of the store of limits (`limits/redis.py`), worked on by one script (`tasks.lua`), each verb in one step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from sidecar.tasks.record import Namespace, TaskRecord
from sidecar.tasks.store import Bounds, TaskStoreOut

KEY: Final = "tasks"
SWEPT_AT_ONCE: Final = 1000
SCRIPT: Final = Path(__file__).with_name("tasks.lua").read_text(encoding="utf-8")
Run = Callable[[str, str, Sequence[str]], Awaitable[Any]]
"""What a script answers that works on one key of all replicas. Raises ConnectionError where it is not heard in time."""


class RedisTaskStore:
    """Records in Redis or Valkey, which replicas share."""

    def __init__(self, run: Run) -> None:
        self.up = True
        self._run = run

    async def claim(self, record: TaskRecord, bounds: Bounds) -> TaskRecord | None:
        """As `TaskStore.claim`."""
        standing = await self._ask("claim", *record, bounds.per_owner, bounds.total)
        return None if standing is None else _record(standing)

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[TaskRecord]:
        """As `TaskStore.find`."""
        return [_record(one) for one in await self._ask("find", namespace, server, now_s, *task_ids)]

    async def amend(self, record: TaskRecord) -> None:
        """As `TaskStore.amend`."""
        await self._ask("amend", *record[:4], record.expires_at, record.state)

    async def has_room(self, bounds: Bounds) -> bool:
        """As `TaskStore.has_room`."""
        return int(await self._ask("count")) < bounds.total

    async def sweep(self, now_s: float) -> int:
        """As `TaskStore.sweep`."""
        swept = 0
        while some := await self._ask("sweep", now_s, SWEPT_AT_ONCE):
            swept += some
        return swept

    async def close(self) -> None:
        """As `TaskStore.close`: the connection is that of the limits."""

    async def _ask(self, *words: object) -> Any:
        try:
            answer = await self._run(SCRIPT, KEY, [str(word) for word in words])
        except ConnectionError as error:
            self.up = False
            raise TaskStoreOut(str(error)) from None
        self.up = True
        return answer


def _record(raw: Sequence[bytes]) -> TaskRecord:
    namespace, server, task_id, owner, object_, action, method, created_at, expires_at, state = (
        one.decode() for one in raw
    )
    kept = (owner, object_, action, method, float(created_at), float(expires_at), state)
    return TaskRecord(cast(Namespace, namespace), server, task_id, *kept)
