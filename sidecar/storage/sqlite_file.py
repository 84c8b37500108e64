"""Runs work on the SQLite file of the data folder in a thread, with group commit and a deadline.

The file is in WAL mode and synced. Work that arrives while the disk is busy shares one transaction. When a call's
deadline passes, the store counts as out and the thread's work is interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sidecar.errors import SettingsError, fault_in
from sidecar.observability.outage_log import Outage
from sidecar.storage.record_store import RecordStoreOut

if TYPE_CHECKING:
    import sqlite3

DEADLINE_S: Final = 2.0
BUSY_MS: Final = 1000  # another process uses the file; shorter than the deadline, so that the thread returns in time
MAX_WAITING: Final = 5000  # beyond this, callers would only wait until their own deadlines
MAX_AT_ONCE: Final = 100  # jobs in one transaction
_STEPS_BETWEEN_LOOKS: Final = 10_000

T = TypeVar("T")

log = logging.getLogger("sidecar.files")


VERSION: Final = 1
LOST: Final = (
    "without it no caller can follow earlier tasks and runs, paused schedules run again, and waiting callbacks are lost"
)
_COLUMNS: Final = {
    "records": (
        "kind", "id", "owner", "target", "state", "done", "revision", "created_at", "ends_at", "holder", "held_until",
        "body",
    ),
    "held": ("kind", "target", "owner", "total", "done", "oldest"),
    "deliveries": (
        "position", "id", "kind", "ref", "owner", "url", "created_at", "attempts", "due_at", "size", "headers", "body",
        "behalf",
    ),
}  # fmt: skip
# `state` is a record's standing; `ends_at` is infinite while work is left. `held` counts the records of each owner, and
# of all owners (owner ''), in total and per target, so that no bound needs a count of the table.
_TABLES: Final = """
CREATE TABLE records (
    kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL CHECK (owner <> ''), target TEXT NOT NULL,
    state TEXT NOT NULL, done INTEGER NOT NULL, revision INTEGER NOT NULL,
    created_at REAL NOT NULL, ends_at REAL NOT NULL,
    holder TEXT NOT NULL, held_until REAL NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (kind, id)
);
CREATE INDEX records_of_owner ON records (kind, owner, done DESC, created_at);
CREATE INDEX records_open ON records (kind, held_until) WHERE done = 0;
CREATE INDEX records_ends ON records (kind, ends_at);
CREATE INDEX records_newest ON records (kind, created_at, target, state) WHERE target <> '';
CREATE INDEX records_done ON records (kind, target, owner, created_at) WHERE done = 1 AND target <> '';
CREATE TABLE held (
    kind TEXT, target TEXT, owner TEXT, total INTEGER NOT NULL, done INTEGER NOT NULL, oldest REAL NOT NULL,
    PRIMARY KEY (kind, target, owner)
) WITHOUT ROWID;
CREATE INDEX held_most ON held (kind, target, done DESC, oldest) WHERE owner <> '';
CREATE TABLE deliveries (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, ref TEXT NOT NULL,
    owner TEXT NOT NULL CHECK (owner <> ''),
    url TEXT NOT NULL, created_at REAL NOT NULL, attempts INTEGER NOT NULL, due_at REAL NOT NULL,
    size INTEGER NOT NULL, headers TEXT NOT NULL, body BLOB NOT NULL, behalf TEXT NOT NULL
);
CREATE INDEX deliveries_of_owner ON deliveries (owner, size);
"""
# Keeps `held` right: of all targets (TARGET is ''), and of a record's own target if it has one.
_TALLY: Final = """
CREATE TRIGGER added_NAME AFTER INSERT ON records WHEN APPLIES BEGIN
    INSERT INTO held VALUES
        (NEW.kind, TARGET, '', 1, NEW.done, 0),
        (NEW.kind, TARGET, NEW.owner, 1, NEW.done, iif(NEW.done, NEW.created_at, 9e999))
    ON CONFLICT DO UPDATE SET total = total + 1, done = done + excluded.done, oldest = min(oldest, excluded.oldest);
