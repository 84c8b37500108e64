"""Does every store of task records keep the same promises? And does the file keep its own?"""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sidecar.errors import SettingsError
from sidecar.limits import open_store
from sidecar.settings.store import StoreSettings
from sidecar.storage.task_owners import (
    MemoryOwnerStore,
    OwnerBounds,
    OwnerRecord,
    OwnerStore,
    OwnerStoreOut,
    RedisOwnerStore,
    SqliteOwnerStore,
    check_task_file,
)
from tests.valkey import Valkey, running_valkey

ROOM = OwnerBounds(per_owner=3, total=5)


def record(task_id: str, owner: str = "alice", *, at: float = 0.0, until: float = 100.0, **more: Any) -> OwnerRecord:
    made = OwnerRecord("mcp", "github", task_id, owner, "tool:github/x", "tools/call", "tools/call", at, until)
    return made._replace(**more)


def by_age(one: OwnerRecord) -> float:
    return one.created_at


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@pytest.fixture(params=["memory", "file", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OwnerStore]:
    shared = open_store(StoreSettings(), time.time)
    made: OwnerStore = MemoryOwnerStore() if request.param == "memory" else SqliteOwnerStore(tmp_path / "tasks.sqlite")
    if request.param == "redis":
        server = request.getfixturevalue("valkey")
        with server.client() as client:
            client.flushall()
        shared = open_store(StoreSettings(url=server.url, timeout=2.0), time.time)
        made = RedisOwnerStore(shared.run)
    yield made
    await made.close()
    await made.close()
    await shared.close()


# --- the contract -----------------------------------------------------------------------------------------------------


async def test_what_is_kept_is_found_by_its_whole_name(store: OwnerStore) -> None:
    kept = record("1")
    assert await store.claim(kept, ROOM) == kept
    assert await store.find("mcp", "github", ["1", "2"], 1.0) == [kept]
    for elsewhere in (
        ("a2a", "github", ["1"]),
        ("mcp", "jira", ["1"]),
        ("mcp", "github", ["2"]),
        ("mcp", "github", []),
    ):
        assert await store.find(*elsewhere, 1.0) == []


async def test_the_first_who_claims_an_id_has_it_as_long_as_it_lasts(store: OwnerStore) -> None:
    first = record("1")
    await store.claim(first, ROOM)
    assert await store.claim(record("1", "bob", at=99.0), ROOM) == first
    assert await store.find("mcp", "github", ["1"], 100.0) == [], "over is over, swept or not"
    later = record("1", "bob", at=100.0, until=200.0)
    assert await store.claim(later, ROOM) == later


async def test_of_many_who_claim_at_once_one_has_it(store: OwnerStore) -> None:
    claims = await asyncio.gather(*(store.claim(record("1", f"owner {n}"), ROOM) for n in range(50)))
    assert len({claim and claim.owner for claim in claims}) == 1


async def test_an_end_is_final_and_only_the_owners_record_changes(store: OwnerStore) -> None:
    await store.claim(record("1"), ROOM)
    await store.amend(record("1", until=50.0, state="completed"))
    await store.amend(record("1", until=70.0, state="failed"))
    await store.amend(record("1", "bob", until=999.0, state="failed"))
    await store.amend(record("unknown", state="failed"))
    assert await store.find("mcp", "github", ["1", "unknown"], 1.0) == [record("1", until=70.0, state="completed")]


async def test_the_oldest_of_an_owner_gives_way_and_first_one_that_ended(store: OwnerStore) -> None:
    for at, task_id in enumerate("abc"):
        await store.claim(record(task_id, at=at), ROOM)
    await store.amend(record("b", state="cancelled"))
    await store.claim(record("d", at=4.0), ROOM)
    await store.claim(record("e", at=5.0), ROOM)
    assert sorted(found.task_id for found in await store.find("mcp", "github", list("abcde"), 6.0)) == ["c", "d", "e"]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_one_gives_way_at_a_time_and_none_that_goes_on_before_one_that_ended(
    store: OwnerStore, seed: int
) -> None:
    dice, there = Random(seed), dict[str, OwnerRecord]()
    for at in range(120):
        task_id = str(at)
        await store.claim(record(task_id, at=at, until=1_000.0, state=dice.choice(["", "", "failed"])), ROOM)
        found = {one.task_id: one for one in await store.find("mcp", "github", [*there, task_id], at)}
        gone = [there[each] for each in there.keys() - found.keys()]
        assert task_id in found and len(found) == min(ROOM.per_owner, len(there) + 1) and len(gone) <= 1
        ended = [one for one in there.values() if one.state]
        assert all(one.state or (not ended and one == min(there.values(), key=by_age)) for one in gone)
        ends = dice.choice(list(found))
        await store.amend(found[ends]._replace(state=dice.choice(["", "completed"])))
        there = {one.task_id: one for one in await store.find("mcp", "github", list(found), at)}


async def test_beyond_the_bound_of_all_nothing_new_is_kept(store: OwnerStore) -> None:
    for number in range(ROOM.total):
        assert await store.has_room(ROOM)
        assert await store.claim(record(str(number), f"owner {number}"), ROOM)
    assert not await store.has_room(ROOM)
    assert await store.claim(record("more", "bob"), ROOM) is None
    assert await store.claim(record("0", "owner 0"), ROOM) is not None, "what is there already is no more"


async def test_beyond_the_bound_of_all_what_ended_gives_way_of_who_has_most_of_it(store: OwnerStore) -> None:
    """Nobody's many keep another out, nor what is theirs from being found."""
    room = OwnerBounds(per_owner=4, total=6)
    for at, (task_id, owner) in enumerate([("a1", "alice"), ("f1", "flooder"), ("f2", "flooder"), ("f3", "flooder")]):
        await store.claim(record(task_id, owner, at=at), room)
        await store.amend(record(task_id, owner, state="completed"))
    for task_id in ("l1", "l2"):
        await store.claim(record(task_id, "flooder" if task_id == "l1" else "other", at=5.0), room)
    for at, (task_id, owner, there) in enumerate(
        [
            ("n1", "new", ["a1", "f2", "f3", "l1", "l2", "n1"]),
            ("n2", "new", ["a1", "f3", "l1", "l2", "n1", "n2"]),
        ]
    ):
        assert await store.has_room(room)
        assert await store.claim(record(task_id, owner, at=6.0 + at), room)
        found = await store.find("mcp", "github", ["a1", "f1", "f2", "f3", "l1", "l2", "n1", "n2"], 9.0)
        assert sorted(one.task_id for one in found) == there
    for number in range(2):
        assert await store.claim(record(f"x{number}", f"x{number}", at=8.0), room), "one each is left"
    assert not await store.has_room(room) and await store.claim(record("y", "y", at=9.0), room) is None
    assert await store.claim(record("n3", "new", at=10.0), room._replace(per_owner=2)), "who has as many as one may"
    assert [one.task_id for one in await store.find("mcp", "github", ["n1", "n2", "n3"], 11.0)] == ["n2", "n3"]


async def test_what_is_over_is_swept(store: OwnerStore) -> None:
    assert await store.sweep(0.0) == 0
    for number in range(3):
        await store.claim(record(str(number), f"owner {number}", until=10.0 * number + 10), ROOM)
    assert (await store.sweep(20.0), await store.sweep(20.0)) == (2, 0)
    assert [found.task_id for found in await store.find("mcp", "github", list("012"), 20.0)] == ["2"]


@pytest.mark.parametrize("task_id", ["é\u4e2d\U0001f600", "' OR 1=1 --", '"', "a\nb", "x" * 1024, " ", "\x01", "[1]"])
async def test_an_id_is_any_text(store: OwnerStore, task_id: str) -> None:
    await store.claim(record(task_id), ROOM)
    assert await store.find("mcp", "github", [task_id, task_id + " "], 1.0) == [record(task_id)]


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_the_file_is_made_with_the_first_question_and_for_us_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = SqliteOwnerStore(tmp_path / "tasks.sqlite")
        await store.sweep(0.0)
        assert list(tmp_path.iterdir()) == []
        await store.claim(record("1"), ROOM)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {"tasks.sqlite": 0o600, "tasks.sqlite-shm": 0o600, "tasks.sqlite-wal": 0o600}
        await store.close()
    finally:
        os.umask(old)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from random import Random
from tests.valkey import Valkey, running_valkey
from sidecar.storage.task_owners import RedisOwnerStore as RedisTaskStore
from sidecar.storage.task_owners import OwnerBounds as Bounds, SqliteOwnerStore as SqliteTaskStore
from tests.unit.storage.task_owners.test_store import record
async def main():
    await SqliteTaskStore(Path(sys.argv[1])).claim(record("1"), Bounds())
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_what_was_kept_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=20)
    assert done.returncode == -9
    check_task_file(path)
    store = SqliteOwnerStore(path)
    assert await store.find("mcp", "github", ["1"], 1.0) == [record("1")]
    await store.close()


