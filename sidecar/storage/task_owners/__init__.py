"""Records who owns each task at an upstream.

    record.py   the record of a task: its owner, and the question that created it
    store.py    the interface of a store: memory.py (this process), sqlite.py (a file, which survives a restart), or
                redis.py (a server, which replicas share)
    __init__    the one accessor: every access to a task, by MCP and by A2A, goes through `TaskOwners` (threats G1)

A task belongs to the chain that created it, as a session does, and never to a session, a connection or the bytes of
a token. Another caller's task and an unknown task get the same refusal. A task whose owner cannot be looked up is
refused.
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

GRACE_S = 60.0  # clocks differ; the owner may ask for the task until the server itself has deleted it
SWEEP_EVERY_S = 60.0

log = logging.getLogger("sidecar.storage.task_owners")


@dataclass(slots=True)
class TaskOwners:
    """The owners of all tasks. `clock` gives seconds since the epoch; no record is kept longer than `keep_s`.
    Context ids are derived with `secret`, so that only this deployment can make them."""

    store: OwnerStore
    clock: Callable[[], float]
    secret: bytes = field(repr=False)
    keep_s: float = 7 * 86_400.0
    bounds: OwnerBounds = field(default_factory=OwnerBounds)

    async def owned(self, caller: Caller, server: str, task_id: str, *, namespace: Namespace = "mcp") -> OwnerRecord:
        """Returns the record of the caller's task. Raises Refusal: TASK_UNKNOWN, also for another's task, or
        STORE_UNAVAILABLE."""
        records = await self.all_owned(caller, server, (task_id,), namespace=namespace)
        return records[0]

    async def all_owned(
        self, caller: Caller, server: str, task_ids: Collection[str], *, namespace: Namespace = "mcp"
    ) -> list[OwnerRecord]:
        """Returns the records of these tasks. Raises Refusal(TASK_UNKNOWN) unless all of them are the caller's."""
        mine = await self.mine(caller, server, task_ids, namespace=namespace)
        if any(task_id not in mine for task_id in task_ids):
            raise Refusal(Reason.TASK_UNKNOWN)
        return [mine[task_id] for task_id in dict.fromkeys(task_ids)]

    async def mine(
        self, caller: Caller, server: str, task_ids: Collection[str], *, namespace: Namespace = "mcp"
    ) -> Mapping[str, OwnerRecord]:
        """Returns the records of those tasks that are the caller's, by id. Raises Refusal(STORE_UNAVAILABLE)."""
        asked = [task_id for task_id in dict.fromkeys(task_ids) if 0 < len(task_id) <= MAX_ID_CHARS]
        if caller.is_anonymous or not asked:
            return {}  # all anonymous callers look alike: a task of one would belong to all of them (threats G2)
        try:
            found = await self.store.find(namespace, server, asked, self.clock())
        except OwnerStoreOut:
            raise _unavailable() from None
        return {record.task_id: record for record in found if record.owner == caller.binding}

    async def may_create(self, caller: Caller) -> None:
        """Checks that a task created now could be stored, before the call is forwarded. Raises Refusal."""
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
        """Records that the caller owns this task; the record survives a crash. `by` is the question that created it,
        `ttl_s` how long the upstream keeps it (None if it does not say), and `state` how it ended, if it has. Recording
        a task twice is allowed. Raises Refusal: RESPONSE_REFUSED if the id has another owner or was created by another
        question, because a task never changes owners."""
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
        """Extends the record because its owner still uses the task; otherwise the record would expire, and another
        caller could claim the id. Raises Refusal(STORE_UNAVAILABLE)."""
        expires_at = self._expiry(self.clock(), None)
        if record.expires_at < expires_at - self.keep_s / 2:  # not on every message of a conversation
            await self._amend(record._replace(expires_at=expires_at))

    async def is_anothers(self, owner: str, server: str, task_id: str, *, namespace: Namespace) -> bool:
        """Whether the task is on record for another owner. Raises Refusal(STORE_UNAVAILABLE)."""
        try:
            found = await self.store.find(namespace, server, (task_id,), self.clock())
        except OwnerStoreOut:
            raise _unavailable() from None
        return any(record.owner != owner for record in found)

    async def saw(self, record: OwnerRecord, state: str, ttl_s: float | None) -> None:
        """Records the state that the upstream reported, if the task ended or its lifetime changed. Raises
        Refusal(STORE_UNAVAILABLE)."""
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
        """Deletes expired records until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await self.store.sweep(self.clock())
            except OwnerStoreOut as out:
                log.warning("the task store is out", extra={"error": str(out)})


def _unavailable() -> Refusal:
    # Fail closed: without its record, any caller could use the task.
    return Refusal(Reason.STORE_UNAVAILABLE)


def _full() -> Refusal:
    return Refusal(Reason.TOO_MANY_CONCURRENT, "too many tasks")
