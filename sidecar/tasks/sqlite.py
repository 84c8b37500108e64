"""Whose task is it, also after a restart?

One SQLite file in the data folder, in WAL mode and synced with each record, behind one thread of its own: the loop
never waits for a disk. Every verb has a deadline; one that is missed is a store that is out, and the thread's work is
interrupted. A file of a newer version, or one that is no such file, stops the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

import orjson

from sidecar.errors import SettingsError, fault_in
from sidecar.tasks.record import TaskRecord
from sidecar.tasks.store import Bounds, TaskStoreOut

SCHEMA_VERSION: Final = 1
DEADLINE_S: Final = 2.0
BUSY_MS: Final = 1000  # another process at the same file; less than the deadline, so that the thread comes back
MAX_WAITING: Final = 1000  # beyond, each would only wait for its own deadline
SWEPT_AT_ONCE: Final = 1000
_STEPS_BETWEEN_LOOKS: Final = 10_000
_MAGIC, _VERSION_AT = b"SQLite format 3\x00", 60  # sqlite.org/fileformat2.html, 1.3
_SCHEMA: Final = """
CREATE TABLE tasks (
    namespace TEXT NOT NULL, server TEXT NOT NULL, task_id TEXT NOT NULL,
    owner TEXT NOT NULL CHECK (owner <> ''),
    object TEXT NOT NULL, action TEXT NOT NULL, method TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (namespace, server, task_id)
) WITHOUT ROWID;
CREATE INDEX tasks_of_owner ON tasks (owner, created_at);
CREATE INDEX tasks_by_end ON tasks (expires_at);
"""
# Columns stand in the order of TaskRecord's fields.
_FIND: Final = """
SELECT * FROM tasks
WHERE namespace = ? AND server = ? AND task_id IN (SELECT value FROM json_each(?)) AND expires_at > ?
"""
_STANDING: Final = "SELECT * FROM tasks WHERE namespace = ? AND server = ? AND task_id = ?"
_CLEAR: Final = "DELETE FROM tasks WHERE namespace = ? AND server = ? AND task_id = ? AND expires_at <= ?"
_KEEP: Final = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_OF_OWNER: Final = "SELECT count(*) FROM tasks WHERE owner = ?"
_MAKE_ROOM: Final = """
DELETE FROM tasks WHERE (namespace, server, task_id) IN (
    SELECT namespace, server, task_id FROM tasks
    WHERE owner = ? AND NOT (namespace = ? AND server = ? AND task_id = ?)
    ORDER BY state = '', created_at LIMIT ?
)
"""
_AMEND: Final = """
UPDATE tasks SET expires_at = ?, state = CASE state WHEN '' THEN ? ELSE state END
WHERE namespace = ? AND server = ? AND task_id = ? AND owner = ?
"""
_SWEEP: Final = """
DELETE FROM tasks WHERE (namespace, server, task_id) IN (
    SELECT namespace, server, task_id FROM tasks WHERE expires_at <= ? LIMIT ?
)
"""

log = logging.getLogger("sidecar.tasks")
T = TypeVar("T")


class SqliteTaskStore:
    """Records in a file, which is made when the first one is kept or looked for."""

    def __init__(self, path: Path, *, deadline_s: float = DEADLINE_S) -> None:
        self.up = True
        self._path = path
        self._deadline_s = deadline_s
        self._connection: sqlite3.Connection | None = None
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")

    async def claim(self, record: TaskRecord, bounds: Bounds) -> TaskRecord | None:
        """As `TaskStore.claim`."""
        return await self._run(lambda connection: _claim(connection, record, bounds))

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[TaskRecord]:
        """As `TaskStore.find`."""
        parameters = (namespace, server, orjson.dumps(list(task_ids)).decode(), now_s)
        return await self._run(lambda connection: [TaskRecord(*row) for row in connection.execute(_FIND, parameters)])

    async def amend(self, record: TaskRecord) -> None:
        """As `TaskStore.amend`."""
        parameters = (record.expires_at, record.state, *record[:4])
        await self._run(lambda connection: connection.execute(_AMEND, parameters))

    async def has_room(self, bounds: Bounds) -> bool:
        """As `TaskStore.has_room`."""
        return await self._run(lambda connection: _count(connection) < bounds.total)

    async def sweep(self, now_s: float) -> int:
        """As `TaskStore.sweep`; a thousand in one step, so that nobody waits behind it for long."""
        if self._connection is None and not self._path.exists():
            return 0
        swept = 0
        while some := await self._run(lambda connection: connection.execute(_SWEEP, (now_s, SWEPT_AT_ONCE)).rowcount):
            swept += some
        return swept

    async def close(self) -> None:
        """As `TaskStore.close`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline_s):
                await loop.run_in_executor(self._thread, self._let_go)
        except (TimeoutError, RuntimeError):  # it hangs at its disk, or was closed before
            pass
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise TaskStoreOut("too many wait for it")
        self._waiting += 1
        ends_mono_s = time.monotonic() + self._deadline_s
        try:
            async with asyncio.timeout(self._deadline_s):
                done = await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work, ends_mono_s)
        except TimeoutError:
            self.up = False
            raise TaskStoreOut("it does not answer in time") from None
        except (sqlite3.Error, OSError, RuntimeError) as error:
            self.up = False
            raise TaskStoreOut(str(error)) from None
        finally:
            self._waiting -= 1
        self.up = True
        return done

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _work(self, work: Callable[[sqlite3.Connection], T], ends_mono_s: float) -> T:
        if time.monotonic() >= ends_mono_s:
            raise TaskStoreOut("it does not answer in time")  # nobody waits for it any more
        if self._connection is None:
            self._connection = _connect(self._path)
        connection = self._connection
        connection.set_progress_handler(lambda: time.monotonic() >= ends_mono_s, _STEPS_BETWEEN_LOOKS)
        try:
            connection.execute("BEGIN IMMEDIATE")
            done = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._let_go()  # whatever state it is in: the next one starts anew, and what was begun is rolled back
            raise
        return done

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def check_task_file(path: Path) -> None:
    """Whether a start could use this file; none is fine. Reads only. Raises SettingsError."""
    hint = "restore it from a backup; without the file nobody owns the tasks that were created before"
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError([fault_in(path, f"cannot be read: {error.strerror}", code="T101", hint=hint)]) from None
    if not head:  # it was made, and then the machine stopped
        return
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise SettingsError([fault_in(path, "is no SQLite file", code="T101", hint=hint)])
    version = int.from_bytes(head[_VERSION_AT : _VERSION_AT + 4], "big")
    if version > SCHEMA_VERSION:
        hint = "use that version, or set the file aside: nobody owns the tasks then that were created before"
        raise SettingsError([fault_in(path, "was written by a newer version", code="T102", hint=hint)])
    try:
        columns = _columns_in(path)
    except sqlite3.Error as error:
        raise SettingsError([fault_in(path, f"is damaged: {error}", code="T101", hint=hint)]) from None
    if columns != (TaskRecord._fields if version else ()):
        raise SettingsError([fault_in(path, "holds something else than tasks", code="T101", hint=hint)])


