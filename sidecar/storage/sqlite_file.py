"""Runs work on a SQLite file in a thread, with group commit and a deadline.

The file is in the data folder, in WAL mode and synced, and has a thread of its own: the event loop never waits for the
disk, and work that arrives while the disk is busy shares one transaction (group commit). Each call has a deadline; when
it passes, the store counts as out and the thread's work is interrupted. A file of a newer version, or one that is not
such a file, prevents the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from sidecar.errors import SettingsError, fault_in
from sidecar.observability.outage_log import Outage

DEADLINE_S: Final = 2.0
BUSY_MS: Final = 1000  # another process uses the file; shorter than the deadline, so that the thread returns in time
MAX_WAITING: Final = 1000  # beyond this, callers would only wait until their own deadlines
MAX_AT_ONCE: Final = 100  # jobs in one transaction
_STEPS_BETWEEN_LOOKS: Final = 10_000
_MAGIC, _VERSION_AT = b"SQLite format 3\x00", 60  # sqlite.org/fileformat2.html, 1.3

T = TypeVar("T")

log = logging.getLogger("sidecar.files")


@dataclass(frozen=True, slots=True)
class SqliteFormat:
    """The format of a file: the statements that create it, its version, and each table's columns in order. `derived`
    creates what is computed from those tables, if it is missing."""

    schema: str
    version: int
    tables: Mapping[str, tuple[str, ...]]
    derived: str = ""


class _SqliteJob(NamedTuple):
    """A piece of work, the caller's deadline, and the future the caller waits on."""

    work: Callable[[sqlite3.Connection], Any]
    ends_mono_s: float
    done: asyncio.Future[Any]


class SqliteFile:
    """A SQLite file, created by the first work on it. Raises `out` when it cannot do the work."""

    def __init__(
        self, path: Path, format_: SqliteFormat, out: type[Exception], *, name: str, deadline_s: float = DEADLINE_S
    ) -> None:
        self.up = True
        self._path = path
        self._format = format_
        self._out = out
        self._deadline_s = deadline_s
        self._outage = Outage(log, name)
        self._connection: sqlite3.Connection | None = None
        self._waiting: deque[_SqliteJob] = deque()
        self._is_busy = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    @property
    def is_there(self) -> bool:
        """Whether the file exists."""
        return self._connection is not None or self._path.exists()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in a transaction, which other work may share. Once this returns, no crash loses the result.
        `work` must give the same result if it is run again."""
        if len(self._waiting) >= MAX_WAITING:
            raise self._out("too many wait for it")
        job = _SqliteJob(work, time.monotonic() + self._deadline_s, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        try:
            async with asyncio.timeout(self._deadline_s):
                self._begin()
                done: T = await job.done
        except TimeoutError:
            self.up = False
            self._outage.fell("it does not answer in time")
            raise self._out("it does not answer in time") from None
        except (sqlite3.Error, OSError, RuntimeError) as error:
            self.up = False
            self._outage.fell(error)
            raise self._out(str(error)) from None
        self.up = True
        self._outage.rose()
        return done

    async def close(self) -> None:
        """Closes the file. Closing twice is allowed."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline_s):
                await loop.run_in_executor(self._thread, self._let_go)
        except (TimeoutError, RuntimeError):  # the thread hangs on its disk, or the file was closed before
            pass
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- batches ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Hands all waiting jobs to the thread. Jobs that arrive meanwhile form the next batch, so that many callers
        wait for one sync."""
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
            return self._out("it does not answer in time")  # its caller has given up
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
            self._let_go()  # the connection's state is unknown: drop it, which rolls the transaction back
            raise
        return done

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        # Created here, because SQLite would apply the umask; SQLite's companion files take the mode of this file.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_MS / 1000, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in filter(str.strip, self._format.schema.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {self._format.version}")
            connection.execute("COMMIT")
            if version > self._format.version:
                raise self._out("its file was written by a newer version")
            connection.executescript(f"BEGIN IMMEDIATE; {self._format.derived} COMMIT;")
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


def check_sqlite_file(path: Path, format_: SqliteFormat, *, broken: str, newer: str, hint: str, without: str) -> None:
    """Checks that a start could use this file; a missing file is fine. Only reads. `broken` and `newer` are codes of
    faults, `hint` says how to mend a broken file, and `without` says what is lost without it. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError([fault_in(path, f"cannot be read: {error.strerror}", code=broken, hint=hint)]) from None
    if not head:  # the machine stopped just after the file was created
        return
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise SettingsError([fault_in(path, "is no SQLite file", code=broken, hint=hint)])
    version = int.from_bytes(head[_VERSION_AT : _VERSION_AT + 4], "big")
    if version > format_.version:
        use_it = f"use that version, or set the file aside: {without}"
        raise SettingsError([fault_in(path, "was written by a newer version", code=newer, hint=use_it)])
    try:
        found = _tables_in(path, format_.tables)
    except sqlite3.Error as error:
        raise SettingsError([fault_in(path, f"is damaged: {error}", code=broken, hint=hint)]) from None
    if found != (format_.tables if version else dict.fromkeys(format_.tables, ())):
        what = " and ".join(format_.tables)
        raise SettingsError([fault_in(path, f"holds something else than {what}", code=broken, hint=hint)])


def _tables_in(path: Path, names: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Returns the columns of these tables. Tables are created before WAL mode is set, so they are in the file itself.
    `immutable` keeps SQLite from creating files beside it."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return {name: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({name})")) for name in names}
