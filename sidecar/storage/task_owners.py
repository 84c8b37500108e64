"""Records who owns each task at an upstream.

Every access to a task, by MCP and by A2A, uses `TaskOwners`. A record has the chain that may use the task and the
policy question for its use, but not the task's arguments, progress or result.

A task belongs to the chain that created it, never to a session, a connection or a token. Another caller's task and an
unknown task get the same refusal.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.storage.record_kind import RecordKind, record_codec
from sidecar.storage.record_store import AddedRecord, RecordBounds, RecordStore, RecordStoreOut
from sidecar.vocabulary import Caller, Question

Namespace = Literal["mcp", "a2a", "a2a-context"]
MAX_ID_CHARS: Final = 1024  # must fit the header that mirrors it (MCP 2026-07-28), in base64 of UTF-8
TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "canceled", "rejected"})  # of MCP and of A2A
GRACE_S: Final = 60.0  # clocks differ; the owner may request the task until the server itself has deleted it
AMENDED_TIMES: Final = 20  # while other calls change the same record


class OwnerRecord(NamedTuple):
    """The owner of one task. `owner` is `Caller.binding`; `object`, `action` and `method` are those of the call that
    created it; `state` is its final state, "" until that is known. Times are in seconds since the epoch.

    A task that begins `here`, because its message waits for approval, has an id of the sidecar. Once its message was
    sent, `at_agent` is its id at the agent, and the record of that id has the sidecar's id as `shown_as`."""

    namespace: Namespace
    server: str
    task_id: str
    owner: str
    object: str
    action: str
    method: str
    created_at: float
    expires_at: float
    state: str = ""
    revision: int = 0
    here: bool = False
    at_agent: str = ""
    shown_as: str = ""

    @property
    def is_unsent(self) -> bool:
        """Whether only the sidecar has the task."""
        return self.here and not self.at_agent

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.server}/{self.task_id}"

    @property
    def target(self) -> str:
        """Returns "": owners are in no list."""
        return ""

    @property
    def standing(self) -> str:
        return self.state

    @property
    def is_done(self) -> bool:
        return self.state != ""

    @property
    def question(self) -> Question:
        """Returns the question that created the task, without its arguments, which are not stored."""
        return Question(self.object, self.action, self.server, self.object.partition("/")[2])


class TaskClaim(NamedTuple):
    """A task, or a context, that a caller begins; `state` is its state if it has already ended, `here` and `shown_as`
    are those of its record."""

    namespace: Namespace
    task_id: str
    state: str = ""
    here: bool = False
    shown_as: str = ""


OWNERS: Final = RecordKind("a task's owner", record_codec(OwnerRecord), key="task-owners", is_work=False)


