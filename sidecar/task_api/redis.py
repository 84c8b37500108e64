"""Which tasks are there, for every replica?

One key (`shared_key.py`), worked on by one script (`tasks.lua`), each verb in one step. A
reply that does not come in time leaves open whether it was done; whoever asked then looks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sidecar.shared_key import Run, SharedKey
from sidecar.task_api.records import Record, Step, UnreadableRecord, decoded, encoded, readable
from sidecar.task_api.store import Bounds, Page, Share, StoreOut

KEY: Final = "a2a-tasks"
SCRIPT: Final = Path(__file__).with_name("tasks.lua")


class RedisStore:
    """Tasks in Redis or Valkey, which replicas share."""

    def __init__(self, run: Run) -> None:
        self._shared = SharedKey(run, KEY, SCRIPT, StoreOut)

    @property
    def up(self) -> bool:
        """As `Store.up`."""
        return self._shared.up

    async def add(self, record: Record, holder: str, until_s: float, bounds: Bounds) -> bool:
        """As `Store.add`."""
        about = (record.id, record.owner, record.target, record.state, record.revision, record.created_at)
        body = encoded(record).decode()
        return bool(await self._shared.ask("add", *about, holder, until_s, bounds.per_owner, bounds.total, body))

    async def get(self, task_id: str) -> Record | None:
        """As `Store.get`."""
        body = await self._shared.ask("get", task_id)
        return None if body is None else _decoded(body)

    async def page(self, owner: str, page: Page) -> tuple[list[Record], int]:
        """As `Store.page`."""
        total, bodies = await self._shared.ask("page", owner, page.state or "", page.limit, page.offset, *page.targets)
        return readable(bodies), total

    async def replace(self, record: Record) -> bool:
        """As `Store.replace`."""
        over = int(record.step is Step.OVER)
        about = (record.id, record.state, over, record.expires_at, record.revision)
        return bool(await self._shared.ask("replace", *about, encoded(record).decode()))

    async def take(self, holder: str, now_s: float, until_s: float, share: Share) -> list[Record]:
        """As `Store.take`."""
        return readable(await self._shared.ask("take", holder, now_s, until_s, *share))

    async def let_go(self, holder: str) -> None:
        """As `Store.let_go`."""
        await self._shared.ask("let_go", holder)

    async def counts(self) -> Mapping[str, int]:
        """As `Store.counts`."""
        told = await self._shared.ask("counts")
        return {state.decode(): int(count) for state, count in zip(told[::2], told[1::2], strict=True)}

    async def sweep(self, now_s: float) -> int:
        """As `Store.sweep`."""
        return await self._shared.sweep(now_s)

    async def close(self) -> None:
        """As `Store.close`: the connection is that of the limits."""


def _decoded(body: bytes) -> Record:
    try:
        return decoded(body)
    except UnreadableRecord:
        raise StoreOut("a task cannot be read") from None
