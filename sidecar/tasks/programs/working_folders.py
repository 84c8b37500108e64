"""Creates and removes the working folders of runs whose prompt or answer is a file.

Each is 0700, its files 0600, and locked while in use: an unlocked folder was left by a killed sidecar, and the next
sweep removes it. This may include a folder that was just created and is not locked yet; its creator then makes another.
"""

import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar.upstreams.processes.warden import remove

PREFIX: Final = "sidecar-run-"


class UnreadableFolder(Exception):
    """A program's file cannot be read; the message gives the reason, without a path."""


class WorkingFolder:
    def __init__(self) -> None:
        self._fd = -1
        while self._fd < 0:
            self.path = tempfile.mkdtemp(prefix=PREFIX)
            self._fd = _held(self.path)

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def write(self, name: str, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=self._fd), "wb") as file:
            file.write(content)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Reads a file that the program left: a regular one, in this folder itself. Raises UnreadableFolder."""
        try:
            # Neither blocks on a pipe without a writer, nor follows a link, which could lead anywhere.
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=self._fd)
        except FileNotFoundError:
            raise UnreadableFolder("it wrote no output file") from None
        except OSError as error:
            raise UnreadableFolder(f"its output file cannot be read: {os.strerror(error.errno or 0)}") from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise UnreadableFolder("its output file is not a plain file")
            with os.fdopen(fd, "rb", closefd=False) as file:
                content = file.read(max_bytes + 1)
        except OSError as error:
            raise UnreadableFolder(f"its output file cannot be read: {os.strerror(error.errno or 0)}") from None
        finally:
            os.close(fd)
        if len(content) > max_bytes:
            raise UnreadableFolder(f"its output file holds more than {max_bytes} bytes")
        return content

    def take(self, name: str, max_bytes: int) -> bytes:
        try:
            return self.read(name, max_bytes)
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._fd)

    def remove(self) -> None:
        """Removes the folder and its files. May take long, so don't call it on the event loop. Removing twice is
        allowed."""
        fd, self._fd = self._fd, -1
        remove(self.path)
        if fd >= 0:
            os.close(fd)


def sweep() -> int:
    """Removes folders that no process has locked, and returns how many. Never touches other users' files."""
    removed = 0
    try:
        place = Path(tempfile.gettempdir())
    except OSError:  # nothing can be written there, so nothing was left
        return 0
    for path in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            fd = _held(str(path))
            if fd >= 0:
                remove(str(path))
                os.close(fd)
                removed += 1
    return removed


def _held(path: str) -> int:
    """Opens a folder, locked while open; -1 if another process has it, or it does not exist. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), Path(path).lstat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1
