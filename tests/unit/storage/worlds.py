"""Records of each kind, and stores to keep them in."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.limits import open_store
from sidecar.settings.store import StoreSettings
from sidecar.storage import AddedRecord, RecordBounds, RecordKind, RecordPage, RecordShare, RecordStore, RecordStores
from sidecar.storage.push_configs import PushRecord
from sidecar.storage.task_owners import OwnerRecord
from sidecar.tasks.api.task_record import TASKS, TaskState as TaskState, TaskStep
from sidecar.tasks.programs.run_record import RUNS, RunState as RunState, RunStatus
from sidecar.vocabulary import Caller, Credential, Principal
from tests.unit.tasks.api.test_task_record import record as task
from tests.unit.tasks.programs.runs import run
from tests.valkey import Valkey

ROOM, SHARE = RecordBounds(per_owner=3, total=5), RecordShare()
ALL = RecordPage(("researcher",))


class Sort(NamedTuple):
    """A kind of record, as these tests make some: new, seen to, and done. Each has its own standing."""

    kind: RecordKind[Any]
    made: Callable[..., Any]
    at_work: dict[str, Any]
    done: dict[str, Any]


SORTS = {
    "tasks": Sort(
        TASKS,
        task,
        {"state": TaskState.RUNNING, "step": TaskStep.SENT},
        {"state": TaskState.COMPLETED, "step": TaskStep.OVER},
    ),
    "runs": Sort(
        RUNS, run, {"state": RunState.RUNNING, "status": None}, {"state": RunState.IDLE, "status": RunStatus.SUCCESS}
    ),
}


CALLER = Caller((Principal("user:a", "local", frozenset("r"), frozenset("s")),), (Credential("api_key"),), 5.0)


def owner_record(id: str, owner: str = "alice", **more: Any) -> OwnerRecord:
    question = ("tool:github/x", "tools/call", "tools/call", 0.0, 100.0)
    return OwnerRecord("mcp", "github", id, owner, *question)._replace(**more)


def push_record(id: str, owner: str = "alice", **more: Any) -> PushRecord:
    about = ("planner", "t", "c", "1.0", "https://h.example/", "t0ken-of-the-caller", "Bearer", "s3cret", "0urs")
    return PushRecord(id, owner, *about, 0.0, 9.0, "search", CALLER)._replace(**more)


class World(NamedTuple):
    """A store, and what is kept in it."""

    store: RecordStore[Any]
    sort: Sort

    def made(self, name: str, owner: str = "alice", *, at: float = 0.0, until: float = 100.0, **more: Any) -> Any:
        return self.sort.made(id=name, owner=owner, created_at=at, expires_at=until, **more)

    def done(self, before: Any) -> Any:
        return after(before, **self.sort.done)

    def at_work(self, before: Any) -> Any:
        return after(before, **self.sort.at_work)

    async def add(
        self, name: str, owner: str = "alice", *, room: RecordBounds = ROOM, by: str = "me", **more: Any
    ) -> AddedRecord:
        return await self.store.add(self.made(name, owner, **more), by, 10.0, room)

    async def add_done(self, name: str, owner: str = "alice", **more: Any) -> None:
        assert await self.add(name, owner, **more) is AddedRecord.KEPT
        assert await self.store.replace(self.done(await self.store.get(name)))

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[str], int]:
        found, total = await self.store.page(owner, page)
        return [one.id for one in found], total


def after(before: Any, **more: Any) -> Any:
    return before._replace(revision=before.revision + 1, **more)


@asynccontextmanager
async def stores(how: Any, folder: Path, server: Callable[[], Valkey]) -> AsyncIterator[RecordStores]:
    """All stores of a sidecar whose data folder this is."""
    settings = StoreSettings()
    if how == "redis":
        settings = StoreSettings(url=server().url, timeout=2.0)
        with server().client() as client:
            client.flushall()
    shared = open_store(settings, time.time)
    opened = RecordStores.open(how, folder / "records.sqlite", shared.run)
    try:
        yield opened
    finally:
        await opened.close()
        await opened.close()
        await shared.close()
