"""Runs the workers that serve one address: starts them, replaces those that end or hang, and passes signals on.

The supervisor binds every listening socket and passes all of them to each worker (`LISTEN_FDS`), so that the workers
share one queue of connections per socket: killing a worker loses no waiting connection, and an idle worker accepts the
next one. Each worker reports over a notify socket when it serves, and that it is alive (sd_notify). The standard input
of a worker is a pipe from the supervisor, whose end means that the supervisor has ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.app.service_manager import ServiceManager
from sidecar.errors import SettingsError, fault_in
from sidecar.http.server.bound_sockets import bound_socket, unbound
from sidecar.http.server.inherited_sockets import FIRST_FD, MAX_FDS, inherited
from sidecar.settings.addresses import ListenAddress, UnixAddress
from sidecar.settings.sidecar_file import METRICS_FILE, WORKERS, Settings

READY_WITHIN_S: Final = 300.0
FIRST_REST_S: Final = 0.1
LONGEST_REST_S: Final = 5.0
STEADY_S: Final = 60.0  # a worker that served this long is replaced without a pause
LAST_S: Final = 15.0  # for the work of a worker after its grace time, before it is killed
COPIES_FROM_FD: Final = FIRST_FD + MAX_FDS  # above the numbers at which a worker finds them
LEFT_S: Final = 3.0  # workers end within two seconds of their supervisor
MAX_NOTE_BYTES: Final = 4096

log = logging.getLogger("sidecar.app.supervisor")


class WorkerFailed(Exception):
    """A worker ended before it served. `code` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class SupervisedWorker:
    """One worker; `pid` is 0 while it does not run. `failures` counts ends in a row, without steady service in
    between."""

    number: int
    notify: socket.socket
    pid: int = 0
    line: int = -1
    is_ready: bool = False
    is_reloading: bool = False
    reload_due: bool = False
    began_mono_s: float = 0.0
    heard_mono_s: float = 0.0
    failures: int = 0
    exit_code: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """The parent of all workers. `path` is the settings file, named in faults; `command` starts one worker."""

    def __init__(
        self, path: Path, settings: Settings, environ: Mapping[str, str], count: int, command: list[str]
    ) -> None:
        self._path, self._settings, self._environ, self._command = path, settings, environ, command
        self._manager = ServiceManager(environ)
        self._sockets: list[tuple[ListenAddress | UnixAddress, socket.socket, bool]] = []
        self._copies: list[int] = []  # the descriptors for each worker: the listening sockets, followed by the lock
        self._chosen: dict[str, str] = {}  # variables with the ports that the system chose
        self._numbers = range(1, count + 1)
        self.workers: list[SupervisedWorker] = []
        self._stop, self._all_ended = asyncio.Event(), asyncio.Event()
        self.serves = self._is_killing = False

    async def run(self) -> bool:
        """Serves until a signal requests the end. Returns whether every worker ended in order. Raises SettingsError,
        WorkerFailed."""
        loop = asyncio.get_running_loop()
        try:
            await self._lock()
            self._bind()
            self._make_parts()
            for name in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(name, self._asked_to_stop)
            loop.add_signal_handler(signal.SIGHUP, self._asked_to_reload)
            loop.add_signal_handler(signal.SIGCHLD, self._reap)
            watching = [loop.create_task(self._watch()), loop.create_task(self._manager.run_watchdog())]
            try:
                await self._start()
                await self._stop.wait()
            finally:
                in_order = await self._end_all()
                for task in watching:
                    task.cancel()
            return in_order
        finally:
            self._close()

    @property
    def _stop_takes_at_most_s(self) -> float:
        server = self._settings.server
        return (server.drain_delay_s or 0.0) + server.shutdown_grace_s + LAST_S

    # --- sockets and folders ---

    async def _lock(self) -> None:
        """Locks the folder of the workers. The workers hold the lock too, so it is awaited for `LEFT_S`: those of a
        killed supervisor need a moment to end. Raises SettingsError."""
        folder = self._settings.data / WORKERS
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._copies.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, COPIES_FROM_FD))
        os.close(descriptor)
        until_mono_s = time.monotonic() + LEFT_S
        while True:
            try:
                fcntl.flock(self._copies[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until_mono_s:
                    hint = "give each sidecar a data folder of its own"
                    fault = fault_in(folder, "is being written by another sidecar", code="A113", hint=hint)
                    raise SettingsError([fault]) from None
            await asyncio.sleep(0.05)

    def _bind(self) -> None:
        """Binds every listener except those of gRPC, which workers bind together. Raises SettingsError."""
        settings = self._settings
        addresses = [(loc, one) for loc, one in settings.listeners() if loc != ("server", "grpc")]
        for loc, address in (*addresses, ((), UnixAddress(settings.control_path))):
            try:
                passed = inherited().take(address)
                sock = passed or bound_socket(address)
            except OSError as error:
                raise unbound(self._path, address, error) from None
            self._sockets.append((address, sock, passed is not None))
            if isinstance(address, ListenAddress) and address.port == 0:
                actual = ListenAddress(address.host, sock.getsockname()[1])
                self._chosen["SIDECAR_" + "__".join(str(step).upper() for step in loc)] = str(actual)
        if len(self._sockets) > MAX_FDS:
            message = f"workers support at most {MAX_FDS} listeners, and there are {len(self._sockets)}"
            raise SettingsError([fault_in(self._path, message, code="S195", hint="set server.workers to 1")])
        inherited().check_all_taken(self._path)
        # At numbers that a worker's own descriptors do not have, because the copies are made one after another.
        self._copies[:0] = [fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, COPIES_FROM_FD) for _, sock, _ in self._sockets]

    def _make_parts(self) -> None:
        """Makes the folder and the notify socket of each worker. Raises SettingsError."""
        for kind in (METRICS_FILE, "*.sock"):  # of workers that have ended
            for left in self._settings.data.glob(f"{WORKERS}/*/{kind}"):
                left.unlink(missing_ok=True)
        for number in self._numbers:
            part = self._settings.own_of(number)
            part.mkdir(parents=True, exist_ok=True, mode=0o700)
            place = part / "notify.sock"
            notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            worker = SupervisedWorker(number, notify)
            self.workers.append(worker)
            try:
                notify.bind(str(place))
            except OSError as error:
                raise unbound(self._path, UnixAddress(place), error) from None
            place.chmod(0o600)
            notify.setblocking(False)
            asyncio.get_running_loop().add_reader(notify, self._hear, worker)

    def _close(self) -> None:
        for worker in self.workers:
            asyncio.get_running_loop().remove_reader(worker.notify)
            worker.notify.close()
            (self._settings.own_of(worker.number) / "notify.sock").unlink(missing_ok=True)
        for copy in self._copies:
            os.close(copy)
        for address, sock, was_passed in self._sockets:
            sock.close()
            if isinstance(address, UnixAddress) and not was_passed:
                address.path.unlink(missing_ok=True)

    # --- the life of a worker ---

    async def _start(self) -> None:
        """Starts the first worker, which makes the keys, and then the others. Raises WorkerFailed."""
        first, *others = self.workers
        self._spawn(first)
        await self._until_ready(first)
        for worker in others:
            if not self._stop.is_set():
                self._spawn(worker)
        for worker in others:
            await self._until_ready(worker)
        self.serves = True
        if not self._stop.is_set():
            for worker in self.workers:
                if not worker.pid:
                    self._replace(worker)
            pids = {worker.number: worker.pid for worker in self.workers}
            log.info("all workers serve", extra={"workers": len(self.workers), "pids": pids})
            self._manager.ready(f"{len(self.workers)} workers serve")

    async def _until_ready(self, worker: SupervisedWorker) -> None:
        stopping = asyncio.create_task(self._stop.wait())
        until_s = time.monotonic() + READY_WITHIN_S
        try:
            while not (worker.is_ready or self._stop.is_set()):
                if not worker.pid:
                    message = f"worker {worker.number} ended before it served: its own message says why"
                    raise WorkerFailed(message, worker.exit_code)
                if (left_s := until_s - time.monotonic()) <= 0:
                    message = f"worker {worker.number} does not serve after {READY_WITHIN_S:.0f} s"
                    raise WorkerFailed(message, 0)
                changing = asyncio.create_task(worker.changed.wait())
                await asyncio.wait((changing, stopping), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
                worker.changed.clear()
        finally:
            stopping.cancel()

    def _spawn(self, worker: SupervisedWorker) -> None:
        environ = {name: value for name, value in self._environ.items() if name not in ("LISTEN_PID", "WATCHDOG_PID")}
        set_here = self._chosen | {
            "SIDECAR_SERVER__WORKER": str(worker.number),
            "SIDECAR_SERVER__WORKERS": str(len(self.workers)),
        }
        for name in set_here:
            environ.pop(f"{name}_FILE", None)
        environ |= set_here | {
            "LISTEN_FDS": str(len(self._sockets)),
            "NOTIFY_SOCKET": str((self._settings.own_of(worker.number) / "notify.sock").absolute()),
            "WATCHDOG_USEC": str(int(self._settings.server.worker_timeout_s * 1e6)),
        }
        theirs, line = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, theirs, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, copy, FIRST_FD + index) for index, copy in enumerate(self._copies)]
        try:
            # In a group of its own, because the supervisor passes ^C on.
            worker.pid = os.posix_spawn(self._command[0], self._command, environ, file_actions=actions, setpgroup=0)
            worker.line = line
        except OSError:
            os.close(line)
            raise
        finally:
            os.close(theirs)
        worker.is_ready = worker.is_reloading = worker.reload_due = False
        worker.began_mono_s = worker.heard_mono_s = time.monotonic()

    def _hear(self, worker: SupervisedWorker) -> None:
        """Reads a worker's reports about itself."""
        while True:
            try:
                note = worker.notify.recv(MAX_NOTE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            worker.heard_mono_s = time.monotonic()
            said = note.split(b"\n")
            if b"READY=1" in said:
                worker.is_ready, worker.is_reloading = True, False
                worker.changed.set()
                if worker.reload_due:
                    self._reload(worker)
                elif self.serves and not any(one.is_reloading for one in self.workers):
                    self._manager.ready(f"{sum(one.is_ready for one in self.workers)} workers serve")

    def _reap(self) -> None:
        for worker in self.workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            worker.exit_code = os.waitstatus_to_exitcode(status)
            worker.pid, worker.is_ready, worker.is_reloading = 0, False, False
            os.close(worker.line)
            worker.changed.set()
            if self.serves and not self._stop.is_set():
                self._replace(worker)
        if not any(worker.pid for worker in self.workers):
            self._all_ended.set()

    def _replace(self, worker: SupervisedWorker) -> None:
        """Restarts a worker: at once after steady service, otherwise after a pause that grows with each failure."""
        steady = time.monotonic() - worker.began_mono_s >= STEADY_S
        worker.failures = 0 if steady else worker.failures + 1
        wait_s = rest_s(worker.failures)
        facts = {"worker": worker.number, "exit_code": worker.exit_code, "again_in_s": wait_s}
        log.error("a worker ended and is replaced", extra=facts)
        asyncio.get_running_loop().call_later(wait_s, self._respawn, worker)

    def _respawn(self, worker: SupervisedWorker) -> None:
        if self._stop.is_set():
            return
        try:
            self._spawn(worker)
        except OSError as error:  # no process, memory or descriptor is available
            log.error("a worker cannot be started", extra={"worker": worker.number, "error": str(error)})
            asyncio.get_running_loop().call_later(LONGEST_REST_S, self._respawn, worker)

    async def _watch(self) -> None:
        """Ends workers whose event loop hangs, and those that take too long to start."""
        patience_s = self._settings.server.worker_timeout_s
        while True:
            await asyncio.sleep(min(1.0, patience_s / 4))
            now_mono_s = time.monotonic()
            for worker in self.workers:
                allowed_s = patience_s if worker.is_ready else READY_WITHIN_S
                silent_s = now_mono_s - (worker.heard_mono_s if worker.is_ready else worker.began_mono_s)
                if worker.pid and silent_s > allowed_s:
                    facts = {"worker": worker.number, "pid": worker.pid, "silent_s": round(silent_s, 1)}
                    log.error("a worker does not respond and is ended", extra=facts)
                    self._signal((worker,), signal.SIGKILL)

    # --- signals ---

    def _asked_to_stop(self) -> None:
        """Passes the first signal on; at the second, ends all workers without waiting for calls in flight."""
        if self._stop.is_set():
            self._is_killing = True
            self._signal(self.workers, signal.SIGKILL)
            return
        log.info("stopping")
        self._manager.stopping(self._stop_takes_at_most_s + LAST_S)
        self._stop.set()
        self._signal(self.workers, signal.SIGTERM)

    def _asked_to_reload(self) -> None:
        self._manager.reloading()
        for worker in self.workers:
            self._reload(worker)

    def _reload(self, worker: SupervisedWorker) -> None:
        """Requests a reload of a worker. A starting worker reloads when it serves, because it may have read the older
        files."""
        worker.reload_due = not worker.is_ready
        if worker.is_ready:
            worker.is_reloading = True
            self._signal((worker,), signal.SIGHUP)

    def _signal(self, workers: Iterable[SupervisedWorker], number: int) -> None:
        for worker in workers:
            if worker.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, number)

    async def _end_all(self) -> bool:
        """Waits for the end of all workers, and ends those that take too long. Returns whether all ended in order."""
        was_asked = self._stop.is_set()
        self._stop.set()
        if not was_asked:
            self._signal(self.workers, signal.SIGTERM)
        self._reap()
        try:
            async with asyncio.timeout(self._stop_takes_at_most_s):
                await self._all_ended.wait()
        except TimeoutError:
            log.error("workers that did not stop in time are ended")
            self._is_killing = True
            self._signal(self.workers, signal.SIGKILL)
            async with asyncio.timeout(LAST_S):
                await self._all_ended.wait()
        log.info("stopped")
        codes = {worker.exit_code for worker in self.workers}
        return not self._is_killing and codes <= {0, -signal.SIGTERM}


def rest_s(failures: int) -> float:
    """Returns the pause in seconds before a worker is restarted after this number of failures in a row: none after the
    first."""
    return 0.0 if failures < 2 else min(FIRST_REST_S * 2 ** min(failures - 2, 16), LONGEST_REST_S)


def command_of_this() -> list[str]:
    """The command that started this process, with the interpreter's own path."""
    return [sys.executable, *sys.orig_argv[1:]]
