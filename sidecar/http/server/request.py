"""Requests from the parser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import HttpVersion, StreamReader, web
from aiohttp.http_writer import StreamWriter

from sidecar.http.server.repeated_head import RepeatedHead
from sidecar.http.tls import ShownCertificate

if TYPE_CHECKING:
    from sidecar.http.server.listeners import ServerConnection


class HttpRequest(web.BaseRequest):
    """One request. The rest of aiohttp's request, with the writer of event streams, is made when first used."""

    __slots__ = ("content", "head", "keep_alive", "method", "raw_path", "remote", "version")
    content: StreamReader
    head: RepeatedHead | None
    keep_alive: bool
    method: str
    raw_path: str
    remote: str | None
    version: HttpVersion

    def __init__(
        self, message: Any, content: StreamReader, connection: ServerConnection, head: RepeatedHead | None = None
    ) -> None:
        self._message, self._protocol, self.head = message, connection, head
        self.content, self.method, self.version = content, message.method, message.version
        self.raw_path, self.remote, self.keep_alive = message.path, connection.remote, not message.should_close

    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The header lines, in their order."""
        return self._message.raw_headers

    @property
    def shown(self) -> ShownCertificate:
        return self._protocol.shown  # type: ignore[attr-defined,no-any-return]

    @property
    def task(self) -> asyncio.Task[None]:
        """The connection's task; None once the caller has disconnected."""
        return self._protocol._task_handler  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        if "_cache" in self.__dict__:
            raise AttributeError(name)
        connection = self._protocol
        loop = connection._loop
        # Without its task, which would refer back to it.
        super().__init__(self._message, self.content, connection, StreamWriter(connection, loop), None, loop)  # type: ignore[arg-type]
        return getattr(self, name)
