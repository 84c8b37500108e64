"""Do deliveries wait in their order, within their bounds, until they have ended?"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.storage import SqliteFile
from sidecar.storage.deliveries import Delivery, DeliveryBounds, DeliveryStore, OnBehalfOf, PendingDelivery
from tests.unit.storage.worlds import CALLER, push_record

ROOM = DeliveryBounds(per_owner=3, total=5, total_bytes=10_000)
URL = "https://hooks.example/"


def delivery(id_: str, owner: str = "alice", **more: Any) -> Delivery:
    headers, behalf = (("X-A", "1"), ("X-B", "2")), OnBehalfOf(CALLER, "planner", "search")
    return Delivery(id_, "push", "ref", owner, URL, 1.0, headers, b"\x00{}", behalf)._replace(**more)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DeliveryStore]:
    file = SqliteFile(tmp_path / "f")
    yield DeliveryStore(file)
    await file.close()


async def test_what_is_put_waits_in_its_order_until_it_has_ended(store: DeliveryStore, tmp_path: Path) -> None:
    assert await store.waiting() == [] and not (tmp_path / "f").exists()
    assert await store.put(delivery("b"), 5.0, ROOM)
    assert await store.put(delivery("a"), 4.0, ROOM)
    assert await store.get("b") == delivery("b")
    assert await store.get("c") is None
    first = PendingDelivery("b", "push", "ref", "alice", URL, 1.0, 0, 5.0)
    assert list(await store.waiting()) == [first, first._replace(id="a", due_at=4.0)]
    await store.again("b", 2, 70.0)
    await store.again("unknown", 2, 70.0)
    await store.ended(["a", "unknown"])
    assert list(await store.waiting()) == [first._replace(attempts=2, due_at=70.0)]
    await store.ended(["b"])
    assert list(await store.waiting()) == []


async def test_there_is_room_for_so_many_of_each_and_of_all_and_so_much(store: DeliveryStore) -> None:
    assert [await store.put(delivery(f"a{n}"), 0.0, ROOM) for n in range(4)] == [True] * 3 + [False]
    assert [await store.put(delivery(f"b{n}", "bob"), 0.0, ROOM) for n in range(3)] == [True] * 2 + [False]
    await store.ended(["a0", "a1"])
    assert not await store.put(delivery("big", body=b"x" * 10_000), 0.0, ROOM)
    assert await store.put(delivery("a4"), 0.0, ROOM)


def test_what_proves_a_caller_is_never_printed() -> None:
    assert str(delivery("1")) == "Delivery('1', 'push')"
    assert str(push_record("h")) == repr(push_record("h")) == "PushRecord('planner')"
