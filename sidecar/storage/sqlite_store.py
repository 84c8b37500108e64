"""Stores records in a SQLite file.

Each kind has one file in the data folder (`sqlite_file.py`). Fields that queries use are columns; everything else is in
`body`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic

import orjson

from sidecar.storage.record_kind import RecordKind
from sidecar.storage.record_store import (
    FORGOTTEN_AT_ONCE,
    NOTHING,
    AddedRecord,
    R,
    RecordBounds,
    RecordPage,
    RecordShare,
    RecordStoreOut,
)
from sidecar.storage.sqlite_file import DEADLINE_S, SqliteFile, SqliteFormat, check_sqlite_file

SWEPT_AT_ONCE: Final = 1000
_COLUMNS: Final = (
    "id", "owner", "target", "state", "over", "revision", "created_at", "expires_at", "holder", "held_until", "body",
)  # fmt: skip


# RECORDS stands for the kind's table name; `state` is a record's standing, and `over` says whether it is done.
_SCHEMA: Final = """
CREATE TABLE RECORDS (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL CHECK (owner <> ''), target TEXT NOT NULL,
    state TEXT NOT NULL, over INTEGER NOT NULL, revision INTEGER NOT NULL,
    created_at REAL NOT NULL, expires_at REAL NOT NULL,
    holder TEXT NOT NULL, held_until REAL NOT NULL, body BLOB NOT NULL
);
CREATE INDEX RECORDS_of_owner ON RECORDS (owner, created_at);
CREATE INDEX RECORDS_open ON RECORDS (over, held_until);
CREATE INDEX RECORDS_by_state ON RECORDS (state);
"""
# RECORDS_held counts finished records per target and owner; target '' means all targets, and owner '' all owners.
# Triggers in the file keep the counts right, whichever version of the sidecar writes to it.
_MORE: Final = """
    INSERT INTO RECORDS_held VALUES (NEW.target, '', 1, 0) ON CONFLICT DO UPDATE SET count = count + 1;
    INSERT INTO RECORDS_held VALUES (NEW.target, NEW.owner, 1, NEW.created_at), ('', NEW.owner, 1, NEW.created_at)
        ON CONFLICT DO UPDATE SET count = count + 1, oldest = min(oldest, NEW.created_at);
"""
_LESS: Final = """
    UPDATE RECORDS_held SET count = count - 1 WHERE target IN ('', OLD.target) AND owner IN ('', OLD.owner);
    DELETE FROM RECORDS_held WHERE target IN ('', OLD.target) AND owner IN ('', OLD.owner) AND count = 0;
    UPDATE RECORDS_held SET oldest = (
        SELECT min(created_at) FROM RECORDS WHERE target = OLD.target AND owner = OLD.owner AND over = 1
    ) WHERE target = OLD.target AND owner = OLD.owner;
    UPDATE RECORDS_held SET oldest = (SELECT min(created_at) FROM RECORDS WHERE owner = OLD.owner AND over = 1)
        WHERE target = '' AND owner = OLD.owner;
