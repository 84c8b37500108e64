"""Stores deliveries and push configurations in a SQLite file.

The file is in the data folder (`storage/sqlite_file.py`) and only the sidecar's user can read it: it holds credentials
with which the sidecar authenticates to callers' receivers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from sidecar.storage.caller_codec import caller_from, plain_caller
from sidecar.storage.sqlite_file import DEADLINE_S, SqliteFile, SqliteFormat, check_sqlite_file
from sidecar.storage.webhooks.delivery import Delivery, OnBehalfOf, PendingDelivery
from sidecar.storage.webhooks.push_config import PushRecord
from sidecar.storage.webhooks.store import DeliveryBounds, DeliveryStoreOut

SWEPT_AT_ONCE: Final = 1000
_SCHEMA: Final = """
CREATE TABLE callbacks (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, ref TEXT NOT NULL,
    owner TEXT NOT NULL CHECK (owner <> ''),
    url TEXT NOT NULL, created_at REAL NOT NULL, attempts INTEGER NOT NULL, due_at REAL NOT NULL,
    size INTEGER NOT NULL, headers TEXT NOT NULL, body BLOB NOT NULL, behalf TEXT NOT NULL
);
CREATE INDEX callbacks_of_owner ON callbacks (owner, size);
CREATE TABLE pushes (
    handle TEXT PRIMARY KEY,
    owner TEXT NOT NULL CHECK (owner <> ''),
    server TEXT NOT NULL, task_id TEXT NOT NULL, config_id TEXT NOT NULL, version TEXT NOT NULL,
    url TEXT NOT NULL, token TEXT NOT NULL, scheme TEXT NOT NULL, credentials TEXT NOT NULL, secret TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL NOT NULL, skill TEXT NOT NULL, caller TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX pushes_of_task ON pushes (owner, server, task_id, config_id);
CREATE INDEX pushes_by_end ON pushes (expires_at);
"""
_COLUMNS: Final = ("position", *PendingDelivery._fields, "size", "headers", "body", "behalf")
_FORMAT: Final = SqliteFormat(_SCHEMA, 1, {"callbacks": _COLUMNS, "pushes": PushRecord._fields})
_STANDING: Final = "SELECT count(*), coalesce(sum(size), 0), coalesce(sum(owner = ?), 0) FROM callbacks"
_PUT: Final = "INSERT INTO callbacks VALUES (NULL, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)"
_WAITING: Final = """
SELECT id, kind, ref, owner, url, created_at, attempts, due_at FROM callbacks ORDER BY position
"""
_GET: Final = "SELECT id, kind, ref, owner, url, created_at, headers, body, behalf FROM callbacks WHERE id = ?"
_AGAIN: Final = "UPDATE callbacks SET attempts = ?, due_at = ? WHERE id = ?"
_ENDED: Final = "DELETE FROM callbacks WHERE id IN (SELECT value FROM json_each(?))"
_PUSHES: Final = "SELECT count(*), coalesce(sum(owner = ?), 0) FROM pushes"
_KEEP_PUSH: Final = "INSERT INTO pushes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUSH: Final = "SELECT * FROM pushes WHERE handle = ? AND expires_at > ?"
_PUSHES_OF: Final = """
SELECT * FROM pushes WHERE owner = ? AND server = ? AND task_id = ? AND expires_at > ? ORDER BY created_at
"""
_BIND: Final = """
UPDATE pushes SET task_id = CASE task_id WHEN '' THEN ? ELSE task_id END WHERE handle = ? RETURNING task_id
"""
_NAME: Final = "UPDATE pushes SET task_id = ?, config_id = ? WHERE handle = ? RETURNING owner, server"
_OLDER: Final = """
DELETE FROM pushes WHERE owner = ? AND server = ? AND task_id = ? AND config_id = ? AND handle <> ? RETURNING handle
"""
_FORGET: Final = "DELETE FROM pushes WHERE handle IN (SELECT value FROM json_each(?))"
_SWEEP: Final = "DELETE FROM pushes WHERE handle IN (SELECT handle FROM pushes WHERE expires_at <= ? LIMIT ?)"


class SqliteDeliveryStore:
    """Stores both in a file, created on first use."""

    def __init__(self, path: Path, *, deadline_s: float = DEADLINE_S) -> None:
        self._file = SqliteFile(path, _FORMAT, DeliveryStoreOut, name="callbacks", deadline_s=deadline_s)

    @property
    def up(self) -> bool:
        return self._file.up

    async def put(self, callback: Delivery, due_at: float, bounds: DeliveryBounds) -> bool:
        return await self._file.run(lambda connection: _put(connection, callback, due_at, bounds))

    async def waiting(self) -> Sequence[PendingDelivery]:
        if not self._file.is_there:
            return ()
        return await self._file.run(lambda connection: [PendingDelivery(*row) for row in connection.execute(_WAITING)])

    async def get(self, id_: str) -> Delivery | None:
        row = await self._file.run(lambda connection: connection.execute(_GET, (id_,)).fetchone())
        return None if row is None else _callback(row)

    async def again(self, id_: str, attempts: int, due_at: float) -> None:
        await self._file.run(lambda connection: connection.execute(_AGAIN, (attempts, due_at, id_)))

    async def ended(self, ids: Sequence[str]) -> None:
        await self._file.run(lambda connection: connection.execute(_ENDED, (_list(ids),)))

    async def keep_push(self, record: PushRecord, per_owner: int, total: int) -> bool:
        return await self._file.run(lambda connection: _keep_push(connection, record, per_owner, total))

    async def push(self, handle: str, now_s: float) -> PushRecord | None:
        if not self._file.is_there:  # a lookup of an unknown handle creates no file
            return None
        row = await self._file.run(lambda connection: connection.execute(_PUSH, (handle, now_s)).fetchone())
        return None if row is None else _push(row)

    async def pushes_of(self, owner: str, server: str, task_id: str, now_s: float) -> Sequence[PushRecord]:
        if not self._file.is_there:
            return ()
        parameters = (owner, server, task_id, now_s)
        return await self._file.run(
            lambda connection: [_push(row) for row in connection.execute(_PUSHES_OF, parameters)]
        )

    async def bind_push(self, handle: str, task_id: str) -> str:
        row = await self._file.run(lambda connection: connection.execute(_BIND, (task_id, handle)).fetchone())
        return row[0] if row else ""

    async def name_push(self, handle: str, task_id: str, config_id: str) -> Sequence[str]:
        return await self._file.run(lambda connection: _name_push(connection, handle, task_id, config_id))

    async def forget_pushes(self, handles: Sequence[str]) -> None:
        await self._file.run(lambda connection: connection.execute(_FORGET, (_list(handles),)))

    async def sweep(self, now_s: float) -> int:
        """Deletes expired push configurations, 1,000 per transaction, so that other callers don't wait long."""
        swept = 0
        if not self._file.is_there:
            return swept
        while some := await self._file.run(
            lambda connection: connection.execute(_SWEEP, (now_s, SWEPT_AT_ONCE)).rowcount
        ):
            swept += some
        return swept

    async def close(self) -> None:
        await self._file.close()


def check_callback_file(path: Path) -> None:
    """Checks that a start could use this file; a missing file is fine. Only reads. Raises SettingsError."""
    without = "callbacks that wait are lost then, and agents push to nobody"
    hint = f"restore it from a backup, or set it aside: {without}"
    check_sqlite_file(path, _FORMAT, broken="H102", newer="H103", hint=hint, without=without)


def _put(connection: sqlite3.Connection, callback: Delivery, due_at: float, bounds: DeliveryBounds) -> bool:
    standing, size, mine = connection.execute(_STANDING, (callback.owner,)).fetchone()
    if standing >= bounds.total or size + callback.size > bounds.total_bytes or mine >= bounds.per_owner:
        return False
    headers = orjson.dumps(callback.headers).decode()
    caller, server, skill = callback.behalf
    behalf = orjson.dumps([plain_caller(caller), server, skill]).decode()
    connection.execute(_PUT, (*callback[:6], due_at, callback.size, headers, callback.body, behalf))
    return True


def _keep_push(connection: sqlite3.Connection, record: PushRecord, per_owner: int, total: int) -> bool:
    standing, mine = connection.execute(_PUSHES, (record.owner,)).fetchone()
    if standing >= total or mine >= per_owner:
        return False
    connection.execute(_KEEP_PUSH, (*record[:-1], orjson.dumps(plain_caller(record.caller)).decode()))
    return True


def _name_push(connection: sqlite3.Connection, handle: str, task_id: str, config_id: str) -> list[str]:
    row = connection.execute(_NAME, (task_id, config_id, handle)).fetchone()
    if row is None:
        return []
    return [older for (older,) in connection.execute(_OLDER, (*row, task_id, config_id, handle)).fetchall()]


def _callback(row: tuple[Any, ...]) -> Delivery:
    """Decodes a row. Raises ValueError if it is damaged; other deliveries are not affected."""
    try:
        headers = tuple((name, value) for name, value in orjson.loads(row[6]))
        caller, server, skill = orjson.loads(row[8])
        return Delivery._make((*row[:6], headers, row[7], OnBehalfOf(caller_from(caller), server, skill)))
    except (TypeError, LookupError):
        raise ValueError("what is kept of it cannot be read") from None


def _push(row: tuple[Any, ...]) -> PushRecord:
    return PushRecord._make((*row[:-1], caller_from(orjson.loads(row[-1]))))


def _list(ids: Sequence[str]) -> str:
    return orjson.dumps(list(ids)).decode()