@dataclass(slots=True)
class TaskOwners:
    """The owners of all tasks. `clock` returns seconds since the epoch. A record expires at most `keep_s` seconds after
    its creation, or after the last use of its task. Context ids are derived with `secret`, so that only this deployment
    can make them."""

    store: RecordStore[OwnerRecord]
    clock: Callable[[], float]
    secret: bytes = field(repr=False)
    keep_s: float = 7 * 86_400.0
    bounds: RecordBounds = field(default_factory=partial(RecordBounds, evicts_open=True))

    async def all_owned(self, caller: Caller, server: str, task_ids: Collection[str]) -> list[OwnerRecord]:
        """Returns the records of these tasks of MCP, each once. Raises Refusal: TASK_UNKNOWN unless all of them are the
        caller's, STORE_UNAVAILABLE."""
        mine = await self.mine(caller, server, task_ids)
        if any(task_id not in mine for task_id in task_ids):
            raise Refusal(Reason.TASK_UNKNOWN)
        return [mine[task_id] for task_id in dict.fromkeys(task_ids)]

    async def mine(
        self, caller: Caller, server: str, task_ids: Collection[str], *, namespace: Namespace = "mcp"
    ) -> Mapping[str, OwnerRecord]:
        """Returns the records of those tasks that are the caller's, by id. Raises Refusal(STORE_UNAVAILABLE)."""
        asked = [task_id for task_id in dict.fromkeys(task_ids) if 0 < len(task_id) <= MAX_ID_CHARS]
        if caller.is_anonymous or not asked:
            return {}  # all anonymous callers look the same: a task of one would belong to all of them
        found = await self._found(namespace, server, asked)
        return {record.task_id: record for record in found if record.owner == caller.binding}

    async def _found(self, namespace: Namespace, server: str, task_ids: Collection[str]) -> list[OwnerRecord]:
        found, now_s = await self.store.find([f"{namespace}/{server}/{one}" for one in task_ids]), self.clock()
        return [record for record in found if record.expires_at > now_s]

    async def may_create(self, caller: Caller) -> None:
        """Checks that a task created now could be stored, before the call is forwarded. Raises Refusal:
        UNAUTHENTICATED for an anonymous caller, TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
        if caller.is_anonymous:
            raise Refusal(Reason.UNAUTHENTICATED, "a task needs an owner, and the call has no credential")
        if not await self.store.has_room(self.bounds):
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many tasks")

    async def created(
        self, caller: Caller, server: str, task_id: str, *, by: Question, method: str, ttl_s: float | None
    ) -> OwnerRecord:
        """Records that the caller owns this task of MCP, which `by` created. `ttl_s` is how long the upstream stores
        it, if known. Raises Refusal: RESPONSE_REFUSED for an anonymous caller, for an id that is empty or too long, and
        if the id has another owner or question; TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
        claims = (TaskClaim("mcp", task_id),)
        return (await self.claimed(caller, server, claims, by=by, method=method, ttl_s=ttl_s))[0]

    async def claimed(
        self,
        caller: Caller,
        server: str,
        claims: Sequence[TaskClaim],
        *,
        by: Question,
        method: str,
        ttl_s: float | None = None,
    ) -> list[OwnerRecord]:
        """Records that the caller owns each of these, like `created`, in one step if the store supports it."""
        if caller.is_anonymous:
            raise Refusal(Reason.RESPONSE_REFUSED, "it creates a task for an anonymous caller")
        now_s = self.clock()
        expires_at, owner = self._expiry(now_s, ttl_s), caller.binding
        records = []
        for namespace, task_id, state, here, shown_as in claims:
            if not 0 < len(task_id) <= MAX_ID_CHARS:
                raise Refusal(Reason.RESPONSE_REFUSED, f"its task id is not of 1 to {MAX_ID_CHARS} characters")
            about = (owner, by.object, by.action, method, now_s, expires_at, state)
            records.append(OwnerRecord(namespace, server, task_id, *about, here=here, shown_as=shown_as))
        added = await self.store.add_all(records, self.bounds)
        for place, record in enumerate(records):
            if added[place] is not AddedRecord.KEPT:
                records[place] = await self._standing(record, added[place], ttl_s)
        return records

    async def _standing(self, record: OwnerRecord, added: AddedRecord, ttl_s: float | None) -> OwnerRecord:
        """Returns the stored record of a task that was not added, if it is the caller's for the same question. Raises
        Refusal."""
        if added is AddedRecord.FULL:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many tasks")
        standing = await self.store.get(record.id)
        if standing is None or standing[:7] != record[:7]:  # of another task, owner or question
            raise Refusal(Reason.RESPONSE_REFUSED, "its task id is taken")
        if ttl_s is None:
            await self.used(standing)
        return standing

    async def sent(self, record: OwnerRecord, at_agent: str) -> OwnerRecord:
        """Records the id at the agent of a task that the sidecar began. Raises Refusal: TASK_UNKNOWN,
        STORE_UNAVAILABLE."""
        for _ in range(AMENDED_TIMES):
            changed = record._replace(at_agent=at_agent, revision=record.revision + 1)
            if await self.store.replace(changed):
                return changed
            stands = await self.store.get(record.id)
            if stands is None or stands.owner != record.owner:
                raise Refusal(Reason.TASK_UNKNOWN)
            record = stands
        raise RecordStoreOut("the owner of a task is changed by too many calls at once")

    async def used(self, record: OwnerRecord) -> None:
        """Extends the record of a task in use, because it would otherwise expire and another caller could claim the id.
        Raises Refusal(STORE_UNAVAILABLE)."""
        expires_at = self._expiry(self.clock(), None)
        if record.expires_at < expires_at - self.keep_s / 2:  # not on every message of a conversation
            await self._amend(record, record.state, expires_at)

    async def is_anothers(self, owner: str, server: str, task_id: str, *, namespace: Namespace) -> bool:
        """Whether the task is recorded for another owner. Raises Refusal(STORE_UNAVAILABLE)."""
        return any(record.owner != owner for record in await self._found(namespace, server, (task_id,)))

    async def shown_as(
        self, owner: str, server: str, task_ids: Collection[str], *, namespace: Namespace
    ) -> Mapping[str, str]:
        """Returns those tasks of the owner that it knows by other ids, with these ids. Raises
        Refusal(STORE_UNAVAILABLE)."""
        found = await self._found(namespace, server, task_ids)
        return {record.task_id: record.shown_as for record in found if record.shown_as and record.owner == owner}

    async def saw(self, record: OwnerRecord, state: str, ttl_s: float | None) -> None:
        """Records the state that the upstream reported, if the task ended or its lifetime changed. Raises
        Refusal(STORE_UNAVAILABLE)."""
        expires_at = record.expires_at if ttl_s is None else self._expiry(record.created_at, ttl_s)
        ended = state if state in TERMINAL and not record.state else record.state
        if ended == record.state and abs(expires_at - record.expires_at) < 1.0:
            return
        await self._amend(record, ended, expires_at)

    async def _amend(self, record: OwnerRecord, state: str, expires_at: float) -> None:
        """Changes state and expiry of a record, unless it is gone or has another owner now. A final state stays."""
        for _ in range(AMENDED_TIMES):
            changed = record._replace(state=record.state or state, expires_at=expires_at, revision=record.revision + 1)
            if await self.store.replace(changed):
                return
            stands = await self.store.get(record.id)
            if stands is None or stands.owner != record.owner:
                return
            record = stands
        raise RecordStoreOut("the owner of a task is changed by too many calls at once")

    def _expiry(self, created_at: float, ttl_s: float | None) -> float:
        lasts_s = self.keep_s if ttl_s is None else min(self.keep_s, max(0.0, ttl_s) + GRACE_S)
        return created_at + lasts_s
