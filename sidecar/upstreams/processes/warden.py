"""A small process that starts programs and ends their descendants, even after the sidecar has ended.

It runs as a file, `python -I -S warden.py FD`, and imports nothing of the sidecar, so that it forks quickly.

    sidecar ──orders──▶ warden ──fork──▶ keeper ──fork, exec──▶ program ──▶ its descendants
       └───────────── one line for each program ──┘

An order on FD is a length, JSON, and four descriptors: the program's three streams and the keeper's end of its line.
The keeper writes `{"started": pid}` or `{"failed": errno, "where": …}` to its line, then `{"exited": status}`, then the
resources used, `{"used": […]}`, and closes the line when no process is left. It accepts `{"end": grace_s}`; a broken
line means the same, with a short grace. `{"until": [asks, kills]}` limits the program's life, unless extended, by two
times of the monotonic clock: when the program is signalled to end, and when it is killed, even if the sidecar hangs.

Keeper and warden are subreapers (Linux): a process orphaned below them becomes their own child, so "no child left"
means "no process left". They signal only their own children, whose ids cannot be reused: only the parent can reap them.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

LINUX = sys.platform == "linux"
HEADER = struct.Struct("!I")
MAX_ORDER_BYTES = 4 * 2**20  # arguments and environment: the kernel accepts 128 KiB of each, 2 MiB in total
STREAMS_AND_LINE = 4
ORPHANED_GRACE_S = 1.0  # the sidecar or the program has ended: everything ends within two seconds
STEP_S = 0.02
NEVER = (float("inf"), float("inf"))
LONGEST_S = 3600.0  # of one poll: the kernel limits the number
_BLOCK_BYTES = 512  # the unit of getrusage
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a terminal or supervisor also sends these to the sidecar


def main(orders: socket.socket) -> None:
    """Forks a keeper for each order, until the order socket is closed and no keeper is left."""
    _settle()
    alarm = _Alarm()
    keepers: dict[int, str] = {}
    folders: list[str] = []
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    poll.register(alarm.fileno(), select.POLLIN)
    serving, left = True, True
    while serving or left:
        events = dict(poll.poll(None if serving else STEP_S * 1000))
        alarm.clear()
        if serving and orders.fileno() in events:
            order = _next_order(orders)
            if order is None:
                serving = False
                poll.unregister(orders)
            else:
                keeper = _forked_keeper(*order)
                if keeper is not None:
                    keepers[keeper] = order[0]["private"]
        left = _reap(keepers, folders)


def _reap(keepers: dict[int, str], folders: list[str]) -> bool:
    """Reaps ended children. After a killed keeper, ends its processes and removes its `folders`. Returns whether any
    child is left."""
    left = True
    while left:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            left = False
            break
        if pid == 0:
            break
        if pid in keepers and os.path.exists(folder := keepers.pop(pid)):
            folders.append(folder)
    strays = set(_children()) - keepers.keys() if left else ()
    for pid in strays:
        _quietly(os.kill, pid, signal.SIGKILL)
    while folders and not strays:
        remove(folders.pop())
    return left


def _next_order(orders: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next order and its descriptors; None when there are no more, or it is invalid."""
    head, fds = b"", []
    while len(head) < HEADER.size:
        piece, more, _, _ = socket.recv_fds(orders, HEADER.size - len(head), STREAMS_AND_LINE)
        if not piece:
            return None
        head += piece
        fds += more
    size = HEADER.unpack(head)[0]
    if size > MAX_ORDER_BYTES or len(fds) != STREAMS_AND_LINE:
        return None
    body = bytearray()
    while len(body) < size:
        piece = orders.recv(size - len(body))
        if not piece:
            return None
        body += piece
    return json.loads(body), fds


def _forked_keeper(order: dict[str, Any], fds: list[int]) -> int | None:
    """Returns the pid of a program's new keeper; None if the system refuses to fork, which it reports on the line."""
    pid = None
    try:
        pid = os.fork()
    except OSError as error:
        _quietly(os.write, fds[-1], _line({"failed": error.errno, "where": None}))
    if pid == 0:
        try:
            _close_all_but(fds)
            _settle()
            ProcessKeeper(order, fds).run()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # a bug; the warden ends the processes of this keeper
        finally:
            os._exit(0)
    for fd in fds:
        os.close(fd)
    return pid


