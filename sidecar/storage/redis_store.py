"""Stores records in Redis, shared by replicas.

The keys of one kind share a prefix, in the server that limits use (`limits/redis_store.py`), and one script works on
them (`scripts/records.lua`); each verb is one atomic step. If a reply does not arrive in time, the step may or may not
have been done, so the caller reads the record again.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, Generic

from sidecar.observability.outage_log import Outage
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
    ends_at,
)
from sidecar.storage.redis_script import Run, script_text

SCRIPT: Final = script_text("records")
SWEPT_AT_ONCE: Final = 1000

log = logging.getLogger("sidecar.store")


class RedisRecordStore(Generic[R]):
    """Stores records in Redis or Valkey, shared by replicas."""

    is_durable = True

    def __init__(self, run: Run, kind: RecordKind[R]) -> None:
        self.up = True
        self._kind = kind
        self._run = run
        self._outage = Outage(log, kind.key)

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        done = "" if bounds.done_per_target is None else bounds.done_per_target
        room = (bounds.per_owner, bounds.total, done, FORGOTTEN_AT_ONCE, int(bounds.evicts_open))
        whose = (holder, until_s if self._kind.is_work else "", record.owner, record.target)
        return AddedRecord((await self._ask("add", *self._about(record), *whose, *room)).decode())

    async def add_all(self, records: Sequence[R], bounds: RecordBounds) -> list[AddedRecord]:
        return [await self.add(record, "", 0.0, bounds) for record in records]

    async def get(self, record_id: str) -> R | None:
        found = await self.find((record_id,))
        return found[0] if found else None

    async def find(self, record_ids: Sequence[str]) -> list[R]:
        bodies = await self._ask("find", *record_ids)
        pairs = zip(record_ids, bodies, strict=True)
        return [self._kind.read(body, one) for one, body in pairs if body]

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        whose = ("page_of_all",) if owner is None else ("page", owner)
        wanted = (page.standing or "", page.limit, page.offset, *dict.fromkeys(page.targets))
        total, bodies = await self._ask(*whose, *wanted)
        return self._kind.readable(bodies), total

    async def replace(self, record: R) -> bool:
        return bool(await self._ask("replace", *self._about(record)))

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        return bool(await self._ask("reopen", *self._about(record), holder, until_s))

    async def remove(self, record_ids: Sequence[str]) -> None:
        await self._ask("remove", *record_ids)

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        asked = (holder, now_s, until_s, *share, *chain.from_iterable(known.items()))
        return self._kind.readable(await self._ask("take", *asked))

    async def let_go(self, holder: str) -> None:
        await self._ask("let_go", holder)

    async def counts(self) -> Mapping[str, int]:
        told = await self._ask("counts")
        return {standing.decode(): int(count) for standing, count in zip(told[::2], told[1::2], strict=True)}

    async def has_room(self, bounds: RecordBounds) -> bool:
        return bool(await self._ask("has_room", bounds.total))

    async def sweep(self, now_s: float) -> int:
        swept = 0
        while some := await self._ask("sweep", now_s, SWEPT_AT_ONCE):
            swept += some
        return swept

    def _about(self, record: R) -> tuple[object, ...]:
        """Returns the fields the script needs, and the body."""
        what = (record.id, record.standing, int(record.is_done), record.created_at, ends_at(record, self._kind.is_work))
        return (*what, record.revision, self._kind.codec.encode(record).decode())

    async def _ask(self, *words: object) -> Any:
        try:
            answer = await self._run(SCRIPT, self._kind.key, [str(word) for word in words])
        except ConnectionError as error:
            self.up = False
            self._outage.fell(error)
            raise RecordStoreOut(str(error)) from None
        self.up = True
        self._outage.rose()
        return answer