END;
CREATE TRIGGER changed_NAME AFTER UPDATE OF done ON records WHEN NEW.done <> OLD.done AND APPLIES BEGIN
    UPDATE held SET done = done + NEW.done - OLD.done WHERE kind = NEW.kind AND target = TARGET AND owner = '';
    UPDATE held SET done = done + NEW.done - OLD.done, oldest = OLDEST
    WHERE kind = NEW.kind AND target = TARGET AND owner = NEW.owner;
END;
CREATE TRIGGER removed_NAME AFTER DELETE ON records WHEN APPLIES BEGIN
    UPDATE held SET total = total - 1, done = done - OLD.done
    WHERE kind = OLD.kind AND target = TARGET AND owner = '';
    UPDATE held SET total = total - 1, done = done - OLD.done, oldest = OLDEST
    WHERE kind = OLD.kind AND target = TARGET AND owner = OLD.owner;
    DELETE FROM held WHERE kind = OLD.kind AND target = TARGET AND owner = OLD.owner AND total = 0;
END;
"""
_OLDEST: Final = """(
    SELECT coalesce(min(created_at), 9e999) FROM records
    WHERE kind = held.kind AND owner = held.owner AND done = 1 OF_IT
)"""


def _schema() -> Iterator[str]:
    """Yields the statements that create the tables."""
    yield from filter(str.strip, _TABLES.split(";"))
    for name in ("all", "target"):
        oldest = _OLDEST.replace("OF_IT", "" if name == "all" else "AND target = held.target AND target <> ''")
        for trigger in _TALLY.replace("OLDEST", oldest).replace("NAME", name).split("END;")[:-1]:
            own = "NEW.target" if "NEW" in trigger else "OLD.target"
            target, applies = ("''", "true") if name == "all" else (own, f"{own} <> ''")
            yield f"{trigger.replace('TARGET', target).replace('APPLIES', applies)}END"


class _SqliteJob(NamedTuple):
    """A piece of work, the caller's deadline, and the future the caller waits on."""

    work: Callable[[sqlite3.Connection], Any]
    ends_mono_s: float
    done: asyncio.Future[Any]


