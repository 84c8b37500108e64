"""Does the file keep what it promised, to each of those who write at once?"""

import asyncio
import os
import random
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.storage import RecordBounds, RecordStoreOut, SqliteFile, SqliteRecordStore, check_file
from sidecar.storage.sqlite_file import MAX_WAITING
from sidecar.storage.task_owners import OWNERS
from tests.flow.world import PATIENCE_S
from tests.unit.storage.worlds import owner_record

SAY = "CREATE TABLE IF NOT EXISTS said (word TEXT NOT NULL)"


def said(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [word for (word,) in connection.execute("SELECT word FROM said ORDER BY rowid")]


def saying(word: str | None) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: connection.execute("INSERT INTO said VALUES (?)", (word,)).rowcount


@asynccontextmanager
async def made(path: Path | None, busy: bool = False) -> AsyncIterator[tuple[SqliteFile, Callable[[], None]]]:
    """A file with a table, and what ends the work that keeps its disk busy."""
    file, began, go = SqliteFile(path), threading.Event(), threading.Event()
    await file.run(lambda connection: connection.execute(SAY))

    def work(connection: sqlite3.Connection) -> None:
        began.set()
        assert go.wait(30)

    if busy:
        first = asyncio.ensure_future(file.run(work))
        await asyncio.to_thread(began.wait)
    yield file, go.set
    if busy:
        await asyncio.wait([first])
    await file.close()


async def test_what_waits_for_a_busy_disk_is_one_transaction(tmp_path: Path) -> None:
    begun: list[bool] = []

    def begins(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(lambda statement: begun.append(True) if statement.startswith("BEGIN") else None)

    def counted(connection: sqlite3.Connection) -> int:
        return connection.execute("INSERT INTO said SELECT count(*) FROM said").rowcount

    async with made(tmp_path / "f", busy=True) as (file, go):
        rest = [asyncio.ensure_future(file.run(work)) for work in (begins, *[counted] * 50)]
        await asyncio.sleep(0)
        go()
        assert await asyncio.gather(*rest) == [None, *[1] * 50]
        await file.run(counted)
        assert len(begun) == 1, "fifty were one transaction, which had begun before; the last one was its own"
        assert said(tmp_path / "f") == [str(number) for number in range(51)]


@pytest.mark.parametrize("where", ["file", "memory"])
async def test_who_fails_fails_alone_and_the_others_are_kept_once(tmp_path: Path, where: str) -> None:
    async with made(tmp_path / "f" if where == "file" else None) as (file, _):
        words = [None if number % 7 == 3 else str(number) for number in range(60)]
        ends = await asyncio.gather(*(file.run(saying(word)) for word in words), return_exceptions=True)
        assert all(isinstance(end, RecordStoreOut) == (word is None) for word, end in zip(words, ends, strict=True))
        there = await file.run(lambda connection: connection.execute("SELECT word FROM said ORDER BY rowid").fetchall())
        assert [word for (word,) in there] == [word for word in words if word is not None]


async def test_who_does_not_wait_any_more_writes_nothing(tmp_path: Path) -> None:
    async with made(tmp_path / "f", busy=True) as (file, go):
        gone, stays = (asyncio.ensure_future(file.run(saying(word))) for word in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        go()
        assert await stays == 1 and said(tmp_path / "f") == ["stays"]


async def test_too_many_are_told_at_once_and_who_waits_at_a_closed_file_too(tmp_path: Path) -> None:
    async with made(tmp_path / "f", busy=True) as (file, go):
        waiting = [asyncio.ensure_future(file.run(saying("w"))) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(RecordStoreOut, match="too many"):
            await file.run(saying("more"))
        closing_it = asyncio.ensure_future(file.close())
        await asyncio.sleep(0)
        go()
        await closing_it
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(end == 1 or isinstance(end, RecordStoreOut) for end in ends)
        assert len(said(tmp_path / "f")) == sum(end == 1 for end in ends)


async def test_two_processes_may_have_the_same_file(tmp_path: Path) -> None:
    files = [SqliteFile(tmp_path / "f") for _ in range(2)]
    stores = [SqliteRecordStore(file, OWNERS) for file in files]
    claims = [store.add(owner_record(str(n)), "", 0.0, RecordBounds()) for n in range(20) for store in stores]
    assert sorted(one.value for one in await asyncio.gather(*claims)) == ["kept"] * 20 + ["known"] * 20
    for file in files:
        await file.close()


async def test_a_file_that_is_held_is_out_and_comes_back(tmp_path: Path) -> None:
    async with made(tmp_path / "f"):
        pass
    file = SqliteFile(tmp_path / "f", deadline_s=0.1)
    with closing(sqlite3.connect(tmp_path / "f", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordStoreOut):
            await file.run(saying("a"))
        assert not file.up
        holder.execute("ROLLBACK")
    async with asyncio.timeout(PATIENCE_S):
        while not file.up:
            try:
                await file.run(saying("b"))
            except RecordStoreOut:
                await asyncio.sleep(0.05)
    assert said(tmp_path / "f")[-1] == "b"
    await file.close()


async def test_a_folder_that_is_gone_or_a_file_that_is_none_is_out(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("something else" * 20)
    for path in (tmp_path / "none" / "f", tmp_path / "odd"):
        file = SqliteFile(path)
        for _ in range(2):
            with pytest.raises(RecordStoreOut):
                await file.run(saying("a"))
            assert not file.up
            await file.close()


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_held_is_what_there_is_whatever_happened(tmp_path: Path, seed: int) -> None:
    dice, bounds = random.Random(seed), RecordBounds(per_owner=5, total=12, evicts_open=True)
    file = SqliteFile(tmp_path / "f")
    store = SqliteRecordStore(file, OWNERS)
    for now in range(200):
        owner, name, until = dice.choice("abcd"), str(dice.randrange(30)), float(now + dice.randrange(1, 40))
        record = owner_record(name, owner, created_at=float(now), expires_at=until, state=dice.choice(["", "failed"]))
        await store.add(record, "", 0.0, bounds)
        if now % 3 == 0:
            await store.sweep(float(now))
        if found := await store.get(record.id):
            await store.replace(found._replace(state=found.state or "completed", revision=found.revision + 1))
    with closing(sqlite3.connect(tmp_path / "f")) as connection:
        counted = "SELECT owner, count(*), sum(done), min(iif(done, created_at, 9e999)) FROM records GROUP BY owner"
        there = connection.execute(counted).fetchall()
        held = connection.execute("SELECT owner, total, done, oldest FROM held ORDER BY owner").fetchall()
        assert held[1:] == there and max(total for _, total, *_ in there) <= bounds.per_owner
        assert held[0][:3] == ("", sum(one[1] for one in there), sum(one[2] for one in there))
        plan = str(connection.execute(f"EXPLAIN QUERY PLAN {GIVES_WAY}").fetchall())
        assert "records_of_owner" in plan and "TEMP B-TREE" not in plan
    await file.close()


GIVES_WAY = (
    "SELECT rowid FROM records WHERE kind = 'k' AND owner = 'a' AND done >= 0 ORDER BY done DESC, created_at, rowid"
)


async def test_the_file_is_made_with_the_first_record_and_for_us_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        file = SqliteFile(tmp_path / "f")
        store = SqliteRecordStore(file, OWNERS)
        assert (await store.sweep(0.0), await store.counts(), await store.find(["1"])) == (0, {}, [])
        await store.let_go("me")
        assert list(tmp_path.iterdir()) == []
        await store.add(owner_record("1"), "", 0.0, RecordBounds())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {"f": 0o600, "f-shm": 0o600, "f-wal": 0o600}
        check_file(tmp_path / "f")
        with pytest.raises(RecordStoreOut):  # a record without an owner
            await store.add(owner_record("2", ""), "", 0.0, RecordBounds())
        await file.close()
    finally:
        os.umask(old)


async def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "f"
    check_file(path)
    path.write_bytes(b"")
    check_file(path)
    async with made(path):
        pass
    whole = path.read_bytes()
    damaged = whole[:100] + b"\xff" * (len(whole) - 100)
    for content in (b"{}", b"x" * 200, whole[:50], damaged):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="D102"):
            check_file(path)
    for script in ("CREATE TABLE records (title)", "CREATE TABLE records (title); PRAGMA user_version = 1"):
        path.unlink()
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
        with pytest.raises(SettingsError, match=r"D102.*other tables"):
            check_file(path)
    assert list(tmp_path.iterdir()) == [path], "looking at it left nothing beside it"
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = DELETE; PRAGMA user_version = 2")
    with pytest.raises(SettingsError, match=r"D103.*newer version"):
        check_file(path)
    newer = SqliteFile(path)
    with pytest.raises(RecordStoreOut):
        await newer.run(saying("a"))
    await newer.close()
