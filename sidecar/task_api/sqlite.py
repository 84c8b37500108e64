"""Which tasks are there, also after a restart?

One SQLite file in the data folder (`sqlite_file.py`). What is asked for stands in columns, everything else in `body`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import orjson

from sidecar.sqlite_file import DEADLINE_S, Format, SqliteFile, check_sqlite_file
from sidecar.task_api.records import Record, Step, UnreadableRecord, decoded, encoded, readable
from sidecar.task_api.store import Bounds, Page, Share, StoreOut

SWEPT_AT_ONCE: Final = 1000
_SCHEMA: Final = """
CREATE TABLE a2a_tasks (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL CHECK (owner <> ''), target TEXT NOT NULL,
    state TEXT NOT NULL, over INTEGER NOT NULL, revision INTEGER NOT NULL,
    created_at REAL NOT NULL, expires_at REAL NOT NULL,
    holder TEXT NOT NULL, held_until REAL NOT NULL, body BLOB NOT NULL
);
CREATE INDEX a2a_tasks_of_owner ON a2a_tasks (owner, created_at);
CREATE INDEX a2a_tasks_open ON a2a_tasks (over, held_until);
CREATE INDEX a2a_tasks_by_state ON a2a_tasks (state);
"""
_COLUMNS: Final = (
    "id", "owner", "target", "state", "over", "revision", "created_at", "expires_at", "holder", "held_until", "body",
)  # fmt: skip
_FORMAT: Final = Format(_SCHEMA, 1, {"a2a_tasks": _COLUMNS})
_COUNT: Final = "SELECT count(*) FROM a2a_tasks"
_OF_OWNER: Final = "SELECT count(*) FROM a2a_tasks WHERE owner = ?"
_MAKE_ROOM: Final = """
DELETE FROM a2a_tasks WHERE id IN (
    SELECT id FROM a2a_tasks WHERE owner = ? AND over = 1 ORDER BY created_at, rowid LIMIT 1
)
"""
_ADD: Final = "INSERT INTO a2a_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_WANTED: Final = """
FROM a2a_tasks WHERE owner = ? AND target IN (SELECT value FROM json_each(?)) AND state = coalesce(?, state)
"""
_REPLACE: Final = "UPDATE a2a_tasks SET state = ?, over = ?, revision = ?, body = ? WHERE id = ? AND revision = ?"
_FREE: Final = """
SELECT id, body FROM a2a_tasks WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY owner ORDER BY holder <> ?1, created_at, rowid) AS place
        FROM a2a_tasks WHERE over = 0 AND (holder = ?1 OR held_until <= ?2 OR held_until > ?5)
    ) WHERE place <= ?4
)
ORDER BY holder <> ?1, created_at LIMIT ?3
"""
_TAKE: Final = "UPDATE a2a_tasks SET holder = ?, held_until = ? WHERE id IN (SELECT value FROM json_each(?))"
_SWEEP: Final = """
DELETE FROM a2a_tasks WHERE id IN (SELECT id FROM a2a_tasks WHERE over = 1 AND expires_at <= ? LIMIT ?)
"""


class SqliteStore:
    """Tasks in a file, which is made when the first one is kept or looked for."""

    def __init__(self, path: Path, *, deadline_s: float = DEADLINE_S) -> None:
        self._file = SqliteFile(path, _FORMAT, StoreOut, name="task-api", deadline_s=deadline_s)

    @property
    def up(self) -> bool:
        """As `Store.up`."""
        return self._file.up

    async def add(self, record: Record, holder: str, until_s: float, bounds: Bounds) -> bool:
        """As `Store.add`."""
        return await self._file.run(lambda connection: _add(connection, record, holder, until_s, bounds))

    async def get(self, task_id: str) -> Record | None:
        """As `Store.get`."""
        statement = "SELECT body FROM a2a_tasks WHERE id = ?"
        row = await self._file.run(lambda connection: connection.execute(statement, (task_id,)).fetchone())
        try:
            return None if row is None else decoded(row[0])
        except UnreadableRecord:
            raise StoreOut("a task cannot be read") from None

    async def page(self, owner: str, page: Page) -> tuple[list[Record], int]:
        """As `Store.page`."""
        wanted = (owner, _json(page.targets), page.state)
        tail = "ORDER BY created_at DESC, rowid DESC LIMIT ? OFFSET ?"

        def work(connection: sqlite3.Connection) -> tuple[list[Record], int]:
            (total,) = connection.execute(f"SELECT count(*) {_WANTED}", wanted).fetchone()
            rows = connection.execute(f"SELECT body {_WANTED} {tail}", (*wanted, page.limit, page.offset))
            return readable(body for (body,) in rows), int(total)

        return await self._file.run(work)

    async def replace(self, record: Record) -> bool:
        """As `Store.replace`."""
        changed = (record.state, record.step is Step.OVER, record.revision, encoded(record))
        parameters = (*changed, record.id, record.revision - 1)
        return await self._file.run(lambda connection: connection.execute(_REPLACE, parameters).rowcount == 1)

    async def take(self, holder: str, now_s: float, until_s: float, share: Share) -> list[Record]:
        """As `Store.take`."""
        if not self._file.is_there:
            return []

        def work(connection: sqlite3.Connection) -> list[Record]:
            rows = connection.execute(_FREE, (holder, now_s, *share, until_s + (until_s - now_s))).fetchall()
            connection.execute(_TAKE, (holder, until_s, _json([row[0] for row in rows])))
            return readable(body for _, body in rows)

        return await self._file.run(work)

    async def let_go(self, holder: str) -> None:
        """As `Store.let_go`."""
        if self._file.is_there:
            statement = "UPDATE a2a_tasks SET holder = '', held_until = 0 WHERE over = 0 AND holder = ?"
            await self._file.run(lambda connection: connection.execute(statement, (holder,)))

    async def counts(self) -> Mapping[str, int]:
        """As `Store.counts`."""
        if not self._file.is_there:
            return {}
        statement = "SELECT state, count(*) FROM a2a_tasks GROUP BY state"
        return await self._file.run(lambda connection: dict(connection.execute(statement)))

    async def sweep(self, now_s: float) -> int:
        """As `Store.sweep`; a thousand in one step, so that nobody waits behind it for long."""
        if not self._file.is_there:
            return 0
        swept, limits = 0, (now_s, SWEPT_AT_ONCE)
        while some := await self._file.run(lambda connection: connection.execute(_SWEEP, limits).rowcount):
            swept += some
        return swept

    async def close(self) -> None:
        """As `Store.close`."""
        await self._file.close()


def check_file(path: Path) -> None:
    """Whether a start could use this file; none is fine. Reads only. Raises SettingsError."""
    lost = "tasks that were created before are not known then, and nobody follows them"
    hint = f"restore it from a backup; {lost}"
    check_sqlite_file(path, _FORMAT, broken="T103", newer="T104", hint=hint, without=lost)


def _add(connection: sqlite3.Connection, record: Record, holder: str, until_s: float, bounds: Bounds) -> bool:
    (mine,) = connection.execute(_OF_OWNER, (record.owner,)).fetchone()
    if mine >= bounds.per_owner and not connection.execute(_MAKE_ROOM, (record.owner,)).rowcount:
        return False
    (total,) = connection.execute(_COUNT).fetchone()
    if total >= bounds.total:
        return False
    asked = (record.id, record.owner, record.target, record.state, record.step is Step.OVER, record.revision)
    kept = (record.created_at, record.expires_at, holder, until_s, encoded(record))
    connection.execute(_ADD, (*asked, *kept))
    return True


def _json(names: Collection[str]) -> str:
    return orjson.dumps([*names]).decode()
