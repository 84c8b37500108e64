"""Stores records in one SQLite table: columns for the fields that queries use, and `body` for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic

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
    ends_at,
)
from sidecar.storage.sqlite_file import SqliteFile

if TYPE_CHECKING:
    import sqlite3

SWEPT_AT_ONCE: Final = 1000
_Row = tuple[Any, ...]  # the columns of the table
_ENDS: Final = "SELECT ends_at FROM records WHERE kind = ? AND id = ?"
_KNOWN: Final = "SELECT id FROM records WHERE kind = ? AND id IN (SELECT value FROM json_each(?))"
_REMOVE: Final = "DELETE FROM records WHERE kind = ? AND id = ?"
_HISTORY: Final = "SELECT done FROM held WHERE kind = ? AND target = ? AND owner = ''"
_HELD: Final = (
    "SELECT owner, total, done FROM held WHERE kind = ? AND target = '' AND owner IN (SELECT value FROM json_each(?))"
)
_MAKE_ROOM: Final = """
DELETE FROM records WHERE rowid IN (
    SELECT rowid FROM records WHERE kind = ? AND owner = ? AND done >= ? ORDER BY done DESC, created_at, rowid LIMIT ?
)
"""
# Of the owner with the most finished records, the oldest. RESTS restricts it to a target, for which there is an index.
_GIVE_WAY: Final = """
DELETE FROM records WHERE rowid = (
    SELECT rowid FROM records WHERE kind = ?1 AND done = 1 RESTS AND owner = (
        SELECT owner FROM held WHERE kind = ?1 AND target = ?2 AND owner <> '' AND done > 0
        ORDER BY done DESC, oldest LIMIT 1
    ) ORDER BY created_at, rowid LIMIT 1
)
"""
_GIVE_WAY_OF_ALL: Final = _GIVE_WAY.replace("RESTS", "")
_GIVE_WAY_OF_TARGET: Final = _GIVE_WAY.replace("RESTS", "AND target = ?2 AND target <> ''")
_ADD: Final = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_GET: Final = "SELECT body FROM records WHERE kind = ? AND id = ?"
_AT: Final = "SELECT body FROM records WHERE rowid = ?"
_WANTED: Final = "target IN (SELECT value FROM json_each(?)) AND state = coalesce(?, state)"
_NEWEST: Final = "ORDER BY created_at DESC, rowid DESC LIMIT ? OFFSET ?"
_OF_ONE: Final = f"FROM records WHERE kind = ? AND owner = ? AND {_WANTED}"
# The index records_newest answers everything except the bodies; only the bodies of the page are read.
_OF_ALL: Final = f"FROM records INDEXED BY records_newest WHERE kind = ? AND target <> '' AND {_WANTED}"
_REPLACE: Final = """
UPDATE records SET state = ?, done = ?, ends_at = ?, revision = ?, body = ?
WHERE kind = ? AND id = ? AND revision = ? AND done <= ?
"""
_REOPEN: Final = """
UPDATE records SET state = ?, done = ?, ends_at = ?, revision = ?, body = ?, created_at = ?, holder = ?, held_until = ?
WHERE kind = ? AND id = ? AND revision = ? AND done > ?
"""
_FREE: Final = """
SELECT rowid, id, revision FROM records WHERE rowid IN (
    SELECT rowid FROM (
        SELECT rowid, row_number() OVER (PARTITION BY owner ORDER BY holder <> ?2, created_at, rowid) AS place
        FROM records WHERE kind = ?1 AND done = 0 AND (holder = ?2 OR held_until <= ?3 OR held_until > ?6)
    ) WHERE place <= ?5
)
ORDER BY holder <> ?2, created_at LIMIT ?4
"""
_TAKE: Final = "UPDATE records SET holder = ?, held_until = ? WHERE rowid IN (SELECT value FROM json_each(?))"
_LET_GO: Final = "UPDATE records SET holder = '', held_until = 0 WHERE kind = ? AND done = 0 AND holder = ?"
_COUNTS: Final = """
SELECT state, count(*) FROM records INDEXED BY records_newest WHERE kind = ? AND target <> '' GROUP BY state
"""
_SWEEP: Final = """
DELETE FROM records WHERE rowid IN (
    SELECT rowid FROM records INDEXED BY records_ends WHERE kind = ? AND ends_at <= ? LIMIT ?
)
"""


class SqliteRecordStore(Generic[R]):
    """Stores records of one kind in the file, or the database in memory, that all kinds share."""

    def __init__(self, file: SqliteFile, kind: RecordKind[R]) -> None:
        self.is_durable = file.is_durable
        self._kind = kind
        self._file = file
        self._total: int | None = None  # the number of records after the last step that counted them

    @property
    def up(self) -> bool:
        return self._file.up

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        (added,) = await self._file.run_each(self._add_each, ((self._row(record, holder, until_s),), bounds))
        return added  # type: ignore[no-any-return]

    async def add_all(self, records: Sequence[R], bounds: RecordBounds) -> list[AddedRecord]:
        item = ([self._row(record, "", 0.0) for record in records], bounds)
        return await self._file.run_each(self._add_each, item)  # type: ignore[no-any-return]

    async def get(self, record_id: str) -> R | None:
        found = await self.find((record_id,))
        return found[0] if found else None

    async def find(self, record_ids: Sequence[str]) -> list[R]:
        kind = self._kind

        def work(connection: sqlite3.Connection) -> list[tuple[str, bytes]]:
            rows = ((one, connection.execute(_GET, (kind.key, one)).fetchone()) for one in record_ids)
            return [(one, row[0]) for one, row in rows if row is not None]

        return [kind.read(body, one) for one, body in await self._file.read(work, [])]

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        whose = (self._kind.key,) if owner is None else (self._kind.key, owner)
        wanted, those = (*whose, _json(page.targets), page.standing), _OF_ALL if owner is None else _OF_ONE

        def work(connection: sqlite3.Connection) -> tuple[list[bytes], int]:
            (total,) = connection.execute(f"SELECT count(*) {those}", wanted).fetchone()
            places = connection.execute(f"SELECT rowid {those} {_NEWEST}", (*wanted, page.limit, page.offset))
            return [connection.execute(_AT, place).fetchone()[0] for place in places.fetchall()], total

        bodies, total = await self._file.read(work, ([], 0))
        return self._kind.readable(bodies), total

    async def replace(self, record: R) -> bool:
        return await self._change(_REPLACE, record)

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        return await self._change(_REOPEN, record, record.created_at, holder, until_s)

    async def remove(self, record_ids: Sequence[str]) -> None:
        rows = [(self._kind.key, one) for one in record_ids]
        await self._file.run(lambda connection: connection.executemany(_REMOVE, rows))

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        if not self._kind.is_work:
            return []
        asked = (self._kind.key, holder, now_s, *share, until_s + (until_s - now_s))

        def work(connection: sqlite3.Connection) -> list[bytes]:
            rows = connection.execute(_FREE, asked).fetchall()
            connection.execute(_TAKE, (holder, until_s, _json([row[0] for row in rows])))
            unknown = (place for place, one, revision in rows if known.get(one) != revision)
            return [connection.execute(_AT, (place,)).fetchone()[0] for place in unknown]

        return self._kind.readable(await self._file.read(work, []))

    async def let_go(self, holder: str) -> None:
        await self._file.read(lambda connection: connection.execute(_LET_GO, (self._kind.key, holder)), None)

    async def counts(self) -> Mapping[str, int]:
        return await self._file.read(lambda connection: dict(connection.execute(_COUNTS, (self._kind.key,))), {})

    async def has_room(self, bounds: RecordBounds) -> bool:
        if self.up and self._total is not None and self._total < bounds.total:
            return True  # other processes may have added records since: `add` counts again
        total, done = await self._file.run(lambda connection: self._held(connection)[""])
        return total < bounds.total or done > 0

    async def sweep(self, now_s: float) -> int:
        """Deletes expired records, SWEPT_AT_ONCE per transaction, so that other callers do not wait long."""
        swept, asked = 0, (self._kind.key, now_s, SWEPT_AT_ONCE)
        while some := await self._file.read(lambda connection: connection.execute(_SWEEP, asked).rowcount, 0):
            swept += some
        return swept

    def _row(self, record: R, holder: str, until_s: float) -> _Row:
        kind = self._kind
        return (
            kind.key, record.id, record.owner, record.target, record.standing, record.is_done, record.revision,
            record.created_at, ends_at(record, kind.is_work), holder, until_s, kind.codec.encode(record),
        )  # fmt: skip

    def _add_each(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Sequence[_Row], RecordBounds]]
    ) -> list[list[AddedRecord]]:
        """Adds the records of several callers. All new ones are added in one statement, because after each statement
        this thread waits for the interpreter lock, which the event loop's thread holds."""
        rows, bounds = [row for some, _ in items for row in some], items[0][1]
        new = self._new(connection, rows) if len(rows) > 1 and all(each == bounds for _, each in items) else []
        if new and self._make_room(connection, new, bounds):
            connection.execute(f"{_ADD}{', (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)' * (len(new) - 1)}", [*chain(*new)])
        else:
            new = []
        kept = {row[1] for row in new}
        return [
            [AddedRecord.KEPT if row[1] in kept else self._add(connection, row, each) for row in some]
            for some, each in items
        ]

    def _new(self, connection: sqlite3.Connection, rows: Sequence[_Row]) -> list[_Row]:
        """Returns the rows whose id is neither stored nor duplicated."""
        times = Counter(row[1] for row in rows)
        known = {name for (name,) in connection.execute(_KNOWN, (self._kind.key, _json(times)))}
        return [row for row in rows if times[row[1]] == 1 and row[1] not in known]

    def _make_room(self, connection: sqlite3.Connection, rows: Sequence[_Row], bounds: RecordBounds) -> bool:
        """Evicts the finished records that give way to these new ones. Returns False without any change if that is not
        enough, or if `total` or `done_per_target` would require other evictions."""
        owners = Counter(row[2] for row in rows)
        held = self._held(connection, owners)
        total, _ = held[""]
        freed: dict[str, int] = {}
        for owner, more in owners.items():
            mine, done = held[owner]
            if (excess := mine + more - bounds.per_owner) > 0:
                freed[owner] = min(excess, more)
                if freed[owner] > done:  # an unfinished record, or one of the new ones, would have to give way
                    return False
        total += len(rows) - sum(freed.values())
        if total > bounds.total or bounds.done_per_target is not None:
            return False
        for owner, some in freed.items():
            connection.execute(_MAKE_ROOM, (self._kind.key, owner, True, some))
        self._total = total
        return True

    def _add(self, connection: sqlite3.Connection, row: _Row, bounds: RecordBounds) -> AddedRecord:
        _, _, owner, target, _, _, _, created_at, *_ = row
        kind, known = self._kind.key, connection.execute(_ENDS, row[:2]).fetchone()
        if known is not None:
            if known[0] > created_at:
                return AddedRecord.KNOWN
            connection.execute(_REMOVE, row[:2])
        if bounds.done_per_target is not None:
            (done,) = connection.execute(_HISTORY, (kind, target)).fetchone() or (0,)
            for _ in range(min(done - bounds.done_per_target, FORGOTTEN_AT_ONCE)):
                connection.execute(_GIVE_WAY_OF_TARGET, (kind, target))
        held = self._held(connection, (owner,))
        total, done = held[""]
        if held[owner][0] >= bounds.per_owner:
            freed = connection.execute(_MAKE_ROOM, (kind, owner, not bounds.evicts_open, 1)).rowcount
            if not freed:
                return AddedRecord.FULL
        else:
            freed = max(0, min(total - bounds.total + 1, done, FORGOTTEN_AT_ONCE))
            for _ in range(freed):
                connection.execute(_GIVE_WAY_OF_ALL, (kind, ""))
        if total - freed >= bounds.total:
            return AddedRecord.FULL
        connection.execute(_ADD, row)
        self._total = total - freed + 1
        return AddedRecord.KEPT

    def _held(self, connection: sqlite3.Connection, owners: Collection[str] = ()) -> dict[str, tuple[int, int]]:
        """Returns the number of records and how many of them are finished: in total, under "", and by owner."""
        rows = connection.execute(_HELD, (self._kind.key, _json(("", *owners)))).fetchall()
        held = dict.fromkeys(("", *owners), (0, 0)) | {owner: (total, done) for owner, total, done in rows}
        self._total = held[""][0]
        return held

    async def _change(self, statement: str, record: R, *more: object) -> bool:
        changed = (record.standing, record.is_done, ends_at(record, self._kind.is_work), record.revision)
        which = (self._kind.key, record.id, record.revision - 1, record.is_done)
        parameters = (*changed, self._kind.codec.encode(record), *more, *which)
        return await self._file.run(lambda connection: connection.execute(statement, parameters).rowcount == 1)


def _json(names: Collection[object]) -> str:
    return orjson.dumps([*names]).decode()
