"""Runs work on the SQLite file of the data folder in a thread, with group commit and a deadline.

The file is in WAL mode and synced. Work that arrives while the disk is busy shares one transaction. When a call's
deadline passes, the store is treated as unavailable and the thread's work is interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
LATE: Final = "it does not answer in time"

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
# `state` is a record's standing; `ends_at` is infinite for unfinished work. `held` counts the records of each owner,
# and of all owners (owner ''), in total and per target, so that no bound requires counting the table.
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
# Updates `held`, for all targets (TARGET is '') and for a record's own target if it has one.
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
    yield from filter(str.strip, _TABLES.split(";"))
    for name in ("all", "target"):
        oldest = _OLDEST.replace("OF_IT", "" if name == "all" else "AND target = held.target AND target <> ''")
        for trigger in _TALLY.replace("OLDEST", oldest).replace("NAME", name).split("END;")[:-1]:
            own = "NEW.target" if "NEW" in trigger else "OLD.target"
            target, applies = ("''", "true") if name == "all" else (own, f"{own} <> ''")
            yield f"{trigger.replace('TARGET', target).replace('APPLIES', applies)}END"


Work = Callable[["sqlite3.Connection", Sequence[Any]], Sequence[Any]]
"""Work on the items of several callers. It returns one value for each."""


class _SqliteJob:
    """A piece of work for one caller: its deadline, the future that the caller waits on, and the result."""

    __slots__ = ("done", "ends_mono_s", "item", "value", "work")

    def __init__(self, work: Work, item: Any, ends_mono_s: float, done: asyncio.Future[Any]) -> None:
        self.work, self.item, self.ends_mono_s, self.done = work, item, ends_mono_s, done
        self.value: Any = None


class SqliteFile:
    """The file, created by the first work on it; without a path a database in memory, which works in the event loop and
    ends with the process. Methods that run work raise RecordStoreOut if it cannot be done within `deadline_s`
    seconds."""

    def __init__(self, path: Path | None, *, deadline_s: float = DEADLINE_S) -> None:
        self.up = True
        self.is_durable = path is not None
        self._path = path
        self._deadline_s = deadline_s
        self._outage = Outage(log, "records")
        self._connection: sqlite3.Connection | None = None
        self._faults: tuple[type[Exception], ...] = (OSError, RuntimeError)  # and SQLite's own, once it is loaded
        self._waiting: deque[_SqliteJob] = deque()
        self._at_work: list[_SqliteJob] = []
        self._is_busy = self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._batches: SimpleQueue[tuple[asyncio.AbstractEventLoop, list[_SqliteJob]] | None] = SimpleQueue()
        self._thread: Thread | None = None

    async def read(self, work: Callable[[sqlite3.Connection], T], absent: Any) -> T:
        """Like `run`, but creates no file. Returns `absent` if there is none."""
        is_there = self._connection is not None or (self._path is not None and self._path.exists())
        return await self.run(work) if is_there else absent

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in a transaction, which other work may share, and returns its result. Once this returns, no crash
        loses what it wrote to a file. `work` must have the same effect if it is rolled back and runs again."""
        done: T = await self.run_each(lambda connection, _: (work(connection),), None)
        return done

    async def run_each(self, work: Work, item: Any) -> Any:
        """Like `run`, for work that processes the items of several callers in one call. Returns the value of `item`."""
        if len(self._waiting) >= MAX_WAITING:
            raise RecordStoreOut("too many wait for it")
        loop = asyncio.get_running_loop()
        job = _SqliteJob(work, item, time.monotonic() + self._deadline_s, loop.create_future())
        try:
            if self.is_durable:
                self._wait(job, loop)
                done = await job.done
            else:
                done = self._transact([job])[0]
        except self._faults as error:
            self._fell(error)
            raise RecordStoreOut(str(error)) from None
        if not self.up:
            self.up = True
            self._outage.rose()
        return done

    async def close(self) -> None:
        """Closes the file once the work that was passed to its thread is done. Closing twice is allowed."""
        thread, self._thread, self._is_closed = self._thread, None, self.is_durable
        if thread is None:
            self._let_go()
        else:
            self._batches.put(None)
            await asyncio.to_thread(thread.join, self._deadline_s)  # unless the thread hangs on its disk

    def _fell(self, why: object) -> None:
        self.up = False
        self._outage.fell(why)

    def _wait(self, job: _SqliteJob, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(job)
        if not self._is_busy:  # `call_soon`, so that later jobs of this iteration of the loop are in the same batch
            self._is_busy = True
            loop.call_soon(self._begin, loop)
        if self._timer is None:
            self._timer = loop.call_later(self._deadline_s, self._look_at_clock, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Passes all waiting jobs to the thread, so that many callers wait for one sync."""
        jobs: list[_SqliteJob] = []
        while self._waiting and len(jobs) < MAX_AT_ONCE:
            if not (job := self._waiting.popleft()).done.done():  # otherwise its caller has stopped waiting
                jobs.append(job)
        self._at_work, self._is_busy = jobs, bool(jobs)
        if self._is_closed:
            for job in (*jobs, *self._waiting):
                _tell(job, RuntimeError("it is closed"))
            self._waiting.clear()
            self._is_busy = False
        elif jobs:
            if self._thread is None:
                # It ends with the process, which must not wait for a hanging disk.
                self._thread = Thread(target=self._serve, name="records", daemon=True)
                self._thread.start()
            self._batches.put((loop, jobs))

    def _end(self, loop: asyncio.AbstractEventLoop, jobs: Sequence[_SqliteJob], ends: Sequence[Any]) -> None:
        for job, end in zip(jobs, ends, strict=True):
            _tell(job, end)
        self._begin(loop)

    def _look_at_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the waits whose deadline has passed. One timer serves all, because most waits end long before."""
        now_s, next_s = time.monotonic(), math.inf
        for job in (*self._at_work, *self._waiting):
            if job.done.done():
                continue
            if job.ends_mono_s <= now_s:
                self._fell(LATE)
                job.done.set_exception(RecordStoreOut(LATE))
            else:
                next_s = min(next_s, job.ends_mono_s)
        rest_s = next_s - now_s
        self._timer = loop.call_later(rest_s, self._look_at_clock, loop) if rest_s < math.inf else None

    def _serve(self) -> None:
        while (batch := self._batches.get()) is not None:
            loop, jobs = batch
            ends = self._work(jobs)
            with suppress(RuntimeError):  # the loop is closed, and no caller waits
                loop.call_soon_threadsafe(self._end, loop, jobs, ends)
        self._let_go()

    def _work(self, jobs: Sequence[_SqliteJob]) -> list[Any]:
        """Runs the jobs; returns each one's value or exception."""
        if len(jobs) > 1:
            try:
                return self._transact(jobs)
            except Exception:  # one job failed the transaction for all: run each one separately
                log.debug("a batch is done one by one", exc_info=True)
        return [self._alone(job) for job in jobs]

    def _alone(self, job: _SqliteJob) -> Any:
        if time.monotonic() >= job.ends_mono_s:
            return RecordStoreOut(LATE)  # its caller has stopped waiting
        try:
            return self._transact([job])[0]
        except Exception as error:
            return error

    def _transact(self, jobs: Sequence[_SqliteJob]) -> list[Any]:
        if self._connection is None:
            self._connection = self._connect()
        connection, ends_mono_s = self._connection, min(job.ends_mono_s for job in jobs)
        connection.set_progress_handler(lambda: time.monotonic() >= ends_mono_s, _STEPS_BETWEEN_LOOKS)
        together: dict[Work, list[_SqliteJob]] = {}
        for job in jobs:
            together.setdefault(job.work, []).append(job)
        try:
            connection.execute("BEGIN IMMEDIATE")
            for work, some in together.items():
                for job, value in zip(some, work(connection, [one.item for one in some]), strict=True):
                    job.value = value
            connection.execute("COMMIT")
        except BaseException:
            if self.is_durable:
                self._let_go()  # the connection's state is unknown: drop it, which rolls the transaction back
            else:
                connection.rollback()
            raise
        return [job.value for job in jobs]

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        import sqlite3  # not needed before the first record

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
            connection.execute("PRAGMA synchronous = FULL")  # a committed transaction survives a power failure
            connection.execute("PRAGMA temp_store = MEMORY")  # no file for the undo data of one statement
        except BaseException:
            connection.close()
            raise
        return connection


def _tell(job: _SqliteJob, end: object) -> None:
    if job.done.done():  # its caller has stopped waiting
        return
    if isinstance(end, Exception):
        job.done.set_exception(end)
    else:
        job.done.set_result(end)


def check_file(path: Path) -> None:
    """Checks that the sidecar can use this file, or that there is none. Creates no other files. Raises
    SettingsError."""
    if not os.path.lexists(path):
        return
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            # Tables are created before WAL mode is set, so they are in the main file.
            found = {
                name: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({name})")) for name in _COLUMNS
            }
    except sqlite3.Error as error:
        raise _fault(path, "D102", f"is damaged: {error}", "restore it from a backup") from None
    if version > VERSION:
        raise _fault(path, "D103", "was written by a newer version", "use that version")
    if found != (_COLUMNS if version else dict.fromkeys(_COLUMNS, ())):
        raise _fault(path, "D102", "is a SQLite file with other tables than the sidecar's", "restore it from a backup")


def _fault(path: Path, code: str, message: str, mend: str) -> SettingsError:
    return SettingsError([fault_in(path, message, code=code, hint=f"{mend}, or set it aside: {LOST}")])
