"""Records who owns each task at an upstream.

    record.py   what is remembered of a task: its owner, and what created it
    store.py    what a store of records does: memory.py (this process), sqlite.py (a file, which a restart survives), or
                redis.py (a server, which replicas share)
    __init__    the one accessor: every way to a task, of MCP and of A2A, goes through `TaskOwners` (threats G1)

A task belongs to the chain that created it, as a session does: never to a session, a connection or the bytes of a
token. Another's task and none are the same refusal. What cannot be looked up is nobody's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from sidecar.errors import Reason, Refusal
from sidecar.storage.task_owners.memory import MemoryOwnerStore
from sidecar.storage.task_owners.record import MAX_ID_CHARS, TERMINAL, Namespace, OwnerRecord
from sidecar.storage.task_owners.redis import RedisOwnerStore
from sidecar.storage.task_owners.sqlite import SqliteOwnerStore, check_task_file
from sidecar.storage.task_owners.store import OwnerBounds, OwnerStore, OwnerStoreOut
from sidecar.vocabulary import Caller, Question

__all__ = [
    "MAX_ID_CHARS",
    "TERMINAL",
    "MemoryOwnerStore",
    "Namespace",
    "OwnerBounds",
    "OwnerRecord",
    "OwnerStore",
    "OwnerStoreOut",
    "RedisOwnerStore",
    "SqliteOwnerStore",
    "TaskOwners",
    "check_task_file",
]

GRACE_S = 60.0  # a server's clock and ours differ; until it forgets the task itself, its owner may ask for it
SWEEP_EVERY_S = 60.0

log = logging.getLogger("sidecar.storage.task_owners")


@dataclass(slots=True)
class TaskOwners:
    """The ownership of every task. `clock` gives seconds since the epoch; nothing is kept longer than `keep_s`. What is
    named with the `secret` nobody else can name."""

    store: OwnerStore
    clock: Callable[[], float]
    secret: bytes = field(repr=False)
    keep_s: float = 7 * 86_400.0
    bounds: OwnerBounds = field(default_factory=OwnerBounds)

    async def owned(self, caller: Caller, server: str, task_id: str, *, namespace: Namespace = "mcp") -> OwnerRecord:
        """The caller's task. Another's and none are the same Refusal(TASK_UNKNOWN); STORE_UNAVAILABLE."""
        records = await self.all_owned(caller, server, (task_id,), namespace=namespace)
        return records[0]

    async def all_owned(
        self, caller: Caller, server: str, task_ids: Collection[str], *, namespace: Namespace = "mcp"
    ) -> list[OwnerRecord]:
        """The caller's tasks, every one of them, or the same Refusal(TASK_UNKNOWN)."""
        mine = await self.mine(caller, server, task_ids, namespace=namespace)
        if any(task_id not in mine for task_id in task_ids):
            raise Refusal(Reason.TASK_UNKNOWN)
        return [mine[task_id] for task_id in dict.fromkeys(task_ids)]

    async def mine(
        self, caller: Caller, server: str, task_ids: Collection[str], *, namespace: Namespace = "mcp"
    ) -> Mapping[str, OwnerRecord]:
        """Those of the tasks that are the caller's, by id. Raises Refusal(STORE_UNAVAILABLE)."""
        asked = [task_id for task_id in dict.fromkeys(task_ids) if 0 < len(task_id) <= MAX_ID_CHARS]
        if caller.is_anonymous or not asked:
            return {}  # everybody could be anonymous: what such a one created would belong to everybody (threats G2)
        try:
            found = await self.store.find(namespace, server, asked, self.clock())
        except OwnerStoreOut:
            raise _unavailable() from None
        return {record.task_id: record for record in found if record.owner == caller.binding}

    async def may_create(self, caller: Caller) -> None:
        """Whether a task that is created now could be kept: asked before the call goes out. Raises Refusal."""
        if caller.is_anonymous:
            raise Refusal(Reason.UNAUTHENTICATED, "a task belongs to somebody, and nobody said who")
        try:
            has_room = await self.store.has_room(self.bounds)
        except OwnerStoreOut:
            raise _unavailable() from None
        if not has_room:
            raise _full()

    async def created(
        self,
        caller: Caller,
        server: str,
        task_id: str,
        *,
        by: Question,
        method: str,
        ttl_s: float | None,
        namespace: Namespace = "mcp",
        state: str = "",
    ) -> OwnerRecord:
        """The caller owns this task from now on, also after a crash. `by` is what created it, `ttl_s` how long the
        upstream keeps it, as far as it says, `state` how it ended, if it has. Twice is no fault. Raises Refusal,
        RESPONSE_REFUSED where the id has another owner or maker: a task never changes hands."""
        if caller.is_anonymous:
            raise Refusal(Reason.RESPONSE_REFUSED, "it creates a task for nobody")
        if not 0 < len(task_id) <= MAX_ID_CHARS:
            raise Refusal(Reason.RESPONSE_REFUSED, f"its task id is not of 1 to {MAX_ID_CHARS} characters")
        now_s = self.clock()
        record = OwnerRecord(
            namespace,
            server,
            task_id,
            caller.binding,
            by.object,
            by.action,
            method,
            now_s,
            self._expiry(now_s, ttl_s),
            state,
        )
        try:
            standing = await self.store.claim(record, self.bounds)
        except OwnerStoreOut:
            raise _unavailable() from None
        if standing is None:
            raise _full()
        if not standing.is_same_as(record):
            raise Refusal(Reason.RESPONSE_REFUSED, "its task id is taken")
        if ttl_s is None:
            await self.used(standing)
        return standing

    async def used(self, record: OwnerRecord) -> None:
        """Its owner goes on with it: it is kept from now on, else what is in use would one day be whoever's names it.
        Raises Refusal(STORE_UNAVAILABLE)."""
        expires_at = self._expiry(self.clock(), None)
        if record.expires_at < expires_at - self.keep_s / 2:  # not at each word of a conversation
            await self._amend(record._replace(expires_at=expires_at))

    async def is_anothers(self, owner: str, server: str, task_id: str, *, namespace: Namespace) -> bool:
        """Whether a task is on record that is not this owner's. Raises Refusal(STORE_UNAVAILABLE)."""
        try:
            found = await self.store.find(namespace, server, (task_id,), self.clock())
        except OwnerStoreOut:
            raise _unavailable() from None
        return any(record.owner != owner for record in found)

    async def saw(self, record: OwnerRecord, state: str, ttl_s: float | None) -> None:
        """The upstream said how a task stands. Written where it ended, or lasts longer or shorter than was known.
        Raises Refusal(STORE_UNAVAILABLE)."""
        expires_at = record.expires_at if ttl_s is None else self._expiry(record.created_at, ttl_s)
        ended = state if state in TERMINAL and not record.state else record.state
        if ended == record.state and abs(expires_at - record.expires_at) < 1.0:
            return
        await self._amend(record._replace(state=ended, expires_at=expires_at))

    async def _amend(self, record: OwnerRecord) -> None:
        try:
            await self.store.amend(record)
        except OwnerStoreOut:
            raise _unavailable() from None

    def _expiry(self, created_at: float, ttl_s: float | None) -> float:
        lasts_s = self.keep_s if ttl_s is None else min(self.keep_s, max(0.0, ttl_s) + GRACE_S)
        return created_at + lasts_s

    async def run_sweeps(self) -> None:
        """Forget what is over. Runs as long as the process."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await self.store.sweep(self.clock())
            except OwnerStoreOut as out:
                log.warning("the task store is out", extra={"error": str(out)})


def _unavailable() -> Refusal:
    # Fail closed: without its record, anybody's task would be everybody's.
    return Refusal(Reason.STORE_UNAVAILABLE)


def _full() -> Refusal:
    return Refusal(Reason.TOO_MANY_CONCURRENT, "too many tasks")
