"""Stores records in Redis, shared by replicas.

Each kind has one key (`redis_script.py`) and one script that works on it (`records.lua`); each verb is one atomic step.
If a reply does not come in time, the step may or may not have been done, so the caller reads the record again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final, Generic

from sidecar.storage.record_kind import RecordKind
from sidecar.storage.record_store import (
    FORGOTTEN_AT_ONCE,
    NOTHING,
    AddedRecord,
    R,
    RecordBounds,
    RecordPage,
    RecordShare,
    RecordStoreOut,
)
from sidecar.storage.redis_script import RedisScript, Run, script_text

SCRIPT: Final = script_text("records")


class RedisRecordStore(Generic[R]):
    """Stores records in Redis or Valkey, shared by replicas."""

    def __init__(self, run: Run, kind: RecordKind[R]) -> None:
        self._kind = kind
        self._shared = RedisScript(run, kind.key, SCRIPT, RecordStoreOut)

    @property
    def up(self) -> bool:
        return self._shared.up

    @property
    def is_durable(self) -> bool:
        return True

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        done = "" if bounds.done_per_target is None else bounds.done_per_target
        room = (bounds.per_owner, bounds.total, done, FORGOTTEN_AT_ONCE)
        whose = (holder, until_s, record.owner, record.target)
        return AddedRecord((await self._shared.ask("add", *self._about(record), *whose, *room)).decode())

    async def get(self, record_id: str) -> R | None:
        body = await self._shared.ask("get", record_id)
        return None if body is None else self._kind.read(body)

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        whose = ("everybody",) if owner is None else ("page", owner)
        wanted = (page.standing or "", page.limit, page.offset, *dict.fromkeys(page.targets))
        total, bodies = await self._shared.ask(*whose, *wanted)
        return self._kind.readable(bodies), total

    async def replace(self, record: R) -> bool:
        return bool(await self._shared.ask("replace", *self._about(record)))

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        return bool(await self._shared.ask("reopen", *self._about(record), holder, until_s))

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        asked = (holder, now_s, until_s, *share, *chain.from_iterable(known.items()))
        return self._kind.readable(await self._shared.ask("take", *asked))

    async def let_go(self, holder: str) -> None:
        await self._shared.ask("let_go", holder)

    async def counts(self) -> Mapping[str, int]:
        told = await self._shared.ask("counts")
        return {standing.decode(): int(count) for standing, count in zip(told[::2], told[1::2], strict=True)}

    async def sweep(self, now_s: float) -> int:
        return await self._shared.sweep(now_s)

    async def close(self) -> None:
        """Does nothing: the connection belongs to the limits."""

    def _about(self, record: R) -> tuple[object, ...]:
        """Returns the fields the script needs, and the body."""
        when = (record.created_at, record.expires_at, record.revision)
        return (record.id, record.standing, int(record.is_done), *when, self._kind.codec.encode(record).decode())