class SqliteFile:
    """The file, created by the first work on it; without a path a database in memory, which does its work in the event
    loop and ends with the process. Raises RecordStoreOut when it cannot do the work."""

    def __init__(self, path: Path | None, *, deadline_s: float = DEADLINE_S) -> None:
        self.up = True
        self.is_durable = path is not None
        self._path = path
        self._deadline_s = deadline_s
        self._outage = Outage(log, "records")
        self._connection: sqlite3.Connection | None = None
        self._faults: tuple[type[Exception], ...] = (OSError, RuntimeError)  # and SQLite's own, once it is loaded
        self._waiting: deque[_SqliteJob] = deque()
        self._is_busy = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")

    async def read(self, work: Callable[[sqlite3.Connection], T], absent: Any) -> T:
        """As `run`, but creates no file: returns `absent` if there is none."""
        is_there = self._connection is not None or (self._path is not None and self._path.exists())
        return await self.run(work) if is_there else absent

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in a transaction, which other work may share. Once this returns, no crash loses the result.
        `work` must give the same result if it is run again."""
        if len(self._waiting) >= MAX_WAITING:
            raise RecordStoreOut("too many wait for it")
        job = _SqliteJob(work, time.monotonic() + self._deadline_s, asyncio.get_running_loop().create_future())
        try:
            if not self.is_durable:
                return self._transact([job])[0]  # type: ignore[no-any-return]
            self._waiting.append(job)
            async with asyncio.timeout(self._deadline_s):
                self._begin()
                done: T = await job.done
        except TimeoutError:
            self.up = False
            self._outage.fell("it does not answer in time")
            raise RecordStoreOut("it does not answer in time") from None
        except self._faults as error:
            self.up = False
            self._outage.fell(error)
            raise RecordStoreOut(str(error)) from None
        self.up = True
        self._outage.rose()
        return done

    async def close(self) -> None:
        """Closes the file. Closing twice is allowed."""
        if not self.is_durable:
            self._let_go()
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline_s):
                await loop.run_in_executor(self._thread, self._let_go)
        except (TimeoutError, RuntimeError):  # the thread hangs on its disk, or the file was closed before
            pass
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- batches ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Hands all waiting jobs to the thread: many callers wait for one sync."""
        if self._is_busy or not self._waiting:
            return
        jobs = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_AT_ONCE))]
        jobs = [job for job in jobs if not job.done.done()]  # the callers of the others have given up
        self._is_busy = True
        try:
            at_work = asyncio.get_running_loop().run_in_executor(self._thread, self._work, jobs)
        except RuntimeError as closed:
            self._is_busy = False
            for job in (*jobs, *self._waiting):
                _tell(job, closed)
            self._waiting.clear()
            return
        at_work.add_done_callback(partial(self._end, jobs))

    def _end(self, jobs: Sequence[_SqliteJob], at_work: asyncio.Future[list[Any]]) -> None:
        self._is_busy = False
        if at_work.cancelled():  # closed meanwhile
            ends: list[Any] = [RuntimeError("it is closed")] * len(jobs)
        else:
            ends = at_work.result()
        for job, end in zip(jobs, ends, strict=True):
            _tell(job, end)
        self._begin()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _work(self, jobs: Sequence[_SqliteJob]) -> list[Any]:
        """Runs the jobs; returns each one's value or exception."""
        if len(jobs) > 1:
            try:
                return self._transact(jobs)
            except Exception:  # one job failed the transaction for all: run each by itself
                log.debug("a batch is done one by one", exc_info=True)
        return [self._alone(job) for job in jobs]

    def _alone(self, job: _SqliteJob) -> Any:
        if time.monotonic() >= job.ends_mono_s:
            return RecordStoreOut("it does not answer in time")  # its caller has given up
        try:
            return self._transact([job])[0]
        except Exception as error:
            return error

    def _transact(self, jobs: Sequence[_SqliteJob]) -> list[Any]:
        if self._connection is None:
            self._connection = self._connect()
        connection, ends_mono_s = self._connection, min(job.ends_mono_s for job in jobs)
        connection.set_progress_handler(lambda: time.monotonic() >= ends_mono_s, _STEPS_BETWEEN_LOOKS)
        try:
            connection.execute("BEGIN IMMEDIATE")
            done = [job.work(connection) for job in jobs]
            connection.execute("COMMIT")
        except BaseException:
            if self.is_durable:
                self._let_go()  # the connection's state is unknown: drop it, which rolls the transaction back
            else:
                connection.rollback()
            raise
        return done

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        import sqlite3  # not before there is a record

        self._faults = (sqlite3.Error, OSError, RuntimeError)
        if self._path is not None:
            # Created here, because SQLite would apply the umask; SQLite's companion files take the mode of this file.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path or ":memory:", timeout=BUSY_MS / 1000, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in _schema():
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
            if version > VERSION:
                raise RecordStoreOut("its file was written by a newer version")
            connection.execute("PRAGMA journal_mode = WAL")  # after the version, which is thus in the file's header
            connection.execute("PRAGMA synchronous = FULL")  # a committed transaction survives a power cut
        except BaseException:
            connection.close()
            raise
        return connection


def _tell(job: _SqliteJob, end: object) -> None:
    if job.done.done():  # its caller has given up
        return
    if isinstance(end, Exception):
        job.done.set_exception(end)
    else:
        job.done.set_result(end)


def check_file(path: Path) -> None:
    """Checks that a start could use this file, or none. Leaves nothing beside it. Raises SettingsError."""
    if not os.path.lexists(path):
        return
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            # Tables are created before WAL mode is set, so they are in the file itself.
            found = {
                name: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({name})")) for name in _COLUMNS
            }
    except sqlite3.Error as error:
        raise _fault(path, "T101", f"is damaged: {error}", "restore it from a backup") from None
    if version > VERSION:
        raise _fault(path, "T102", "was written by a newer version", "use that version")
    if found != (_COLUMNS if version else dict.fromkeys(_COLUMNS, ())):
        raise _fault(path, "T101", "is a SQLite file with other tables than the sidecar's", "restore it from a backup")


def _fault(path: Path, code: str, message: str, mend: str) -> SettingsError:
    return SettingsError([fault_in(path, message, code=code, hint=f"{mend}, or set it aside: {LOST}")])
