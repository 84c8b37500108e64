"""Does every store of tasks keep the same promises? And does the file keep its own?"""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.limits import open_store
from sidecar.loading import run_at
from sidecar.settings.store import StoreSettings
from sidecar.task_api.memory import MemoryStore
from sidecar.task_api.records import Record, State, Step
from sidecar.task_api.redis import RedisStore
from sidecar.task_api.sqlite import SqliteStore, check_file
from sidecar.task_api.store import Bounds, Page, Share, Store, StoreOut
from tests.unit.task_api.test_records import record
from tests.valkey import Valkey, running_valkey

ROOM, SHARE = Bounds(per_owner=3, total=5), Share()
ALL = Page(("researcher",))


def made(task_id: str, owner: str = "alice", *, at: float = 0.0, until: float = 100.0) -> Record:
    return record(id=task_id, owner=owner, created_at=at, expires_at=until)


def after(before: Record, **more: object) -> Record:
    return before._replace(revision=before.revision + 1, **more)  # type: ignore[arg-type]


def over(before: Record) -> Record:
    return after(before, state=State.COMPLETED, step=Step.OVER, started_at=1.0, completed_at=2.0)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@asynccontextmanager
async def opened(kind: str, tmp_path: Path, server: Callable[[], Valkey]) -> AsyncIterator[Store]:
    if kind != "redis":
        yield MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "a2a-tasks.sqlite")
        return
    with server().client() as client:
        client.flushall()
    shared = open_store(StoreSettings(url=server().url), time.time)
    try:
        yield RedisStore(partial(run_at, shared))
    finally:
        await shared.close()


