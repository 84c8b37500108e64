"""Records of each kind, and stores to keep them in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.agents.record import RUNS
from sidecar.agents.states import State as RunState
from sidecar.agents.states import Status
from sidecar.limits import open_store
from sidecar.loading import run_at
from sidecar.records import Added, Bounds, Kind, MemoryStore, Page, RedisStore, Share, SqliteStore, Store
from sidecar.settings.store import StoreSettings
from sidecar.task_api.records import TASKS, Step
from sidecar.task_api.records import State as TaskState
from tests.unit.agents.runs import run
from tests.unit.task_api.test_records import record as task
from tests.valkey import Valkey

ROOM, SHARE = Bounds(per_owner=3, total=5), Share()
ALL = Page(("researcher",))


class Sort(NamedTuple):
    """A kind of record, as these tests make some: new, seen to, and done. Each has its own standing."""

    kind: Kind[Any]
    made: Callable[..., Any]
    at_work: dict[str, Any]
    done: dict[str, Any]


SORTS = {
    "tasks": Sort(
        TASKS,
        task,
        {"state": TaskState.RUNNING, "step": Step.SENT},
        {"state": TaskState.COMPLETED, "step": Step.OVER},
    ),
    "runs": Sort(
        RUNS,
        run,
        {"state": RunState.RUNNING, "status": None},
        {"state": RunState.IDLE, "status": Status.SUCCESS},
    ),
}


class World(NamedTuple):
    """A store, and what is kept in it."""

    store: Store[Any]
    sort: Sort

    def made(self, name: str, owner: str = "alice", *, at: float = 0.0, until: float = 100.0, **more: Any) -> Any:
        return self.sort.made(id=name, owner=owner, created_at=at, expires_at=until, **more)

    def done(self, before: Any) -> Any:
        return after(before, **self.sort.done)

    def at_work(self, before: Any) -> Any:
        return after(before, **self.sort.at_work)

    async def add(self, name: str, owner: str = "alice", *, room: Bounds = ROOM, by: str = "me", **more: Any) -> Added:
        return await self.store.add(self.made(name, owner, **more), by, 10.0, room)

    async def page(self, owner: str | None, page: Page) -> tuple[list[str], int]:
        found, total = await self.store.page(owner, page)
        return [one.id for one in found], total


def after(before: Any, **more: Any) -> Any:
    return before._replace(revision=before.revision + 1, **more)


@asynccontextmanager
async def opened(how: str, kind: Kind[Any], tmp_path: Path, server: Callable[[], Valkey]) -> AsyncIterator[Store[Any]]:
    if how != "redis":
        yield MemoryStore() if how == "memory" else SqliteStore(tmp_path / "kept.sqlite", kind)
        return
    with server().client() as client:
        client.flushall()
    shared = open_store(StoreSettings(url=server().url, timeout=2.0), time.time)
    try:
        yield RedisStore(partial(run_at, shared), kind)
    finally:
        await shared.close()