"""
_DERIVED: Final = """
CREATE INDEX IF NOT EXISTS RECORDS_newest ON RECORDS (created_at, target, state);
CREATE INDEX IF NOT EXISTS RECORDS_ends ON RECORDS (expires_at) WHERE over = 1;
DROP INDEX IF EXISTS RECORDS_done;
CREATE INDEX IF NOT EXISTS RECORDS_done_of ON RECORDS (target, owner, created_at) WHERE over = 1;
CREATE INDEX IF NOT EXISTS RECORDS_done_of_all ON RECORDS (owner, created_at) WHERE over = 1;
CREATE TABLE IF NOT EXISTS RECORDS_held (
    target TEXT, owner TEXT, count INTEGER NOT NULL, oldest REAL NOT NULL, PRIMARY KEY (target, owner)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS RECORDS_most ON RECORDS_held (target, count DESC, oldest) WHERE owner <> '';
INSERT OR IGNORE INTO RECORDS_held
    SELECT target, owner, count(*), min(created_at) FROM RECORDS WHERE over = 1 GROUP BY target, owner;
INSERT OR IGNORE INTO RECORDS_held
    SELECT '', owner, count(*), min(created_at) FROM RECORDS WHERE over = 1 GROUP BY owner;
INSERT OR IGNORE INTO RECORDS_held SELECT target, '', count(*), 0 FROM RECORDS WHERE over = 1 GROUP BY target;
CREATE TRIGGER IF NOT EXISTS RECORDS_came_done AFTER INSERT ON RECORDS WHEN NEW.over = 1 BEGIN MORE END;
CREATE TRIGGER IF NOT EXISTS RECORDS_ended AFTER UPDATE OF over ON RECORDS WHEN NEW.over > OLD.over BEGIN MORE END;
CREATE TRIGGER IF NOT EXISTS RECORDS_goes_on AFTER UPDATE OF over ON RECORDS WHEN NEW.over < OLD.over BEGIN LESS END;
CREATE TRIGGER IF NOT EXISTS RECORDS_forgotten AFTER DELETE ON RECORDS WHEN OLD.over = 1 BEGIN LESS END;
""".replace("MORE", _MORE).replace("LESS", _LESS)
_KNOWN: Final = "SELECT 1 FROM RECORDS WHERE id = ?"
_COUNT: Final = "SELECT count(*) FROM RECORDS"
_OF_OWNER: Final = "SELECT count(*) FROM RECORDS WHERE owner = ?"
_MAKE_ROOM: Final = """
DELETE FROM RECORDS WHERE id IN (
    SELECT id FROM RECORDS WHERE owner = ? AND over = 1 ORDER BY created_at, rowid LIMIT 1
)
"""
_HISTORY: Final = "SELECT coalesce(sum(count), 0) FROM RECORDS_held WHERE target = ? AND owner = ''"
_GIVE_WAY: Final = """
DELETE FROM RECORDS WHERE rowid = (
    SELECT rowid FROM RECORDS WHERE target = ?1 AND over = 1 AND owner = (
        SELECT owner FROM RECORDS_held WHERE target = ?1 AND owner <> '' ORDER BY count DESC, oldest LIMIT 1
    ) ORDER BY created_at, rowid LIMIT 1
)
"""
_GIVE_WAY_OF_ALL: Final = """
DELETE FROM RECORDS WHERE rowid = (
    SELECT rowid FROM RECORDS WHERE over = 1 AND owner = (
        SELECT owner FROM RECORDS_held WHERE target = '' AND owner <> '' ORDER BY count DESC, oldest LIMIT 1
    ) ORDER BY created_at, rowid LIMIT 1
)
"""
_ADD: Final = "INSERT INTO RECORDS VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_GET: Final = "SELECT body FROM RECORDS WHERE id = ?"
_WANTED: Final = "target IN (SELECT value FROM json_each(?)) AND state = coalesce(?, state)"
_AT: Final = "SELECT body FROM RECORDS WHERE rowid = ?"
_NEWEST: Final = "ORDER BY created_at DESC, rowid DESC LIMIT ? OFFSET ?"
_OF_ONE: Final = f"FROM RECORDS WHERE owner = ? AND {_WANTED}"
# The RECORDS_newest index answers everything but the bodies; only the bodies of the page are read.
_OF_ALL: Final = f"FROM RECORDS INDEXED BY RECORDS_newest WHERE {_WANTED}"
_REPLACE: Final = """
UPDATE RECORDS SET state = ?, over = ?, expires_at = ?, revision = ?, body = ?
WHERE id = ? AND revision = ? AND over <= ?
"""
_REOPEN: Final = """
UPDATE RECORDS SET state = ?, over = ?, expires_at = ?, revision = ?, body = ?, holder = ?, held_until = ?
WHERE id = ? AND revision = ? AND over > ?
"""
_FREE: Final = """
SELECT id, revision, body FROM RECORDS WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY owner ORDER BY holder <> ?1, created_at, rowid) AS place
        FROM RECORDS WHERE over = 0 AND (holder = ?1 OR held_until <= ?2 OR held_until > ?5)
    ) WHERE place <= ?4
)
ORDER BY holder <> ?1, created_at LIMIT ?3
"""
_TAKE: Final = "UPDATE RECORDS SET holder = ?, held_until = ? WHERE id IN (SELECT value FROM json_each(?))"
_LET_GO: Final = "UPDATE RECORDS SET holder = '', held_until = 0 WHERE over = 0 AND holder = ?"
_COUNTS: Final = "SELECT state, count(*) FROM RECORDS GROUP BY state"
_SWEEP: Final = """
DELETE FROM RECORDS WHERE rowid IN (
    SELECT rowid FROM RECORDS INDEXED BY RECORDS_ends WHERE over = 1 AND expires_at <= ? LIMIT ?
)
"""


class SqliteRecordStore(Generic[R]):
    """Stores records of one kind in a file, created on first use."""

    def __init__(self, path: Path, kind: RecordKind[R], *, deadline_s: float = DEADLINE_S) -> None:
        self._kind = kind
        self._file = SqliteFile(path, _format(kind), RecordStoreOut, name=kind.key, deadline_s=deadline_s)

    @property
    def up(self) -> bool:
        return self._file.up

    @property
    def is_durable(self) -> bool:
        return True

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        body = self._kind.codec.encode(record)
        whose = (record.id, record.owner, record.target)
        how = (record.standing, record.is_done, record.revision, record.created_at, record.expires_at)
        row = (*whose, *how, holder, until_s, body)
        return await self._file.run(lambda connection: self._add(connection, row, bounds))

    async def get(self, record_id: str) -> R | None:
        row = await self._file.run(lambda connection: self._do(connection, _GET, (record_id,)).fetchone())
        return None if row is None else self._kind.read(row[0])

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        wanted = (*(() if owner is None else (owner,)), _json(page.targets), page.standing)
        whose = _OF_ALL if owner is None else _OF_ONE

        def work(connection: sqlite3.Connection) -> tuple[list[R], int]:
            (total,) = self._do(connection, f"SELECT count(*) {whose}", wanted).fetchone()
            asked = (*wanted, page.limit, page.offset)
            places = self._do(connection, f"SELECT rowid {whose} {_NEWEST}", asked).fetchall()
            bodies = (self._do(connection, _AT, place).fetchone()[0] for place in places)
            return self._kind.readable(bodies), int(total)

        return await self._file.run(work)

    async def replace(self, record: R) -> bool:
        return await self._change(_REPLACE, record)

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        return await self._change(_REOPEN, record, holder, until_s)

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        if not self._file.is_there:
            return []

        def work(connection: sqlite3.Connection) -> list[R]:
            asked = (holder, now_s, *share, until_s + (until_s - now_s))
            rows = self._do(connection, _FREE, asked).fetchall()
            self._do(connection, _TAKE, (holder, until_s, _json([row[0] for row in rows])))
            return self._kind.readable(body for one, revision, body in rows if known.get(one) != revision)

        return await self._file.run(work)

    async def let_go(self, holder: str) -> None:
        if self._file.is_there:
            await self._file.run(lambda connection: self._do(connection, _LET_GO, (holder,)))

    async def counts(self) -> Mapping[str, int]:
        if not self._file.is_there:
            return {}
        return await self._file.run(lambda connection: dict(self._do(connection, _COUNTS)))

    async def sweep(self, now_s: float) -> int:
        """Deletes expired records, 1,000 per transaction, so that other callers don't wait long."""
        if not self._file.is_there:
            return 0
        swept, limits = 0, (now_s, SWEPT_AT_ONCE)
        while some := await self._file.run(lambda connection: self._do(connection, _SWEEP, limits).rowcount):
            swept += some
        return swept

    async def close(self) -> None:
        await self._file.close()

    def _add(self, connection: sqlite3.Connection, row: tuple[Any, ...], bounds: RecordBounds) -> AddedRecord:
        record_id, owner, target = row[:3]
        if self._do(connection, _KNOWN, (record_id,)).fetchone():
            return AddedRecord.KNOWN
        if bounds.done_per_target is not None:
            (done,) = self._do(connection, _HISTORY, (target,)).fetchone()
            for _ in range(min(done - bounds.done_per_target, FORGOTTEN_AT_ONCE)):
                self._do(connection, _GIVE_WAY, (target,))
        (mine,) = self._do(connection, _OF_OWNER, (owner,)).fetchone()
        (total,) = self._do(connection, _COUNT).fetchone()
        if mine >= bounds.per_owner:
            freed = self._do(connection, _MAKE_ROOM, (owner,)).rowcount
            if not freed:
                return AddedRecord.FULL
        else:
            beyond = min(total - bounds.total + 1, FORGOTTEN_AT_ONCE)
            freed = sum(self._do(connection, _GIVE_WAY_OF_ALL).rowcount for _ in range(beyond))
        if total - freed >= bounds.total:
            return AddedRecord.FULL
        self._do(connection, _ADD, row)
        return AddedRecord.KEPT

    async def _change(self, statement: str, record: R, *held: object) -> bool:
        body = self._kind.codec.encode(record)
        changed = (record.standing, record.is_done, record.expires_at, record.revision, body)
        parameters = (*changed, *held, record.id, record.revision - 1, record.is_done)
        return await self._file.run(lambda connection: self._do(connection, statement, parameters).rowcount == 1)

    def _do(self, connection: sqlite3.Connection, statement: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return connection.execute(_in(self._kind, statement), parameters)


def check_file(path: Path, kind: RecordKind[Any]) -> None:
    """Checks that a start could use this file; a missing file is fine. Only reads. Raises SettingsError."""
    hint = f"restore it from a backup; {kind.lost}"
    format_ = _format(kind)
    check_sqlite_file(path, format_, broken=kind.broken, newer=kind.newer, hint=hint, without=kind.lost)


def _format(kind: RecordKind[Any]) -> SqliteFormat:
    return SqliteFormat(_in(kind, _SCHEMA), 1, {kind.table: _COLUMNS}, _in(kind, _DERIVED))


def _in(kind: RecordKind[Any], statement: str) -> str:
    return statement.replace("RECORDS", kind.table)


def _json(names: Collection[str]) -> str:
    return orjson.dumps([*names]).decode()
