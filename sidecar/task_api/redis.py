"""Which tasks are there, for every replica?

One key of the store of limits (`limits/redis.py`), worked on by one script (`tasks.lua`), each verb in one step. A
reply that does not come in time leaves open whether it was done; whoever asked then looks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sidecar.task_api.records import Record, Step, decoded, encoded
from sidecar.task_api.store import Bounds, Page, StoreOut

KEY: Final = "a2a-tasks"
SWEPT_AT_ONCE: Final = 1000
SCRIPT: Final = Path(__file__).with_name("tasks.lua").read_text(encoding="utf-8")
Run = Callable[[str, str, Sequence[str]], Awaitable[Any]]
"""What a script answers that works on one key of all replicas. Raises ConnectionError where it is not heard in time."""


class RedisStore:
    """Tasks in Redis or Valkey, which replicas share."""

    def __init__(self, run: Run) -> None:
        self.up = True
        self._run = run

    async def add(self, record: Record, holder: str, until_s: float, bounds: Bounds) -> bool:
        """As `Store.add`."""
        about = (record.id, record.owner, record.target, record.state, record.revision, record.created_at)
        body = encoded(record).decode()
        return bool(await self._ask("add", *about, holder, until_s, bounds.per_owner, bounds.total, body))

    async def get(self, task_id: str) -> Record | None:
        """As `Store.get`."""
        body = await self._ask("get", task_id)
        return None if body is None else decoded(body)

    async def page(self, owner: str, page: Page) -> tuple[list[Record], int]:
        """As `Store.page`."""
        total, bodies = await self._ask("page", owner, page.state or "", page.limit, page.offset, *page.targets)
        return [decoded(body) for body in bodies], total

    async def replace(self, record: Record) -> bool:
        """As `Store.replace`."""
        over = int(record.step is Step.OVER)
        about = (record.id, record.state, over, record.expires_at, record.revision)
        return bool(await self._ask("replace", *about, encoded(record).decode()))

    async def take(self, holder: str, now_s: float, until_s: float, limit: int) -> list[Record]:
        """As `Store.take`."""
        return [decoded(body) for body in await self._ask("take", holder, now_s, until_s, limit)]

    async def let_go(self, holder: str) -> None:
        """As `Store.let_go`."""
        await self._ask("let_go", holder)

    async def counts(self) -> Mapping[str, int]:
        """As `Store.counts`."""
        told = await self._ask("counts")
        return {state.decode(): int(count) for state, count in zip(told[::2], told[1::2], strict=True)}

    async def sweep(self, now_s: float) -> int:
        """As `Store.sweep`."""
        swept = 0
        while some := await self._ask("sweep", now_s, SWEPT_AT_ONCE):
            swept += some
        return swept

    async def close(self) -> None:
        """As `Store.close`: the connection is that of the limits."""

    async def _ask(self, *words: object) -> Any:
        try:
            answer = await self._run(SCRIPT, KEY, [str(word) for word in words])
        except ConnectionError as error:
            self.up = False
            raise StoreOut(str(error)) from None
        self.up = True
        return answer