def _columns_in(path: Path) -> tuple[str, ...]:
    """Those of its table of tasks. The table is made before the log of writes is, so that it stands in the file itself;
    and `immutable` leaves no file of ours beside it."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return tuple(row[1] for row in connection.execute("PRAGMA table_info(tasks)"))


def _connect(path: Path) -> sqlite3.Connection:
    # Made here, because SQLite would make it as readable as the umask lets it; its companions take the file's mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
        if version > SCHEMA_VERSION:
            raise TaskStoreOut("its file was written by a newer version")
        connection.execute("PRAGMA journal_mode = WAL")  # after the version, which so stands in the file's head
        connection.execute("PRAGMA synchronous = FULL")  # an answer tells of a task: not even a power cut forgets it
    except BaseException:
        connection.close()
        raise
    return connection


def _claim(connection: sqlite3.Connection, record: TaskRecord, bounds: Bounds) -> TaskRecord | None:
    key = record[:3]
    connection.execute(_CLEAR, (*key, record.created_at))
    row = connection.execute(_STANDING, key).fetchone()
    if row is not None:
        return TaskRecord(*row)
    if _count(connection) >= bounds.total:
        return None
    connection.execute(_KEEP, record)
    (mine,) = connection.execute(_OF_OWNER, (record.owner,)).fetchone()
    if mine > bounds.per_owner:
        connection.execute(_MAKE_ROOM, (record.owner, *key, mine - bounds.per_owner))
    return record


def _count(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
    return int(count)
