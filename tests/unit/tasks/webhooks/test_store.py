"""Does every store of callbacks keep the same promises? And does the file keep its own?"""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import SettingsError
from sidecar.limits import open_store
from sidecar.settings.store import StoreSettings
from sidecar.tasks.webhooks import (
    Delivery,
    DeliveryBounds,
    DeliveryStore,
    DeliveryStoreOut,
    MemoryDeliveryStore,
    OnBehalfOf,
    PendingDelivery,
    PushRecord,
    RedisPushStore,
    SqliteDeliveryStore,
    check_callback_file,
)
from sidecar.vocabulary import Caller, Credential, Principal
from tests.valkey import Valkey, running_valkey

BEHALF = OnBehalfOf(
    Caller((Principal("user:a", "local", frozenset("r"), frozenset("s")),), (Credential("api_key", key_id="k"),), 5.0),
    "planner",
    "search",
)
ROOM = DeliveryBounds(per_owner=3, total=5, total_bytes=10_000)


def callback(id_: str, owner: str = "alice", **more: Any) -> Delivery:
    made = Delivery(
        id_, "push", "ref", owner, "https://hooks.example/", 1.0, (("X-A", "1"), ("X-B", "2")), b"\x00{}", BEHALF
    )
    return made._replace(**more)


def push(handle: str, owner: str = "alice", **more: Any) -> PushRecord:
    made = PushRecord(
        handle,
        owner,
        "planner",
        "t",
        "c",
        "1.0",
        "https://h.example/",
        "tok",
        "Bearer",
        "x",
        "s",
        0.0,
        9.0,
        "search",
        BEHALF.caller,
    )
    return made._replace(**more)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@pytest.fixture(params=["memory", "file", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DeliveryStore]:
    path = tmp_path / "callbacks.sqlite"
    shared = open_store(StoreSettings(), time.time)
    made: DeliveryStore = MemoryDeliveryStore() if request.param == "memory" else SqliteDeliveryStore(path)
    if request.param == "redis":
        server = request.getfixturevalue("valkey")
        with server.client() as client:
            client.flushall()
        shared = open_store(StoreSettings(url=server.url), time.time)
        made = RedisPushStore(shared.run, made, lambda: b"k" * 32)
    yield made
    await made.close()
    await made.close()
    await shared.close()


# --- the contract -----------------------------------------------------------------------------------------------------


async def test_what_is_put_waits_in_its_order_until_it_has_ended(store: DeliveryStore) -> None:
    assert await store.waiting() == [] or await store.waiting() == ()
    assert await store.put(callback("b"), 5.0, ROOM)
    assert await store.put(callback("a"), 4.0, ROOM)
    assert await store.get("b") == callback("b")
    assert await store.get("c") is None
    first = PendingDelivery("b", "push", "ref", "alice", "https://hooks.example/", 1.0, 0, 5.0)
    assert list(await store.waiting()) == [first, first._replace(id="a", due_at=4.0)]
    await store.again("b", 2, 70.0)
    await store.again("unknown", 2, 70.0)
    await store.ended(["a", "unknown"])
    assert list(await store.waiting()) == [first._replace(attempts=2, due_at=70.0)]
    await store.ended(["b"])
    assert list(await store.waiting()) == []


async def test_there_is_room_for_so_many_of_each_and_of_all_and_so_much(store: DeliveryStore) -> None:
    assert [await store.put(callback(f"a{n}"), 0.0, ROOM) for n in range(4)] == [True] * 3 + [False]
    assert [await store.put(callback(f"b{n}", "bob"), 0.0, ROOM) for n in range(3)] == [True] * 2 + [False]
    await store.ended(["a0", "a1"])
    assert not await store.put(callback("big", body=b"x" * 10_000), 0.0, ROOM)
    assert await store.put(callback("a4"), 0.0, ROOM)


async def test_a_push_configuration_is_found_by_its_handle_until_it_is_over(store: DeliveryStore) -> None:
    assert await store.push("h", 1.0) is None
    assert list(await store.pushes_of("alice", "planner", "t", 1.0)) == []
    assert await store.keep_push(push("h"), 2, 3)
    assert await store.push("h", 8.9) == push("h")
    assert await store.push("h", 9.0) is None
    assert list(await store.pushes_of("alice", "planner", "t", 1.0)) == [push("h")]
    for other in (
        ("bob", "planner", "t"),
        ("alice", "other", "t"),
        ("alice", "planner", "u"),
        ("alice", "planner", ""),
    ):
        assert list(await store.pushes_of(*other, 1.0)) == []
    assert await store.sweep(8.9) == 0
    assert (await store.sweep(9.0), await store.sweep(9.0)) == (1, 0)


async def test_there_is_room_for_so_many_configurations(store: DeliveryStore) -> None:
    assert [await store.keep_push(push(f"a{n}"), 2, 3) for n in range(3)] == [True, True, False]
    assert [await store.keep_push(push(f"b{n}", "bob"), 2, 3) for n in range(2)] == [True, False]
    await store.forget_pushes(["a0", "unknown"])
    assert await store.push("a0", 1.0) is None
    assert await store.keep_push(push("a3"), 2, 3)


async def test_the_newest_of_a_name_is_the_one_that_counts(store: DeliveryStore) -> None:
    for record in (push("1"), push("2", "bob"), push("3", task_id="", config_id=""), push("4", config_id="d")):
        assert await store.keep_push(record, 10, 10)
    assert list(await store.name_push("3", "t", "c")) == ["1"]
    assert list(await store.name_push("unknown", "t", "c")) == []
    assert {record.handle for record in await store.pushes_of("alice", "planner", "t", 1.0)} == {"3", "4"}
    assert await store.push("2", 1.0) is not None, "another's of the same name is another's"


async def test_a_configuration_is_bound_to_one_task_for_good(store: DeliveryStore) -> None:
    assert await store.bind_push("h", "t-1") == ""
    await store.keep_push(push("h", task_id=""), 10, 10)
    bound = await asyncio.gather(*(store.bind_push("h", f"t-{n}") for n in range(20)))
    [task_id] = set(bound)
    record = await store.push("h", 1.0)
    assert record is not None and record.task_id == task_id


# --- what replicas share ----------------------------------------------------------------------------------------------


async def test_what_a_caller_proves_itself_with_is_sealed_to_those_who_have_the_key(
    valkey: Valkey, tmp_path: Path
) -> None:
    with valkey.client() as client:
        client.flushall()
        shared = open_store(StoreSettings(url=valkey.url), time.time)
        here = MemoryDeliveryStore()
        one, other, stranger = (
            RedisPushStore(shared.run, here, lambda key=key: key) for key in (b"k" * 32, b"k" * 32, b"x" * 32)
        )
        kept = push("h1", token="t0ken-of-the-caller", credentials="s3cret", secret="0urs")
        assert await one.keep_push(kept, 9, 9)
        assert await other.push("h1", 1.0) == kept
        assert await stranger.push("h1", 1.0) is None and await stranger.pushes_of("alice", "planner", "t", 1.0) == []
        held = "".join("".join(client.hgetall(key).values()) for key in client.keys("*push:*"))
        assert held and not any(word in held for word in ("t0ken", "s3cret", "0urs", "h.example"))
        (name,) = client.keys("*push:*")
        client.rename(name, name[:-2] + "h2")  # whoever owns the store gives one caller's to another handle
        client.zadd("{sidecar}:a2a-pushes:all", {"h2": 99})
        assert await one.push("h2", 1.0) is None
        client.hset(name[:-2] + "h2", "body", "é")
        assert await one.push("h2", 1.0) is None
        await shared.close()


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_the_file_is_made_with_the_first_that_is_kept_and_for_us_alone(tmp_path: Path) -> None:
    store = SqliteDeliveryStore(tmp_path / "callbacks.sqlite")
    assert (await store.waiting(), await store.sweep(0.0), await store.push("h", 0.0)) == ((), 0, None)
    assert list(tmp_path.iterdir()) == []
    await store.put(callback("1"), 0.0, ROOM)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    await store.close()
    again = SqliteDeliveryStore(tmp_path / "callbacks.sqlite")
    assert await again.get("1") == callback("1")
    check_callback_file(tmp_path / "callbacks.sqlite")
    await again.close()


async def test_a_file_that_is_held_is_a_store_that_is_out(tmp_path: Path) -> None:
    first = SqliteDeliveryStore(tmp_path / "c")
    await first.put(callback("1"), 0.0, ROOM)
    await first.close()
    store = SqliteDeliveryStore(tmp_path / "c", deadline_s=0.1)
    with closing(sqlite3.connect(tmp_path / "c", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DeliveryStoreOut):
            await store.put(callback("2"), 0.0, ROOM)
        assert not store.up
        holder.execute("ROLLBACK")
    await store.close()


async def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "callbacks.sqlite"
    check_callback_file(path)
    path.write_bytes(b"x" * 200)
    with pytest.raises(SettingsError, match="H102"):
        check_callback_file(path)
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE tasks (a)")
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(SettingsError, match="something else"):
        check_callback_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(SettingsError, match="H103"):
        check_callback_file(path)


def test_what_proves_somebody_is_never_printed() -> None:
    for told in (repr(callback("1")), repr(push("h")), str(push("h"))):
        assert "tok" not in told and "X-A" not in told and "hooks" not in told