class ProcessKeeper:
    """Supervises one program. `_kill_at` is when signalling ends and killing begins; None while nothing must end."""

    def __init__(self, order: Mapping[str, Any], fds: list[int]) -> None:
        self._order = order
        self._streams = fds[:3]
        self._line = socket.socket(fileno=fds[3])
        self._line.setblocking(False)
        self._alarm = _Alarm()
        self._pid = 0
        self._exited = False
        self._kill_at: float | None = None
        self._until: Sequence[float] = order["until"] or NEVER
        self._asked: set[int] = set()
        self._heard = b""

    def run(self) -> None:
        folder = self._order["cwd"]
        private = folder is None
        try:
            if self._is_overdue():  # the sidecar hung in the meantime
                raise OSError(errno.ETIMEDOUT, "overdue")
            if private:
                folder = self._order["private"]
                os.mkdir(folder, 0o700)
            self._pid = _launch(self._order, self._streams, folder)
        except OSError as error:
            self._say({"failed": error.errno, "where": error.filename})
            if private:
                remove(folder)
            return
        for fd in self._streams:
            os.close(fd)
        self._say({"started": self._pid})
        self._watch()
        self._say({"used": _used()})
        if private:
            remove(folder)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._alarm.fileno(), select.POLLIN)
        poll.register(self._line, select.POLLIN)
        while self._reap():
            if self._is_overdue():
                self._kill_by(self._until[1])
            if self._kill_at is not None:
                self._press()
            for fd, _ in poll.poll(self._patience_ms()):
                if fd == self._line.fileno() and not self._listen():
                    poll.unregister(self._line)
            self._alarm.clear()

    def _listen(self) -> bool:
        """Reads orders; returns False when there are no more."""
        try:
            heard = self._line.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            heard = b""
        if not heard:
            self._end(ORPHANED_GRACE_S)
            return False
        self._heard += heard
        while b"\n" in self._heard:
            line, _, self._heard = self._heard.partition(b"\n")
            said = json.loads(line)
            if "end" in said:
                self._end(float(said["end"]))
            else:
                self._until = said["until"] or NEVER
        return True

    def _is_overdue(self) -> bool:
        return time.monotonic() >= self._until[0]

    def _patience_ms(self) -> float | None:
        """Returns how long to wait for an event, in milliseconds; None for no limit."""
        if self._kill_at is not None:
            return STEP_S * 1000
        return None if self._until is NEVER else min(max(0.0, self._until[0] - time.monotonic()), LONGEST_S) * 1000

    def _end(self, grace_s: float) -> None:
        self._kill_by(time.monotonic() + grace_s)

    def _kill_by(self, kill_at: float) -> None:
        self._kill_at = min(self._kill_at or kill_at, kill_at)

    def _press(self) -> None:
        """Signals each child once to end; after the grace, kills them."""
        assert self._kill_at is not None
        killing = time.monotonic() >= self._kill_at
        number = signal.SIGKILL if killing else signal.SIGTERM
        mine = _children()
        if killing or self._pid not in self._asked:
            self._press_group(number)
        for pid in mine:
            if pid != self._pid and (killing or pid not in self._asked):
                self._asked.add(pid)
                _quietly(os.kill, pid, number)

    def _press_group(self, number: int) -> None:
        # Once the program has been reaped, its group's id may be reused; on Linux this misses nothing, because the
        # members of the group are children of this process by then.
        self._asked.add(self._pid)
        if self._exited and LINUX:
            return
        try:
            os.killpg(self._pid, number)
        except OSError:
            _quietly(os.kill, self._pid, number)

    def _reap(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return not LINUX and self._group_is_there()
            if pid == 0:
                return True
            self._asked.discard(pid)
            if pid == self._pid:
                self._exited = True
                self._say({"exited": os.waitstatus_to_exitcode(status)})
                self._end(ORPHANED_GRACE_S)

    def _group_is_there(self) -> bool:
        try:
            os.killpg(self._pid, 0)
        except OSError as error:
            return isinstance(error, PermissionError)
        return True

    def _say(self, what: dict[str, Any]) -> None:
        _quietly(self._line.send, _line(what))  # if the line is closed, its reader notices


def _line(what: dict[str, Any]) -> bytes:
    return json.dumps(what).encode() + b"\n"


def _used() -> list[float]:
    """Returns, of all reaped processes: seconds of CPU, and bytes: the largest one's peak, read from disk, written to
    it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss * 1024 if LINUX else used.ru_maxrss
    blocks = _BLOCK_BYTES if LINUX else 0  # on other systems these are operations of unknown size
    return [used.ru_utime + used.ru_stime, peak, used.ru_inblock * blocks, used.ru_oublock * blocks]


def _launch(order: Mapping[str, Any], streams: list[int], folder: str) -> int:
    """Starts the program; returns its pid. Raises OSError with the reason."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(order, streams, folder, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        fault = pipe.read()
    if not fault:
        return pid
    os.waitpid(pid, 0)
    number, where = json.loads(fault)
    raise OSError(number, os.strerror(number), where)


def _become(order: Mapping[str, Any], streams: list[int], folder: str, writer: int) -> NoReturn:
    """In the new process: drops everything of the keeper's, then executes the program."""
    where = folder
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                with suppress(OSError, ValueError):  # a signal that the C library reserves
                    signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o077)
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        os.dup2(writer, 3, inheritable=False)
        os.closerange(4, _max_fd())
        os.chdir(folder)
        if LINUX:
            _prctl(_PR_SET_NO_NEW_PRIVS)
        _limit(order["limits"])
        where = order["path"]
        os.execve(order["path"], order["argv"], order["env"])  # noqa: S606  no shell: that is the point
    except OSError as error:
        os.write(3, json.dumps([error.errno or errno.EIO, where]).encode())
    finally:
        os._exit(127)


