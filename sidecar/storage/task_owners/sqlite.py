"""Stores task owners in a SQLite file.

The file is in the data folder (`storage/sqlite_file.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

from sidecar.storage.sqlite_file import DEADLINE_S, SqliteFile, SqliteFormat, check_sqlite_file
from sidecar.storage.task_owners.record import OwnerRecord
from sidecar.storage.task_owners.store import OwnerBounds, OwnerStoreOut

SWEPT_AT_ONCE: Final = 1000
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
# Counts of records per owner and (under '') in total, and of each owner's ended records, because counting on each claim
# would slow down as the table grows. Triggers in the file keep the counts right, whichever version writes to it.
_DERIVED: Final = """
CREATE INDEX IF NOT EXISTS tasks_to_give_way ON tasks (owner, state = '', created_at);
CREATE TABLE IF NOT EXISTS held (owner TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO held SELECT owner, count(*) FROM tasks GROUP BY owner;
INSERT OR IGNORE INTO held SELECT '', count(*) FROM tasks;
CREATE TRIGGER IF NOT EXISTS held_more AFTER INSERT ON tasks BEGIN
    UPDATE held SET count = count + 1 WHERE owner = '';
    INSERT INTO held VALUES (NEW.owner, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS held_less AFTER DELETE ON tasks BEGIN
    UPDATE held SET count = count - 1 WHERE owner IN ('', OLD.owner);
    DELETE FROM held WHERE owner = OLD.owner AND count = 0;
END;
CREATE TABLE IF NOT EXISTS ended (owner TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ended_most ON ended (count DESC);
INSERT OR IGNORE INTO ended SELECT owner, count(*) FROM tasks WHERE state <> '' GROUP BY owner;
CREATE TRIGGER IF NOT EXISTS ended_at_once AFTER INSERT ON tasks WHEN NEW.state <> '' BEGIN
    INSERT INTO ended VALUES (NEW.owner, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS ended_now AFTER UPDATE OF state ON tasks WHEN OLD.state = '' AND NEW.state <> '' BEGIN
    INSERT INTO ended VALUES (NEW.owner, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS ended_less AFTER DELETE ON tasks WHEN OLD.state <> '' BEGIN
    UPDATE ended SET count = count - 1 WHERE owner = OLD.owner;
    DELETE FROM ended WHERE owner = OLD.owner AND count = 0;
END;
"""
# Columns are in the order of OwnerRecord's fields.
_FORMAT: Final = SqliteFormat(_SCHEMA, 1, {"tasks": OwnerRecord._fields}, _DERIVED)
_FIND: Final = """
SELECT * FROM tasks
WHERE namespace = ? AND server = ? AND task_id IN (SELECT value FROM json_each(?)) AND expires_at > ?
"""
_STANDING: Final = "SELECT * FROM tasks WHERE namespace = ? AND server = ? AND task_id = ?"
_CLEAR: Final = "DELETE FROM tasks WHERE namespace = ? AND server = ? AND task_id = ? AND expires_at <= ?"
_KEEP: Final = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_HELD: Final = "SELECT count FROM held WHERE owner = ?"
_MAKE_ROOM: Final = """
DELETE FROM tasks WHERE (namespace, server, task_id) IN (
    SELECT namespace, server, task_id FROM tasks
    WHERE owner = ? AND NOT (namespace = ? AND server = ? AND task_id = ?)
    ORDER BY state = '', created_at LIMIT ?
)
"""
_GIVE_WAY: Final = """
DELETE FROM tasks WHERE (namespace, server, task_id) IN (
    SELECT namespace, server, task_id FROM tasks
    WHERE owner = (SELECT owner FROM ended ORDER BY count DESC LIMIT 1) AND (state = '') = 0
    ORDER BY created_at LIMIT 1
)
"""
_GIVES_WAY: Final = "SELECT 1 FROM ended LIMIT 1"
_AMEND: Final = """
UPDATE tasks SET expires_at = ?, state = CASE state WHEN '' THEN ? ELSE state END
WHERE namespace = ? AND server = ? AND task_id = ? AND owner = ?
"""
_SWEEP: Final = """
DELETE FROM tasks WHERE (namespace, server, task_id) IN (
    SELECT namespace, server, task_id FROM tasks WHERE expires_at <= ? LIMIT ?
)
"""


class SqliteOwnerStore:
    """Stores records in a file, created on first use."""

    def __init__(self, path: Path, *, deadline_s: float = DEADLINE_S) -> None:
        self._file = SqliteFile(path, _FORMAT, OwnerStoreOut, name="tasks", deadline_s=deadline_s)
        self._held: int | None = None  # total, when last read

    @property
    def up(self) -> bool:
        return self._file.up

    async def claim(self, record: OwnerRecord, bounds: OwnerBounds) -> OwnerRecord | None:
        return await self._file.run(lambda connection: self._claim(connection, record, bounds))

    async def find(self, namespace: str, server: str, task_ids: Sequence[str], now_s: float) -> list[OwnerRecord]:
        parameters = (namespace, server, orjson.dumps(list(task_ids)).decode(), now_s)
        return await self._file.run(
            lambda connection: [OwnerRecord(*row) for row in connection.execute(_FIND, parameters)]
        )

    async def amend(self, record: OwnerRecord) -> None:
        parameters = (record.expires_at, record.state, *record[:4])
        await self._file.run(lambda connection: connection.execute(_AMEND, parameters))

    async def has_room(self, bounds: OwnerBounds) -> bool:
        if self.up and self._held is not None and self._held < bounds.total:
            return True  # `claim` checks the file itself
        held, gives_way = await self._file.run(_room)
        self._held = held
        return gives_way or held < bounds.total

    async def sweep(self, now_s: float) -> int:
        """Deletes expired records, 1,000 per transaction, so that other callers don't wait long."""
        if not self._file.is_there:
            return 0
        swept = 0
        while some := await self._file.run(
            lambda connection: connection.execute(_SWEEP, (now_s, SWEPT_AT_ONCE)).rowcount
        ):
            swept += some
        return swept

    async def close(self) -> None:
        await self._file.close()

    def _claim(self, connection: sqlite3.Connection, record: OwnerRecord, bounds: OwnerBounds) -> OwnerRecord | None:
        key = record[:3]
        connection.execute(_CLEAR, (*key, record.created_at))
        row = connection.execute(_STANDING, key).fetchone()
        if row is not None:
            return OwnerRecord(*row)
        loses_own = _held(connection, record.owner) >= bounds.per_owner
        if _held(connection, "") >= bounds.total and not loses_own and not connection.execute(_GIVE_WAY).rowcount:
            return None
        connection.execute(_KEEP, record)
        mine = _held(connection, record.owner)
        if mine > bounds.per_owner:
            connection.execute(_MAKE_ROOM, (record.owner, *key, mine - bounds.per_owner))
        self._held = _held(connection, "")
        return record


def check_task_file(path: Path) -> None:
    """Checks that a start could use this file; a missing file is fine. Only reads. Raises SettingsError."""
    without = "nobody owns the tasks then that were created before"
    hint = "restore it from a backup; without the file nobody owns the tasks that were created before"
    check_sqlite_file(path, _FORMAT, broken="T101", newer="T102", hint=hint, without=without)


def _room(connection: sqlite3.Connection) -> tuple[int, bool]:
    """Returns the total number of records, and whether any could be evicted."""
    return _held(connection, ""), connection.execute(_GIVES_WAY).fetchone() is not None


def _held(connection: sqlite3.Connection, owner: str) -> int:
    row = connection.execute(_HELD, (owner,)).fetchone()
    return row[0] if row else 0