async def test_two_processes_may_have_the_same_file(tmp_path: Path) -> None:
    one, other = SqliteOwnerStore(tmp_path / "t"), SqliteOwnerStore(tmp_path / "t")
    claims = await asyncio.gather(
        *(
            store.claim(record(str(n), f"{n} {store is one}"), OwnerBounds())
            for n in range(20)
            for store in (one, other)
        )
    )
    assert len({claim for claim in claims if claim}) == 20
    await one.close()
    await other.close()


async def test_a_file_that_is_held_is_a_store_that_is_out_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    patient, store = SqliteOwnerStore(path), SqliteOwnerStore(path, deadline_s=0.1)
    await patient.claim(record("1"), ROOM)
    await patient.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OwnerStoreOut):
            await store.find("mcp", "github", ["1"], 1.0)
        assert not store.up
        holder.execute("ROLLBACK")
    for _ in range(50):
        try:
            assert await store.find("mcp", "github", ["1"], 1.0) == [record("1")]
            break
        except OwnerStoreOut:
            await asyncio.sleep(0.05)
    assert store.up
    await store.close()


async def test_a_folder_that_is_gone_is_a_store_that_is_out(tmp_path: Path) -> None:
    store = SqliteOwnerStore(tmp_path / "none" / "tasks.sqlite")
    with pytest.raises(OwnerStoreOut):
        await store.has_room(ROOM)
    assert not store.up
    await store.close()
    with pytest.raises(OwnerStoreOut):
        await store.has_room(ROOM)