def _limit(limits: Mapping[str, int]) -> None:
    """Limits this process's resources, never above the current limits."""
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        # At the soft limit of CPU time, a program receives SIGXCPU; a second later, at the hard one, it is killed.
        own = most + 1 if name == "CPU" else most
        hard = own if hard == resource.RLIM_INFINITY else min(own, hard)
        resource.setrlimit(kind, (min(most, hard), hard))


def remove(folder: str) -> None:
    """Removes a folder and its content, as far as possible. For a symbolic link, removes only the link. A nested folder
    is first moved to the top: a program can nest folders deeper than a path may be long."""
    if os.path.islink(folder):
        _quietly(os.unlink, folder)
        return
    _quietly(os.chmod, folder, 0o700)
    mark, count = os.urandom(8).hex(), 0
    waiting = _emptied_of_files(folder)
    while waiting:
        path = waiting.pop()
        for inner in _emptied_of_files(path):
            count += 1
            lifted = f"{folder}/{mark}-{count}"
            try:
                os.rename(inner, lifted)
            except OSError:
                continue
            waiting.append(lifted)
        _quietly(os.rmdir, path)
    _quietly(os.rmdir, folder)


def _emptied_of_files(folder: str) -> list[str]:
    """Removes the files in a folder and makes its subfolders accessible; returns their paths."""
    folders = []
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return []
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _quietly(os.chmod, entry.path, 0o700)
            folders.append(entry.path)
        else:
            _quietly(os.unlink, entry.path)
    return folders


def _quietly(what: Any, *arguments: Any) -> None:
    with suppress(OSError):
        what(*arguments)


class _Alarm:
    """A descriptor that is readable when a child has ended."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        for fd in (self._reader, writer):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._reader

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass


def _children() -> list[int]:
    """Returns the pids of this process's children, including dead ones; none on systems other than Linux."""
    if not LINUX:
        return []
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent_of(pid) == me]


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0  # it ended meanwhile


def _settle() -> None:
    """Sets up warden and keeper: they adopt orphans, ignore signals for the sidecar, and write no core dumps."""
    gc.disable()
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prctl(option: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _close_all_but(kept: Iterable[int]) -> None:
    start = 3
    for fd in sorted(kept):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, _max_fd())


def _max_fd() -> int:
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**20)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
