"""Does the file keep what it promised, to each of those who write at once?"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.storage.sqlite_file import MAX_WAITING, SqliteFile, SqliteFormat
from sidecar.storage.task_owners import OwnerBounds, OwnerRecord, SqliteOwnerStore

FORMAT = SqliteFormat("CREATE TABLE said (word TEXT NOT NULL);", 1, {"said": ("word",)})


class Out(Exception):
    """The file is out."""


def said(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [word for (word,) in connection.execute("SELECT word FROM said ORDER BY rowid")]


def saying(word: str | None) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: connection.execute("INSERT INTO said VALUES (?)", (word,)).rowcount


async def test_what_waits_for_a_busy_disk_is_one_transaction(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "f", FORMAT, Out, name="f")
    go = threading.Event()

    def counted(connection: sqlite3.Connection) -> int:
        return connection.execute("INSERT INTO said SELECT count(*) FROM said").rowcount

    first = asyncio.ensure_future(file.run(lambda connection: go.wait(5)))
    await asyncio.sleep(0.05)
    begun: list[bool] = []

    def begins(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(lambda statement: begun.append(True) if statement.startswith("BEGIN") else None)

    rest = [asyncio.ensure_future(file.run(work)) for work in (begins, *[counted] * 50)]
    await asyncio.sleep(0)
    go.set()
    assert await first and await asyncio.gather(*rest) == [None, *[1] * 50]
    await file.run(counted)
    assert len(begun) == 1, "fifty were one transaction, which had begun before; the last one was its own"
    assert said(tmp_path / "f") == [str(number) for number in range(51)]
    await file.close()


async def test_who_fails_fails_alone_and_the_others_are_kept_once(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "f", FORMAT, Out, name="f")
    words = [None if number % 7 == 3 else str(number) for number in range(60)]
    ends = await asyncio.gather(*(file.run(saying(word)) for word in words), return_exceptions=True)
    for word, end in zip(words, ends, strict=True):
        assert isinstance(end, Out) if word is None else end == 1
    assert said(tmp_path / "f") == [word for word in words if word is not None]
    await file.close()


async def test_who_does_not_wait_any_more_writes_nothing(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "f", FORMAT, Out, name="f")
    go = threading.Event()
    first = asyncio.ensure_future(file.run(lambda connection: go.wait(5)))
    await asyncio.sleep(0.05)
    gone, stays = (asyncio.ensure_future(file.run(saying(word))) for word in ("gone", "stays"))
    await asyncio.sleep(0)
    gone.cancel()
    go.set()
    await first
    assert await stays == 1 and said(tmp_path / "f") == ["stays"]
    await file.close()


async def test_too_many_are_told_at_once_and_who_waits_at_a_closed_file_too(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "f", FORMAT, Out, name="f")
    go = threading.Event()
    first = asyncio.ensure_future(file.run(lambda connection: go.wait(5)))
    await asyncio.sleep(0.05)
    waiting = [asyncio.ensure_future(file.run(saying("w"))) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Out, match="too many"):
        await file.run(saying("more"))
    closing_it = asyncio.ensure_future(file.close())
    await asyncio.sleep(0)
    go.set()
    await closing_it
    ends = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert ends[0] is True and all(end == 1 or isinstance(end, Out) for end in ends[1:])
    assert len(said(tmp_path / "f")) == sum(end == 1 for end in ends[1:])


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_held_is_what_there_is_whatever_happened(tmp_path: Path, seed: int) -> None:
    dice, bounds = random.Random(seed), OwnerBounds(per_owner=5, total=12)
    store, now = SqliteOwnerStore(tmp_path / "tasks.sqlite"), 0.0
    for _ in range(200):
        now += 1
        owner, name = dice.choice("abcd"), str(dice.randrange(30))
        rest = (f"tool:s/{name}", "tools/call", "tools/call", now, now + dice.randrange(1, 40))
        record = OwnerRecord("mcp", "s", name, owner, *rest)
        await dice.choice([lambda: store.claim(record, bounds), lambda: store.sweep(now)])()  # noqa: B023
        await store.amend(record._replace(state=dice.choice(["", "completed"])))
    with closing(sqlite3.connect(tmp_path / "tasks.sqlite")) as connection:
        counted = dict(connection.execute("SELECT owner, count(*) FROM tasks GROUP BY owner"))
        held = dict(connection.execute("SELECT owner, count FROM held"))
        assert held == {"": sum(counted.values()), **counted} and max(counted.values()) <= bounds.per_owner
        plan = " ".join(map(str, connection.execute(f"EXPLAIN QUERY PLAN {GIVES_WAY}").fetchall()))
        assert "tasks_to_give_way" in plan and "TEMP B-TREE" not in plan
        connection.executescript("DROP TRIGGER held_more; DROP TRIGGER held_less; DROP TABLE held")
        over = dict(connection.execute("SELECT owner, count(*) FROM tasks WHERE state <> '' GROUP BY owner"))
        assert dict(connection.execute("SELECT owner, count FROM ended")) == over
        connection.executescript("UPDATE tasks SET state = ''; DROP TABLE ended")  # and so none gives way
    await store.close()
    again = SqliteOwnerStore(tmp_path / "tasks.sqlite")
    assert await again.has_room(OwnerBounds(total=sum(counted.values()) + 1))
    assert not await again.has_room(OwnerBounds(total=sum(counted.values())))
    await again.close()


GIVES_WAY = "SELECT task_id FROM tasks WHERE owner = 'a' ORDER BY state = '', created_at LIMIT 1"