@pytest.fixture(params=["memory", "file", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path, lambda: request.getfixturevalue("valkey")) as kept:
        yield kept
        await kept.close()
        await kept.close()


async def test_what_is_kept_is_found(store: Store) -> None:
    assert await store.take("me", 0.0, 1.0, SHARE) == []
    assert await store.get("1") is None
    assert await store.add(made("1"), "me", 10.0, ROOM)
    assert await store.get("1") == made("1")
    assert await store.counts() == {"pending": 1}


async def test_of_two_who_change_one_revision_the_first_has_it(store: Store) -> None:
    await store.add(made("1"), "me", 10.0, ROOM)
    changes = [after(made("1"), a2a_task=f"t{n}") for n in range(20)]
    assert sum(await asyncio.gather(*map(store.replace, changes))) == 1
    assert not await store.replace(after(made("1")))
    assert not await store.replace(after(made("unknown")))


async def test_a_page_holds_an_owners_own_newest_first(store: Store) -> None:
    for at, task_id in enumerate("abc"):
        await store.add(made(task_id, at=at), "me", 10.0, ROOM)
    await store.add(made("d", "bob"), "me", 10.0, ROOM)
    await store.replace(over(made("b", at=1)))
    found, total = await store.page("alice", ALL)
    assert ([one.id for one in found], total) == (["c", "b", "a"], 3)
    found, total = await store.page("alice", ALL._replace(limit=1, offset=1))
    assert ([one.id for one in found], total) == (["b"], 3)
    found, total = await store.page("alice", ALL._replace(state=State.COMPLETED))
    assert ([one.id for one in found], total) == (["b"], 1)
    assert await store.page("alice", Page(("writer",))) == ([], 0)
    assert await store.page("alice", Page(())) == ([], 0)
    assert await store.page("carol", ALL) == ([], 0)


async def test_an_owner_has_room_as_long_as_something_of_theirs_is_over(store: Store) -> None:
    for task_id in "abc":
        assert await store.add(made(task_id), "me", 10.0, ROOM)
    assert not await store.add(made("d"), "me", 10.0, ROOM)
    await store.replace(over(made("b")))
    assert await store.add(made("d"), "me", 10.0, ROOM)
    assert await store.get("b") is None
    assert await store.add(made("x", "bob"), "me", 10.0, ROOM) and await store.add(made("y", "bob"), "me", 10.0, ROOM)
    assert not await store.add(made("z", "carol"), "me", 10.0, ROOM), "as many as there may be in all"


async def test_what_nobody_holds_any_more_is_taken_by_one(store: Store) -> None:
    for task_id in "abc":
        await store.add(made(task_id), "one", 10.0, ROOM)
    await store.replace(over(made("b")))
    assert await store.take("two", 5.0, 20.0, SHARE) == []
    assert {one.id for one in await store.take("one", 5.0, 12.0, SHARE)} == {"a", "c"}, "what is mine is mine again"
    assert await store.take("two", 11.0, 20.0, SHARE) == []
    taken = await asyncio.gather(*(store.take(f"n{n}", 13.0, 20.0, Share(1, 1)) for n in range(5)))
    assert sorted(one.id for some in taken for one in some) == ["a", "c"]
    await store.let_go("n0")
    await store.let_go("n1")
    assert {one.id for one in await store.take("two", 13.0, 20.0, SHARE)} == {"a", "c"}


async def test_who_held_it_by_a_clock_that_was_hours_ahead_holds_it_no_more(store: Store) -> None:
    await store.add(made("a"), "ahead", 50_000.0, ROOM)
    await store.add(made("b"), "somewhat ahead", 24.0, ROOM)
    assert [one.id for one in await store.take("two", 5.0, 15.0, SHARE)] == ["a"]


async def test_nobody_takes_more_of_one_owner_than_their_share(store: Store) -> None:
    room = Bounds(10, 20)
    for n in range(6):
        await store.add(made(f"a{n}", at=float(n)), "me" if n > 3 else "", 0.0, room)
    await store.add(made("b0", "bob", at=9.0), "", 0.0, room)
    taken = await store.take("me", 5.0, 12.0, Share(total=4, per_owner=3))
    assert [one.id for one in taken] == ["a4", "a5", "a0", "b0"], "what is mine first, then the oldest"
    assert [one.id for one in await store.take("me", 5.0, 12.0, Share(total=2, per_owner=3))] == ["a0", "a4"]
    assert {one.id for one in await store.take("two", 5.0, 12.0, SHARE)} == {"a1", "a2", "a3"}


async def test_what_cannot_be_read_is_no_other_tasks_trouble(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer version may have put it there, as replicas do where they are changed one after the other."""
    await store.add(made("good"), "me", 10.0, ROOM)
    if isinstance(store, MemoryStore):
        return
    for module in ("redis", "sqlite"):
        monkeypatch.setattr(f"sidecar.task_api.{module}.encoded", lambda _: b'{"state": "paused"}')
    await store.add(made("odd"), "me", 10.0, ROOM)
    assert [one.id for one in await store.take("me", 5.0, 12.0, SHARE)] == ["good"]
    assert [one.id for one in (await store.page("alice", ALL))[0]] == ["good"]
    with pytest.raises(StoreOut):
        await store.get("odd")


async def test_what_is_over_is_forgotten_in_its_time_and_what_is_not_never(store: Store) -> None:
    await store.add(made("a", until=10.0), "me", 10.0, ROOM)
    await store.add(made("b", until=10.0), "me", 10.0, ROOM)
    await store.replace(over(made("a", until=10.0)))
    assert await store.sweep(9.0) == 0
    assert await store.sweep(10.0) == 1
    assert await store.get("a") is None and await store.get("b") is not None
    assert await store.counts() == {"pending": 1}


async def test_a_server_that_is_gone_is_a_store_that_is_out() -> None:
    shared = open_store(StoreSettings(url="unix:///nowhere.sock"), time.time)
    store = RedisStore(partial(run_at, shared))
    with pytest.raises(StoreOut):
        await store.get("1")
    assert not store.up
    await shared.close()


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_a_file_is_there_with_its_first_task_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a2a-tasks.sqlite"
    store = SqliteStore(path)
    assert await store.counts() == {} and await store.sweep(1.0) == 0
    await store.let_go("me")
    assert not path.exists()
    await store.add(made("1"), "me", 10.0, ROOM)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await store.close()
    check_file(path)
    again = SqliteStore(path)
    assert await again.get("1") == made("1")
    await again.close()


async def test_a_file_that_is_none_stops_the_start_and_is_out_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "a2a-tasks.sqlite"
    path.write_text("something else" * 20)
    with pytest.raises(SettingsError, match="T103"):
        check_file(path)
    store = SqliteStore(path)
    with pytest.raises(StoreOut):
        await store.get("1")
    assert not store.up
    await store.close()