async def test_a_record_without_an_owner_cannot_be_written(tmp_path: Path) -> None:
    store = SqliteOwnerStore(tmp_path / "tasks.sqlite")
    with pytest.raises(OwnerStoreOut):
        await store.claim(record("1", ""), ROOM)
    await store.close()


async def test_a_file_of_something_else_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    for made in ("CREATE TABLE tasks (title)", "CREATE TABLE tasks (title); PRAGMA user_version = 1"):
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(made)
        with pytest.raises(SettingsError, match="holds something else than tasks"):
            check_task_file(path)
    path.unlink()
    store = SqliteOwnerStore(path)
    await store.claim(record("1"), ROOM)
    await store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    with pytest.raises(SettingsError, match=r"T101.*is damaged"):
        check_task_file(path)
    assert sorted(tmp_path.iterdir()) == [path]  # looking at it left nothing beside it


async def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    check_task_file(path)
    path.write_bytes(b"")
    check_task_file(path)
    store = SqliteOwnerStore(path)
    await store.claim(record("1"), ROOM)
    check_task_file(path)  # while it is in use
    await store.close()
    whole = path.read_bytes()
    for content, code in ((b"{}", "T101"), (b"x" * 200, "T101"), (whole[:50], "T101")):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=code):
            check_task_file(path)
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(SettingsError, match="newer version"):
        check_task_file(path)
    newer = SqliteOwnerStore(path)
    with pytest.raises(OwnerStoreOut):
        await newer.has_room(ROOM)
    await newer.close()


async def test_a_record_of_a_neighbouring_version_is_one(valkey: Valkey) -> None:
    """It has a member more; what this one changes of it leaves that be."""
    with valkey.client() as client:
        client.flushall()
        shared = open_store(StoreSettings(url=valkey.url, timeout=2.0), time.time)
        store = RedisOwnerStore(shared.run)
        kept = record("1")
        await store.claim(kept, ROOM)
        (name,) = client.keys("*:task:*")
        client.hset(name, "priority", "high")
        assert await store.find("mcp", "github", ["1"], 1.0) == [kept]
        await store.amend(kept._replace(expires_at=50.0))
        assert client.hget(name, "priority") == "high"
        assert await store.find("mcp", "github", ["1"], 51.0) == []
        await shared.close()
